"""A page of reproduced claims from a template: tables and numbers in prose are references, resolved from rows.

``python -m hf_memory.reports.reproduction`` writes ``REPRODUCTION.md`` anew from ``examples/reproduction.md.jinja``. It
draws those of its figures anew whose rows have changed, and those that are named, as ``r3_dyck-verdicts-cpu``.

The template is Markdown for Jinja. It is given ``recipes``, a :class:`Reproduction` by name, ``suites``, a
:class:`~hf_memory.reports.profiles.Profiles` by name, and ``overview`` and ``withdrawn``, tables over recipes. A
sentence refers to a number and never types it, and a sentence about results stands within
``{% if recipes.<name>.done %}``, so that a sweep that has not ended is not spoken of.
"""

import dataclasses
import functools
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import jinja2

from hf_memory.names import by_number, check_names, file_name
from hf_memory.reports.committed_figures import FIGURES, drawn_from, rows_digest, write_figure
from hf_memory.reports.formats import by_seed, rate, share, span, spread
from hf_memory.reports.plotting import Drawing
from hf_memory.reports.profiles import Profiles, read_profiles
from hf_memory.reports.study_page import problems_of, runs_in_words
from hf_memory.reports.study_plots import draw_study
from hf_memory.reports.study_tables import place_tables
from hf_memory.reports.tables import markdown_table, noted_markdown
from hf_memory.reports.verdict_plots import verdict_drawing
from hf_memory.reports.verdict_tables import (
    changed_table,
    expectation_table,
    is_lower_bound,
    replication_table,
    verdict_table,
    window_table,
)
from hf_memory.storage import read_json, write_text
from hf_memory.studies.expectations import Expectation, Measure
from hf_memory.studies.judging import Judgement, judge_expectation, judge_study
from hf_memory.studies.outcomes import Result, Study, assemble, find_records, read_cell, read_study, record_path
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.replication import Replication, pooled, read_replication, summary
from hf_memory.studies.verdicts import Verdict


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A recipe in one profile and what its sweep has found. Every method gives a text.

    Attributes:
        recipe: The recipe as it is registered.
        study: Its sweep; None before it has begun.
        root: The folder to which links are relative.
        folder: The folder with its rows, by profile, and its figures.
    """

    recipe: Recipe
    study: Study | None
    root: Path
    folder: Path

    @property
    def done(self) -> bool:
        """Whether the sweep has come to its end, so that there are verdicts."""
        return self.study is not None and self.study.complete

    @property
    def state(self) -> str:
        """``registered``, ``running`` or ``done``."""
        return "done" if self.done else "registered" if self.study is None else "running"

    @property
    def seeds_run(self) -> str:
        """How many seeds a claim rests on: those of the runs at a chosen rate; nothing before the sweep is done."""
        if not self.done:
            return ""
        found = [self._finished.at_rate(place, "chosen") for place in self._finished.places()]
        # A depth that was passed over has none.
        return span(len({run.cell.seed for run in runs}) for runs in found if runs)

    @property
    def hours(self) -> str:
        """What its runs cost, in hours of one process; nothing before the end, or where another recipe has them."""
        if not self.done or self.recipe.runs_of is not None:
            return ""
        runs = [list(result.rows.values()) for result in self._finished.results if result.rows]
        seconds = sum((rows[0].train_seconds or 0.0) + sum(row.eval_seconds for row in rows) for rows in runs)
        return f"{seconds / 3600:.1f}"

    @functools.cached_property
    def judgements(self) -> list[Judgement]:
        """The verdicts, once the sweep is done."""
        return judge_study(self._finished)

    @property
    def claims(self) -> str:
        """The table of verdicts, or of registered claims before there are any."""
        if not self.done:
            return noted_markdown(expectation_table(self.recipe, "claims"))
        return noted_markdown(verdict_table(self._finished, self.judgements, "verdicts"))

    @property
    def windows(self) -> str:
        """The table of learning rates at which runs solve; nothing where no claim reads a window."""
        table = window_table(self._finished, "windows")
        return "" if table is None else noted_markdown(table)

    @property
    def values(self) -> str:
        """The table of values at the chosen rates."""
        return noted_markdown(place_tables(self._finished, "values")[0])

    @property
    def changed(self) -> str:
        """The table of claims that were registered and are no more."""
        return noted_markdown(changed_table(self.recipe, "changed"))

    @property
    def replication(self) -> str:
        """The table of what held again with seeds that nobody had used; nothing before it was run."""
        return "" if self.again is None else noted_markdown(replication_table(self.again, "again"))

    @property
    def again(self) -> Replication | None:
        """What held again with seeds that nobody had used; None before it was run."""
        return read_replication(self.folder / self.recipe.profile)

    @property
    def runs(self) -> str:
        """How many runs were measured, and which were not."""
        problems = problems_of(self._finished)
        return runs_in_words(self._finished) + "".join(f"\n- {problem}" for problem in problems)

    def figure(self, kind: str, alt: str) -> str:
        """A figure of the sweep, such as ``verdicts`` or ``rates``; nothing where it was not drawn."""
        path = self.folder / FIGURES / f"{self.recipe.name}-{kind}-{self.recipe.profile}.png"
        return f"![{alt}]({path.relative_to(self.root).as_posix()})" if path.is_file() else ""

    def drawings(self) -> dict[str, Drawing]:
        """All figures of the sweep, by their file's name without its ending; none before the sweep is done."""
        if not self.done:
            return {}
        found = (verdict_drawing(self._finished, self.judgements), *draw_study(self._finished))
        return {file_name(f"{one.name}-{self.recipe.profile}"): one for one in found if one is not None}

    def digest_of(self, figure: str) -> str:
        """The digest of the rows behind a figure; nothing before the sweep is done."""
        return rows_digest([self._finished]) if self.done else ""

    def mean(self, arm: str, split: str, metric: str | None = None, **at: Any) -> str:
        """Mean over the seeds at the chosen rate."""
        return self._bound(arm, metric, at) + share(statistics.fmean(self._values(arm, split, metric, at)))

    def spread(self, arm: str, split: str, metric: str | None = None, **at: Any) -> str:
        """Mean over the seeds, with the smallest and the largest."""
        return self._bound(arm, metric, at) + spread(self._values(arm, split, metric, at))

    def seeds(self, arm: str, split: str, metric: str | None = None, **at: Any) -> str:
        """The value of each seed."""
        return self._bound(arm, metric, at) + by_seed(self._values(arm, split, metric, at))

    def above(self, level: float, arm: str, split: str, metric: str | None = None, **at: Any) -> str:
        """In how many seeds the value is at least ``level``, as k of n."""
        values = self._values(arm, split, metric, at)
        return f"{sum(value >= level for value in values)} of {len(values)}"

    def chance(self, arm: str, split: str, metric: str | None = None, **at: Any) -> str:
        """The chance level of a split."""
        return share(self._runs(arm, at)[0].chance(split, metric or self.recipe.metric_name))

    def rate(self, arm: str, **at: Any) -> str:
        """The chosen learning rate."""
        return rate(self._runs(arm, at)[0].cell.learning_rate)

    def tally(self, claim: str) -> str:
        """In how many seeds a claim holds, as k of n; its reason where that was not measured."""
        judgement = self._judgement(claim)
        tally = judgement.tally
        return judgement.reason if tally is None else f"{tally.holds} of {tally.planned}"

    def verdict(self, claim: str) -> str:
        """The word of a claim."""
        return self._judgement(claim).verdict

    @property
    def _finished(self) -> Study:
        if self.study is None or not self.study.complete:
            raise ValueError(f"{self.recipe.name}: the sweep is {self.state}, and only one that is done has results")
        return self.study

    def _judgement(self, claim: str) -> Judgement:
        found = {judgement.expectation.claim: judgement for judgement in self.judgements}
        if claim not in found:
            raise ValueError(f"claim: {claim!r} is none of {self.recipe.name} (known: {'; '.join(found)})")
        return found[claim]

    def _runs(self, arm: str, at: Mapping[str, Any]) -> list[Result]:
        """The runs of one arm at one place, which must all have been measured."""
        study = self._finished
        places = study.places(study.select([arm], at))
        if len(places) != 1:
            raise ValueError(f"{self.recipe.name}: {arm!r} at {dict(at)} is {len(places)} places, and must be one")
        runs = study.at_rate(places[0], "chosen") or []
        missing = [run.cell.name for run in runs if not run.is_known]
        if not runs or missing:
            raise ValueError(f"{self.recipe.name}: {missing[0] if missing else arm} was not measured")
        return runs

    def _values(self, arm: str, split: str, metric: str | None, at: Mapping[str, Any]) -> list[float]:
        return [run.value(split, metric or self.recipe.metric_name) for run in self._runs(arm, at)]

    def _bound(self, arm: str, metric: str | None, at: Mapping[str, Any]) -> str:
        measure = Measure.from_json({"arms": arm, "at": dict(at), "metric": metric})
        return "≥ " if is_lower_bound(self._finished, measure) else ""


