"""The page of a suite: a number for each kind of memory, the profile of each mixer, and what every run came to.

There is no number over all kinds. Every value is read from result rows and histories.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_high

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hf_memory.experiments.metrics import REACHED
from hf_memory.names import file_name
from hf_memory.reports.formats import UNKNOWN, count, rate, share, spread, words
from hf_memory.reports.pages import drawing_files, picture, write_single_page
from hf_memory.reports.plotting import Drawing
from hf_memory.reports.study_page import problems_of
from hf_memory.reports.styles import CHANCE, GRID, GUIDE, HOLDS, LEFT, NEVER, PALETTE
from hf_memory.reports.tables import PageTable, TableCell, TableLine, to_csv
from hf_memory.studies.suites import MEMORIES, Score, Suite, by_memory

_PANELS = (
    "value on rows\nof the training length",
    "longest test length reached,\nover that of training",
    "steps until\nit held the level",
)


def write_suite_page(suite: Suite, scores: Mapping[str, list[Score]], out: str | Path) -> Path:
    """Write ``index.html`` with the profiles of some mixers, and PNG, SVG and CSV of each.

    Args:
        suite: The suite.
        scores: Scores by mixer.
        out: Folder of the page.
    """
    files, figures, tables = dict[str, bytes](), [], [memory_table(suite, scores), entry_table(suite, scores)]
    for table in tables:
        files[f"{table.id}.csv"] = to_csv(table.columns, table.texts()).encode()
    for arm, own in scores.items():
        drawing = profile_drawing(suite, arm, own)
        files.update({f"{drawing.name}.{ending}": content for ending, content in drawing_files(drawing).items()})
        figures.append(picture(files[f"{drawing.name}.svg"], drawing.alt, drawing.caption))
    every = [one for own in scores.values() for one in own]
    return write_single_page(
        out,
        "suite_page.html",
        files,
        [row for one in every for result in one.study.results for row in result.rows.values()],
        heading=f"{suite.title or suite.name} ({suite.name}, profile {suite.profile})",
        text=suite.text,
        problems=[problem for one in every for problem in problems_of(one.study)],
        tables=tables,
        figures=figures,
    )


def memory_table(suite: Suite, scores: Mapping[str, list[Score]]) -> PageTable:
    """For each mixer the runs that solved their configuration, of those of each kind of memory."""
    kinds = [kind for kind in MEMORIES if any(entry.memory == kind for entry in suite.entries)]
    lines = []
    for arm, own in scores.items():
        found = by_memory(own)
        cells = (_of(*found[kind]) if kind in found else TableCell("") for kind in kinds)
        lines.append(TableLine((TableCell(arm, kind="text"), *cells)))
    note = (
        "Runs that solved their configuration within the budget, of those that were planned. One that did not may "
        "with another one: nothing here says that a mixer cannot."
    )
    return PageTable(f"{suite.name}-memories", "Solved, by kind of memory", note, ("mixer", *kinds), tuple(lines))


def _of(solved: int, planned: int) -> TableCell:
    return TableCell(f"{solved} of {planned}", solved / planned)


def entry_table(suite: Suite, scores: Mapping[str, list[Score]]) -> PageTable:
    """What the fresh seeds of each mixer came to at each configuration."""
    columns = (
        "mixer",
        "memory",
        "configuration",
        "solved",
        "value",
        "chance",
        "reached",
        "steps",
        "rate",
        "state bytes",
    )
    lines = [TableLine(_entry_cells(arm, one)) for arm, own in scores.items() for one in own]
    note = (
        f"Values of the headline metric on rows of the training length, with smallest and largest; the longest test "
        f"length at which it is above {REACHED:g}, and at every shorter one; the median number of steps until it held "
        "the level of the configuration for three looks."
    )
    return PageTable(f"{suite.name}-runs", "Every configuration", note, columns, tuple(lines))


def _entry_cells(arm: str, one: Score) -> tuple[TableCell, ...]:
    names = (arm, one.entry.memory, words(one.entry.name))
    results = one.study.at_rate(one.study.places()[0], "chosen") if one.study.results else None
    first = next((row for result in results or [] for row in result.rows.values()), None)
    reached, steps = list(one.reached.values()), list(one.steps.values())
    return (
        *(TableCell(name, kind="text") for name in names),
        _of(one.solved, one.planned),
        TableCell(spread(list(one.values.values()))) if one.values else TableCell("missing"),
        TableCell(share(one.chance), one.chance),
        TableCell(count(int(median_high(reached))) if reached else ""),
        TableCell(steps_in_words(steps) if steps else ""),
        TableCell(rate(first.learning_rate) if first else UNKNOWN),
        TableCell(count(first.state_bytes)) if first and first.state_bytes is not None else TableCell(""),
    )


def steps_in_words(steps: Sequence[float]) -> str:
    """The median, which is beyond the budget where most runs never held the level."""
    middle = median_high(steps)  # of an even number the larger one, so that infinities need no mean
    return "never" if math.isinf(middle) else count(int(middle))


def profile_drawing(suite: Suite, arm: str, scores: Sequence[Score]) -> Drawing:
    """The profile of one mixer: a line for each configuration, a point for each seed."""
    figure = Figure(figsize=(9.2, 1.6 + 0.36 * len(scores)), dpi=150, layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    own = sorted(scores, key=lambda one: MEMORIES.index(one.entry.memory))
    for axes, title, draw in zip(panels, _PANELS, (_draw_values, _draw_reached, _draw_steps), strict=True):
        axes.set_title(title, fontsize=8, loc="left")
        for place, one in enumerate(own):
            draw(axes, -place, one)
        axes.tick_params(labelsize=7.5)
        axes.grid(axis="x", **GRID)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.set_ylim(0.6 - len(own), 0.6)
    labels = [f"{words(one.entry.name)}   {one.solved} of {one.planned}" for one in own]
    panels[0].set_yticks([-place for place in range(len(own))], labels)
    for label, one in zip(panels[0].get_yticklabels(), own, strict=True):
        label.set_color(PALETTE[(0, 2, 4, 5, 8)[MEMORIES.index(one.entry.memory)]])
    panels[0].set_xlim(-0.02, 1.04)
    panels[1].axvline(1, **GUIDE)
    _scale_reached(panels[1])
    panels[2].set_xlim(0, 1.06 * max(one.entry.recipe.training["steps"] for one in own))
    kinds = ";  ".join(f"{kind} {solved} of {planned}" for kind, (solved, planned) in by_memory(list(own)).items())
    figure.suptitle(f"{arm}: runs that solved their configuration: {kinds}", fontsize=9, x=0.01, ha="left")
    caption = (
        f"{arm}: each seed is a point. Left: the shade begins at the level from which a configuration counts as "
        "solved, dots are chance. Middle: length over that of training. Right: an arrow is a run that never held it."
    )
    head = ("memory", "configuration", "seed", "value", "solved from", "chance", "reached", "steps")
    return Drawing(file_name(suite.name, arm), caption, figure, to_csv(head, _numbers(own)), alt=f"{arm}: {kinds}.")


def _numbers(scores: Sequence[Score]) -> list[tuple[object, ...]]:
    """The numbers behind a profile, a line for each run."""
    lines: list[tuple[object, ...]] = []
    for one in scores:
        named = (one.entry.memory, one.entry.name)
        for seed, value in one.values.items():
            levels = (value, one.entry.solved, one.chance)
            lines.append((*named, seed, *levels, one.reached.get(seed), one.steps.get(seed)))
    return lines


def _draw_values(axes: Axes, place: float, one: Score) -> None:
    axes.barh(place, 1 - one.entry.solved, left=one.entry.solved, height=0.8, **HOLDS)
    axes.plot([one.chance] * 2, [place - 0.35, place + 0.35], **{**CHANCE, "label": None})
    axes.plot(list(one.values.values()), _spaced(place, one.values), linestyle="", **LEFT)


def _draw_reached(axes: Axes, place: float, one: Score) -> None:
    rows = [row for result in one.study.results for row in result.rows.values()]
    trained = max((row.train_length[1] for row in rows if row.train_length), default=1)
    axes.plot([reach / trained for reach in one.reached.values()], _spaced(place, one.reached), linestyle="", **LEFT)


def _scale_reached(axes: Axes) -> None:
    """Doublings at equal distances, from the half on; a run that reached nothing stands at zero."""
    most = max(2.0, axes.get_xlim()[1])
    ticks = [0.0, *(2.0**power for power in range(-1, math.ceil(math.log2(most)) + 1))]
    axes.set_xscale("symlog", base=2, linthresh=0.5)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.1, 1.2 * ticks[-1])


def _draw_steps(axes: Axes, place: float, one: Score) -> None:
    budget = one.entry.recipe.training["steps"]
    ended = {seed: value for seed, value in one.steps.items() if math.isfinite(value)}
    never = one.steps.keys() - ended.keys()
    axes.plot(list(ended.values()), _spaced(place, ended), linestyle="", **LEFT)
    axes.plot([budget] * len(never), _spaced(place, dict.fromkeys(never, 0)), linestyle="", **{**LEFT, "marker": NEVER})


def _spaced(place: float, by_seed: Mapping[int, float]) -> list[float]:
    """Heights of the points of a line, a little apart so that equal values are seen."""
    return [place + 0.16 * (index - (len(by_seed) - 1) / 2) for index in range(len(by_seed))]
