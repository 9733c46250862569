"""Checks that every nonlinear recurrent cell passes. A state is a tensor or a tuple of tensors here."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

Cell = Callable[..., tuple[Tensor, Tensor | tuple[Tensor, ...]]]


def draw(blocks: int, time: int = 5, batch: int = 4, width: int = 3, size: int = 6, num_leaves: int = 1, **options):
    """Inputs and weights of a cell with the layout of torch, and a state of so many tensors; float64 unless told."""
    options = {"dtype": torch.float64, **options}
    rows = blocks * size
    shapes = [(batch, time, width), (rows, width), (rows, size), (rows,), (rows,)]
    inputs = [0.7 * torch.randn(shape, **options) for shape in shapes]
    return inputs, [torch.randn(batch, size, **options) for _ in range(num_leaves)]


def leaves(state: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else tuple(state)


def pack(tensors: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def values_and_gradients(
    cell: Cell, inputs: Sequence[Tensor], state: Sequence[Tensor], lengths: Tensor | None
) -> list[Tensor]:
    """Outputs up to each length, final state, and the gradient of a fixed function of both at every input."""
    inputs, state = ([tensor.detach().clone().requires_grad_() for tensor in group] for group in (inputs, state))
    output, final = cell(*inputs, initial_state=pack(state), lengths=lengths)
    if lengths is not None:
        output = output * (torch.arange(output.shape[1], device=output.device) < lengths[:, None]).unsqueeze(-1)
    results = [output, *leaves(final)]
    weights = [torch.linspace(-1, 2, r.numel(), dtype=r.dtype, device=r.device).cos().view(r.shape) for r in results]
    loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    return [r.detach() for r in results] + list(torch.autograd.grad(loss, [*inputs, *state]))


def assert_same(cell, definition, inputs, state, lengths=None, tolerance=1e-10, reference=torch.float64) -> None:
    """The cell in the dtype of the inputs gives what the definition gives in float64: values and gradients."""
    got = values_and_gradients(cell, inputs, state, lengths)
    exact = [[tensor.to(reference) for tensor in group] for group in (inputs, state)]
    for actual, expected in zip(got, values_and_gradients(definition, *exact, lengths), strict=True):
        scale = expected.abs().max().clamp_min(1.0)
        torch.testing.assert_close(actual.double() / scale, expected / scale, rtol=0, atol=tolerance)


def assert_same_on_gpu(cell, definition, inputs, state, lengths) -> None:
    """On a CUDA device the cell gives what the definition gives there, in float64, and closely in float32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            moved = [[tensor.to("cuda", dtype) for tensor in group] for group in (inputs, state)]
            for row_lengths in (None, lengths.cuda()):
                assert_same(cell, definition, *moved, row_lengths, tolerance)


