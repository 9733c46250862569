"""Tables of claims: what was registered, what came of it, and what was registered and is no more."""

from collections.abc import Iterable, Sequence

from hf_memory.reports.formats import by_seed, rate
from hf_memory.reports.study_axes import is_on_edge, label_of
from hf_memory.reports.tables import PageTable, TableCell, TableLine
from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.judging import Judgement, seeds_that_solve
from hf_memory.studies.outcomes import Study
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.replication import Replication, summary, table
from hf_memory.studies.verdicts import LOOKS, Tally, Verdict, chance_of_verdicts

KINDS: dict[Verdict, str] = {
    "agrees": "agrees",
    "disagrees": "disagrees",
    "same direction, smaller": "smaller",
    "leans": "leans",
    "not decided": "undecided",
}
"""Class of each word on pages."""

VERDICT_COLUMNS = (
    *("claim", "published", "verdict", "seeds", "left, by seed", "right, by seed", "measured", "because"),
)


def verdict_table(study: Study, judgements: Sequence[Judgement], name: str) -> PageTable:
    """What was expected, and what came of it."""
    recipe = study.recipe
    lines = [TableLine(tuple(_verdict_cells(study, judgement))) for judgement in judgements]
    looks = ", ".join(f"{needed} of {look}" for look, needed in LOOKS.items())
    by_luck = sum(chance_by_luck(recipe, judgement.expectation) for judgement in judgements)
    note = (
        "In each seed a relation holds or fails, with its margin, which is added to the right side. Seeds come in "
        f"looks; the first that decides counts: {looks} seeds in which it holds (agrees), or fails (disagrees). "
        "Ties stay among the planned seeds and count for neither side, and so do seeds in brackets, which had not "
        "learned what the claim presupposes. With fewer than five seeds a claim leans. Behind k of n stands the 95 % "
        "interval of the share of seeds in which it holds (Clopper-Pearson). False verdicts to expect: were each of "
        f"these {len(lines)} relations a coin in every seed, {by_luck:.2f} of them would agree by luck, and "
        f"{by_luck:.2f} disagree."
    )
    return PageTable(name, "Verdicts", note, VERDICT_COLUMNS, tuple(lines), filter=False)


def _verdict_cells(study: Study, judgement: Judgement) -> Iterable[TableCell]:
    """A claim and its verdict, in the order of :data:`VERDICT_COLUMNS`."""
    expectation = judgement.expectation
    yield TableCell(expectation.claim, kind="text")
    yield TableCell(expectation.published, kind="text")
    yield TableCell(verdict_words(judgement), kind=f"text {KINDS[judgement.verdict]}")
    yield TableCell(judgement.reason, kind="text")
    yield TableCell(_side(study, judgement, expectation.left, judgement.left.values()), kind="text")
    yield TableCell(_side(study, judgement, expectation.right, judgement.right.values()), kind="text")
    yield TableCell(expectation.in_words(study.recipe.metric_name), kind="text")
    yield TableCell(expectation.because, kind="text")


def verdict_words(judgement: Judgement) -> str:
    """The word of a verdict. A claim that leans never stands without its seeds."""
    tally = judgement.tally
    if judgement.verdict == "leans" and tally is not None:
        return f"leans ({tally.holds} of {tally.planned})"
    return judgement.verdict


def _side(study: Study, judgement: Judgement, measure: Measure | float, values: Iterable[float]) -> str:
    """One side by seed: a number once, seeds that do not count in brackets, lower bounds behind their sign."""
    if not isinstance(measure, Measure):
        return f"{measure:g}"
    texts = (f"({by_seed([value])})" if seed in judgement.dropped else by_seed([value])
             for seed, value in zip(judgement.left, values, strict=True))  # fmt: skip
    text = ", ".join(texts)
    return f"≥ {text}" if text and is_lower_bound(study, measure) else text


