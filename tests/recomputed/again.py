"""A replication as its files tell it: which claims hold again in seeds that nobody had used."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas
import scipy.stats

from tests.recomputed.sweeps import Sweep
from tests.recomputed.verdicts import LOOKS, Verdict, judge, named


class Again(Sweep):
    """The runs of a replication, judged by the claims of the sweep that came first.

    Its record names the fresh seeds, and which of them had a search of their own. Everything else is read off the runs:
    a run belongs to the place whose runs in the first sweep had the same model, data and arm, and one whose seed lies
    500 above the first fresh one or beyond to the search.
    """

    def __init__(self, first: Sweep, folder: Path):
        record = json.loads((folder / "replication.json").read_text())
        self.first, self.fresh, self.searched = first, record["seeds"], record["searched"]
        runs = _runs_below(folder, first)
        runs["stage"] = np.where(runs.seed.isin(self.fresh), "final", "search")
        runs = runs[runs.seed.isin(self.fresh) | (runs.seed >= min(self.fresh) + 500)]  # without earlier replications
        own = sorted(runs.seed[runs.stage == "search"].unique().tolist())
        self.recipe = {**first.recipe, "seeds": {"search": own, "final": self.fresh}, "control": None}
        self._take(runs)

    def _at_rate(self, place: str, rate: str = "chosen") -> pandas.DataFrame:
        """The runs with fresh seeds, which must have the rate of the first sweep or that of their own search."""
        assert rate == "chosen"
        runs = self.runs[(self.runs.place == place) & (self.runs.stage == "final")].sort_values("seed")
        for run in runs.itertuples():
            chooser = self if run.seed in self.searched else self.first
            assert np.isclose(run.rate, self.own_rate(place) or chooser.choice(place).rate)
        return self._known(place, runs)


@dataclasses.dataclass(frozen=True)
class Line:
    """A claim that agreed: its first verdict, the one in fresh seeds, how likely it was to hold, and whether it did."""

    claim: str
    first: Verdict
    again: Verdict
    chance: float
    held: bool


def lines_of(first: Sweep, again: Again) -> list[Line]:
    """What came of every claim that agreed."""
    seeds, found = len(again.fresh), []
    needed = LOOKS.get(seeds, seeds // 2 + 1)
    for item in first.recipe["expectations"]:
        before = judge(first, item)
        if before.word != "agrees":
            continue
        now = judge(again, named(first, item))
        held, rest = before.holds, before.planned - before.holds
        chance = scipy.stats.betabinom(seeds, held + 1, rest + 1).pmf(range(needed, seeds + 1)).sum()
        told = now.word in ("agrees", "leans") and now.holds >= needed
        found.append(Line(item["claim"], before, now, chance, bool(told)))
    return found


def in_a_sentence(lines: list[Line], again: Again) -> str:
    """How many lines hold again, how many were expected to, and what that says of the study."""
    law = np.ones(1)
    for line in lines:
        law = np.convolve(law, [1 - line.chance, line.chance])
    fewest = int(np.searchsorted(np.cumsum(law), 0.05))
    held, expected = sum(line.held for line in lines), sum(line.chance for line in lines)
    verdict = "the study failed" if held < fewest else "the study stands"
    return (
        f"{held} of {len(lines)} lines hold again with {len(again.fresh)} fresh seeds, {len(again.searched)} of them "
        f"with a search of their own; {expected:.1f} were expected, and at least {fewest} in 95 % of cases: "
        f"{verdict if fewest else 'too few lines for a failure to show'}"
    )


def _runs_below(folder: Path, first: Sweep) -> pandas.DataFrame:
    """A line for each run of a folder, at the place of the first sweep's runs that are its like."""
    alike, lines = {}, []
    for run in first.runs[first.runs.headline.notna()].itertuples():
        known = alike.setdefault(_what_was_run(_definition(run.path)), run)
        assert known.place == run.place  # else a run could belong to either
    for path in sorted(folder.glob("*.jsonl")):
        definition = _definition(path)
        run = alike[_what_was_run(definition)]
        lines.append({
            "cell": path.stem, "path": path.with_suffix(""), "place": run.place, "arm": run.arm,
            "rate": definition["training"]["learning_rate"], "seed": definition["seed"],
            "stop_at": run.stop_at, "crossing": run.crossing,
        })  # fmt: skip
    return pandas.DataFrame(lines).set_index("cell")


def _definition(path: Path) -> dict:
    return json.loads(path.with_suffix(".jsonl").read_text().splitlines()[0])["definition"]


def _what_was_run(definition: dict) -> tuple:
    """Model, data and arm of a run, whatever its seed and its rate."""
    data = {name: value for name, value in definition["data"].items() if name != "seed"}
    names = ("arm", "config", "task", "preset")
    return (*(definition[name] for name in names), json.dumps(data, sort_keys=True), definition["rows_per_step"],
            definition["training"]["max_steps"])  # fmt: skip
