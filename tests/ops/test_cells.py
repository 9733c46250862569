"""The cells with the weights of torch's own layers: what holds for each of them."""

from functools import partial

import pytest
import torch

from hf_memory.ops._cells import native_rnn, one_block
from hf_memory.ops.elman import elman, elman_recurrent
from hf_memory.ops.gru import gru, gru_recurrent
from hf_memory.ops.lstm import lstm, lstm_recurrent
from tests.ops import cell_checks as checks

RELU = {"nonlinearity": "relu"}
# By the name of torch's kernel: the cell, its definition, the blocks of its weights and the tensors of its state.
CELLS = {
    "rnn_tanh": (elman, elman_recurrent, 1, 1),
    "rnn_relu": (partial(elman, **RELU), partial(elman_recurrent, **RELU), 1, 1),
    "gru": (gru, gru_recurrent, 3, 1),
    "lstm": (lstm, lstm_recurrent, 4, 2),
}


LAYERS = {
    "rnn_tanh": torch.nn.RNN,
    "rnn_relu": partial(torch.nn.RNN, **RELU),
    "gru": torch.nn.GRU,
    "lstm": torch.nn.LSTM,
}


@pytest.fixture(params=CELLS)
def case(request):
    """A cell, its definition, and what draws its inputs and its state."""
    cell, definition, blocks, num_leaves = CELLS[request.param]
    return cell, definition, partial(checks.draw, blocks, num_leaves=num_leaves)


@pytest.mark.parametrize("time", [1, 2, 7])
@pytest.mark.parametrize("lengths", [None, [0, 1, 1, 1]])
def test_a_cell_matches_its_definition_in_values_and_gradients(case, time, lengths):
    cell, definition, draw = case
    lengths = None if lengths is None else torch.tensor(lengths) * torch.tensor([0, 1, max(1, time - 1), time])
    checks.assert_same(cell, definition, *draw(time), lengths)


def test_float32_stays_close_to_float64(case):
    cell, definition, draw = case
    inputs, state = draw(33, size=16, dtype=torch.float32)
    inputs[2] *= 0.3
    checks.assert_same(cell, definition, inputs, state, tolerance=1e-5)


@pytest.mark.parametrize("lengths", [None, [4, 2]])
def test_numerical_gradients_agree_for_every_input_and_the_state(case, lengths):
    cell, _, draw = case
    inputs, state = draw(4, batch=2, size=3)
    lengths = None if lengths is None else torch.tensor(lengths)

    def run(*args):
        output, final = cell(*args[:5], initial_state=checks.pack(args[5:]), lengths=lengths)
        return output[0], output[1, :2], *checks.leaves(final)

    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in (*inputs, *state)])


@pytest.mark.parametrize("name", LAYERS)
def test_a_cell_equals_the_layer_of_torch_with_the_same_weights(name, float64):
    cell, _, _, num_leaves = CELLS[name]
    reference = LAYERS[name](3, 6, batch_first=True)
    x, state = torch.randn(4, 9, 3, requires_grad=True), [torch.randn(4, 6) for _ in range(num_leaves)]
    expected, expected_final = reference(x, checks.pack([leaf[None] for leaf in state]))
    output, final = cell(x, *reference.parameters(), initial_state=checks.pack(state))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(checks.leaves(final), checks.leaves(expected_final), strict=True):
        torch.testing.assert_close(ours, theirs[0], rtol=0, atol=1e-12)
    weights = [x, *reference.parameters()]
    ours = torch.autograd.grad(output.sin().sum(), weights)
    theirs = torch.autograd.grad(expected.sin().sum(), weights)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CELLS)
def test_the_kernel_for_gpus_takes_the_same_arguments_in_the_same_order(name):
    _, definition, blocks, num_leaves = CELLS[name]
    (x, *weights), state = checks.draw(blocks, num_leaves=num_leaves)
    output, *final = native_rnn(name, x, state, one_block(weights))
    expected, expected_final = definition(x, *weights, checks.pack(state))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(tuple(final), checks.leaves(expected_final), rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, [0, 3, 5, 2]])
def test_pieces_continue_where_the_first_one_stopped(case, lengths):
    cell, _, draw = case
    checks.assert_split(cell, *draw(), None if lengths is None else torch.tensor(lengths))


def test_final_state_is_that_of_the_row_cut_to_its_length(case):
    cell, _, draw = case
    checks.assert_lengths(cell, *draw(), torch.tensor([0, 3, 5, 2]))


@pytest.mark.parametrize("check", [checks.assert_half_precision, checks.assert_vmap, checks.assert_function_transform])
def test_precision_replicas_and_transforms_keep_the_values(case, check):
    cell, _, draw = case
    check(cell, *draw())


def test_a_compiled_caller_does_not_unroll_the_loop(case):
    cell, _, draw = case
    checks.assert_compiles_without_unrolling(cell, draw()[0])


@pytest.mark.gpu
def test_gpu_matches_the_definition_in_values_and_gradients(case):
    cell, definition, draw = case
    checks.assert_same_on_gpu(cell, definition, *draw(7, size=8), torch.tensor([0, 7, 3, 1]))


def test_arguments_are_left_as_they_were(case):
    cell, _, draw = case
    inputs, state = draw()
    copies = [tensor.clone() for tensor in (*inputs, *state)]
    cell(*inputs, initial_state=checks.pack(state), lengths=torch.tensor([0, 3, 5, 2]))
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *state), copies, strict=True))


def test_nan_in_the_input_reaches_the_later_outputs_of_its_row_only(case):
    cell, _, draw = case
    inputs, _ = draw()
    inputs[0][1, 2, 0] = float("nan")
    output, _ = cell(*inputs)
    assert output[1, 2:].isnan().all()
    assert output[1, :2].isfinite().all()
    assert output[[0, 2, 3]].isfinite().all()


def test_an_unknown_backend_raises(case):
    cell, _, draw = case
    with pytest.raises(ValueError, match="backend must be one of"):
        cell(*draw()[0], backend="cuda")
