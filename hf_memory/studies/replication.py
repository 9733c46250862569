"""Replication: the runs behind each claim that agreed, once more with seeds that nobody has used.

Half of the seeds take the learning rate that the study chose; the others have a search of their own, with seeds of its
own, since a rate that one search found is a part of what may not replicate. How many lines are to hold again follows
from the first tallies (:mod:`hf_memory.studies.verdicts`): where fewer do than in all but 5 % of cases, the study has
failed.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_memory.storage import encode, is_file, read_json, sealed, unsealed, write_text
from hf_memory.studies.cells import Cell, forget_failures
from hf_memory.studies.expectations import Expectation
from hf_memory.studies.judging import Judgement, judge_expectation, judge_study, named
from hf_memory.studies.outcomes import Result, Study, assemble, choose
from hf_memory.studies.plans import is_searched, make_settings, search_place
from hf_memory.studies.running import ReuseOther, Runner, key, make_workers
from hf_memory.studies.verdicts import LOOKS, Tally, chance_to_hold_again, fewest_that_hold

FOLDER, RECORD = "replication", "replication.json"
"""Folder below the rows of a study, and the file in it that holds the table."""

FIRST_SEED = 1000
"""The first seed of a replication, and how far the next one's lies; seeds of its own searches begin 500 later."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A claim that agreed, and what came of it.

    Attributes:
        claim: The claim.
        first: Seeds of the study.
        again: Seeds of the replication; None where a run is missing.
        expected: Probability that it holds again, by the first seeds.
        holds: Whether it did.
    """

    claim: str
    first: Tally
    again: Tally | None
    expected: float
    holds: bool


@dataclasses.dataclass(frozen=True)
class Replication:
    """All lines of a study.

    Attributes:
        recipe: Name of the recipe.
        profile: Its profile.
        seeds: The fresh seeds.
        searched: Those of them with a search of their own.
        lines: One per claim that agreed.
        earlier: Replications of the same folder before the study was mended, the first one first.
    """

    recipe: str
    profile: str
    seeds: tuple[int, ...]
    searched: tuple[int, ...]
    lines: tuple[Line, ...]
    earlier: tuple["Replication", ...] = ()

    @property
    def held(self) -> int:
        """Number of lines that hold again."""
        return sum(line.holds for line in self.lines)

    @property
    def expected(self) -> float:
        """Number of lines that are expected to."""
        return sum(line.expected for line in self.lines)

    @property
    def fewest(self) -> int:
        """The 5 % quantile of that number."""
        return fewest_that_hold([line.expected for line in self.lines])

    @property
    def has_failed(self) -> bool:
        """Whether fewer lines hold than in all but 5 % of cases."""
        return self.held < self.fewest


def replicate(
    study: Study,
    results: str | os.PathLike[str],
    seeds: int,
    *,
    workers: int | None = None,
    backend: str = "local",
    gpu_share: float = 0.0,
    stack: int = 1,
    retry_failed: bool = False,
    progress: bool = True,
    other_code: ReuseOther = "report",
    fresh: bool = False,
) -> Replication:
    """Run the cells behind each claim that agreed with fresh seeds, and write the table.

    Args:
        study: A sweep that has come to its end.
        results: Folder of its rows; those of the replication lie in ``replication`` below it. Finished ones are kept.
        seeds: How many fresh seeds; the number of a look (5, 10 or 20), or fewer than five.
        workers: As for :func:`hf_memory.studies.sweep.run_sweep`.
        backend: As there.
        gpu_share: As there.
        stack: As there.
        retry_failed: As there, of the runs of the replication.
        progress: As there.
        other_code: As there.
        fresh: Take seeds that no replication of this folder has shown, as a study needs that was mended because one
            failed; the earlier tables are kept. Without it a second replication goes on with the first one's runs.

    Raises:
        ValueError: The study has not come to its end, or the number of seeds is none that decides.
    """
    if not study.complete:
        raise ValueError("replicate: the sweep has not come to its end; run it first")
    if seeds < 1 or (seeds >= min(LOOKS) and seeds not in LOOKS):
        raise ValueError(f"replicate: seeds must be one of {list(LOOKS)}, or from 1 to {min(LOOKS) - 1}, got {seeds}")
    agreed = [judgement for judgement in judge_study(study) if judgement.verdict == "agrees"]
    folder = Path(results) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if retry_failed:
        forget_failures(folder)
    earlier = _kept(results, fresh)
    shown = max((seed for found in earlier for seed in found.seeds), default=0)
    plan = _Plan(study, [named(study, judgement.expectation) for judgement in agreed], seeds, shown)
    seconds = {key(setting.place): setting.seconds for setting in plan.settings}
    with (
        make_workers(backend, workers, gpu_share) as pool,
        Runner(f"{study.recipe.name}, again", folder, pool, seconds, stack, progress, other_code) as runner,
    ):
        searches = plan.searches()
        runner.run(searches)
        finals = plan.finals(plan.choices(folder, searches))
        runner.run(finals)
    found = plan.study_of(folder, searches, finals)
    pairs = zip(agreed, plan.expectations, strict=True)
    lines = tuple(_line(found, judgement, item, seeds) for judgement, item in pairs)
    replication = Replication(study.recipe.name, study.recipe.profile, plan.seeds, plan.searched, lines, earlier)
    write_text(folder / RECORD, json.dumps(sealed(encode(dataclasses.asdict(replication))), indent=1) + "\n")
    return replication


def _kept(results: str | os.PathLike[str], fresh: bool) -> tuple[Replication, ...]:
    """Tables of a folder that stay beside the next one: all of them for fresh seeds, else those before the last."""
    found = read_replication(results)
    known = () if found is None else (*found.earlier, found)
    return known if fresh else known[:-1]


def read_replication(results: str | os.PathLike[str]) -> Replication | None:
    """The table of a folder; None where there is none.

    Raises:
        ValueError: It is damaged.
    """
    path = Path(results) / FOLDER / RECORD
    if not is_file(path):
        return None
    try:
        return _from_json(unsealed(read_json(path)))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no table of a replication ({error}); run the replication again") from error


def _from_json(values: Mapping[str, Any]) -> Replication:
    lines = tuple(
        Line(**{**line, "first": Tally(**line["first"]), "again": line["again"] and Tally(**line["again"])})
        for line in values["lines"]
    )
    seeds = {name: tuple(values[name]) for name in ("seeds", "searched")}
    earlier = tuple(map(_from_json, values.get("earlier", ())))
    return Replication(**{**values, **seeds, "lines": lines, "earlier": earlier})


def _line(found: "_Replicated", judgement: Judgement, expectation: Expectation, seeds: int) -> Line:
    """What came of one claim."""
    again = judge_expectation(found, expectation)
    first = judgement.tally or Tally(0, 0, 0)
    needed = LOOKS.get(seeds, seeds // 2 + 1)
    holds = again.tally is not None and again.tally.holds >= needed and again.verdict in ("agrees", "leans")
    return Line(judgement.expectation.claim, first, again.tally, chance_to_hold_again(first, seeds), holds)


@dataclasses.dataclass(frozen=True)
class _Replicated(Study):
    """Results of a replication: the runs of each place that count are those with fresh seeds, each at its own rate."""

    def at_rate(self, place: Mapping[str, Any], rate: str) -> list[Result] | None:
        stage = "fixed" if rate == "fixed" else "final"
        return [result for result in self.at_place(place) if result.cell.stage == stage] or None


class _Plan:
    """What is run again."""

    def __init__(self, study: Study, expectations: Sequence[Expectation], seeds: int, shown: int):
        # The one arm that the study's search named is not named anew.
        plain = [dataclasses.replace(e, left=_plain(e.left)) if e.left.over == "named" else e for e in expectations]
        self.study, self.expectations = study, plain
        self.settings = make_settings(study.recipe)
        used = max((result.cell.seed for result in study.results), default=0)
        first = max(FIRST_SEED, 1 + used, (shown // FIRST_SEED + 1) * FIRST_SEED)
        self.seeds = tuple(range(first, first + seeds))
        self.searched = self.seeds[::2]
        own = len(study.recipe.seeds["search"])
        self._search_seeds = tuple(range(first + 500, first + 500 + own))
        self.rates = sorted({r.cell.learning_rate for r in study.results if r.cell.stage == "search"})
        measures = [measure for item in plain for measure in item.measures]
        self._whole = {key(p) for m in measures if m.stage == "search" for p in self._places(m)}
        self._places_of = {stage: {key(p) for m in measures if m.stage == stage for p in self._places(m)}
                           for stage in ("chosen", "fixed")}  # fmt: skip

    def _places(self, measure: Any) -> list[dict[str, Any]]:
        return self.study.places(self.study.select(measure.arms, measure.at))

    def searches(self) -> list[Cell]:
        """The searches of their own, and those of quantities that are a matter of all rates."""
        recipe = self.study.recipe
        needed = {
            key(search_place(recipe, setting.place))
            for setting in self.settings
            if key(setting.place) in self._places_of["chosen"]
        }
        cells = []
        for setting in self.settings:
            if not is_searched(recipe, setting.place):
                continue
            seeds = self.seeds if key(setting.place) in self._whole else ()
            seeds = (*seeds, *(self._search_seeds if key(setting.place) in needed else ()))
            own = recipe.arms[setting.place["arm"]].get("learning_rate")
            rates = self.rates if own is None else [own]
            cells += [setting.cell(recipe, "search", rate, seed) for seed in seeds for rate in rates]
        return cells

    def choices(self, folder: Path, searches: Sequence[Cell]) -> dict[str, float]:
        """The rates that the searches of their own lead to, by place; places with a missing run are left out."""
        recipe, found = self.study.recipe, {}
        results = assemble(folder, recipe, [(c.digest, c) for c in searches if c.seed in self._search_seeds]).results
        for place in {key(result.cell.place): result.cell.place for result in results}.values():
            own = [result for result in results if dict(result.cell.place) == dict(place)]
            if all(result.is_known for result in own):
                found[key(place)] = choose(own, recipe.metric_name).learning_rate
        return found

    def finals(self, found: Mapping[str, float]) -> list[Cell]:
        """The runs with fresh seeds."""
        recipe, cells = self.study.recipe, list[Cell]()
        for setting in self.settings:
            own = recipe.arms[setting.place["arm"]].get("learning_rate")
            if key(setting.place) in self._places_of["chosen"]:
                choice = self.study.choice(setting.place)
                committed = None if choice is None else choice.learning_rate
                searched = found.get(key(search_place(recipe, setting.place)))
                for seed in self.seeds:
                    rate: float | None = own or (searched if seed in self.searched else committed)
                    if rate is not None:
                        cells.append(setting.cell(recipe, "final", rate, seed, () if own else self.rates))
            if key(setting.place) in self._places_of["fixed"] and recipe.fixed_learning_rate is not None:
                fixed = recipe.fixed_learning_rate
                cells += [setting.cell(recipe, "fixed", fixed, seed) for seed in self.seeds]
        return cells

    def study_of(self, folder: Path, searches: Sequence[Cell], finals: Sequence[Cell]) -> _Replicated:
        """The results as a study whose planned seeds are the fresh ones."""
        recipe = self.study.recipe
        rows = recipe.seeds["rows"]
        seeds = {"search": list(self.seeds) if self._whole else list(self._search_seeds), "rows": rows}
        seeds |= {"final": [] if self._whole else list(self.seeds)}
        if self._places_of["fixed"]:
            seeds["fixed"] = list(self.seeds)
        items = tuple(self.expectations)
        judged = dataclasses.replace(recipe, seeds=seeds, control=None, expectations=items, changed=())
        kept = [cell for cell in searches if not self._whole or cell.seed in self.seeds]
        found = assemble(folder, judged, [(cell.digest, cell) for cell in (*kept, *finals)])
        return _Replicated(judged, found.results, problems=found.problems)


def pooled(replications: Sequence[Replication]) -> Replication:
    """The lines of several studies as those of one: a few lines of one study are too few to show a failure."""
    first, *_ = replications
    return dataclasses.replace(
        first,
        recipe=", ".join(found.recipe for found in replications),
        lines=tuple(line for found in replications for line in found.lines),
    )


def _plain(measure: Any) -> Any:
    return dataclasses.replace(measure, over="mean")


def table(replication: Replication) -> list[tuple[str, ...]]:
    """The table as texts: claim, seeds of the study, fresh seeds, chance to hold again, and whether it did."""
    lines: list[tuple[str, ...]] = [("claim", "study", "again", "chance to hold", "held")]
    for line in replication.lines:
        again = "missing" if line.again is None else f"{line.again.holds} of {line.again.planned}"
        chance = "" if math.isnan(line.expected) else f"{line.expected:.2f}"
        held = "yes" if line.holds else "no"
        lines.append((line.claim, f"{line.first.holds} of {line.first.planned}", again, chance, held))
    return lines


def summary(replication: Replication) -> str:
    """One sentence: how many lines held, how many were expected to, and whether the study failed.

    Where the 5 % quantile is 0 there are too few lines for a failure to show, and the sentence says that instead.
    """
    verdict = "the study failed" if replication.has_failed else "the study stands"
    verdict = verdict if replication.fewest else "too few lines for a failure to show"
    seeds = f"{len(replication.seeds)} fresh seeds, {len(replication.searched)} of them with a search of their own"
    return (
        f"{replication.held} of {len(replication.lines)} lines hold again with {seeds}; {replication.expected:.1f} "
        f"were expected, and at least {replication.fewest} in 95 % of cases: {verdict}"
    )
