"""Comparisons that the two cores of matrix states share."""

import torch


def gradients(output, final, tensors, lengths=None):
    """Gradients of a weighted sum of the outputs that count, and of the final state."""
    if lengths is not None:
        running = torch.arange(output.shape[1]) < lengths[:, None]
        output = output.masked_fill(~running.view(*running.shape, *[1] * (output.dim() - 2)), 0)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return output, torch.autograd.grad((output * weights).sum() + final.pow(2).sum(), list(tensors.values()))


def assert_same(fast, slow, tensors, lengths=None, tolerance=1e-11, **options):
    """Two forms agree in outputs, final state and the gradient of every tensor, given by name."""
    results = []
    for form, extra in ((fast, options), (slow, {})):
        output, final = form(**tensors, lengths=lengths, **extra)
        output, grads = gradients(output, final, tensors, lengths)
        results.append((output, final, *grads))
    names = ("output", "state", *(f"gradient of {name}" for name in tensors))
    for name, left, right in zip(names, *results, strict=True):

        def told(text, name=name):
            return f"{name}: {text}"

        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance, msg=told)


def assert_stacks(function, tensors):
    """``vmap`` of the gradients over replicas equals each replica alone; tensors by name."""
    stacked = [torch.stack((tensor.detach(), tensor.detach().flip(0))) for tensor in tensors.values()]
    numbers = tuple(range(len(stacked)))

    def loss(*args):
        output, final = function(**dict(zip(tensors, args, strict=True)))
        return output.pow(2).sum() + final.pow(3).sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=numbers))(*stacked)
    for index in range(2):
        alone = torch.func.grad(loss, argnums=numbers)(*(tensor[index] for tensor in stacked))
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left[index], right, rtol=1e-10, atol=1e-10)


def assert_splits(function, tensors, timed):
    """Handing the state on at any split equals one pass.

    Args:
        function: Of the tensors by name, and ``initial_state``.
        tensors: By name.
        timed: How many columns of each tensor belong to a step, by name; others are not cut.
    """
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    initial = tensors.pop("initial_state")
    steps = next(tensors[name].shape[1] // many for name, many in timed.items())
    whole, final = function(**tensors, initial_state=initial)
    for cut in range(1, steps):
        parts = [
            {n: t[:, part(timed[n] * cut)] if n in timed else t for n, t in tensors.items()}
            for part in (lambda at: slice(0, at), lambda at: slice(at, None))
        ]
        first, state = function(**parts[0], initial_state=initial)
        second, last = function(**parts[1], initial_state=state)
        torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(last, final, rtol=1e-11, atol=1e-11)
