"""The table of models of transformers whose weights can be those of a model of this package, exactly.

A source is one file here and one line in :data:`SOURCES`: ``mamba2`` is the model type in transformers, and
``conversions/mamba2.py`` says which mixer it is, which fields its config has here, and which weight goes where. What
has no counterpart is refused by name. :func:`hf_memory.hub.convert.convert` does the rest.
"""

import importlib

from hf_memory.hub.conversions.source import Source
from hf_memory.names import check_names

SOURCES: dict[str, str] = {
    "mamba": "mamba",
    "mamba2": "mamba2",
    "rwkv": "rwkv",
    "xlstm": "mlstm",
    "recurrent_gemma": "rg_lru",
    "qwen3_next": "gated_delta_net",
    "olmo_hybrid": "gated_delta_net",
    "kimi_linear": "kda",
}
"""Model type of transformers to the key of the mixer that its layers are."""


def source_of(model_type: str) -> Source:
    """What is known of a model type. Raises a ``ValueError`` that names those that can be converted."""
    check_names([model_type], SOURCES, "model_type of a source that can be converted")
    return importlib.import_module(f"hf_memory.hub.conversions.{model_type}").SOURCE
