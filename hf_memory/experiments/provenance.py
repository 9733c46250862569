"""What a result row says of its model and of the training run behind it."""

import dataclasses
import functools
import importlib.metadata
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig
from transformers.utils import CONFIG_NAME

from hf_memory.data.specification import Specification, changed_knobs
from hf_memory.experiments.pieces import state_after
from hf_memory.models.configuration import unchanged_later_fields
from hf_memory.models.modeling import MemoryPreTrainedModel
from hf_memory.ops.backends.dispatch import available_backends
from hf_memory.storage import (
    decode,
    digest,
    encode,
    file_sha256,
    find_files,
    is_file,
    read_json,
    sealed,
    unsealed,
    write_text,
)

logger = logging.getLogger(__name__)

RUN_FILE = "hf_memory_run.json"
"""File beside a checkpoint's weights that says how they were trained."""

_VOLATILE = {"transformers_version", "hf_memory_version", "architectures", "dtype", "torch_dtype", "auto_map"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What rows say of the training run behind them; fields as in :class:`hf_memory.experiments.results.Row`."""

    cell: str
    arm: str
    seed: int | None = None
    data_seed: int | None = None
    learning_rate: float | None = None
    learning_rate_grid: tuple[float, ...] = ()
    schedule: str | None = None
    optim_groups: str | None = None
    stop_rule: str | None = None
    steps: int | None = None
    tokens: int | None = None
    train_seconds: float | None = None
    weights_sha256: str = ""
    code: str = ""
    kernels: dict[str, str] | None = None


def measure_state(model: MemoryPreTrainedModel, num_columns: int) -> tuple[int, int]:
    """Numbers and bytes that the live cache holds for one sequence after ``num_columns`` tokens."""
    cache = state_after(model, num_columns)
    return cache.state_size(), cache.nbytes()


def parameter_counts(model: MemoryPreTrainedModel) -> dict[str, int]:
    """Numbers of parameters under the names of a row. Tied weights count once; per block is the rounded mean."""
    base = model.base_model
    blocks = sum(parameter.numel() for parameter in base.layers.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "parameters_non_embedding": blocks + sum(parameter.numel() for parameter in base.norm.parameters()),
        "parameters_per_block": round(blocks / len(base.layers)),
    }


def config_digest(config: Any) -> str:
    """Digest of what a config says of the model, without versions and other notes of the one who saved it.

    A field that joined its config later counts where it differs from its default, so that digests of before stand.
    Of labels their number counts, under the names that transformers gives them where nobody does.
    """
    values = json.loads(config.to_json_string(use_diff=False))
    if isinstance(values.get("id2label"), dict):
        plain = {label: f"LABEL_{label}" for label in values["id2label"]}
        values |= {"id2label": plain, "label2id": {name: int(label) for label, name in plain.items()}}
    silent = _VOLATILE | unchanged_later_fields(config)
    return digest({key: value for key, value in values.items() if key not in silent and not key.startswith("_")})


def versions() -> dict[str, str]:
    """Versions of the packages behind a number; of those that are installed."""
    packages = ("hf_memory", "torch", "transformers", "datasets", "accelerate", "numpy", "numba", "triton")
    return {name: found for name in packages if (found := _version(name)) is not None}


@functools.cache
def _version(package: str) -> str | None:
    """Version of a package; None where it is not installed. Its metadata take milliseconds to read, for each row."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def weights_digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256 of a checkpoint's weights file, or of the digests of its shards; empty where there is none."""
    files = find_files(folder, "*.safetensors")
    digests = [file_sha256(file) for file in files]
    return digests[0] if len(digests) == 1 else digest({"shards": digests}) if digests else ""


PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
"""Endings of files that can run code when they are read."""


def check_weights(folder: str | os.PathLike[str]) -> None:
    """Raise a ``ValueError`` where a local checkpoint has no weights, or one that names the first damaged file."""
    files = find_files(folder, "*.safetensors")
    if not files and Path(folder).is_dir():
        pickles = [path.name for path in sorted(Path(folder).iterdir()) if path.suffix in PICKLES]
        what = f"only a pickle ({pickles[0]}), which is not read" if pickles else "no model.safetensors"
        raise ValueError(
            f"checkpoint: {folder} holds {what}; copy it again, or give a folder that save_pretrained wrote"
        )
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                opened.keys()
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}); copy it again, or train again") from error