def is_lower_bound(study: Study, measure: Measure) -> bool:
    """Whether a measure is of the values by which a rate was chosen, and that rate was best on the edge of its grid.

    What a better rate would do to other metrics nobody knows.
    """
    chose = measure.metric_in(study.recipe.metric_name) == study.recipe.metric_name
    if measure.quantity != "value" or measure.minus or measure.rate != "chosen" or not chose:
        return False
    return any(is_on_edge(study, place) for place in study.places(study.select(measure.arms, measure.at)))


def chance_by_luck(recipe: Recipe, expectation: Expectation) -> float:
    """Probability that a claim agrees where the truth is a coin, with the looks that its recipe has."""
    stage = {"chosen": "final"}.get(expectation.left.stage, expectation.left.stage)
    allowed = recipe.seeds["looks"] if stage != "search" else []
    most = max(allowed, default=len(recipe.planned_seeds(stage) or recipe.planned_seeds("search")))
    return chance_of_verdicts(0.5, [look for look in LOOKS if look <= most])["agrees"]


def expectation_table(recipe: Recipe, name: str) -> PageTable:
    """The claims as they were registered, before there is a verdict."""
    lines = [
        TableLine(tuple(TableCell(text, kind="text") for text in (item.claim, item.published, asked, item.because)))
        for item in recipe.expectations
        for asked in (item.in_words(recipe.metric_name),)
    ]
    note = "Registered before the runs; there is no verdict yet."
    return PageTable(
        name, "Registered claims", note, ("claim", "published", "measured", "because"), tuple(lines), False
    )


def window_table(study: Study, name: str) -> PageTable | None:
    """In how many seeds each learning rate solves the task, for all windows that a claim reads; None without any."""
    measures = [m for item in study.recipe.expectations for m in item.measures if m.quantity == "lr_window"]
    found: dict[tuple[str, str], dict[float, Tally]] = {}
    for measure in measures:
        level = f"{measure.theta:g}{' of its best' if measure.of_best else ''} on {measure.split}"
        for place in study.places(study.select(measure.arms, measure.at)):
            found[label_of(place), level] = seeds_that_solve(study, place, measure)
    rates = sorted({own for tallies in found.values() for own in tallies})
    lines = []
    for labels, tallies in found.items():
        inside = [rate(own) for own, tally in tallies.items() if 3 * tally.holds >= 2 * tally.planned]
        texts = [_seeds_of(tallies[own]) if own in tallies else "" for own in rates]
        every = (*labels, *texts, ", ".join(inside) or "none")
        lines.append(TableLine(tuple(TableCell(text, kind="text") for text in every)))
    note = (
        "Seeds in which a run holds the level for three looks, within the steps of its recipe. The best is what the "
        "seed has at any rate and look. The window is the rates at which at least two thirds of the seeds do."
    )
    columns = ("arm", "level", *map(rate, rates), "window")
    return PageTable(name, "Windows of learning rates", note, columns, tuple(lines)) if lines else None


def _seeds_of(tally: Tally) -> str:
    missing = tally.planned - tally.holds - tally.fails
    return f"{tally.holds} of {tally.planned}" + (f", {missing} missing" if missing else "")


def replication_table(replication: Replication, name: str) -> PageTable:
    """The claims that agreed, and in how many seeds that nobody had used they hold again.

    The note also tells what earlier replications came to, after which the study was mended.
    """
    columns, *texts = table(replication)
    lines = tuple(TableLine(tuple(TableCell(text, kind="text") for text in line)) for line in texts)
    told = [f"Before the study was mended: {summary(found)}." for found in replication.earlier]
    note = " ".join((f"{summary(replication)}.", *told))
    return PageTable(name, "Run again with fresh seeds", note, columns, lines, filter=False)


def changed_table(recipe: Recipe, name: str) -> PageTable:
    """Claims that were registered and are no more."""
    texts = [(entry["claim"], "not held", entry["date"], entry["why"]) for entry in recipe.changed]
    lines = [TableLine(tuple(TableCell(text, kind="text") for text in line)) for line in texts]
    note = "Claims that were registered once and were reworded or dropped since. Each counts as not held."
    columns = ("old wording", "counts as", "date", "why")
    return PageTable(name, "Changed and dropped claims", note, columns, tuple(lines), filter=False)
