"""Registration with the Auto classes, and construction of models by mixer key."""

import importlib
from types import ModuleType
from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

from hf_memory.mixers import MIXERS
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.names import check_names

HEADS = {"base": "Model", "causal": "ForCausalLM", "token_classification": "ForTokenClassification"}
"""Head name to the suffix of the model classes."""

_STEMS = {**MIXERS, "hybrid": "Hybrid"}


def model_keys() -> tuple[str, ...]:
    """Keys of all model types: the mixers, and ``hybrid`` for stacks of unlike layers."""
    return tuple(_STEMS)


def config_class(key: str) -> type[MemoryConfig]:
    """The config class of a mixer key. Raises a ``ValueError`` that suggests the nearest key."""
    return getattr(_module(key), f"Memory{_STEMS[key]}Config")


def model_class(key: str, head: str = "base") -> type[MemoryPreTrainedModel]:
    """The model class of a mixer key and head (``base``, ``causal``, ``token_classification``)."""
    check_names([head], HEADS, "head")
    return getattr(_module(key), f"Memory{_STEMS[key]}{HEADS[head]}")


def mixer_class(key: str) -> type:
    """The mixer class of a mixer key; ``hybrid`` has none of its own."""
    check_names([key], MIXERS, "mixer")
    return getattr(_module(key), f"{MIXERS[key]}Mixer")


def mixer_config(key: str, **fields: Any) -> MemoryConfig:
    """A config by mixer key."""
    return config_class(key)(**fields)


def mixer_model(config: MemoryConfig, head: str = "base") -> MemoryPreTrainedModel:
    """A freshly initialised model for a config."""
    key = config.model_type.removeprefix("memory_")
    return model_class(key, head)(config)


def register_all() -> None:
    """Register every config and model with the Auto classes; calling it again changes nothing."""
    for key in _STEMS:
        cls = config_class(key)
        AutoConfig.register(cls.model_type, cls, exist_ok=True)
        AutoModel.register(cls, model_class(key, "base"), exist_ok=True)
        AutoModelForCausalLM.register(cls, model_class(key, "causal"), exist_ok=True)
        AutoModelForTokenClassification.register(cls, model_class(key, "token_classification"), exist_ok=True)


def _module(key: str) -> ModuleType:
    check_names([key], _STEMS, "mixer")
    return importlib.import_module(f"hf_memory.mixers.{key}")
