"""The figure of verdicts: a row for each claim, with both sides of every seed and the threshold between them."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hf_memory.reports.formats import by_seed, fine_share
from hf_memory.reports.plotting import Drawing
from hf_memory.reports.styles import GRID, HOLDS, LEFT, NEVER, PAIR, RIGHT, THRESHOLD
from hf_memory.reports.tables import to_csv
from hf_memory.reports.vectors import mark_text
from hf_memory.reports.verdict_tables import verdict_words
from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.judging import Judgement
from hf_memory.studies.outcomes import Study

_WIDTH = 7.6
_TITLE, _AXIS, _SEED = 0.45, 0.5, 0.11
"""Inches of a row: its title; its axis, where there is one; and each seed."""
_LINE = 105
"""Letters of a line of text."""


@dataclasses.dataclass(frozen=True)
class SeedPoint:
    """What one seed says of a claim.

    Attributes:
        seed: The seed.
        left: Left side.
        right: Right side, without the margin.
        threshold: Right side with the margin.
        says: ``holds``, ``fails``, ``tie``, ``dropped`` for a seed that does not count, or ``later`` for one beyond the
            look that decided.
    """

    seed: int
    left: float
    right: float
    threshold: float
    says: str

    @property
    def counts(self) -> bool:
        """Whether the verdict rests on it."""
        return self.says not in ("dropped", "later")


def seed_points(judgement: Judgement) -> list[SeedPoint]:
    """What each seed says, in the order of the plan."""
    expectation, tally = judgement.expectation, judgement.tally
    found = []
    for place, (seed, left) in enumerate(judgement.left.items()):
        right = judgement.right[seed]
        says = {True: "holds", False: "fails", None: "tie"}[expectation.outcome(left, right)]
        says = "dropped" if seed in judgement.dropped else says
        says = "later" if tally is not None and place >= tally.planned else says
        found.append(SeedPoint(seed, left, right, right + expectation.margin, says))
    return found


def verdict_drawing(study: Study, judgements: Sequence[Judgement]) -> Drawing | None:
    """The figure of a sweep's verdicts; none where no claim was measured."""
    points = [seed_points(judgement) for judgement in judgements]
    if not any(points):
        return None
    heights = [_TITLE + (_AXIS + _SEED * len(found) if found else 0) for found in points]
    figure = Figure(figsize=(_WIDTH, 0.5 + sum(heights)), dpi=150, layout="constrained")
    panels = figure.subplots(len(judgements), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, judgement, found in zip(panels, judgements, points, strict=True):
        _draw_claim(axes, study.recipe.metric_name, judgement, found)
    figure.legend(handles=_legend(judgements, points), loc="outside upper left", ncols=3, frameon=False, fontsize=7.5)
    table = [
        (judgement.expectation.claim, judgement.verdict, *dataclasses.astuple(point))
        for judgement, found in zip(judgements, points, strict=True)
        for point in found
    ]
    return Drawing(
        f"{study.recipe.name}-verdicts",
        "Each claim with the values of its seeds, one seed a line: left and right side of the relation, and the "
        "threshold, which is the right side with the margin. It holds in a seed whose left side lies in the shade.",
        figure,
        to_csv(("claim", "verdict", "seed", "left", "right", "threshold", "says"), table),
        alt=" ".join(f"{judgement.expectation.claim} {_outcome(judgement)}." for judgement in judgements),
    )


def _outcome(judgement: Judgement) -> str:
    """Verdict and seeds in words."""
    return f"{verdict_words(judgement).capitalize()}: {judgement.reason}"


def _draw_claim(axes: Axes, metric: str, judgement: Judgement, points: Sequence[SeedPoint]) -> None:
    """One row: the points of its seeds from top to bottom, or why there are none."""
    title = [*textwrap.wrap(judgement.expectation.claim, _LINE), *textwrap.wrap(_outcome(judgement), _LINE)]
    axes.set_title("\n".join(title), fontsize=8, loc="left")
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    if not points:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        return
    low, high, never = axis_of(judgement.expectation, points)
    for row, point in enumerate(points):
        _draw_seed(axes, judgement.expectation, point, -row, (low, high, never))
    axes.set_xlim(low, high)
    axes.set_ylim(-len(points) + 0.4, 0.6)
    axes.tick_params(labelsize=7)
    axes.grid(axis="x", **GRID)
    axes.set_axisbelow(True)
    axes.set_xlabel(_sides_in_words(judgement.expectation, metric), fontsize=7, loc="left")
    if any(math.isinf(value) for point in points for value in (point.left, point.right)):
        axes.annotate("never", (never, 0.6), ha="center", va="bottom", fontsize=7, annotation_clip=False)


def _draw_seed(
    axes: Axes, expectation: Expectation, point: SeedPoint, row: float, edges: tuple[float, float, float]
) -> None:
    """Both sides of one seed, the line between them, the threshold, and the side on which the relation holds."""
    low, high, never = edges
    left, right, threshold = (min(value, never) for value in (point.left, point.right, point.threshold))
    if not math.isnan(threshold):
        end = high if expectation.relation in (">=", ">") else low
        axes.fill_betweenx([row - 0.5, row + 0.5], threshold, end, **HOLDS)
        axes.plot([threshold], [row], label="threshold", **THRESHOLD)
    if math.isnan(left):
        return
    paired = right if isinstance(expectation.right, Measure) else threshold
    axes.plot([left, paired], [row, row], label="pair", **PAIR)
    if isinstance(expectation.right, Measure):
        _draw_side(axes, "right", right, row, point, math.isinf(point.right), RIGHT)
    _draw_side(axes, "left", left, row, point, math.isinf(point.left), LEFT)


def _draw_side(
    axes: Axes, name: str, value: float, row: float, point: SeedPoint, never: bool, style: dict[str, Any]
) -> None:
    """One mark: hollow where the seed does not count, an arrow at the edge where the run never got there."""
    face = style["color"] if point.counts else "white"
    label = name if point.counts else f"{name}, {point.says}"
    own = {**style, "marker": NEVER} if never else style
    (mark,) = axes.plot([value], [row], linestyle="", markerfacecolor=face, label=label, clip_on=False, **own)
    mark_text(mark, f"seed {point.seed}, {label}: {'never' if never else fine_share(value)}")


def axis_of(expectation: Expectation, points: Sequence[SeedPoint]) -> tuple[float, float, float]:
    """Both ends of a row's axis, and the place of what never happens.

    A reading passes or does not, and its axis has both. Of others at least a tenth is shown, of a share or of the
    largest number, so that equal values do not look far apart; and an axis of shares ends with them.
    """
    values = [value for point in points for value in (point.left, point.right, point.threshold) if math.isfinite(value)]
    values += [0.0, 1.0] if expectation.left.quantity.endswith("_reading") else []
    low, high = min(values, default=0.0), max(values, default=1.0)
    least = 0.1 * (1 if expectation.left.quantity == "value" else max(1.0, abs(low), abs(high)))
    missing = max(least - (high - low), 0.0)
    pad = 0.05 * max(high - low, least)
    shares = expectation.left.quantity == "value" and low >= 0 and high <= 1
    low, high = low - missing / 2 - pad, high + missing / 2 + pad
    if shares:
        low, high = max(low - max(high - 1 - pad, 0), -pad), min(high + max(-pad - low, 0), 1 + pad)
    if any(math.isinf(value) for point in points for value in (point.left, point.right)):
        never = high + 2 * pad
        return low, never + pad, never
    return low, high, high


def _sides_in_words(expectation: Expectation, metric: str) -> str:
    """The relation with its sides, as far as a line holds them."""
    sides = [expectation.left, expectation.right]
    left, right = (
        textwrap.shorten(side.in_words(metric), _LINE - 15) if isinstance(side, Measure) else by_seed([side])
        for side in sides
    )
    margin = f" {'+' if expectation.margin > 0 else '-'} {abs(expectation.margin):g}" if expectation.margin else ""
    return f"left: {left}\nholds where left {expectation.relation} {right}{margin}"


def _legend(judgements: Sequence[Judgement], points: Sequence[Sequence[SeedPoint]]) -> list[Line2D | Patch]:
    """What the marks that stand in a figure mean, once for all rows."""
    left: dict[str, Any] = {"linestyle": "", **LEFT}
    drawn = [point for found in points for point in found]
    measured = any(isinstance(item.expectation.right, Measure) for item in judgements if item.left)
    never = any(math.isinf(value) for point in drawn for value in (point.left, point.right))
    marks: list[tuple[bool, Line2D | Patch]] = [
        (True, Line2D([], [], **left, label="left side, one seed a line")),
        (measured, Line2D([], [], linestyle="", **RIGHT, label="right side of the same seed")),
        (True, Line2D([], [], **THRESHOLD, label="threshold: right side with margin")),
        (True, Patch(**HOLDS, label="the relation holds where left lies here")),
        (not all(point.counts for point in drawn), Line2D([], [], **left, mfc="white", label="hollow: does not count")),
        (never, Line2D([], [], **{**left, "marker": NEVER}, label="never")),
    ]
    return [mark for stands, mark in marks if stands]
