"""Facts about mixers and tasks, read from the models and tasks themselves."""

import importlib
import inspect
import re
from types import ModuleType
from typing import TYPE_CHECKING

from hf_memory.reports.formats import UNKNOWN, share

if TYPE_CHECKING:
    import torch

    from hf_memory.data.specification import Specification
    from hf_memory.models.modeling import MemoryPreTrainedModel

STATE_LENGTHS = (64, 1024)
"""Lengths at which the size of a state is shown."""

MIXER_COLUMNS = ("mixer", *(f"state at {length}" for length in STATE_LENGTHS), "eigenvalues", "backend", "source")
TASK_COLUMNS = ("task", "memory", "head", "headline metric", "chance", "configurations")


def mixer_facts(key: str) -> tuple[str, ...]:
    """Key, state sizes, range of the eigenvalues' real parts on random inputs, backend and source of one mixer."""
    import torch

    from hf_memory.mixers.auto import mixer_config, mixer_model

    torch.manual_seed(0)
    model = mixer_model(mixer_config(key, vocab_size=16, hidden_size=64, num_hidden_layers=2)).eval()
    sizes = [f"{model.state_size(length):,}" for length in STATE_LENGTHS]
    spectra = [layer.mixer.transition_spectrum(torch.randn(1, 16, 64)) for layer in model.layers]
    known = [spectrum for spectrum in spectra if spectrum is not None]
    low, high = (min(s.min().item() for s in known), max(s.max().item() for s in known)) if known else (0.0, 0.0)
    span = f"{low:.2f} to {high:.2f}" if known else "none"
    text = inspect.getdoc(importlib.import_module(type(model).__module__)) or ""
    return key, *sizes, span, ", ".join(backends_of(model)), source_of(text)


def backends_of(model: "MemoryPreTrainedModel") -> list[str]:
    """The backends that run the recurrences of a model in float32 on this machine, each once, in order of layers."""
    import torch

    from hf_memory.ops.backends.dispatch import resolve_backend

    names = []
    for layer in model.layers:
        operations = operations_of_mixer(type(layer.mixer))
        # Attention and short convolutions are calls of torch, which no other backend offers.
        what = {"device": default_device(), "dtype": torch.float32}
        names += [resolve_backend(op, prove=False, **what) for op in operations] or ["torch"]
    return list(dict.fromkeys(names))


def operations_of_mixer(cls: type) -> list[str]:
    """The operations that a mixer calls, and those that the classes behind it call for it."""
    from hf_memory.models.modeling import Mixer

    modules = dict.fromkeys(one.__module__ for one in cls.__mro__ if issubclass(one, Mixer))
    return list(dict.fromkeys(op for name in modules for op in operations_of(importlib.import_module(name))))


def operations_of(module: ModuleType) -> list[str]:
    """The operations with a choice of backends that a module imports, by the names of their files."""
    names = [
        value.__module__.rpartition(".")[2]
        for value in vars(module).values()
        if inspect.isfunction(value)
        and value.__module__.startswith("hf_memory.ops.")
        and "backend" in inspect.signature(value).parameters
    ]
    return list(dict.fromkeys(names))


def default_device() -> "torch.device":
    """The device on which Trainer would run."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def source_of(text: str) -> str:
    """The source that a docstring names: after ``Source:``, else its first citation in brackets, else all others."""
    line = " ".join(text.split())
    named = re.search(r"Sources?: (.+?)(?<!al)\.(?: |$)", line)
    if named:
        return named.group(1)
    cited = re.search(r"\(([A-Z][^()]*\d{4}[^()]*)\)", line)
    if cited:
        return cited.group(1)
    name = r"[A-Z][\w-]+"
    return "; ".join(dict.fromkeys(re.findall(rf"{name}(?:, {name})*(?: and {name}| et al\.)? \(\d{{4}}\)", line)))


def task_facts(key: str) -> tuple[str, ...]:
    """Key, kind of memory, head, headline metric with its chance level, and configurations of one task."""
    from hf_memory.data.specification import specify

    specification = specify(key)
    task = specification.task
    level = chance_of(specification)
    metric = task.headline_metric.replace("_", " ")
    others = len(task.presets) - 1
    configurations = f"{specification.preset} and {others} more" if others else specification.preset
    return key, task.category, task.head.replace("_", " "), metric, level, configurations


def chance_of(specification: "Specification") -> str:
    """Chance level of the headline metric at the longest training length."""
    from hf_memory.data.specification import length_bounds

    task = specification.task
    chance = task.known_chance(task.headline_metric, length_bounds(specification.train_length)[1])
    return UNKNOWN if chance is None else share(chance)
