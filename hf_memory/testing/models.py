"""Small models of every type, and comparisons that the contract tests share."""

import torch

from hf_memory.mixers.auto import mixer_config, mixer_model

VOCAB, WIDTH, LENGTH = 11, 16, 12


def make(key, head="causal", dtype=torch.float32, seed=0, **fields):
    """A model in evaluation mode whose weights are large enough to matter, those that start at zero too."""
    torch.manual_seed(seed)
    config = mixer_config(key, vocab_size=VOCAB, hidden_size=WIDTH, num_labels=3, initializer_range=0.3, **fields)
    model = mixer_model(config, head)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.3)
    return model.eval().to(dtype)


def tokens(batch=3, length=LENGTH):
    """Random ids (B, T)."""
    return torch.randint(0, VOCAB, (batch, length))


def tolerance(model):
    """Largest difference between one pass and pieces that the mixers of a model allow in float32."""
    return max(layer.mixer.float32_tolerance for layer in model.base_model.layers)


def close(actual, expected, atol):
    """Compare, naming the largest difference."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def close_states(actual, expected, atol):
    """Compare two caches leaf by leaf; sums over time are as exact as their size lets them be."""
    assert torch.equal(actual.positions, expected.positions)
    for ours, theirs in zip(actual.states, expected.states, strict=True):
        assert list(ours) == list(theirs)
        for name in ours:
            size = theirs[name].abs().max().item() if theirs[name].numel() else 0.0
            close(ours[name], theirs[name], atol * max(1.0, size))
