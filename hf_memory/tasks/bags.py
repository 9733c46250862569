"""What a bag of the ids reaches on a task: how often each has come when an answer is due, whatever their order.

The rules stand beside :mod:`hf_memory.tasks.heuristics` and not in it. Many laws state levels of those rules, which are
thereby a part of the code that their results were made with; of these only modular arithmetic does.

>>> from hf_memory.tasks import make_task
>>> levels = bag_levels(make_task("bit_parity"), 16, np.random.default_rng(0))
>>> [round(levels[name][0], 2) for name in ("bag", "bag_of_ids")]
[1.0, 1.0]
>>> round(bag_levels(make_task("mqar"), 64, np.random.default_rng(0))["bag"][0], 2)
0.28
"""

import numpy as np

from hf_memory.tasks._scores import Rows, fit_and_predict, score
from hf_memory.tasks.base import Task


def bag_levels(
    task: Task, length: int, rng: np.random.Generator, num_rows: int = 4_000, metric: str | None = None
) -> dict[str, tuple[float, float]]:
    """Value of a metric for rules that count the ids of a row up to each answer, with a table from counts to outputs.

    * ``bag``: ids count as one of three roles, so that the table stays small: 0, which is the blank of many laws; those
      that may be answers; and all others.
    * ``bag_of_ids``: each id is counted by itself; only where answers are classes.

    The arguments, and what is returned and raised, are those of :func:`~hf_memory.tasks.heuristics.heuristic_levels`.
    """
    metric = metric or task.headline_metric
    fit, fresh = (Rows.draw(task, length, rng, num_rows, metric) for _ in range(2))
    counted = {"bag": tuple(_roles(rows, np.unique(fit.targets)) for rows in (fit, fresh))}
    if fit.candidates is None:
        counted["bag_of_ids"] = fit.ids, fresh.ids
    return {
        name: score(fresh, fit_and_predict(fit, fresh, fit.read(bag_codes(known)), fresh.read(bag_codes(new))))
        for name, (known, new) in counted.items()
    }


def bag_codes(symbols: np.ndarray) -> np.ndarray:
    """A number for each prefix (n, L) of rows of symbols; prefixes that are alike but for their order have the same.

    It is the sum, modulo 2^64, of a random number for each symbol, so that other prefixes hardly ever share it.
    """
    values = np.random.default_rng(0).integers(1 << 62, size=int(symbols.max()) + 1)
    return np.cumsum(values[symbols], axis=1)


def _roles(rows: Rows, answers: np.ndarray) -> np.ndarray:
    """Ids (n, L) as 0, 1 for those that may be answers, and 2."""
    if rows.candidates is not None:
        return rows.symbols[0]
    return np.where(rows.ids == 0, 0, np.where(np.isin(rows.ids, answers), 1, 2))
