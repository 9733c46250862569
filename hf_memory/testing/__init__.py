"""The contracts of mixers and tasks, to be run where these are written.

    def test_leaky():
        check_mixer(MemoryLeakyConfig)

runs all of them for a mixer; ``pytest -p hf_memory.testing.plugin --hf-memory leaky.py`` makes a test of each, for all
that a file defines. Needs pytest.
"""

import sys

from hf_memory.mixers.auto import register_mixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.tasks import register_task
from hf_memory.tasks.base import Task


def check_mixer(config: type[MemoryConfig]) -> None:
    """Run every contract for a mixer, which is registered where it is not.

    Args:
        config: Its config class; the mixer of its name stands in the same module.

    Raises:
        AssertionError: A law does not hold; a note says in which case.
        ValueError: The mixer cannot be registered.
    """
    from hf_memory.testing.contracts import MIXER_MODULES, contracts, run

    if not isinstance(config, type):
        raise ValueError(f"config must be a config class such as MemoryLSTMConfig, got {config!r}")
    name = config.__name__.removeprefix("Memory").removesuffix("Config") + "Mixer"
    key = register_mixer(config, getattr(sys.modules[config.__module__], name, None))  # type: ignore[arg-type]
    for contract in contracts(MIXER_MODULES):
        run(contract, key)


def check_task(task: type[Task]) -> None:
    """Run every contract for a task, which is registered where it is not.

    Raises:
        AssertionError: A law does not hold; a note says in which case.
        ValueError: The task cannot be registered.
    """
    from hf_memory.testing.contracts import TASK_MODULES, contracts, run

    key = register_task(task)
    for contract in contracts(TASK_MODULES):
        run(contract, key)
