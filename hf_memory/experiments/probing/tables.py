"""The tasks that can be probed, and the suites of them."""

from collections.abc import Callable

from hf_memory.experiments.probing.laws import (
    Draw,
    Law,
    draw_associative_recall,
    draw_mqar,
    draw_updating_mqar,
    updates_of,
)
from hf_memory.experiments.probing.streams import (
    draw_bit_parity,
    draw_dyck,
    draw_flip_flop,
    draw_group_word_problem,
    draw_induction,
    draw_selective_copying,
    draw_string_copy,
)
from hf_memory.names import check_names


def _same(size: int) -> int:
    return size


def _pairs(key: str, draw: Draw, role_size: Callable[[int], int] = _same) -> Law:
    return Law(key, draw, "recall", "pairs", (8, 2, 16), role_size, "counterfactual_recall", bindings=_same)


LAWS: dict[str, Law] = {
    law.key: law
    for law in (
        _pairs("mqar", draw_mqar),
        _pairs("associative_recall", draw_associative_recall),
        _pairs("updating_mqar", draw_updating_mqar, lambda size: size + updates_of(size)),
        Law(
            *("induction", draw_induction, "recall", "half of the tokens", (8, 2, 16), _same, "recall"),
            bindings=lambda size: 2 * size - 1,
        ),
        Law("string_copy", draw_string_copy, "recall", "words of a string", (8, 2, 16), _same, "recall"),
        Law(
            *("selective_copying", draw_selective_copying, "recall", "words of a string", (4, 2, 8), _same, "recall"),
            in_context=True,
        ),
        Law(
            *("flip_flop", draw_flip_flop, "tracking", "instructions", (16, 8, 32), lambda size: 3, "recall"),
            in_context=True,
        ),
        Law("dyck", draw_dyck, "tracking", "types of brackets", (2, 3), _same, "recall", in_context=True),
        Law("bit_parity", draw_bit_parity, "tracking", "examples", (8, 4), lambda size: 2, "recall", in_context=True),
        Law(
            *("group_word_problem", draw_group_word_problem, "tracking", "examples", (6, 12), lambda size: 6, "recall"),
            in_context=True,
        ),
    )
}
"""Laws by key."""

SUITES = ("recall", "tracking", "all")
"""Names of groups of tasks."""


def suite_tasks(suite: str) -> tuple[str, ...]:
    """Keys of the tasks of a suite. Raises a ``ValueError`` for an unknown one."""
    check_names([suite], SUITES, "suite")
    return tuple(key for key, law in LAWS.items() if suite in (law.suite, "all"))
