"""sLSTM against the equations without a maximum, and where exponentials overflow."""

from functools import partial

import pytest
import torch

from hf_memory.ops.slstm import slstm, slstm_recurrent, slstm_spectrum
from tests.ops import cell_checks as checks


def _draw(time=5, batch=4, heads=2, size=3, dtype=torch.float64):
    """Inputs and weight, and a state of c, n and h, of which n is positive."""
    inputs = torch.randn(batch, time, heads, 4, size, dtype=dtype)
    leaf = (batch, heads, size)
    state = [torch.randn(leaf, dtype=dtype), torch.rand(leaf, dtype=dtype) + 0.5, torch.randn(leaf, dtype=dtype)]
    return [inputs, 0.7 * torch.randn(heads, size, 4, size, dtype=dtype)], state


def _plain(inputs, weight, initial_state, lengths=None):
    """The sums themselves, cell by cell: (c, n, h), without a maximum."""
    c, n, h = initial_state
    outputs = []
    for t in range(inputs.shape[1]):
        raw = inputs[:, t].clone()
        for head in range(weight.shape[0]):
            for gate in range(4):
                raw[:, head, gate] += h[:, head] @ weight[head, :, gate]
        i, f, z, o = raw.unbind(2)
        cell = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        sums = torch.sigmoid(f) * n + torch.exp(i)
        new = torch.sigmoid(o) * cell / sums
        running = torch.full_like(c, True) if lengths is None else (lengths > t).view(-1, 1, 1)
        c, n, h = (torch.where(running > 0, a, b) for a, b in ((cell, c), (sums, n), (new, h)))
        outputs.append(h)
    return torch.stack(outputs, dim=1).flatten(-2), (c, n, h)


def _unscaled(form):
    """A form as a cell whose state is c, n and h, in units of 1."""

    def cell(inputs, weight, initial_state=None, lengths=None, **options):
        if initial_state is not None:
            c, n, h = initial_state
            initial_state = c, n, torch.zeros_like(c), h
        output, (c, n, m, h) = form(inputs, weight, initial_state=initial_state, lengths=lengths, **options)
        return output.flatten(-2), (c * m.exp(), n * m.exp(), h)

    return cell


FORMS = {
    "torch": _unscaled(partial(slstm, backend="torch")),
    "numba": _unscaled(partial(slstm, backend="numba")),
    "definition": _unscaled(slstm_recurrent),
}
LOOPS = pytest.mark.parametrize("loop", ["torch", "numba"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("time", [1, 2, 7])
@pytest.mark.parametrize("lengths", [None, [0, 1, 1, 1]])
def test_every_form_equals_the_sums_without_a_maximum_in_values_and_gradients(form, time, lengths):
    lengths = None if lengths is None else torch.tensor(lengths) * torch.tensor([0, 1, max(1, time - 1), time])
    checks.assert_same(FORMS[form], _plain, *_draw(time), lengths)


@pytest.mark.parametrize("lengths", [None, [4, 2]])
@LOOPS
def test_numerical_gradients_agree_for_every_input_and_the_state(loop, lengths):
    inputs, state = _draw(4, batch=2)
    lengths = None if lengths is None else torch.tensor(lengths)

    def run(*args):
        output, final = FORMS[loop](*args[:2], initial_state=args[2:], lengths=lengths)
        return output[0], output[1, :2], *final

    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in (*inputs, *state)])


@pytest.mark.parametrize("lengths", [None, [0, 3, 5, 2]])
@LOOPS
def test_pieces_continue_where_the_first_one_stopped(loop, lengths):
    checks.assert_split(FORMS[loop], *_draw(), None if lengths is None else torch.tensor(lengths))


