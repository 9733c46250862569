r"""Products of the steps of a chunk under the decay that lies between them, without a number that can overflow.

With log decays g and rows r, columns k of a chunk, a score is

    s_ij = sum_k r_ik k_jk exp(g_{j+1,k} + ... + g_ik)  for j <= i, else 0.

Differences of cumulative sums lose digits where a strong decay stands in the chunk, and their factors exp(L_i) and
exp(-L_j) overflow. So a chunk is halved: for i in the second half and j in the first, the sum is what lies between j
and the middle and what lies between the middle and i, both at most zero, and the scores between the halves are one
product of rows times exp(...) with columns times exp(...). Each half is halved again, down to blocks whose decay is
known to be mild, or to single steps. The sums are built on the way back by adding, so that each is as exact as its own
size lets it be; a log decay of -88 costs its neighbours no digit. One number for all keys needs no halving: its sums
are taken in float64.

Linear-time forms of the literature (Yang et al., 2024, "Gated linear attention transformers", section 4) stop at blocks
of 16 steps and multiply out the rest; halving needs log2(c) products instead and no tensor of c c K numbers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hf_memory.ops.backends.dispatch import in_function_transform


class DecayedScores(NamedTuple):
    """What :func:`decayed_scores` returns.

    Attributes:
        scores: s_ij (G, n, c, c) for each row, and in it for each column.
        since_start: Sums of log decays from the start of the chunk to each step, as a row reads, or None.
        until_end: Sums of log decays after each step to the end of the chunk, or None.
        total: Sums over the chunk (G, n) or (G, n, K), or None.
    """

    scores: list[list[Tensor]]
    since_start: Tensor | None
    until_end: Tensor | None
    total: Tensor | None

    def from_start(self, rows: Tensor) -> Tensor:
        """Rows (..., c, K), decayed from the start of their chunk."""
        return rows if self.since_start is None else rows * _columns(self.since_start.exp(), rows)

    def to_end(self, columns: Tensor) -> Tensor:
        """Columns (..., c, K), decayed to the end of their chunk."""
        return columns if self.until_end is None else columns * _columns(self.until_end.exp(), columns)


def decayed_scores(
    rows: Sequence[Tensor],
    columns: Sequence[Tensor],
    log_decay: Tensor | None,
    before: bool = False,
    least: float | None = None,
) -> DecayedScores:
    """Scores between the steps of each chunk.

    Args:
        rows: R tensors (G, n, c, K).
        columns: C tensors (G, n, c, K).
        log_decay: g (G, n, c) or (G, n, c, K), with c a power of two; None for no decay.
        before: Rows read before their own step: its decay and its column are left out.
        least: A bound of g from below that is known to the caller, or None.
    """
    if log_decay is None:
        diagonal = -1 if before else 0
        return DecayedScores(
            [[(row @ column.mT).tril(diagonal) for column in columns] for row in rows], None, None, None
        )
    if log_decay.dim() == 3:
        return _scalar_scores(rows, columns, log_decay, before)
    stacked = torch.stack(tuple(rows)).unsqueeze(1), torch.stack(tuple(columns))
    blocks, *sums = _mild_blocks(*stacked, log_decay, before, _mild_steps(log_decay, least))

    def multiply(second: Tensor, first: Tensor) -> Tensor:
        return _half(stacked[0], second, 1) @ _half(stacked[1], first, 0).mT

    scores, *sums = _halves(blocks, *sums, multiply)
    return DecayedScores([list(row.unbind(0)) for row in scores.unbind(0)], *sums)


def _scalar_scores(rows: Sequence[Tensor], columns: Sequence[Tensor], log_decay: Tensor, before: bool) -> DecayedScores:
    """The same with one number for all keys, whose sums are so few that float64 costs little."""
    exact = torch.float32 if log_decay.device.type == "mps" else torch.float64  # which has no other
    since = log_decay.to(exact).cumsum(-1)
    read = since - log_decay if before else since
    apart = torch.ones(log_decay.shape[-1:] * 2, dtype=torch.bool, device=log_decay.device).triu(0 if before else 1)
    between = (read.unsqueeze(-1) - since.unsqueeze(-2)).to(log_decay.dtype).masked_fill(apart, -torch.inf).exp()
    scores = [[(row @ column.mT) * between for column in columns] for row in rows]
    return DecayedScores(scores, *(s.to(log_decay.dtype) for s in (read, since[..., -1:] - since, since[..., -1])))


_MILD = 20.0
"""The largest decay of a block, as -log, whose factors are multiplied out at once: it costs float32 a digit."""


def _mild_steps(log_decay: Tensor, least: float | None) -> int:
    """How many steps make a block whose factors may be multiplied out: a power of two, 1 where nothing is known.

    On a CPU the smallest decay is looked up, where no transform or compiler stands in between.
    """
    steps = log_decay.shape[-2]
    if least is None and log_decay.device.type == "cpu" and not torch.compiler.is_compiling():
        least = None if in_function_transform() else float(log_decay.detach().amin())
    if least is None:
        return 1
    while steps > 1 and not -least * steps <= _MILD:  # NaN is not mild
        steps //= 2
    return steps


def _mild_blocks(
    rows: Tensor, columns: Tensor, log_decay: Tensor, before: bool, steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of a few steps as products of rows times exp(L - m) and columns times exp(m - L), m half of the block's L.

    Args:
        rows: Rows (R, 1, G, n, c, K).
        columns: Columns (C, G, n, c, K).
        log_decay: g (G, n, c, K).
        before: As in :func:`decayed_scores`.
        steps: Steps b of a block.

    Returns:
        Blocks (R, C, G, n, c / b, b, b); sums since their start, as a row reads, and until their end (G, n, c / b, b,
        K); their totals (G, n, c / b, 1, K).
    """
    gates, rows, columns = (tensor.unflatten(-2, (-1, steps)) for tensor in (log_decay, rows, columns))
    since = gates.cumsum(-2)
    total = since[..., -1:, :]
    until, read = total - since, since - gates if before else since
    if steps == 1:
        own = (rows * columns).sum(-1, keepdim=True)
        return torch.zeros_like(own) if before else own, read, until, total
    blocks = (rows * (read - total / 2).exp()) @ (columns * (total / 2 - since).exp()).mT
    return blocks.tril(-1 if before else 0), read, until, total


