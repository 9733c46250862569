"""The tasks that can be probed, and the suites of them."""

from hf_memory.experiments.probing.laws import Law, draw_associative_recall, draw_mqar, draw_updating_mqar, updates_of


def _recall(key: str, draw: object, role_size: object = lambda size: size) -> Law:
    return Law(key, draw, "recall", "pairs", (8, 2, 16), role_size, "counterfactual_recall")  # type: ignore[arg-type]


LAWS: dict[str, Law] = {
    law.key: law
    for law in (
        _recall("mqar", draw_mqar),
        _recall("associative_recall", draw_associative_recall),
        _recall("updating_mqar", draw_updating_mqar, lambda size: size + updates_of(size)),
    )
}
"""Laws by key."""

SUITES = ("recall", "tracking", "all")
"""Names of groups of tasks."""


def suite_tasks(suite: str) -> tuple[str, ...]:
    """Keys of the tasks of a suite."""
    return tuple(key for key, law in LAWS.items() if suite in (law.suite, "all"))
