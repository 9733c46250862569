"""Datasets of the tasks: specification, generation, storage, collation and export.

Names are imported when they are first used: generating and storing rows needs ``datasets`` but not ``torch``.
"""

import importlib
from typing import Any

_EXPORTS = {
    "DamagedCacheError": "folders",
    "MemoryBuilder": "memory_builder",
    "MemoryCollator": "collator",
    "TensorRows": "tensors",
    "build": "builder",
    "config_names": "parquet",
    "data_version": "specification",
    "dataset_card": "cards",
    "export": "parquet",
    "load_dataset": "builder",
    "show": "preview",
    "specify": "specification",
    "task_tokenizer": "tokenizers",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
