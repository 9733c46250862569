"""What training keeps and does for its backward pass grows in proportion to the length, for every model type."""

import torch

from hf_memory.testing.models import make


def bytes_kept(model, length):
    """Bytes of all storages that one training step saves for its backward pass, each counted once."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    embeds = torch.randn(1, length, 16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(inputs_embeds=embeds, labels=torch.zeros(1, length, dtype=torch.int64)).loss
    loss.backward()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(storage.nbytes() for address, storage in storages.items() if address not in parameters)


def test_what_is_kept_for_the_backward_pass_grows_with_the_length_and_not_with_its_square(key):
    model = make(key, max_position_embeddings=2048).train()
    short, middle, long = (bytes_kept(model, length) for length in (128, 512, 2048))
    # Between equal steps of length a linear cost grows by equal amounts, four times as large for four times the step.
    assert middle - short > 0
    assert long - middle < 4.4 * (middle - short)


def cuts_in_graph(model, length):
    """How many slices and selections of tensors stand in the graph of a training step."""
    embeds = torch.randn(1, length, 16)
    loss = model(inputs_embeds=embeds, labels=torch.zeros(1, length, dtype=torch.int64)).loss
    seen, pending = set(), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [parent for parent, _ in node.next_functions]
    return sum(node.name() in ("SelectBackward0", "SliceBackward0", "IndexBackward0") for node in seen)


def test_time_is_not_sliced_step_by_step_under_autograd(key):
    # The backward pass of each slice fills a tensor of the whole length, so that one for every step is quadratic.
    model = make(key, max_position_embeddings=2048).train()
    assert cuts_in_graph(model, 520) == cuts_in_graph(model, 200)
