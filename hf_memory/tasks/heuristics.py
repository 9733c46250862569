"""What simple rules reach on a task: the table against which chance levels and baselines are held.

A rule reads little of a row: the position, the last tokens, a counter. What it reads is coded as one integer for each
answer; a table from codes to outputs is fitted on some rows and scored on others, so that no rule is credited with
chance hits. Where answers are ids of the row (:meth:`~hf_memory.tasks.base.Task.candidates`), outputs are places: "the
value of the third pair", "the value bound last". Otherwise they are classes.

>>> from hf_memory.tasks import make_task
>>> levels = heuristic_levels(make_task("mqar"), 64, np.random.default_rng(0))
>>> [round(levels[name][0], 2) for name in ("last_token", "position")]
[0.25, 0.28]
>>> levels = heuristic_levels(make_task("dyck", law="type_swap"), 32, np.random.default_rng(0))
>>> [round(levels[name][0], 1) for name in ("type_blind_counter", "position", "per_type_counters")]
[0.5, 0.7, 1.0]
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from hf_memory.tasks import _brackets as brackets
from hf_memory.tasks._scores import Rows, fit_and_predict, score
from hf_memory.tasks.base import Task

MEMORYLESS = ("constant", "position", "slot", "last_token", "position_and_token")
"""Rules that remember nothing of a row: none is better than :meth:`~hf_memory.tasks.base.Task.chance_level`."""

STACKS = ("stack_of_1", "stack_of_2", "stack_of_3")
"""Rules that keep the top of a stack: they tell how much of one a law needs, and are no shortcut."""


def heuristic_levels(
    task: Task,
    length: int,
    rng: np.random.Generator,
    num_rows: int = 4_000,
    metric: str | None = None,
    names: Collection[str] | None = None,
) -> dict[str, tuple[float, float]]:
    """Value of a metric for every rule that applies to a task.

    * ``constant``, ``position``, ``slot`` (the number of the answer in its row), ``last_token``, ``last_2_tokens``,
      ``last_3_tokens``, ``position_and_token``. Where answers are ids of the row, tokens count as their roles.
    * ``majority_so_far``: the class, or the candidate, that has stood most often in the row.
    * ``last_candidate`` and ``first_candidate`` of the row, where answers are ids of it.
    * For brackets: ``even_position``; ``counter_without_failure``, which ignores types, and ``type_blind_counter``,
      which remembers that it fell below zero; ``per_type_counters_without_failure`` and ``per_type_counters``, which
      count each type; ``sticky_bigram``, which remembers a closing bracket right after an opening one of another type;
      ``all_counters``, which has all of these; and ``stack_of_1`` to ``stack_of_3``, which know the types of the
      innermost open brackets and trust the others.

    Args:
        task: The law.
        length: Length of the rows.
        rng: Source of randomness.
        num_rows: Rows on which tables are fitted, and as many others on which they are scored.
        metric: The headline metric by default. ``"token_accuracy"``, ``"sequence_accuracy"``, ``"macro_recall"`` and
            the counts of the task are known as well.
        names: The rules to try; all that apply by default.

    Returns:
        ``(value, standard error)`` by name.

    Raises:
        ValueError: If the metric is unknown.
    """
    metric = metric or task.headline_metric
    fit, fresh = (Rows.draw(task, length, rng, num_rows, metric) for _ in range(2))
    levels = {
        name: score(fresh, fit_and_predict(fit, fresh, codes(fit), codes(fresh)))
        for name, codes in rules_of(task).items()
        if names is None or name in names
    }
    if fresh.candidates is not None:
        named = {name: rule for name, rule in _NAMED_PLACES.items() if names is None or name in names}
        levels |= {name: score(fresh, rule(fresh)) for name, rule in named.items()}
    return levels


def rules_of(task: Task) -> dict[str, Callable[[Rows], np.ndarray]]:
    """The rules with a table that apply to a task, by name: each codes what it reads of rows as integers (n, L)."""
    rules = {**_PLAIN, "majority_so_far": _majority_class}
    return {**rules, **_BRACKETS} if task.bracket_words else rules


def _columns(rows: Rows) -> np.ndarray:
    return np.broadcast_to(np.arange(rows.labels.shape[1]), rows.labels.shape)


def _window(rows: Rows, width: int) -> np.ndarray:
    """Code of the last ``width`` tokens; places before the row have a sign of their own."""
    symbols, size = rows.symbols
    known = rows.read(symbols.astype(np.int64) + 1)
    code = np.zeros(known.shape, dtype=np.int64)
    for back in range(width - 1, -1, -1):
        code *= size + 1
        code[:, back:] += known[:, : known.shape[1] - back]
    return code


def _majority_class(rows: Rows) -> np.ndarray:
    """The id, among those that are answers somewhere, that has come most often; of several the first."""
    symbols, _ = rows.symbols
    most = np.zeros(symbols.shape, dtype=np.int32)
    code = np.zeros(symbols.shape, dtype=np.int64)
    answers = np.unique(rows.targets) if rows.candidates is None else np.arange(1, 3)
    for symbol in answers:
        count = np.cumsum(symbols == symbol, axis=1, dtype=np.int32)
        code = np.select([count > most, count == most], [symbol + 1, code], code)
        most = np.maximum(most, count)
    return rows.read(code)


def _flag_code(*names: str) -> Callable[[Rows], np.ndarray]:
    """The rule that reads some flags of the counters."""

    def coded(rows: Rows) -> np.ndarray:
        code = np.zeros(rows.labels.shape, dtype=np.int64)
        for place, name in enumerate(names):
            code |= rows.counter_flags[name].astype(np.int64) << place
        return code

    return coded


def _short_stack(size: int) -> Callable[[Rows], np.ndarray]:
    """The rule that checks a closing bracket against the innermost ``size`` open ones, and else counts."""

    def code(rows: Rows) -> np.ndarray:
        tokens = np.ascontiguousarray(rows.ids.T)
        return brackets.stack_labels(tokens, rows.task.vocab_size // 2, size).T.astype(np.int64)

    return code


def _most_frequent_candidate(rows: Rows) -> np.ndarray:
    """The id (m,) that most candidates before the answer have."""
    places = rows.places[:, : rows.places.shape[1] - rows.num_recent]
    ordered = np.sort(places, axis=1)
    rank = np.arange(ordered.shape[1])
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = rank - np.maximum.accumulate(np.where(new, rank, 0), axis=1)
    return ordered[np.arange(len(ordered)), np.argmax(np.where(ordered >= 0, run, -1), axis=1)]


_PLAIN: Mapping[str, Callable[[Rows], np.ndarray]] = {
    "constant": lambda rows: np.zeros(rows.labels.shape, dtype=np.int64),
    "position": _columns,
    "slot": lambda rows: np.cumsum(rows.supervised, axis=1),
    "last_token": lambda rows: _window(rows, 1),
    "last_2_tokens": lambda rows: _window(rows, 2),
    "last_3_tokens": lambda rows: _window(rows, 3),
    "position_and_token": lambda rows: _window(rows, 1) * rows.labels.shape[1] + _columns(rows),
}
_BRACKETS: Mapping[str, Callable[[Rows], np.ndarray]] = {
    "even_position": lambda rows: _columns(rows) % 2,
    "counter_without_failure": _flag_code("zero"),
    "type_blind_counter": _flag_code("zero", "below"),
    "per_type_counters_without_failure": _flag_code("type_zero"),
    "per_type_counters": _flag_code("type_zero", "type_below"),
    "sticky_bigram": _flag_code("zero", "bigram"),
    "all_counters": _flag_code("zero", "below", "type_zero", "type_below", "bigram"),
    **{name: _short_stack(size) for size, name in enumerate(STACKS, 1)},
}
_NAMED_PLACES: Mapping[str, Callable[[Rows], np.ndarray]] = {
    "majority_so_far": _most_frequent_candidate,
    "last_candidate": lambda rows: rows.places[:, -rows.num_recent],
    "first_candidate": lambda rows: rows.places[:, 0],
}
