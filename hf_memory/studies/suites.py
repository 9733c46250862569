"""Suites: fixed sets of configurations that ask one mixer what it learns to remember within a budget.

Each configuration is a small sweep of its own: some learning rates with one seed, then fresh seeds at the chosen rate.
A suite that was stopped goes on where it was. Its name carries its version: what is measured under it never changes.

A file holds ``name``, ``title`` and ``text``; under ``base`` the keys of a recipe that all configurations share; under
``entries`` for each its own keys over these, and ``solved``, the level of the headline metric on validation rows from
which on a run has solved it; and ``profiles``, as a recipe does.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_memory.experiments.metrics import REACHED
from hf_memory.experiments.schema import Fields, MapOf, Maybe, Number, Plain, Text
from hf_memory.names import check_names, file_name
from hf_memory.studies.expectations import Measure
from hf_memory.studies.judging import UndecidedError, by_seed
from hf_memory.studies.outcomes import Study, find_records, read_study
from hf_memory.studies.recipe_schema import PROFILES
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.recipes_yaml import find_file, in_profile, merge, read_mapping
from hf_memory.studies.sweep import run_sweep
from hf_memory.tasks import task_class

MEMORIES = ("stateful", "stack", "associative", "stable", "counting")
"""The kinds of memory, in the order in which they are shown."""

_FILE = Fields(
    {
        "name": Text(pattern=r"[a-z0-9_]+-[0-9]+", form="a word and a version, as memory-1"),
        "title": Text(),
        "text": Text(),
        "base": MapOf(Plain()),
        "entries": MapOf(MapOf(Plain()), least=1),
        "profiles": Maybe(Fields(dict.fromkeys(PROFILES, Plain()))),
    },
    needed=("name", "base", "entries"),
)
_LEVEL = Number()


@dataclasses.dataclass(frozen=True)
class Entry:
    """One configuration of a suite.

    Attributes:
        name: Its name in the suite.
        recipe: Its sweep, with one arm.
        solved: The level from which on a run has solved it.
    """

    name: str
    recipe: Recipe
    solved: float

    @property
    def memory(self) -> str:
        """The kind of memory that its task needs."""
        return task_class(self.recipe.task).category

    @property
    def arm(self) -> str:
        """Name of the one arm."""
        return next(iter(self.recipe.arms))


@dataclasses.dataclass(frozen=True)
class Suite:
    """A suite for one mixer, in one profile."""

    name: str
    title: str
    text: str
    profile: str
    entries: tuple[Entry, ...]

    def folder(self, results: str | os.PathLike[str], entry: Entry) -> Path:
        """Where the rows of one configuration lie."""
        return Path(results) / file_name(entry.arm) / entry.name


@dataclasses.dataclass(frozen=True)
class Score:
    """What the fresh seeds of one configuration came to; each mapping is by seed, and empty while runs are missing.

    Attributes:
        entry: The configuration.
        study: Its sweep.
        values: The headline metric on validation rows.
        steps: Steps until the level was reached and held for three looks; infinity for a run that never held it.
        reached: The longest test length that was reached, 0 for none.
    """

    entry: Entry
    study: Study
    values: Mapping[int, float]
    steps: Mapping[int, float]
    reached: Mapping[int, float]

    @property
    def solved(self) -> int:
        """Runs that solved it."""
        return sum(value >= self.entry.solved for value in self.values.values())

    @property
    def planned(self) -> int:
        """Runs that are to be made."""
        return len(self.entry.recipe.planned_seeds("final"))

    @property
    def chance(self) -> float:
        """Chance level of the headline metric on validation rows; 0 before anything ran."""
        known = [result for result in self.study.results if result.is_known]
        return known[0].chance("validation", self.entry.recipe.metric_name) if known else 0.0


def load_suite(
    name: str | os.PathLike[str],
    mixer: str,
    *,
    label: str | None = None,
    model: Mapping[str, Any] | None = None,
    profile: str = "cpu",
) -> Suite:
    """Read a suite for a mixer.

    Args:
        name: A file, or the name of a suite that comes with the package.
        mixer: Key of the mixer.
        label: What it is called; by default its key, with the fields of ``model`` behind it.
        model: Further fields of its config.
        profile: Profile of the suite; ``smoke`` is there for each.

    Raises:
        ValueError: There is no such file or profile, or a key or value is wrong; the file and the key are named.
    """
    path = find_file(name, "suites")
    values = read_mapping(path)
    model = dict(model or {})
    label = label or ", ".join([mixer, *(f"{key}={value}" for key, value in sorted(model.items()))])
    try:
        _FILE.check(values, "")
        entries = tuple(
            _entry(values, key, own, profile, {label: {"mixer": mixer, "model": model}})
            for key, own in values["entries"].items()
        )
        return Suite(values["name"], values.get("title", ""), values.get("text", ""), profile, entries)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _entry(suite: Mapping[str, Any], name: str, own: Mapping[str, Any], profile: str, arms: Mapping[str, Any]) -> Entry:
    """One configuration as the sweep of one arm."""
    rest = {key: value for key, value in own.items() if key != "solved"}
    try:
        if "solved" not in own:
            raise ValueError("the key 'solved' is missing")
        _LEVEL.check(own["solved"], "solved")
        profiles = suite.get("profiles") or {"cpu": {}}
        title = f"{suite.get('title', suite['name'])}: {name.replace('_', ' ')}"
        fixed = {"name": f"{suite['name']}-{name}", "title": title, "arms": arms, "profiles": dict(profiles)}
        return Entry(
            name, Recipe.from_json(in_profile({**merge(suite["base"], rest), **fixed}, profile)), own["solved"]
        )
    except ValueError as error:
        raise ValueError(f"entries.{name}: {error}") from error


def run_suite(suite: Suite, results: str | os.PathLike[str], **how: Any) -> list[Score]:
    """Run what is not finished of all configurations, one after the other; ``how`` goes to :func:`run_sweep`."""
    return [score(entry, run_sweep(entry.recipe, suite.folder(results, entry), **how)) for entry in suite.entries]


def score(entry: Entry, study: Study) -> Score:
    """Read off a sweep what one configuration came to."""

    def measured(quantity: str, theta: float) -> dict[int, float]:
        try:
            return by_seed(study, Measure(arms=(entry.arm,), quantity=quantity, theta=theta))[0]
        except UndecidedError:
            return {}

    return Score(
        entry,
        study,
        values=measured("value", entry.solved),
        steps=measured("steps_to", entry.solved),
        reached=measured("extrapolation_length", REACHED),
    )


def read_scores(suite: Suite, results: str | os.PathLike[str]) -> dict[str, list[Score]]:
    """The scores of all mixers of a folder, by their label, in the order of the suite.

    Raises:
        ValueError: A record is damaged.
    """
    levels = {entry.name: entry.solved for entry in suite.entries}
    places = {name: place for place, name in enumerate(levels)}
    found: dict[str, list[Score]] = {}
    for study in _studies(suite, Path(results)):
        name = study.recipe.name.removeprefix(f"{suite.name}-")
        check_names([name], levels, f"configuration of {suite.name}")
        entry = Entry(name, study.recipe, levels[name])
        found.setdefault(entry.arm, []).append(score(entry, study))
    return {arm: sorted(own, key=lambda one: places[one.entry.name]) for arm, own in sorted(found.items())}


def _studies(suite: Suite, results: Path) -> Iterator[Study]:
    for record in find_records(results):
        study = read_study(record)
        if study.recipe.name.startswith(f"{suite.name}-") and study.recipe.profile == suite.profile:
            yield study


def by_memory(scores: list[Score]) -> dict[str, tuple[int, int]]:
    """For each kind of memory the runs that solved their configuration, and those that were planned."""
    kinds = {kind: [one for one in scores if one.entry.memory == kind] for kind in MEMORIES}
    return {
        kind: (sum(one.solved for one in own), sum(one.planned for one in own)) for kind, own in kinds.items() if own
    }
