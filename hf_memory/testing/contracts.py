"""The contracts as functions, and one way to run them: in the tests of this package and in anybody else's.

A contract is a function ``test_...(key, ...)`` of the modules :data:`MIXER_MODULES` or :data:`TASK_MODULES`, with the
``parametrize`` of pytest for its cases. It may ask for ``tmp_path`` and ``monkeypatch``.
"""

import contextlib
import inspect
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hf_memory.testing import generation, graphs, growth, heads, inputs, laws, lengths, modules, state, weights

Contract = Callable[..., None]

MIXER_MODULES = (state, heads, weights, modules, lengths, inputs, generation, growth, graphs)
TASK_MODULES = (laws,)


def contracts(places: tuple[ModuleType, ...]) -> list[Contract]:
    """The contracts of some modules, in their order."""
    members = [member for place in places for member in vars(place).items()]
    return [value for name, value in members if name.startswith("test_") and inspect.isfunction(value)]


def run(contract: Contract, key: str) -> None:
    """Run all cases of a contract for a mixer or a task; an error says of which case it is."""
    for case in cases(contract):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (Trainer and accelerate draw from numpy's global stream)
        torch.manual_seed(0)
        with contextlib.ExitStack() as stack:
            wanted = inspect.signature(contract).parameters
            given = {name: stack.enter_context(make()) for name, make in _FIXTURES.items() if name in wanted}
            try:
                contract(key=key, **case, **given)
            except Exception as error:
                if case:
                    error.add_note(f"in the case {', '.join(f'{name}={value!r}' for name, value in case.items())}")
                raise


def cases(contract: Contract) -> Iterator[dict[str, Any]]:
    """The arguments of each case, every combination of what ``parametrize`` names."""
    axes = []
    for mark in getattr(contract, "pytestmark", []):
        names, values = mark.args
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        axes.append([dict(zip(names, value if len(names) > 1 else [value], strict=True)) for value in values])
    for combination in itertools.product(*axes):
        yield {name: value for part in combination for name, value in part.items()}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf_memory-contracts-") as folder:
        yield Path(folder)


_FIXTURES: dict[str, Callable[[], Any]] = {"tmp_path": _folder, "monkeypatch": pytest.MonkeyPatch.context}
