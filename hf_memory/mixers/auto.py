"""Registration with the Auto classes, and construction of models by mixer key."""

import sys
from types import ModuleType
from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from hf_memory.mixers import MIXERS, OUTSIDE, mixer_module
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.modeling import MemoryModel, MemoryPreTrainedModel, Mixer
from hf_memory.models.tokenization import TaskTokenizer
from hf_memory.names import check_names

HEADS = {"base": "Model", "causal": "ForCausalLM", "token_classification": "ForTokenClassification"}
"""Head name to the suffix of the model classes."""

HYBRID = "hybrid"

BASES: dict[type[MemoryPreTrainedModel], str] = {
    MemoryModel: HEADS["base"],
    MemoryForCausalLM: HEADS["causal"],
    MemoryForTokenClassification: HEADS["token_classification"],
}
"""Base class of the models of a mixer to the suffix of their names."""


def model_keys() -> tuple[str, ...]:
    """Keys of all model types: the mixers, and ``hybrid`` for stacks of unlike layers."""
    return (*MIXERS, HYBRID)


def config_class(key: str) -> type[MemoryConfig]:
    """The config class of a mixer key. Raises a ``ValueError`` that suggests the nearest key."""
    return getattr(_module(key), f"Memory{_stem(key)}Config")


def model_class(key: str, head: str = "base") -> type[MemoryPreTrainedModel]:
    """The model class of a mixer key and head (``base``, ``causal``, ``token_classification``)."""
    check_names([head], HEADS, "head")
    return getattr(_module(key), f"Memory{_stem(key)}{HEADS[head]}")


def mixer_class(key: str) -> type:
    """The mixer class of a mixer key; ``hybrid`` has none of its own."""
    check_names([key], MIXERS, "mixer")
    return getattr(_module(key), f"{MIXERS[key]}Mixer")


def mixer_config(key: str, **fields: Any) -> MemoryConfig:
    """A config by mixer key."""
    return config_class(key)(**fields)


def mixer_model(config: MemoryConfig, head: str = "base") -> MemoryPreTrainedModel:
    """A freshly initialised model for a config."""
    if not isinstance(config, MemoryConfig):
        raise ValueError(
            f"config must be a MemoryConfig, as mixer_config({config!r}) makes it, got {type(config).__name__}"
        )
    key = config.model_type.removeprefix("memory_")
    return model_class(key, head)(config)


def register_mixer(config: type[MemoryConfig], mixer: type[Mixer]) -> str:
    """Make a mixer of another package one of this: in models, studies, stacks, reports, cards, on the command line.

    Names follow the formula of the package. For the key ``leaky`` the config class is ``MemoryLeakyConfig`` with
    ``model_type = "memory_leaky"``, and the mixer ``LeakyMixer`` stands in the same module. ``MemoryLeakyModel``,
    ``MemoryLeakyForCausalLM`` and ``MemoryLeakyForTokenClassification`` are added to the module where it lacks them.
    Registering the same classes again changes nothing.

    Args:
        config: The config class.
        mixer: The class of the mixer.

    Returns:
        The key.

    Raises:
        ValueError: Names that do not follow the formula, a key that is taken, or classes of the wrong kind.
    """
    key = _check_pair(config, mixer)
    stem, module = mixer.__name__.removesuffix("Mixer"), sys.modules[config.__module__]
    if OUTSIDE.get(key, module.__name__) != module.__name__ or (key in MIXERS and key not in OUTSIDE) or key == HYBRID:
        raise ValueError(f"mixer: the key {key!r} is taken by {OUTSIDE.get(key, f'hf_memory.mixers.{key}')}")
    for base, suffix in BASES.items():
        name = f"Memory{stem}{suffix}"
        if not hasattr(module, name):
            part = (
                ("mixer_class", mixer) if base is MemoryModel else ("model_class", vars(module)[f"Memory{stem}Model"])
            )
            own = {"__module__": module.__name__, "__doc__": f"{stem}.", "config_class": config, part[0]: part[1]}
            setattr(module, name, type(name, (base,), own))
    MIXERS[key], OUTSIDE[key] = stem, module.__name__
    _register(key)
    return key


def _check_pair(config: type[MemoryConfig], mixer: type[Mixer]) -> str:
    """The key of a config and a mixer. Raises a ``ValueError`` where they are not what their names must say."""
    for name, value, base in (("config", config, MemoryConfig), ("mixer", mixer, Mixer)):
        if not (isinstance(value, type) and issubclass(value, base)):
            raise ValueError(f"{name} must be a subclass of {base.__name__}, got {value!r}")
    stem = mixer.__name__.removesuffix("Mixer")
    if mixer.__name__ != f"{stem}Mixer" or config.__name__ != f"Memory{stem}Config":
        raise ValueError(
            f"names must be Memory<Name>Config and <Name>Mixer, got {config.__name__} and {mixer.__name__}"
        )
    key = config.model_type.removeprefix("memory_")
    if config.model_type != f"memory_{key}" or key.replace("_", "") != stem.lower() or key != key.lower():
        raise ValueError(
            f"model_type of {config.__name__} must be 'memory_' and {stem!r} in small letters, with _ between words "
            f"where you like; got {config.model_type!r}"
        )
    if config.__module__ != mixer.__module__:
        raise ValueError(f"{config.__name__} and {mixer.__name__} must be defined in one module")
    return key


def register_all() -> None:
    """Register every config and model with the Auto classes, and the tokenizer; calling it again changes nothing."""
    AutoTokenizer.register(MemoryConfig, TaskTokenizer, exist_ok=True)
    for key in model_keys():
        _register(key)


def _register(key: str) -> None:
    cls = config_class(key)
    AutoConfig.register(cls.model_type, cls, exist_ok=True)
    AutoModel.register(cls, model_class(key, "base"), exist_ok=True)
    MODEL_MAPPING_NAMES[cls.model_type] = model_class(key, "base").__name__  # looked up by name, as those of heads are
    AutoModelForCausalLM.register(cls, model_class(key, "causal"), exist_ok=True)
    AutoModelForTokenClassification.register(cls, model_class(key, "token_classification"), exist_ok=True)


def _module(key: str) -> ModuleType:
    check_names([key], model_keys(), "mixer")
    return mixer_module(key)


def _stem(key: str) -> str:
    return {**MIXERS, HYBRID: "Hybrid"}[key]
