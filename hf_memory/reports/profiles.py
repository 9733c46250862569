"""What a suite has found of the mixers that were asked, for a page of Markdown."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from hf_memory.names import check_names, file_name
from hf_memory.reports.committed_figures import FIGURES, rows_digest
from hf_memory.reports.formats import count, spread
from hf_memory.reports.plotting import Drawing
from hf_memory.reports.suite_page import entry_table, memory_table, profile_drawing
from hf_memory.reports.tables import noted_markdown
from hf_memory.studies.suites import Score, Suite, by_memory, load_suite, read_scores


@dataclasses.dataclass(frozen=True)
class Profiles:
    """A suite in its cpu profile and the mixers for which it has come to its end.

    Attributes:
        suite: The suite.
        scores: Their scores, by mixer.
        root: The folder to which links are relative.
        folder: The folder with the rows, by profile, and the figures.
    """

    suite: Suite
    scores: Mapping[str, list[Score]]
    root: Path
    folder: Path

    @property
    def done(self) -> bool:
        """Whether there is a mixer for which it has come to its end."""
        return bool(self.scores)

    @property
    def memories(self) -> str:
        """The table of the kinds of memory."""
        return noted_markdown(memory_table(self.suite, self.scores))

    @property
    def runs(self) -> str:
        """The table of all configurations."""
        return noted_markdown(entry_table(self.suite, self.scores))

    @property
    def figures(self) -> list[str]:
        """The profiles that were drawn."""
        paths = [(arm, self.folder / FIGURES / f"{self._name(arm)}.png") for arm in self.scores]
        return [
            f"![Profile of {arm}]({path.relative_to(self.root).as_posix()})" for arm, path in paths if path.is_file()
        ]

    def kind(self, arm: str, memory: str) -> str:
        """How many of a mixer's runs solved their configuration of a kind of memory, of how many."""
        solved, planned = by_memory(self.scores[arm])[memory]
        return f"{solved} of {planned}"

    def solved(self, arm: str, name: str) -> str:
        """How many of a mixer's runs solved a configuration, of how many."""
        own = self._score(arm, name)
        return f"{own.solved} of {own.planned}"

    def values(self, arm: str, name: str) -> str:
        """The values of a mixer at a configuration, on rows of the training length."""
        return spread(list(self._score(arm, name).values.values()))

    def reached(self, arm: str, name: str) -> str:
        """The longest test length that each of a mixer's runs reached at a configuration, the shortest first."""
        return ", ".join(count(int(length)) for length in sorted(self._score(arm, name).reached.values()))

    def _score(self, arm: str, name: str) -> Score:
        own = {one.entry.name: one for one in self.scores[arm]}
        check_names([name], own, "configuration")
        return own[name]

    def drawings(self) -> dict[str, Drawing]:
        """The profiles by their file's name without its ending."""
        return {self._name(arm): profile_drawing(self.suite, arm, own) for arm, own in self.scores.items()}

    def digest_of(self, figure: str) -> str:
        """The digest of the rows behind a profile; nothing where there are none."""
        arm = next((arm for arm in self.scores if self._name(arm) == figure), None)
        return "" if arm is None else rows_digest(one.study for one in self.scores[arm])

    def _name(self, arm: str) -> str:
        return file_name(f"{self.suite.name}-{arm}-{self.suite.profile}")


def read_profiles(root: Path) -> dict[str, Profiles]:
    """The suites of a folder that were run, by their name."""
    found = {}
    for path in sorted((root / "examples" / "suites").glob("*.yaml")):
        suite = load_suite(path, "lstm")  # what is asked is the same for every mixer
        folder = root / "examples" / "results" / suite.name
        scores = read_scores(suite, folder / suite.profile) if folder.is_dir() else {}
        ended = {arm: own for arm, own in scores.items() if _has_ended(suite, own)}
        found[suite.name] = Profiles(suite, ended, root, folder)
    return found


def _has_ended(suite: Suite, scores: list[Score]) -> bool:
    return len(scores) == len(suite.entries) and all(one.study.complete for one in scores)