def assert_split(cell, inputs, state, lengths=None, tolerance=1e-10) -> None:
    """For every split of time the two pieces give the outputs and the final state of one pass."""
    x, *weights = inputs
    whole, final = cell(x, *weights, initial_state=pack(state), lengths=lengths)
    for leaf in leaves(final):
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size(), "the state keeps more than itself"
    for cut in range(1, x.shape[1]):
        heads = None if lengths is None else lengths.clamp(max=cut)
        tails = None if lengths is None else (lengths - cut).clamp(min=0)
        first, middle = cell(x[:, :cut], *weights, initial_state=pack(state), lengths=heads)
        second, last = cell(x[:, cut:], *weights, initial_state=middle, lengths=tails)
        joined = torch.cat([first, second], dim=1)
        valid = slice(None) if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
        torch.testing.assert_close(joined[valid], whole[valid], rtol=0, atol=tolerance)
        for a, b in zip(leaves(last), leaves(final), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def assert_lengths(cell, inputs, state, lengths) -> None:
    """Each row's final state is that of the row cut to its length; what stands in the padding does not matter."""
    x, *weights = inputs
    rubbish = x.masked_fill((torch.arange(x.shape[1]) >= lengths[:, None]).unsqueeze(-1), 1e3)
    output, final = cell(rubbish, *weights, initial_state=pack(state), lengths=lengths)
    assert output.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        start = [leaf[row : row + 1] for leaf in state]
        expected_output, expected = x.new_zeros(1, 0, output.shape[-1]), start
        if length:
            expected_output, expected = cell(x[row : row + 1, :length], *weights, initial_state=pack(start))
        torch.testing.assert_close(output[row : row + 1, :length], expected_output, rtol=0, atol=1e-12)
        for a, b in zip(leaves(final), leaves(expected), strict=True):
            torch.testing.assert_close(a[row : row + 1], b, rtol=0, atol=1e-12)


def assert_half_precision(cell, inputs, state) -> None:
    """In bfloat16 the run is that of the rounded numbers in float32, and so is its state; autocast changes nothing."""
    rounded = [tensor.bfloat16() for tensor in inputs]
    start = pack([leaf.float() for leaf in state])
    output, final = cell(*rounded, initial_state=start)
    expected_output, expected = cell(*[tensor.float() for tensor in rounded], initial_state=start)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected_output.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        _, autocast = cell(*[tensor.float() for tensor in rounded], initial_state=start)
    for a, b, c in zip(leaves(final), leaves(expected), leaves(autocast), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
        assert torch.equal(c, b)


def assert_compiles_without_unrolling(cell, inputs) -> None:
    """A compiled caller gives the same values, and its graph does not grow with the number of steps."""
    nodes = []

    def count(graph, _):
        nodes.append(len(graph.graph.nodes))
        return graph

    for steps in (3, 12):
        torch._dynamo.reset()
        nodes.append(0)
        x = torch.cat([inputs[0]] * steps, dim=1)
        compiled = torch.compile(lambda x: (2 * cell(x, *inputs[1:])[0]).sum(1), backend=count, dynamic=False)
        torch.testing.assert_close(compiled(x), 2 * cell(x, *inputs[1:])[0].sum(1))
    middle = nodes.index(0, 1)
    assert sum(nodes[:middle]) == sum(nodes[middle:])


def assert_vmap(cell, inputs, state) -> None:
    """Replicas with their own weights, side by side, give the values and gradients of one after the other."""
    x, *weights = inputs
    stacked = [torch.stack([w, 0.5 * w, -w]).requires_grad_() for w in weights]
    output, final = vmap(lambda *w: cell(x, *w, initial_state=pack(state)))(*stacked)
    total = output.cos().sum() + sum(leaf.cos().sum() for leaf in leaves(final))
    gradients = torch.autograd.grad(total, stacked)
    for replica in range(3):
        own = [w[replica].detach().clone().requires_grad_() for w in stacked]
        one_output, one_final = cell(x, *own, initial_state=pack(state))
        torch.testing.assert_close(output[replica], one_output, rtol=0, atol=1e-10)
        one_total = one_output.cos().sum() + sum(leaf.cos().sum() for leaf in leaves(one_final))
        for stacked_gradient, gradient in zip(gradients, torch.autograd.grad(one_total, own), strict=True):
            torch.testing.assert_close(stacked_gradient[replica], gradient, rtol=0, atol=1e-9)


def assert_function_transform(cell, inputs, state) -> None:
    """``torch.func.grad``, also one per replica under ``vmap``, gives the gradients of ordinary backward passes."""

    def total(*args):
        output, final = cell(*args, initial_state=pack(state))
        return output.cos().sum() + sum(leaf.cos().sum() for leaf in leaves(final))

    own = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    expected = torch.autograd.grad(total(*own), own)
    for actual, gradient in zip(grad(total, argnums=tuple(range(len(own))))(*inputs), expected, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=0, atol=1e-12)
    every = tuple(range(len(own)))
    stacked = [torch.stack([tensor.detach(), 2 * tensor.detach()]) for tensor in own]
    for actual, gradient in zip(vmap(grad(total, argnums=every))(*stacked), expected, strict=True):
        torch.testing.assert_close(actual[0], gradient, rtol=0, atol=1e-10)


def real_parts_along(step, x: Tensor, state: Sequence[Tensor]) -> Tensor:
    """Smallest and largest real part of the eigenvalues of the Jacobian of every step, by automatic differentiation.

    Args:
        step: Maps an input (1, 1, I) and a flat state (S,) to the next flat state.
        x: Inputs (1, T, I).
        state: Flat state before the first step, in one tensor.
    """
    rows = []
    for t in range(x.shape[1]):
        column = x[:, t : t + 1]
        real = torch.linalg.eigvals(jacrev(lambda s, column=column: step(column, s))(state)).real
        rows.append(torch.stack([real.min(), real.max()]))
        state = step(column, state)
    return torch.stack(rows)
