"""One step of a non-saturating recurrent unit's memory, compiled by numba for the CPU; symbols as in ``_nru_loop``.

One item is a row: all that a step writes to its memory, or takes from the gradient there. Products with weights stay
with torch, which takes all rows at once.
"""

import numpy as np
from torch import Tensor

from hf_memory.ops.backends.numba_common import compiled, refusal, run

__all__ = ["constants", "refusal", "write", "write_gradient"]


def constants(like: Tensor, scale: float, floor: float) -> np.ndarray:
    """What the loops read, in the dtype of the state: the scale, the least norm and its root, the least number."""
    dtype = like.new_empty(0).numpy().dtype
    return np.array([scale, floor, floor**0.5, np.finfo(dtype).tiny], dtype)


def write(gates: Tensor, memory: Tensor, constants: np.ndarray, num_heads: int, relu_gains: bool) -> None:
    """Add what gains and directions (R, B, 2 k + 4 side) write to a memory (R, B, M), in place."""
    arrays = gates.numpy(), memory.numpy(), constants
    run(_write, memory.shape[:-1].numel(), memory.numel(), *arrays, num_heads, relu_gains)


def write_gradient(
    gates: Tensor, grad_memory: Tensor, grad_gates: Tensor, constants: np.ndarray, num_heads: int, relu_gains: bool
) -> None:
    """Fill the gradient of the gates from that of the memory after the step; that of the memory before is the same."""
    arrays = gates.numpy(), grad_memory.numpy(), grad_gates.numpy(), constants
    run(_gradient, grad_memory.shape[:-1].numel(), grad_memory.numel(), *arrays, num_heads, relu_gains)


@compiled
def _write(start, stop, gates, memory, constants, heads, relu):
    rows, side = gates.shape[1], (gates.shape[2] - 2 * heads) // 4
    rank = side // heads
    u, divisors, above = np.empty(rank, gates.dtype), np.empty(heads, gates.dtype), np.empty(heads, np.bool_)
    for item in range(start, stop):
        own, square = gates[item // rows, item % rows], memory[item // rows, item % rows]
        for part in range(2):
            gains, p, q = _parts(own, part, heads, side)
            divisor = _divide(p, q, constants, divisors, above)
            _join(gains, p, divisors, constants[0] if part == 0 else -constants[0], relu, u)
            for j in range(rank):
                for s in range(side):
                    square[j * side + s] += u[j] * (q[s] / divisor)


@compiled
def _gradient(start, stop, gates, grad_memory, grad_gates, constants, heads, relu):
    rows, side = gates.shape[1], (gates.shape[2] - 2 * heads) // 4
    rank = side // heads
    u, grad_u, rest = np.empty(rank, gates.dtype), np.empty(rank, gates.dtype), np.empty(side, gates.dtype)
    divisors, above, none = np.empty(heads, gates.dtype), np.empty(heads, np.bool_), gates.dtype.type(0)
    for item in range(start, stop):
        own, filled = gates[item // rows, item % rows], grad_gates[item // rows, item % rows]
        square = grad_memory[item // rows, item % rows]
        for part in range(2):
            gains, p, q = _parts(own, part, heads, side)
            to_gains, to_p, to_q = _parts(filled, part, heads, side)
            divisor = _divide(p, q, constants, divisors, above)
            scale = constants[0] if part == 0 else -constants[0]
            _join(gains, p, divisors, scale, relu, u)
            to_q[:] = none
            for j in range(rank):
                grad_u[j] = none
                for s in range(side):
                    grad_u[j] += square[j * side + s] * (q[s] / divisor)
                    to_q[s] += u[j] * square[j * side + s]
            pulled_q = none
            for i in range(heads):
                head = p[i * rank : (i + 1) * rank]
                factor = none if relu and not gains[i] > none else scale
                coefficient, along = factor * gains[i], none
                for j in range(rank):
                    along += head[j] / divisors[i] * grad_u[j]
                to_gains[i] = along * factor
                pulled = coefficient * along if above[i] else none
                pulled_q += pulled
                _steepness(head, constants[3], rest)
                for j in range(rank):
                    to_p[i * rank + j] = coefficient / divisors[i] * grad_u[j] - pulled * rest[j]
            _steepness(q, constants[3], rest)
            for s in range(side):
                to_q[s] = to_q[s] / divisor - pulled_q * rest[s]


@compiled
def _parts(own, part, heads, side):
    """Gains, p and q of a row: of writing, or of erasing."""
    p, q = 2 * heads + part * side, 2 * heads + (2 + part) * side
    return own[part * heads : (part + 1) * heads], own[p : p + side], own[q : q + side]


@compiled
def _divide(p, q, constants, divisors, above):
    """Fill the numbers a_i and whether norms are above the floor; return b. No product of two norms is ever formed."""
    rank = len(p) // len(divisors)
    norm_q = _five_norm(q, constants[3])
    divisor = _at_least(norm_q, constants[2])
    floor = _at_least(constants[1] / divisor, constants[3])
    for i in range(len(divisors)):
        product = _five_norm(p[i * rank : (i + 1) * rank], constants[3]) * (norm_q / divisor)
        divisors[i], above[i] = _at_least(product, floor), product > floor
    return divisor


@compiled
def _join(gains, p, divisors, scale, relu, u):
    """Fill u, the sum over the heads of c_i P_i."""
    u[:] = p.dtype.type(0)
    for i in range(len(gains)):
        if not (relu and gains[i] < 0):
            for j in range(len(u)):
                u[j] += scale * gains[i] * (p[i * len(u) + j] / divisors[i])


@compiled
def _five_norm(x, tiny):
    """By way of the largest number: fifth powers of float32 end at 5e7^5."""
    largest, total = x.dtype.type(0), x.dtype.type(0)
    for number in x:
        largest = max(largest, abs(number))
    bound = _at_least(largest, tiny)
    for number in x:
        scaled = abs(number) / bound
        total += scaled * scaled * scaled * scaled * scaled
    return total ** x.dtype.type(0.2) * largest


@compiled
def _steepness(x, tiny, out):
    """Fill p^3 |p| / |p|_5^5; a direction of zeros has a norm that does not move."""
    norm = _at_least(_five_norm(x, tiny), tiny)
    for j in range(len(x)):
        scaled = x[j] / norm
        out[j] = scaled * scaled * scaled * abs(scaled) / norm


@compiled
def _at_least(number, bound):
    """The larger one; no number where the first is none."""
    return bound if number < bound else number
