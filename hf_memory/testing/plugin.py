"""``pytest -p hf_memory.testing.plugin --hf-memory leaky.py``: the contracts on the mixers and tasks of a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OPTION = "--hf-memory"

pytest.register_assert_rewrite(
    *(f"hf_memory.testing.{name}" for name in ("state", "heads", "weights", "modules", "lengths", "inputs")),
    *(f"hf_memory.testing.{name}" for name in ("generation", "graphs", "growth", "laws", "models")),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("hf_memory").addoption(
        OPTION, action="append", default=[], metavar="FILE", help="run the contracts of hf_memory on a file's leaves"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the files of the option, and nothing else where nothing else is named."""
    files = [str(Path(name).resolve()) for name in config.getoption(OPTION)]
    if files:
        config.args[:] = [*_named(config), *files]


def _named(config: pytest.Config) -> list[str]:
    """What the command line names besides."""
    return config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "Leaves | None":
    """Take the files of the option."""
    wanted = {Path(name).resolve() for name in parent.config.getoption(OPTION)}
    return Leaves.from_parent(parent, path=file_path) if file_path.resolve() in wanted else None


class Leaves(pytest.File):
    """The mixers and tasks of a file."""

    def collect(self) -> Iterator["Clause"]:
        """One item for each contract of each leaf."""
        from hf_memory.extensions import include
        from hf_memory.mixers import MIXERS
        from hf_memory.testing.contracts import MIXER_MODULES, TASK_MODULES, contracts

        for key in include(self.path):
            for contract in contracts(MIXER_MODULES if key in MIXERS else TASK_MODULES):
                yield Clause.from_parent(self, name=f"{key}-{contract.__name__}", contract=contract, key=key)


class Clause(pytest.Item):
    """One contract for one leaf."""

    def __init__(self, *, contract: Any, key: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.contract, self.key = contract, key

    def runtest(self) -> None:
        """Run all of its cases."""
        from hf_memory.testing.contracts import run

        run(self.contract, self.key)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it comes from, and its name."""
        return self.path, None, self.name