@LOOPS
def test_final_state_is_that_of_the_row_cut_to_its_length_whatever_stands_in_the_padding(loop):
    (inputs, weight), (c, n, h) = _draw()
    lengths, state = torch.tensor([0, 3, 5, 2]), (c, n, torch.randn_like(c), h)
    padding = torch.arange(inputs.shape[1]) >= lengths[:, None]
    rubbish = inputs.masked_fill(padding[:, :, None, None, None], 1e3)
    output, final = slstm(rubbish, weight, state, lengths, backend=loop)
    _, fresh = slstm(rubbish, weight, None, lengths, backend=loop)
    assert output.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        start = tuple(leaf[row : row + 1] for leaf in state)
        alone, expected, first = output[row : row + 1, :0], start, tuple(leaf.new_zeros(1, 2, 3) for leaf in start)
        first[2].fill_(-1e38)
        if length:
            real = inputs[row : row + 1, :length]
            alone, expected = slstm_recurrent(real, weight, start)
            _, first = slstm_recurrent(real, weight)
        torch.testing.assert_close(output[row : row + 1, :length], alone, rtol=0, atol=1e-12)
        for leaf, other, *ours in zip(expected, first, final, fresh, strict=True):
            torch.testing.assert_close(ours[0][row : row + 1], leaf, rtol=0, atol=1e-12)
            torch.testing.assert_close(ours[1][row : row + 1], other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("check", [checks.assert_half_precision, checks.assert_vmap, checks.assert_function_transform])
@LOOPS
def test_precision_replicas_and_transforms_keep_the_values(loop, check):
    check(FORMS[loop], *_draw())


def test_a_compiled_caller_does_not_unroll_the_loop():
    checks.assert_compiles_without_unrolling(slstm, _draw()[0])


@LOOPS
def test_the_first_step_writes_in_full_however_small_its_gate_is(loop):
    inputs, _ = _draw(3, dtype=torch.float32)
    inputs[0][..., 0, :] = -200.0
    output, (_, normalizer, maximum, _) = slstm(inputs[0], torch.zeros_like(inputs[1]), backend=loop)
    gates = inputs[0][:, 0]
    torch.testing.assert_close(output[:, 0], gates[:, :, 3].sigmoid() * gates[:, :, 2].tanh())
    assert (normalizer >= 1).all()
    assert (maximum < -190).all()


@LOOPS
def test_input_gates_far_beyond_the_range_of_float32_keep_their_digits_forward_and_backward(loop):
    inputs, _ = _draw(150, dtype=torch.float32)
    inputs[0][..., 0, :] *= 100
    inputs[1] *= 0.3
    narrow = [tensor.requires_grad_() for tensor in inputs]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    output, state = slstm(*narrow, backend=loop)
    exact, _ = slstm_recurrent(*wide)
    assert (output - exact).abs().max() < 1e-4
    assert state[2].max() > 88
    ours, theirs = (torch.autograd.grad(o.sum(), t) for o, t in ((output, narrow), (exact, wide)))
    for left, right in zip(ours, theirs, strict=True):
        assert torch.isfinite(left).all()
        assert (left - right).abs().max() < 1e-3 * right.abs().max()


def test_outputs_do_not_depend_on_the_first_maximum():
    inputs, (c, n, h) = _draw()
    zero = torch.zeros_like(c)
    expected, _ = slstm(*inputs, initial_state=(c, n, zero, h))
    moved, _ = slstm(*inputs, initial_state=(c / 8, n / 8, zero + torch.tensor(8.0).double().log(), h))
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12)


@LOOPS
@pytest.mark.parametrize("gate", range(4))
def test_nan_in_the_input_reaches_the_later_outputs_of_its_row_only(loop, gate):
    inputs, _ = _draw()
    inputs[0][1, 2, 0, gate, 0] = float("nan")
    output, _ = slstm(*inputs, backend=loop)
    assert output[1, 2:, 0].isnan().any(-1).all()
    assert output[1, :2].isfinite().all()
    assert output[1, :, 1].isfinite().all()
    assert output[[0, 2, 3]].isfinite().all()


def test_spectrum_equals_the_jacobian_of_the_sums_by_automatic_differentiation():
    (x, weight), _ = _draw(6, batch=1)
    expected = checks.real_parts_along(
        lambda column, s: torch.cat(
            [leaf.flatten() for leaf in _plain(column, weight, s.view(3, 1, 2, 3).unbind())[1]]
        ),
        x,
        torch.zeros(18, dtype=torch.float64),
    )
    torch.testing.assert_close(slstm_spectrum(x, weight), expected[None], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["weight", "c", "m"])
def test_shapes_that_do_not_fit_are_refused_by_name(name):
    (inputs, weight), (c, n, h) = _draw()
    state = {"c": c, "n": n, "m": torch.zeros_like(c), "h": h}
    if name == "weight":
        weight = weight[:1]
    else:
        state[name] = state[name][:1]
    with pytest.raises(ValueError, match=f"{name} must have the shape"):
        slstm(inputs, weight, tuple(state.values()))
    with pytest.raises(ValueError, match="backend must be one of"):
        slstm(*_draw()[0], backend="cuda")


def test_float32_in_compiled_loops_is_close_to_float64_at_widths_beyond_one_vector():
    inputs, state = _draw(60, batch=2, size=19, dtype=torch.float32)
    inputs[1] *= 0.3
    checks.assert_same(FORMS["numba"], _plain, inputs, state, torch.tensor([60, 41]), tolerance=2e-5)


def test_the_number_of_threads_changes_no_bit():
    inputs, _ = _draw(200, batch=8, size=16, dtype=torch.float32)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    results, threads = [], torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        output, _ = slstm(*inputs, backend="numba")
        results.append((output, torch.autograd.grad(output.square().sum(), inputs[0])[0]))
    torch.set_num_threads(threads)
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.gpu
def test_gpu_matches_the_definition_in_values_and_gradients():
    checks.assert_same_on_gpu(FORMS["torch"], FORMS["definition"], *_draw(7, size=8), torch.tensor([0, 7, 3, 1]))
