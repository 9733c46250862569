"""Where the real tokens of a padded batch stand, and how they are moved to the left and back."""

from dataclasses import dataclass

import torch

from hf_memory.models.layers import State, real_token_mask
from hf_memory.models.values import is_seen, require


@dataclass
class RowLayout:
    """Real tokens of a batch of T columns.

    A mixer would have to know what padding on its left means for its gate, its convolution, its normaliser and its
    positions. So none ever sees any: the real tokens of each row are moved to its start, and the outputs moved back.

    Attributes:
        mask: True at real tokens (B, T); None where all are.
        lengths: Real tokens per row (B,); None where all T are real.
        order: Column that comes to stand in each column (B, T); None where every row is padded on the right at most.
        counts: Real tokens per row (B,), always given.
    """

    mask: torch.Tensor | None
    lengths: torch.Tensor | None
    order: torch.Tensor | None
    counts: torch.Tensor
    num_columns: int

    @classmethod
    def from_mask(
        cls, mask: torch.Tensor | None, batch_size: int, num_columns: int, device: torch.device
    ) -> "RowLayout":
        """Read the last ``num_columns`` columns of a mask (B, S) of ones and zeros."""
        full = torch.full((batch_size,), num_columns, dtype=torch.int64, device=device)
        if mask is None:
            return cls(None, None, None, full, num_columns)
        mask = mask[:, mask.shape[1] - num_columns :].to(device).bool()
        if is_seen(mask.all()):
            return cls(None, None, None, full, num_columns)
        padded_after_real = is_seen((mask[:, 1:] <= mask[:, :-1]).all())
        order = None if padded_after_real else torch.argsort((~mask).long(), dim=1, stable=True)
        lengths = mask.sum(1)
        return cls(mask, lengths, order, lengths, num_columns)

    def start_positions(self, positions: torch.Tensor | None) -> torch.Tensor:
        """Real tokens seen before these columns (B,). Raises a ``ValueError`` for a cache of another batch size."""
        if positions is None:
            return torch.zeros_like(self.counts)
        if positions.shape != self.counts.shape:
            raise ValueError(f"cache holds {len(positions)} rows, and the batch has {len(self.counts)}")
        return positions.to(self.counts.device)

    def position_ids(self, start: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
        """Positions of the moved columns (B, T); those of padding repeat the last real one.

        Raises:
            ValueError: If given positions do not increase from one real token to the next, as in packed sequences, or
                are negative.
        """
        steps = torch.arange(self.num_columns, device=start.device)
        if given is None:
            own = start.unsqueeze(1) + steps
        else:
            own = self.gather(given.to(start.device).expand(len(start), -1)[:, -self.num_columns :])
            falls = torch.cat([own[:, :1] < 0, own[:, 1:] <= own[:, :-1]], dim=1)
            if self.lengths is not None:
                falls = falls & real_token_mask(self.lengths, self.num_columns)
            require(
                ~falls.any(),
                "position_ids must be at least 0 and increase within a row; packed sequences are not supported",
            )
        if self.lengths is None:
            return own
        last = own.gather(1, (self.lengths - 1).clamp(min=0).unsqueeze(1))
        return torch.where(real_token_mask(self.lengths, self.num_columns), own, last)

    def gather(self, columns: torch.Tensor) -> torch.Tensor:
        """Move the real tokens of (B, T) or (B, T, ...) to the start of their rows."""
        return columns if self.order is None else _take(columns, self.order)

    def scatter(self, columns: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`gather`, with zeros at padding."""
        if self.order is not None:
            columns = _take(columns, torch.argsort(self.order, dim=1))
        if self.mask is None:
            return columns
        return columns.masked_fill(~self.mask.view(*self.mask.shape, *[1] * (columns.dim() - 2)), 0)

    def show(self, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Moved columns in their places, and moved again: what follows from the latter has a gradient in the former."""
        places = self.scatter(columns)
        return places, self.gather(places)

    def scatter_states(self, trace: State) -> State:
        """State after each original column, from the T + 1 states before, between and after the moved columns."""
        if self.mask is None:
            return {name: leaf[:, 1:] for name, leaf in trace.items()}
        return {name: _take(leaf, self.mask.long().cumsum(1)) for name, leaf in trace.items()}


def _take(columns: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    index = index.view(*index.shape, *[1] * (columns.dim() - 2)).expand(-1, -1, *columns.shape[2:])
    return columns.gather(1, index)
