"""What a claim predicts, in a form that a program can judge: one measured quantity against another, or a number.

Only the form is here; :mod:`hf_memory.studies.judging` reads the quantities off results.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from hf_memory.names import check_names

QUANTITIES = (
    "value", "extrapolation_length", "longest_trained", "lr_window", "grid_regret", "steps_to", "late_drop", "bump",
    "seed_reading", "cycle_reading",
)  # fmt: skip
"""``value`` is the metric on a split at the end of training. ``longest_trained`` is the longest training length of the
axis ``length`` whose metric is above ``theta``, there and at every shorter one. The others:
:mod:`hf_memory.studies.statistics`; the two readings are 1 for a run that passes and 0 for one that does not.
"""

RELATIONS = (">=", ">", "<=", "<")
RATES = ("chosen", "fixed", "best")
"""The rate chosen by the search; the recipe's fixed one; or, for each seed, the best on ``validation``."""

OVER = ("mean", "max", "min", "named")
"""How several arms or places make one number. ``named`` is for claims that some arm does something: the seeds of the
search name the arm that is furthest in the direction of the relation, and it is judged on fresh ones.
"""

WHEN = ("end", "crossing")
"""When a run is tested: at its end, or at the look at which it first crossed the level ``crossing`` of ``evaluate``,
and at its end where it never did.
"""

_SEARCHED = ("lr_window", "grid_regret")
_AT_A_LEVEL = {
    "lr_window": "decades of learning rates at",
    "steps_to": "steps to",
    "extrapolation_length": "length kept at",
    "longest_trained": "longest length trained to",
    "seed_reading": "passing (1 or 0) at",
}
"""Quantities that are read at a level of a metric, in words that the level ends."""
_CYCLES = "rows_3_of_5"
"""The metric that the reading by cycles counts, where none is named."""


