"""Sequence mixers, memory tasks and their evaluation, in the tools of Hugging Face.

Importing the package registers every config and model with the Auto classes, which needs torch and transformers.
Names from data, training, evaluation and the Hub are loaded on first use. Without torch, ``hf_memory.tasks`` and
``hf_memory.experiments.metrics`` still import.
"""

import importlib
import importlib.util
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "load_dataset": "hf_memory.data.builder",
    "MemoryTrainer": "hf_memory.experiments.training",
    "MemoryCollator": "hf_memory.data.collator",
    "MemoryCache": "hf_memory.models.cache",
    "MemoryConfig": "hf_memory.models.configuration",
    "Mixer": "hf_memory.models.modeling",
    "MIXERS": "hf_memory.mixers",
    "TASKS": "hf_memory.tasks",
    "Task": "hf_memory.tasks",
    "make_task": "hf_memory.tasks",
    "register_task": "hf_memory.tasks",
    "register_mixer": "hf_memory.mixers.auto",
    "include": "hf_memory.extensions",
    "mixer_config": "hf_memory.mixers.auto",
    "mixer_model": "hf_memory.mixers.auto",
    "evaluate_lengths": "hf_memory.experiments.evaluation",
    "use_backend": "hf_memory.ops.backends.dispatch",
    "available_backends": "hf_memory.ops.backends.dispatch",
}


def _class_modules() -> dict[str, str]:
    """Names of all config and model classes, and the module that defines each."""
    from hf_memory.mixers import MIXERS, OUTSIDE

    suffixes = ("Config", "Model", "ForCausalLM", "ForTokenClassification")
    stems = {stem: OUTSIDE.get(key, f"hf_memory.mixers.{key}") for key, stem in MIXERS.items()}
    stems["Hybrid"] = "hf_memory.mixers.hybrid"
    return {f"Memory{stem}{suffix}": module for stem, module in stems.items() for suffix in suffixes}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name) or _class_modules().get(name)
    if module is None:
        from hf_memory.names import nearest

        near = None if name.startswith("_") else nearest(name, [*_LAZY, *_class_modules()])
        hint = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_class_modules()])


def _publish(model: Any, repo_id: str, **options: Any) -> Any:
    """What ``model.push_to_hub`` does; its needs are imported when it is called."""
    return importlib.import_module("hf_memory.hub.checkpoints").push(model, repo_id, **options)


if importlib.util.find_spec("numpy") is not None:
    from hf_memory.extensions import MIXER_GROUP, TASK_GROUP, load_extensions

    if importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None:
        from hf_memory.mixers.auto import register_all
        from hf_memory.models.modeling import MemoryPreTrainedModel

        register_all()
        MemoryPreTrainedModel.publisher = staticmethod(_publish)
        load_extensions((MIXER_GROUP, TASK_GROUP))
    else:
        load_extensions((TASK_GROUP,))
