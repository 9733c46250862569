"""What a compiler and an export make of a model: few graphs for all lengths, equal outputs, equal gradients."""

import pytest
import torch
from torch._dynamo.utils import counters

from hf_memory.testing.models import close, make, tokens

MASK = {"left": [0, 0, 1, 1], "interior": [1, 0, 1, 1], "right": [1, 1, 1, 0]}


def masks(length):
    """One row padded on its left, inside and on its right."""
    rows = [torch.tensor(ends[:2] + [1] * (length - 4) + ends[2:]) for ends in MASK.values()]
    return torch.stack(rows)


def check_compiled(key, lengths, **fields):
    """Compile a model in training, with labels and a mask, and compare it with itself at each length."""
    torch.compiler.reset()
    counters.clear()
    model = make(key, **fields).train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for length in lengths:
        ids, mask = tokens(length=length), masks(length)
        labels = ids.masked_fill(mask == 0, -100)
        losses = [call(ids, attention_mask=mask, labels=labels).loss for call in (model, compiled)]
        close(losses[1], losses[0], 1e-5)
        ours, theirs = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses)
        for expected, found in zip(ours, theirs, strict=True):
            found = torch.zeros_like(expected) if found is None else found
            close(found, expected, 1e-4 * max(1.0, expected.abs().max().item()))
    assert counters["stats"]["unique_graphs"] <= 3
    torch.compiler.reset()


def test_a_compiled_training_step_has_few_graphs_and_the_gradients_of_a_plain_one(key):
    check_compiled(key, (7, 11, 16), num_hidden_layers=1 if key != "hybrid" else 2)


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_an_exported_model_gives_the_same_outputs(key, masked):
    model, ids = make(key), tokens()
    options = {"use_cache": False} | ({"attention_mask": masks(ids.shape[1])} if masked else {})
    exported = torch.export.export(model, (ids,), options, strict=False).module()
    other = tokens()
    close(exported(other, **options).logits, model(other, **options).logits, 1e-5)
