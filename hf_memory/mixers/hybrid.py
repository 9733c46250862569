"""Stacks of unlike layers.

    layers = ["base_conv", {"mixer": "attention", "window": 64}]

Each entry is a mixer key, or a dictionary with a key and fields of that mixer's config. Fields that all mixers share
come from the hybrid's own config. The state is that of the layers, and so is every law that they obey.

Source: the layers' own, and for the published stacks (:data:`PRESETS`) Arora et al. (2023), "Zoology", Arora et al.
(2024), "Simple linear attention language models balance the recall-throughput tradeoff", Ren et al. (2024), "Samba",
and De et al. (2024), "Griffin".
"""

import copy
import dataclasses
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from hf_memory.mixers import MIXERS, mixer_module
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.heads import MemoryForCausalLM, MemoryForTokenClassification
from hf_memory.models.modeling import MemoryModel, Mixer
from hf_memory.names import check_names

Layer = str | dict[str, Any]

_CONV: Layer = {"mixer": "base_conv", "expand": 2, "conv_activation": "silu", "skip": False}
_TAYLOR: Layer = {"mixer": "based", "num_heads": 16, "feature_dim": 16}
_WINDOW: Layer = {"mixer": "attention", "num_heads": 16, "window": 256}
_REFLECTING: Layer = {"mixer": "gated_delta_net", "allow_neg_eigval": True}

PRESETS: dict[str, list[Layer]] = {
    "zoology_based": ["base_conv", {"mixer": "based", "num_heads": 1, "feature_dim": 16}],
    "based_360m": 5 * [_CONV, _TAYLOR, _WINDOW, _CONV, _CONV] + 2 * [_CONV],
    "attention_delta_net": ["delta_net", "attention"],
    "window_mamba": ["mamba", {"mixer": "attention", "window": 64}],
    "qwen3_next": ["gated_delta_net", "gated_delta_net", "gated_delta_net", "attention"],
    "olmo_hybrid": 3 * [_REFLECTING] + ["attention"],
    "kimi_linear": ["kda", "kda", "kda", {"mixer": "attention", "position_code": "none"}],
    "samba": ["mamba", {"mixer": "attention", "window": 2048}],
    "griffin": ["rg_lru", "rg_lru", {"mixer": "attention", "window": 1024}],
}
"""Stacks by name: the two layers of Zoology's Based, the 27 of the released Based 360M (a Taylor layer and a window in
every five), recurrent layers with attention between them, and the order of layers in Qwen3-Next, Olmo Hybrid and Kimi
Linear: three with a delta rule and then one of attention, which in the last has no positions. Samba puts a window
behind each Mamba, and Griffin behind two RG-LRUs; every layer of both is followed by an MLP, ``intermediate_size``.

A preset sets the layers alone. The released Based 360M has ``hidden_size=1024``, ``intermediate_size=2048``,
``mlp_gated=True`` and ``hidden_act="silu"``, and 362.7 million parameters with its vocabulary of 50,280.
"""


@strict
class MemoryHybridConfig(MemoryConfig):
    """Configuration of a stack of unlike layers.

    Attributes:
        layers: Mixer keys, or dictionaries ``{"mixer": key, **fields of its config}``. Where ``num_hidden_layers`` is a
            multiple of their number, the list is repeated.
        num_hidden_layers: Number of blocks; 0 means as many as ``layers``.
    """

    model_type: ClassVar[str] = "memory_hybrid"
    # Transformers 5.17 compares a config with its defaults, and code beside a checkpoint has only the mixers it needs.
    has_no_defaults_at_init: ClassVar[bool] = True

    layers: list[Layer] = dataclasses.field(default_factory=lambda: ["base_conv", "linear_transformer"])
    num_hidden_layers: int = 0

    @classmethod
    def from_preset(cls, name: str, **fields: Any) -> "MemoryHybridConfig":
        """The config of a stack of :data:`PRESETS`. Raises a ``ValueError`` that suggests the nearest name."""
        check_names([name], PRESETS, "preset of hybrid")
        return cls(layers=copy.deepcopy(PRESETS[name]), **fields)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_hidden_layers == 0:
            self.num_hidden_layers = len(self.layers)
        super().__post_init__(**kwargs)

    def validate_layers(self) -> None:
        """Check that every layer names a mixer and fields of its config, and that the list fits the depth."""
        if not self.layers:
            raise ValueError('layers must hold at least one mixer, as in ["base_conv", {"mixer": "attention"}], got []')
        if self.num_hidden_layers % len(self.layers):
            raise ValueError(
                f"num_hidden_layers must be a multiple of the {len(self.layers)} entries of layers, "
                f"got {self.num_hidden_layers}"
            )
        for layer in self.layers:
            self.layer_config(layer)

    @property
    def limited_length(self) -> bool:
        """See :class:`MemoryConfig`: whether any of the layers is built for a length."""
        return any(self.layer_config(layer).limited_length for layer in self.layers)

    def layer_config(self, layer: Layer) -> MemoryConfig:
        """The config of one entry of ``layers``, with the shared fields of this one."""
        fields = {"mixer": layer} if isinstance(layer, str) else dict(layer)
        key = fields.pop("mixer", None)
        if key is None:
            raise ValueError(f"layers: an entry needs the key 'mixer', got {layer}")
        check_names([key], MIXERS, "mixer in layers")
        cls = getattr(mixer_module(key), f"Memory{MIXERS[key]}Config")
        own = {field.name for field in dataclasses.fields(cls)} - _SHARED
        check_names(fields, own, f"field of {cls.__name__} in layers (shared fields belong to the hybrid's config)")
        return cls(**{name: getattr(self, name) for name in _SHARED}, **fields)


_SHARED = {field.name for field in dataclasses.fields(MemoryConfig)} - {
    "architectures",
    "dtype",
    "hf_memory_version",
    "id2label",
    "label2id",
    "transformers_version",
}


class MemoryHybridModel(MemoryModel):
    """Base model with a stack of unlike layers."""

    config_class = MemoryHybridConfig

    def layer_plan(self, config: MemoryHybridConfig) -> list[tuple[MemoryConfig, type[Mixer]]]:
        """Config and mixer of each block."""
        plan = []
        for index in range(config.num_hidden_layers):
            layer = config.layer_config(config.layers[index % len(config.layers)])
            key = layer.model_type.removeprefix("memory_")
            plan.append((layer, getattr(mixer_module(key), f"{MIXERS[key]}Mixer")))
        return plan


class MemoryHybridForCausalLM(MemoryForCausalLM):
    """A stack of unlike layers with a language model head."""

    config_class = MemoryHybridConfig
    model_class = MemoryHybridModel


class MemoryHybridForTokenClassification(MemoryForTokenClassification):
    """A stack of unlike layers with a head per position."""

    config_class = MemoryHybridConfig
    model_class = MemoryHybridModel
