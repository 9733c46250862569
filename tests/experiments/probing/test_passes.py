"""How models go on from their state: found out on the loaded model, and refused where it cannot be."""

import pytest
import torch
from torch import nn

from hf_memory.experiments.probing.passes import Runner, make_runner
from hf_memory.experiments.probing.states import LiveState, changed_on_modules, marks_on_modules
from hf_memory.mixers.auto import mixer_config, model_class
from tests.experiments.probing.pieces import STATE_NUMBERS, VOCABULARY, tiny

STEPS = {"mamba", "recurrent_gemma"}


def loud(model):
    """A model whose layers matter more than at its start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(8.0)
    return model


@pytest.mark.parametrize("name", STATE_NUMBERS)
def test_queries_go_on_as_one_pass_would(name):
    runner = make_runner(loud(tiny(name)))
    assert runner.way == ("steps" if name in STEPS else "chunks")
    assert ("chunks are" in runner.reason) == (name in STEPS)
    ids = torch.randint(1, VOCABULARY, (3, 30))
    suffixes = [torch.randint(1, VOCABULARY, (3, 4)) for _ in range(3)]
    with torch.inference_mode():
        branched = runner.branches(ids, suffixes, 2)
        for suffix, found in zip(suffixes, branched, strict=True):
            whole, _ = runner.forward(torch.cat([ids, suffix], 1), None, 2, keep=False)
            torch.testing.assert_close(found, whole, rtol=1e-3, atol=1e-3)


def test_a_prefix_is_read_in_pieces_only_where_that_is_exact():
    ids = torch.randint(1, VOCABULARY, (2, 40))
    sizes = []
    for name in ("llama", "mamba"):
        runner = make_runner(tiny(name), chunk=16)
        pieces = []
        forward = runner.forward
        runner.forward = lambda part, *rest, forward=forward, pieces=pieces, **more: (
            pieces.append(part.shape[1]) or forward(part, *rest, **more)
        )
        with torch.inference_mode():
            runner.prefix(ids)
        sizes.append(pieces)
    assert sizes == [[16, 16, 8], [40]]


@pytest.mark.parametrize("inference", [True, False])
def test_what_a_pass_puts_on_modules_is_found_wherever_it_lies_in_memory(inference):
    with torch.inference_mode(inference):
        module = nn.Identity()
        module.state, module.written, module.same = torch.zeros(3), torch.zeros(3), torch.zeros(3)
        for _ in range(20):
            marks = marks_on_modules(module)
            module.state = None  # its place in memory is free for the next one
            module.state = torch.ones(3)
            module.written += 1
            assert {name for _, name in changed_on_modules(module, marks)} == {"state", "written"}


def test_a_copy_of_a_state_is_not_written_into():
    runner = make_runner(tiny("falcon_h1"))
    with torch.inference_mode():
        state = runner.prefix(torch.randint(1, VOCABULARY, (2, 12)))
        before = [tensor.clone() for tensor in state.tensors()]
        runner.go_on(state.copy(), torch.randint(1, VOCABULARY, (2, 3)), 1)
    for tensor, old in zip(state.tensors(), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("key", ["lstm", "mamba", "attention", "delta_net"])
def test_states_of_this_package_have_the_bytes_that_their_cache_counts(key):
    model = model_class(key, "causal")(mixer_config(key, vocab_size=20, hidden_size=16, num_hidden_layers=2)).eval()
    runner = make_runner(model)
    assert runner.way == "chunks"
    assert runner.live_state(24).numbers() == model.state_size(24)


def test_a_model_whose_state_is_not_found_is_refused():
    class Forgetful(nn.Module):
        dtype = torch.float32

        def __init__(self):
            super().__init__()
            self.inner = tiny("llama")
            self.config = self.inner.config

        def get_input_embeddings(self):
            return self.inner.get_input_embeddings()

        def forward(self, input_ids):
            return self.inner(input_ids=input_ids, use_cache=False)

    runner = make_runner(Forgetful())
    assert (runner.way, runner.reason) == ("whole", "no state is found")
    with pytest.raises(ValueError, match="Forgetful .* cannot be probed"):
        runner.live_state(8)


def test_a_state_counts_each_memory_once():
    shared = torch.zeros(4, 3)
    state = LiveState("cache", [{"a": shared, "b": [shared]}, torch.zeros(2), torch.zeros(5, dtype=torch.int64)], {}, 1)
    assert (state.numbers(), state.nbytes()) == (14, 56)
    assert isinstance(Runner(tiny("gpt2")).device, torch.device)
