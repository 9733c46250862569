"""The input-dependent S4 as a model: the equations of both forms, their laws and their stability."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from hf_memory.mixers.ids4 import IDS4Mixer, MemoryIDS4Config, MemoryIDS4ForCausalLM


def written_out(mixer, x):
    """Both forms in float64, channel by channel and step by step."""
    config, size = mixer.config, mixer.config.state_size
    weights = {name: p.detach().double() for name, p in mixer.named_parameters()}
    outputs = []
    for row in x.double():
        product, state = torch.eye(size).double(), torch.zeros(size).double()
        for column in row:
            matrix = sum(value * weights["transition_weight"][i] for i, value in enumerate(column))
            matrix = F.gelu(matrix) if config.transition == "gelu" else torch.eye(size).double() + matrix
            if config.transition_norm == "row":
                matrix = torch.stack([line / max(1.0, line.abs().sum().item()) for line in matrix])
            if config.form == "product":
                product = product @ matrix
                state = product @ weights["readout"] + weights["readout_bias"]
            else:
                state = matrix @ state + weights["in_proj.weight"] @ column + weights["in_proj.bias"]
            read = weights["out_proj.weight"] @ state + weights["out_proj.bias"]
            outputs.append(read + weights["skip_proj.weight"] @ column + weights["skip_proj.bias"])
    return torch.stack(outputs).view_as(x)


@pytest.mark.parametrize("form", ["product", "state"])
@pytest.mark.parametrize("transition", ["residual", "gelu"])
@pytest.mark.parametrize("norm", ["row", "none"])
def test_outputs_equal_the_equations(form, transition, norm):
    config = MemoryIDS4Config(
        vocab_size=11, hidden_size=8, state_size=5, form=form, transition=transition, transition_norm=norm
    )
    mixer = IDS4Mixer(config, 0).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], written_out(mixer, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form, numbers", [("product", 36), ("state", 6)])
def test_state_is_a_matrix_or_a_vector_and_starts_as_identity_or_zero(form, numbers):
    mixer = IDS4Mixer(MemoryIDS4Config(vocab_size=11, hidden_size=8, state_size=6, form=form), 0)
    assert mixer.state_size() == numbers
    (leaf,) = mixer.initial_state(3).values()
    assert torch.equal(leaf, torch.eye(6).expand(3, 6, 6) if form == "product" else torch.zeros(3, 6))


@pytest.mark.parametrize("form", ["product", "state"])
@pytest.mark.parametrize("transition", ["residual", "gelu"])
def test_row_norm_keeps_512_steps_finite_with_gradients(form, transition):
    mixer = IDS4Mixer(MemoryIDS4Config(vocab_size=11, hidden_size=16, form=form, transition=transition), 0)
    output, state = mixer(torch.randn(2, 512, 16))
    output.square().mean().backward()
    assert output.abs().max() < 1e3
    assert all(leaf.isfinite().all() for leaf in state.values())
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


def test_published_form_leaves_float32_within_60_steps():
    config = MemoryIDS4Config(vocab_size=11, hidden_size=64, transition="gelu", transition_norm="none")
    output, _ = IDS4Mixer(config, 0)(torch.randn(2, 60, 64))
    assert output[:, 0].isfinite().all()
    assert not output.isfinite().all()


@pytest.mark.parametrize("transition", ["residual", "gelu"])
def test_transitions_follow_their_law_after_construction_and_loading(transition, tmp_path):
    config = MemoryIDS4Config(vocab_size=11, hidden_size=16, state_size=16, transition=transition)
    model = MemoryIDS4ForCausalLM(config)
    model.save_pretrained(tmp_path)
    for loaded in (model, MemoryIDS4ForCausalLM._from_config(config), MemoryIDS4ForCausalLM.from_pretrained(tmp_path)):
        for block in loaded.model.layers:
            weight = block.mixer.transition_weight.detach()
            mean, std = (torch.eye(16), 1 / 4) if transition == "gelu" else (torch.zeros(16, 16), 1 / 64)
            torch.testing.assert_close(weight.mean(0), mean, rtol=0, atol=5 * std / 4)
            torch.testing.assert_close((weight - mean).std().item(), std, rtol=0.05, atol=0)


def test_spectrum_is_that_of_the_transition_and_within_the_unit_disc_under_the_row_norm():
    mixer = IDS4Mixer(MemoryIDS4Config(vocab_size=11, hidden_size=8, state_size=6), 0).double()
    torch.nn.init.normal_(mixer.transition_weight)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    spectrum = mixer.transition_spectrum(x)
    assert spectrum.shape == (2, 9, 2)
    assert spectrum.abs().max() <= 1 + 1e-9
    matrix = torch.eye(6) + torch.einsum("i,iab->ab", x[1, 4], mixer.transition_weight)
    real = torch.linalg.eigvals(matrix / matrix.abs().sum(1, keepdim=True).clamp(min=1)).real
    torch.testing.assert_close(spectrum[1, 4], torch.stack([real.min(), real.max()]).detach(), rtol=0, atol=1e-9)


def test_bad_fields_raise():
    with pytest.raises(StrictDataclassError, match="state_size must be at least 1"):
        MemoryIDS4Config(vocab_size=11, state_size=0)
    with pytest.raises(StrictDataclassError, match="form"):
        MemoryIDS4Config(vocab_size=11, form="vector")


@pytest.mark.parametrize(
    "transition, norm, low, high, tolerance",
    [
        ("residual", "none", 0.83, 1.16, 0.02),
        ("residual", "row", 0.46, 0.67, 0.02),
        ("gelu", "row", -0.15, 0.82, 0.05),
        ("gelu", "none", -2.2, 17.0, 1.5),
    ],
)
def test_a_fresh_transition_is_as_far_from_the_identity_as_documented(transition, norm, low, high, tolerance):
    mixer = IDS4Mixer(MemoryIDS4Config(transition=transition, transition_norm=norm), 0)
    ends = mixer.transition_spectrum(torch.randn(4, 32, 64)).mean(dim=(0, 1))
    torch.testing.assert_close(ends, torch.tensor([low, high]), rtol=0, atol=tolerance)