def read_config(folder: str | os.PathLike[str], cls: type[PreTrainedConfig] | None = None) -> dict[str, Any]:
    """The values in the config of a local checkpoint, which with ``cls`` must be those of such a config.

    Raises:
        ValueError: There is no config, or it is damaged; it is named.
    """
    path = Path(folder) / CONFIG_NAME
    if not is_file(path):
        raise ValueError(f"checkpoint: {_what_lacks_config(Path(folder))}")
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError(f"it must hold a mapping, got {type(values).__name__}")
        if cls is not None:
            cls.from_pretrained(folder)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ValueError(f"checkpoint: {path} is damaged ({error})") from error
    return values


def _what_lacks_config(folder: Path) -> str:
    """What a path without a config is, and what to give instead."""
    if not folder.exists():
        return f"there is no folder {str(folder)!r}"
    if not folder.is_dir():
        return f"{folder} is a file; give the folder that save_pretrained wrote"
    below = sorted(path.parent for path in folder.glob(f"*/{CONFIG_NAME}"))
    advice = f"did you mean {str(below[0])!r}?" if below else "give a folder that save_pretrained wrote"
    return f"{folder} has no {CONFIG_NAME}; {advice}"


def save_run(folder: str | os.PathLike[str], run: Run) -> Path:
    """Write the facts of a training run beside its weights."""
    values = {name: value for name, value in dataclasses.asdict(run).items() if (name, value) != ("kernels", None)}
    return write_text(Path(folder) / RUN_FILE, json.dumps(sealed(encode(values)), indent=2) + "\n")


def read_run(checkpoint: str | None) -> Run | None:
    """The facts beside a local checkpoint's weights; None where there are none, or they are of other weights.

    Raises:
        ValueError: The file is damaged; it is named.
    """
    if checkpoint is None or not is_file(Path(checkpoint) / RUN_FILE):
        return None
    path = Path(checkpoint) / RUN_FILE
    try:
        values = decode(unsealed(read_json(path)))
        run = Run(**{**values, "learning_rate_grid": tuple(values["learning_rate_grid"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, and rows will not tell of the training") from error
    if run.weights_sha256 != weights_digest(checkpoint):
        logger.warning("%s is of other weights than those beside it; rows will not tell of the training", path)
        return None
    return run


def run_of(model: MemoryPreTrainedModel, checkpoint: str | None, specification: Specification) -> Run:
    """The training run behind a model: as the file beside its checkpoint says, else unknown but for the weights."""
    return read_run(checkpoint) or unknown_run(model, checkpoint, specification)


def unknown_run(model: MemoryPreTrainedModel, checkpoint: str | None, specification: Specification) -> Run:
    """A run of which nothing is known but its weights."""
    weights = weights_digest(checkpoint) if checkpoint is not None and Path(checkpoint).is_dir() else ""
    mixer = model.config.model_type.removeprefix("memory_")
    knobs = {"task": specification.task.key, "knobs": changed_knobs(specification.task), "mixer": mixer}
    cell = digest({**knobs, "weights": weights, "checkpoint": checkpoint or "", "config": config_digest(model.config)})
    return Run(cell=cell, arm=mixer, weights_sha256=weights)


def device_name(model: MemoryPreTrainedModel) -> str:
    """Name of the GPU on which a model is, or the type of its device."""
    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def backend_name() -> str:
    """The backend that the environment asks for; ``auto`` with those among which it chooses."""
    requested = os.environ.get("HF_MEMORY_BACKEND") or "auto"
    return f"auto ({', '.join(available_backends())})" if requested == "auto" else requested
