"""A stack run one column at a time, which is what the state after each column takes."""

from typing import Any

import torch

from hf_memory.models.layers import State
from hf_memory.models.padding import RowLayout


def run_stepwise(
    model: Any, hidden: torch.Tensor, states: list[State | None], layout: RowLayout, position_ids: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor], list[State], list[State]]:
    """Run the layers of a model over hidden states (B, T, D), column by column.

    Returns:
        Hidden states (B, T, D), the output of every layer, the states at the end, and for each layer its states before
        the first and after each column, (B, T + 1, ...).

    Raises:
        ValueError: A state grows with the length.
    """
    mixers = [layer.parts["mixer"] for layer in model.layers]
    growing = [type(mixer).__name__ for mixer in mixers if mixer.growing_state]
    if growing:
        raise ValueError(f"output_states needs states of fixed size, and that of {growing[0]} grows with the length")
    before = [
        layer.initial_state(hidden.shape[0]) if state is None else state
        for layer, state in zip(model.layers, states, strict=True)
    ]
    steps, traces, held = [], [before], before
    for step, column in enumerate(hidden.split(1, dim=1)):
        now = None if layout.lengths is None else (layout.lengths > step).long()
        at = position_ids[:, step : step + 1]
        _, every, held = model.run_layers(column, held, now, at, True, lambda hidden: (hidden, hidden))
        steps.append(every)
        traces.append(held)
    stacked = [
        {name: torch.stack([trace[index][name] for trace in traces], dim=1) for name in state}
        for index, state in enumerate(held)
    ]
    every = [torch.cat(columns, dim=1) for columns in zip(*steps, strict=True)]
    return every[-1], list(map(layout.scatter, every)), held, stacked