def matches(place: Mapping[str, Any], at: Mapping[str, Any]) -> bool:
    """Whether a place has the values of some axes; a list stands for any of its values."""
    return all(place[axis] in (value if isinstance(value, (list, tuple)) else [value]) for axis, value in at.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """One number per seed.

    Attributes:
        arms: Names of arms.
        quantity: One of :data:`QUANTITIES`.
        over: How several arms, or several places of the grid, make one number, one of :data:`OVER`.
        at: Values of grid axes, or lists of them; all values of the others count.
        split: Split on which the metric is measured.
        minus: A second split, whose value is subtracted.
        metric: The metric; by default that of the recipe.
        rate: One of :data:`RATES`, for quantities that belong to one learning rate.
        theta: Level for windows and steps; with ``of_best`` it is a share of the best value that the run has at any
            look, and for windows of the best that the seed has at any rate.
        of_best: See ``theta``.
        when: One of :data:`WHEN`, for values and the lengths that they reach.
        below: For a bump, the loss below which a fall counts, such as that of a guess; by default every fall does.
    """

    arms: tuple[str, ...]
    quantity: str = "value"
    over: str = "mean"
    at: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    split: str = "validation"
    minus: str | None = None
    metric: str | None = None
    rate: str = "chosen"
    theta: float = 0.9
    of_best: bool = False
    when: str = "end"
    below: float | None = None

    def __post_init__(self) -> None:
        check_names([self.quantity], QUANTITIES, "quantity")
        check_names([self.when], WHEN, "when")
        check_names([self.over], OVER, "over")
        check_names([self.rate], RATES, "rate")
        if not self.arms:
            raise ValueError("arms must name at least one arm, got none")
        if self.below is not None and self.quantity != "bump":
            raise ValueError(f"below is for the quantity bump, got {self.below:g} with {self.quantity}")

    def reads(self, place: Mapping[str, Any]) -> bool:
        """Whether the runs at a place are among those that it is read off."""
        return place["arm"] in self.arms and matches(place, self.at)

    @property
    def needs_history(self) -> bool:
        """Whether it is read off evaluations during training."""
        return self.quantity in ("steps_to", "late_drop", "bump", "lr_window")

    def metric_in(self, default: str) -> str:
        """The metric that is read, in a recipe with this one."""
        return self.metric or (_CYCLES if self.quantity == "cycle_reading" else default)

    @property
    def stage(self) -> str:
        """The seeds that tell: ``search`` where it is a matter of all rates, else ``chosen`` or ``fixed``."""
        return "search" if self.quantity in _SEARCHED or self.rate == "best" else self.rate

    def in_words(self, default: str) -> str:
        """The measure in words, in a recipe with this metric."""
        metric = self.metric_in(default).replace("_", " ")
        own = {"value": metric, "bump": "bump of the loss", "late_drop": f"late drop of {metric}", **_AT_A_LEVEL}
        what = own.get(self.quantity, self.quantity.replace("_", " "))
        if self.quantity in _AT_A_LEVEL:
            what += f" {self.theta:g} of its best {metric}" if self.of_best else f" {metric} {self.theta:g}"
        what += " at the first crossing" if self.when == "crossing" else ""
        what += f" below {self.below:g}" if self.below is not None else ""
        where = "" if self.quantity == "extrapolation_length" else f" on {self.split}"
        where += f" minus that on {self.minus}" if self.minus else ""
        place = "".join(f", {axis} {value}" for axis, value in self.at.items())
        how = "the one that the search names among" if self.over == "named" else f"{self.over} of"
        several = f"{how} " if len(self.arms) > 1 else ""
        rate = "" if self.rate == "chosen" else f", {self.rate} rate"
        return f"{what}{where} of {several}{', '.join(self.arms)}{place}{rate}"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Measure":
        """Make a measure; ``arms`` may be one name."""
        check_names(values, [field.name for field in dataclasses.fields(cls)], "key of a measure")
        arms = values.get("arms", ())
        return cls(**{**values, "arms": (arms,) if isinstance(arms, str) else tuple(arms)})


_SIDES = ("left", "right", "given")


def _values_of(side: Measure | float | None) -> Any:
    """A side as JSON values, without fields that joined after records had been written and that it does not use."""
    if not isinstance(side, Measure):
        return side
    values = dataclasses.asdict(side)
    return {name: value for name, value in values.items() if name != "below" or value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expectation:
    """A relation that holds if the claim does.

    Attributes:
        claim: The claim, a sentence.
        left: What is measured.
        relation: One of :data:`RELATIONS`.
        right: What it is compared with.
        margin: Added to the right side.
        plateau_counts: Whether runs on the plateau count as measured, and not as runs that tell nothing. The claim has
            to name its budget then ("within {steps} steps"): a flat loss is what a plateau looks like.
        given: What must be at least ``given_at_least`` in a seed for that seed to count: a model that has learned
            nothing has nothing to lose. Where fewer than five seeds are left, nothing is decided.
        given_at_least: See ``given``.
        published: What the source reports of it, a few words.
        because: Why it is expected, with its source.
    """

    claim: str
    left: Measure
    relation: str
    right: Measure | float
    margin: float = 0.0
    plateau_counts: bool = False
    given: Measure | None = None
    given_at_least: float = 0.0
    published: str = ""
    because: str = ""

    def __post_init__(self) -> None:
        check_names([self.relation], RELATIONS, "relation")
        if not math.isfinite(self.margin):
            raise ValueError(f"margin must be finite, got {self.margin}")
        if self.plateau_counts and not re.search(r"within ([\d,]+|\{steps\}) steps", self.claim, re.IGNORECASE):
            raise ValueError(f"plateau_counts: the claim must say 'within N steps', got {self.claim!r}")
        self._check_existence()

    def _check_existence(self) -> None:
        """Refuse claims that the largest of several arms is large enough: with enough arms one always is."""
        lucky = {">=": "max", ">": "max", "<=": "min", "<": "min"}[self.relation]
        if self.left.over == lucky and len(self.left.arms) > 1:
            raise ValueError(
                f"over: {lucky} of several arms, {self.relation}: the arm is named after the fact; use named"
            )
        if self.left.over == "named" and self.left.quantity == "longest_trained":
            raise ValueError("over: named needs a quantity of single runs, which longest_trained is not")
        if isinstance(self.right, Measure) and self.right.over == "named":
            raise ValueError("over: named is for the left side of a relation")

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures: both sides and the condition."""
        return tuple(found for found in (self.left, self.right, self.given) if isinstance(found, Measure))

    def in_words(self, metric: str) -> str:
        """The relation in words, in a recipe with this metric."""
        left = self.left.in_words(metric)
        right = self.right.in_words(metric) if isinstance(self.right, Measure) else f"{self.right:g}"
        margin = f" {'+' if self.margin > 0 else '-'} {abs(self.margin):g}" if self.margin else ""
        given = f", given that {self.given.in_words(metric)} >= {self.given_at_least:g}" if self.given else ""
        return f"{left} {self.relation} {right}{margin}{given}"

    @property
    def asks_for_more(self) -> bool:
        """Whether the margin makes the relation harder to meet."""
        return self.margin > 0 if self.relation in (">=", ">") else self.margin < 0

    def outcome(self, left: float, right: float, margin: float | None = None) -> bool | None:
        """Whether the relation holds between two numbers; None where they tell nothing.

        That is where one is NaN, where two runs that never got to a level are compared, and where a strict relation
        meets equal sides that were both measured. A number that was written down beforehand is no measurement: whatever
        equals it is not below it, and not above it.
        """
        bound = right + (self.margin if margin is None else margin)
        tied = left == bound and isinstance(self.right, Measure) and (math.isinf(left) or "=" not in self.relation)
        if math.isnan(left) or math.isnan(bound) or tied:
            return None
        return {">=": left >= bound, ">": left > bound, "<=": left <= bound, "<": left < bound}[self.relation]

    def to_json(self) -> dict[str, Any]:
        """The expectation as JSON values."""
        return {**dataclasses.asdict(self), **{name: _values_of(getattr(self, name)) for name in _SIDES}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Expectation":
        """Make an expectation; a right side that is a mapping is a measure.

        Raises:
            ValueError: For keys that are unknown or missing.
        """
        check_names(values, [field.name for field in dataclasses.fields(cls)], "key of an expectation")
        missing = [name for name in ("claim", "left", "relation", "right") if name not in values]
        if missing:
            raise ValueError(f"expectation: the key {missing[0]!r} is missing in {values.get('claim', values)!r}")
        for name in ("claim", "published", "because"):
            if not isinstance(values.get(name, ""), str):
                raise ValueError(f"expectation: {name} must be a text, got {values[name]!r}")
        right = values["right"]
        sides: dict[str, Measure | float] = {
            "left": Measure.from_json(values["left"]),
            "right": Measure.from_json(right) if isinstance(right, Mapping) else float(right),
        }
        given = Measure.from_json(values["given"]) if values.get("given") else None
        return cls(**{**values, **sides, "given": given})
