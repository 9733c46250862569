"""The table of mixers. It holds strings, and imports nothing until a mixer is asked for.

A mixer is one file here and one line in :data:`MIXERS`. All other names follow from the key: ``delta_net`` is defined
in ``mixers/delta_net.py``, has the model type ``memory_delta_net``, the classes ``DeltaNetMixer`` and
``MemoryDeltaNetConfig``, ``MemoryDeltaNetModel``, ``MemoryDeltaNetForCausalLM`` and
``MemoryDeltaNetForTokenClassification``. A mixer of another package stands in :data:`OUTSIDE` as well.
"""

import importlib
from types import ModuleType

MIXERS: dict[str, str] = {
    "rnn": "RNN",
    "lstm": "LSTM",
    "gru": "GRU",
    "nru": "NRU",
    "qlstm": "QLSTM",
    "lru": "LRU",
    "rg_lru": "RGLRU",
    "min_gru": "MinGRU",
    "linear_transformer": "LinearTransformer",
    "delta_net": "DeltaNet",
    "gated_delta_net": "GatedDeltaNet",
    "gated_delta_product": "GatedDeltaProduct",
    "kda": "KDA",
    "gla": "GLA",
    "hgrn2": "HGRN2",
    "retnet": "Retnet",
    "mlstm": "MLSTM",
    "slstm": "SLSTM",
    "attention": "Attention",
    "forgetting_attention": "ForgettingAttention",
    "based": "Based",
    "h3": "H3",
    "hyena": "Hyena",
    "rwkv": "RWKV",
    "rwkv6": "RWKV6",
    "rwkv7": "RWKV7",
    "mamba": "Mamba",
    "mamba2": "Mamba2",
    "mamba3": "Mamba3",
    "s4d": "S4D",
    "ids4": "IDS4",
    "base_conv": "BaseConv",
}
"""Mixer key to the stem of its class names."""

OUTSIDE: dict[str, str] = {}
"""Mixer key to the module of a mixer that :func:`hf_memory.register_mixer` has added."""


def mixer_module(key: str) -> ModuleType:
    """The module of a mixer."""
    if key in OUTSIDE:
        return importlib.import_module(OUTSIDE[key])
    return importlib.import_module(f"hf_memory.mixers.{key}")