def write_reproduction(root: str | Path = ".") -> Path:
    """Write ``REPRODUCTION.md`` of a folder from its template, recipes and rows."""
    root = Path(root)
    return write_text(root / "REPRODUCTION.md", render(root, read_reproductions(root), read_profiles(root)))


def draw_figures(root: str | Path = ".", names: Collection[str] = ()) -> list[Path]:
    """Draw the figures of a folder whose rows have changed since, and the named ones.

    Raises:
        ValueError: A name is that of no figure of a sweep that is done.
    """
    root, known, written = Path(root), set[str](), []
    sources: list[Reproduction | Profiles] = [*read_reproductions(root).values(), *read_profiles(root).values()]
    for found in sources:
        folder = found.folder / FIGURES
        outdated = {path.stem for path in folder.glob("*.png") if drawn_from(path) != found.digest_of(path.stem)}
        drawings = found.drawings() if outdated or names else {}
        known |= drawings.keys()
        for name in sorted((outdated | set(names)) & drawings.keys()):
            written.append(folder / f"{name}.png")
            write_figure(written[-1], drawings[name].figure, found.digest_of(name))
    check_names(names, known, "figure")
    return written


def render(root: Path, recipes: Mapping[str, Reproduction], suites: Mapping[str, Profiles] | None = None) -> str:
    """The page of ``examples/reproduction.md.jinja`` below a folder.

    Raises:
        ValueError: A reference names what was not measured.
        jinja2.UndefinedError: A reference names what does not exist.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string((root / "examples" / "reproduction.md.jinja").read_text())
    old = withdrawn(root / "examples" / "withdrawn", [found.recipe for found in recipes.values()])
    again = [found.again for found in recipes.values() if found.again is not None]
    return template.render(
        recipes=recipes,
        suites=suites or {},
        overview=overview(recipes),
        withdrawn=old,
        replicated=summary(pooled(again)) if again else "",
    )


def read_reproductions(root: Path) -> dict[str, Reproduction]:
    """All recipes below a folder by name, each in the profile that is run for the page, with its sweep."""
    found = {}
    for path in sorted((root / "examples" / "recipes").glob("*.yaml"), key=lambda path: by_number(path.name)):
        recipe = _load(path)
        folder = root / "examples" / "results" / recipe.name
        record = record_path(folder / recipe.profile, recipe)
        study = read_study(record) if record.is_file() else None
        found[recipe.name] = Reproduction(recipe, study, root, folder)
    return found


def _load(path: Path) -> Recipe:
    """A recipe in the largest profile that a laptop runs."""
    try:
        return load_recipe(path, "cpu_long")
    except ValueError:
        return load_recipe(path, "cpu")


def overview(recipes: Mapping[str, Reproduction]) -> str:
    """One line for each recipe: what it asks, its verdicts, the seeds behind them, what it cost, and how far it is."""
    lines = []
    for name, found in recipes.items():
        told = counted([judgement.verdict for judgement in found.judgements] if found.done else [])
        recipe, link = found.recipe, f"[{name}](examples/recipes/{name}.yaml)"
        counts = len(recipe.expectations), len(recipe.changed)
        lines.append((link, recipe.title, told, found.seeds_run, found.hours, *counts, recipe.profile, found.state))
    head = ("recipe", "what is asked", "verdicts", "seeds", "hours", "claims", "changed or dropped", "profile", "state")
    return markdown_table(head, lines)


def counted(words: Sequence[Verdict]) -> str:
    """How often each verdict was reached, in one order for all recipes.

    >>> counted(["not decided", "agrees", "disagrees", "agrees"])
    '2 agrees; 1 disagrees; 1 not decided'
    """
    return "; ".join(f"{words.count(word)} {word}" for word in get_args(Verdict) if word in words)


def withdrawn(folder: Path, recipes: Sequence[Recipe]) -> str:
    """Claims of the first results, with what their rows say when they are read again by the rule of today.

    These are all that were reworded or dropped, and those whose words are the same and whose measure is another one.
    """
    lines = []
    for recipe in recipes:
        again = read_again(folder / recipe.name)
        for entry in recipe.changed:
            claim, (_, tally) = entry["claim"], again.get(entry["claim"], ("", "no rows"))
            lines.append((recipe.name, claim, tally, "not held", entry["date"], entry["why"]))
        asked = {item.claim: item.in_words(recipe.metric_name) for item in recipe.expectations}
        lines += [
            (recipe.name, claim, tally, "measured otherwise now", "", f"Measured then: {text}.")
            for claim, (text, tally) in again.items()
            if claim in asked and text != asked[claim]
        ]
    return markdown_table(("recipe", "old claim", "its rows, read again", "counts as", "date", "why"), lines)


def read_again(folder: Path) -> dict[str, tuple[str, str]]:
    """What the rows of then say, by claim: what was measured, and in how many seeds the relation holds."""
    found = {}
    for record in find_records(folder):
        values = read_json(record)
        recipe = Recipe.from_json({**values["recipe"], "expectations": []})
        cells = [(cell.pop("digest"), read_cell(cell)) for cell in values["cells"]]
        study = assemble(record.parent, recipe, cells)
        for item in values["recipe"]["expectations"]:
            found[item["claim"]] = _tally_of(study, item)
    return found


_OLD_KEYS = ("seeds", "min_seeds")
"""Keys of an expectation of then: the share and the number of seeds that it asked for."""


def _tally_of(study: Study, item: Mapping[str, Any]) -> tuple[str, str]:
    """What a claim of then measured, and in how many seeds it held; why it is refused where it is."""
    try:
        expectation = Expectation.from_json({key: value for key, value in item.items() if key not in _OLD_KEYS})
    except ValueError as error:
        return "", f"refused now ({str(error).partition(', got')[0]})"
    judgement = judge_expectation(study, expectation)
    tally = judgement.tally
    asked = expectation.in_words(study.recipe.metric_name)
    return asked, judgement.reason if tally is None else f"{tally.holds} of {tally.planned}"


if __name__ == "__main__":
    draw_figures(names=sys.argv[1:])
    write_reproduction()
