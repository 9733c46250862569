"""Whether two threads pay for a single run: training steps on both, in turn."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.cpu_peers import ours
from benchmarks.rows import Row, Scale, compared

KEYS = ("attention", "lstm", "gru", "lru", "mamba", "delta_net", "gated_delta_net", "hyena")
PAYS = 0.8
"""Of the time of one thread, what two may take, that it is worth the core that another run could have."""


def threads(scale: Scale) -> Iterator[Row]:
    """Two threads against one, by width and length of a row; the last row says when they pay."""
    shapes = ((scale.batch, scale.length // 4), (scale.batch, scale.length), (1, scale.long))
    found: list[Row] = []
    before = torch.get_num_threads()
    try:
        for width in dict.fromkeys((scale.widths[0], 2 * scale.widths[-1])):
            for batch, length in shapes:
                for key in KEYS if scale.judged else KEYS[:2]:
                    step = ours(key, width, length, batch)
                    what = f"{key}, width {width}, {batch} x {length}, two threads against one"
                    row = compared(what, on_threads(2, step), on_threads(1, step), scale)
                    row["pays"] = row["ratio"]["median"] <= PAYS
                    found.append(row)
                    yield row
    finally:
        torch.set_num_threads(before)
    paying = [row["what"].removesuffix(", two threads against one") for row in found if row["pays"]]
    text = "; ".join(paying) or "nowhere"
    yield {"what": f"two threads take at most {PAYS:g} of the time of one", "value": text, "pays": paying}


def on_threads(count: int, step: Callable[[], Any]) -> Callable[[], Any]:
    """The same step on so many threads."""

    def run() -> Any:
        torch.set_num_threads(count)
        return step()

    return run