def _halves(
    blocks: Tensor, since: Tensor, until: Tensor, total: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of steps joined in pairs until one is left.

    Args:
        blocks: What stands inside of the first blocks (..., m, b, b).
        since: Sums since the start of each block, as a row reads (..., m, b, K).
        until: Sums until the end of each block (..., m, b, K).
        total: Sums over each block (..., m, 1, K).
        multiply: From the sums since the middle of a pair and those until it, the block between its halves.

    Returns:
        One block (..., c, c), the sums since the start and until the end (..., c, K), and the total (..., K).
    """
    while blocks.shape[-3] > 1:
        (since1, since2), (until1, until2), (total1, total2) = (_pairs(part) for part in (since, until, total))
        between = multiply(since2, until1)
        first, second = _pairs(blocks)
        above = torch.zeros_like(between)
        blocks = torch.cat((torch.cat((first, above), -1), torch.cat((between, second), -1)), -2)
        since, until = torch.cat((since1, since2 + total1), -2), torch.cat((until1 + total2, until2), -2)
        total = total1 + total2
    return blocks.squeeze(-3), since.squeeze(-3), until.squeeze(-3), total.squeeze(-3).squeeze(-2)


def _pairs(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """First and second of each pair of neighbours along the axis of blocks."""
    return blocks.unflatten(-3, (-1, 2)).unbind(-3)


def _half(steps: Tensor, sums: Tensor, which: int) -> Tensor:
    """First or second halves of the blocks (..., m, s, K), times the exponential of their sums."""
    return steps.unflatten(-2, (-1, 2, sums.shape[-2])).unbind(-3)[which] * sums.exp()


def _columns(factor: Tensor, like: Tensor) -> Tensor:
    """A factor of each step, or of each number of a step, beside steps (G, n, c, K)."""
    return factor.unsqueeze(-1) if factor.dim() < like.dim() else factor
