"""What the tests of mixers with a matrix memory share: maps written out, weights of other implementations."""

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_memory.hub.conversions import source_of
from hf_memory.hub.conversions.source import MLP_MAPS
from hf_memory.hub.convert import model_of
from tests.mixers.option_checks import randomised


def mixer_of(model_class, **fields):
    """The mixer of a model of one block of width 8, in float64, with weights that are large enough to matter."""
    fields = {"vocab_size": 5, "hidden_size": 8, "num_hidden_layers": 1, "initializer_range": 0.3, **fields}
    return randomised(model_class, model_class.config_class(**fields)).layers[0].mixer


def convolved(conv, inputs: Tensor) -> Tensor:
    """A short convolution and SiLU for one row (T, D), tap by tap; SiLU alone without a convolution."""
    if conv is not None:
        kernel = conv.kernel_size
        padded = torch.cat((inputs.new_zeros(kernel - 1, inputs.shape[1]), inputs))
        mixed = sum(padded[i : i + len(inputs)] * conv.weight[:, i] for i in range(kernel))
        inputs = mixed if conv.bias is None else mixed + conv.bias
    return inputs * torch.sigmoid(inputs)


def unit(vectors: Tensor) -> Tensor:
    """Divided by their Euclidean norm, with 1e-6 under the root."""
    return vectors / (vectors.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def normed(vectors: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """An RMS norm written out."""
    return vectors / (vectors.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def assert_is_the_loop(mixer, loop, length=21, rows=2, tolerance=1e-10):
    """Outputs, memory and gradients are those of ``loop(mixer, inputs (T, D)) -> outputs, memory`` over each row."""
    inputs = torch.randn(rows, length, mixer.config.hidden_size, dtype=torch.float64)
    outputs, final = mixer(inputs)
    expected, memory = (torch.stack(rows) for rows in zip(*(loop(mixer, row) for row in inputs), strict=True))
    torch.testing.assert_close(outputs, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(final["memory"], memory, rtol=tolerance, atol=tolerance)
    parameters = list(mixer.parameters())
    ours = torch.autograd.grad((outputs**2).sum() + (final["memory"] ** 2).sum(), parameters)
    theirs = torch.autograd.grad((expected**2).sum() + (memory**2).sum(), parameters)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=100 * tolerance, atol=100 * tolerance)


def copy_weights(pairs, ours):
    """Copy the first of each pair into the second; every parameter of ours is among them."""
    with torch.no_grad():
        for source, target in pairs:
            target.copy_(source.reshape(target.shape))
    assert {id(target) for _, target in pairs} == {id(parameter) for parameter in ours.parameters()}


def scramble(model):
    """Move every parameter, those of a norm or a bias too, so that one that was forgotten shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def assert_same_logits(theirs, ours, vocabulary=11, length=70, tolerance=2e-5):
    """Logits without padding, and with padding on the left, which the other implementation knows too."""
    ids = torch.randint(0, vocabulary, (2, length))
    mask = torch.ones_like(ids)
    mask[0, :13] = 0
    for given in (None, mask):
        expected, actual = (model(ids, attention_mask=given, use_cache=False).logits for model in (theirs, ours))
        real = torch.ones_like(ids) if given is None else given
        difference = (actual - expected)[real.bool()].abs().max()
        assert difference < tolerance * expected.abs().max(), difference


def converted(theirs):
    """A model of transformers, all of whose layers have a counterpart, as one of ours."""
    return model_of(source_of(theirs.config.model_type), theirs)


def without_biases(theirs):
    """A RecurrentGemma whose MLPs have no biases, as those of ours."""
    with torch.no_grad():
        for block in theirs.model.layers:
            for name in MLP_MAPS:
                getattr(block.mlp_block, name).bias.zero_()
    return theirs


def assert_uniform(values: Tensor, low: float, high: float) -> None:
    """Drawn uniformly between two bounds: the largest distance of the distribution functions is that of chance."""
    values = values.detach().flatten().double().sort().values
    assert low <= values[0]
    assert values[-1] <= high
    expected = (values - low) / (high - low)
    observed = (torch.arange(len(values)) + 0.5) / len(values)
    assert (expected - observed).abs().max() < 1.95 / len(values) ** 0.5  # exceeded once in a thousand times


def inverse_softplus_log(bias: Tensor) -> Tensor:
    """log softplus(b)."""
    return F.softplus(bias.detach().double()).log()
