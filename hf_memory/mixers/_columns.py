"""What mixers share whose state holds a column for each token: how columns are added, kept, cut and emptied."""

import torch
from torch import Tensor

from hf_memory.models.layers import State, join_state, real_token_mask
from hf_memory.models.modeling import Mixer
from hf_memory.models.values import is_hidden


class ColumnsMixer(Mixer):
    """A mixer with keys and values of H heads for each token that a later one can see, and their positions.

    The config has the fields ``num_heads`` and ``window``; a convolution on the inputs may be ``conv``.
    """

    growing_state = True
    nan_reaches_back = True

    @property
    def column_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
        """Shape and dtype of what a column holds, by leaf; None for the dtype in which states accumulate."""
        heads = (self.config.num_heads, self.config.hidden_size // self.config.num_heads)
        return dict.fromkeys(("key", "value"), (heads, self.out_proj.weight.dtype))

    def other_state(self, batch_size: int) -> State:
        """The leaves that do not grow."""
        conv = getattr(self, "conv", None)
        return join_state({"conv": conv.initial_state(batch_size) if conv is not None else None})

    def initial_state(self, batch_size: int) -> State:
        """No columns."""
        leaves = {
            name: self.state_tensor(batch_size, 0, *shape, dtype=dtype)
            for name, (shape, dtype) in self.column_shapes.items()
        }
        positions = self.state_tensor(batch_size, 0, dtype=torch.int64)
        return {**leaves, "positions": positions, **self.other_state(batch_size)}

    def state_size(self, length: int | None = None) -> int:
        """Numbers held after ``length`` tokens. Raises a ``ValueError`` without a length if there is no window."""
        limits = [length] if length is not None else []
        if self.config.window is not None:
            limits.append(self.config.window - 1)
        if not limits:
            raise ValueError("length: the state of attention without a window grows, so its size needs a length")
        column = sum(torch.Size(shape).numel() for shape, _ in self.column_shapes.values())
        return min(limits) * column + sum(leaf[0].numel() for leaf in self.other_state(1).values())

    def reset_state(self, state: State, mask: Tensor) -> State:
        """Empty the columns of the rows where ``mask`` (B,) is True."""
        initial, kept = self.other_state(len(mask)), dict(state)
        kept["positions"] = state["positions"].masked_fill(mask.unsqueeze(1), -1)
        for name, first in initial.items():
            where = mask.view(-1, *[1] * (first.dim() - 1))
            kept[name] = torch.where(where, first.to(state[name]), state[name])
        return kept

    def append(
        self, state: State | None, new: dict[str, Tensor], position_ids: Tensor, lengths: Tensor | None
    ) -> tuple[dict[str, Tensor], bool]:
        """Columns (B, S, ...) with the new ones (B, T, ...) behind those of a state, and whether there were none."""
        if lengths is not None:
            position_ids = position_ids.masked_fill(~real_token_mask(lengths, position_ids.shape[1]), -1)
        new = {**new, "positions": position_ids}
        if state is None or not state["positions"].shape[1]:
            return new, True
        return {name: torch.cat([state[name].to(leaf.dtype), leaf], dim=1) for name, leaf in new.items()}, False

    def keep(self, columns: dict[str, Tensor], ragged: bool) -> State:
        """The columns that a later token can see, and no more."""
        positions = columns["positions"]
        count = positions.shape[1]
        if ragged:
            # Real columns go to the right end of each row, so that cutting on the left drops padding and old tokens.
            order = positions.argsort(dim=1, stable=True)
            columns = {
                name: leaf.gather(1, order.view(*order.shape, *[1] * (leaf.dim() - 2)).expand_as(leaf))
                for name, leaf in columns.items()
            }
            count = count if is_hidden(positions) else int((positions >= 0).sum(1).max())
        if self.config.window is not None:
            count = min(count, self.config.window - 1)
        first = positions.shape[1] - count
        # A view on few columns of many would keep all of them alive in the cache.
        return {name: leaf[:, first:].clone() if first else leaf for name, leaf in columns.items()}

    @staticmethod
    def next_positions(state: State | None, like: Tensor) -> Tensor:
        """Positions (B, T) of inputs (B, T, D) behind a state that were given none."""
        steps = torch.arange(like.shape[1], device=like.device).expand(len(like), -1)
        if state is None or not state["positions"].shape[1]:
            return steps
        return state["positions"].max(1, keepdim=True).values + 1 + steps
