"""A model that is probed: loaded with its tokenizer, and what rows say of it."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import get_max_memory
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hf_memory.experiments.provenance import check_weights, config_digest, read_config, weights_digest
from hf_memory.mixers.auto import model_keys
from hf_memory.names import check_names

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")
"""Types of weights; ``auto`` is that of the checkpoint."""

CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "context_length", "max_seq_len", "seq_length")
"""Fields of configs that tell the length at which a model was trained, the first of which counts."""


@dataclasses.dataclass
class Subject:
    """A model with its tokenizer.

    Attributes:
        name: What it is called in rows.
        model: The model.
        tokenizer: Its tokenizer.
        weights: SHA-256 of its weights; empty where there is no file of them.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Any
    weights: str = ""

    @property
    def kind(self) -> str:
        """Its architecture: the key of a mixer of this package, else transformers' model type."""
        kind = str(self.model.config.model_type)
        key = kind.removeprefix("memory_")
        return key if key != kind and key in model_keys() else kind

    @property
    def trained_context(self) -> int | None:
        """Tokens of the rows that it was trained on, as its config says; None where it does not."""
        config = self.model.config.get_text_config(decoder=True)
        if str(self.model.config.model_type).startswith("memory_") and not getattr(config, "limited_length", False):
            return None
        found = (getattr(config, name, None) for name in CONTEXTS)
        return next((int(value) for value in found if isinstance(value, int) and value > 0), None)

    @property
    def longest(self) -> int | None:
        """Tokens beyond which it cannot run, as it has a table of positions or filters of a length; None where none."""
        context = self.trained_context
        if context is None:
            return None
        if str(self.model.config.model_type).startswith("memory_"):
            return context
        words = self.model.get_input_embeddings()
        tables = (module for module in self.model.modules() if isinstance(module, nn.Embedding) and module is not words)
        return context if any(context <= table.num_embeddings <= context + 4 for table in tables) else None

    def parameters(self) -> dict[str, int]:
        """Numbers of parameters under the names of a row; tied weights count once, per block is the rounded mean."""
        total = sum(parameter.numel() for parameter in self.model.parameters())
        ends = [self.model.get_input_embeddings(), self.model.get_output_embeddings()]
        outer = {id(p): p.numel() for module in ends if module is not None for p in module.parameters()}
        stacks = [module for module in self.model.modules() if isinstance(module, nn.ModuleList) and len(module)]
        sizes = [(sum(p.numel() for p in stack.parameters()), len(stack)) for stack in stacks]
        blocks, count = max(sizes, default=(0, 1))
        rest = total - sum(outer.values())
        return {
            "parameters": total,
            "parameters_non_embedding": rest,
            "parameters_per_block": min(round(blocks / count), rest),
        }

    @property
    def config_digest(self) -> str:
        """Digest of its config."""
        return config_digest(self.model.config)


def load_subject(
    folder: str | os.PathLike[str],
    name: str,
    *,
    dtype: str = "auto",
    device_map: str | None = None,
    device: torch.device | None = None,
    trust_remote_code: bool = False,
) -> Subject:
    """Load a causal model and its tokenizer from a folder.

    Args:
        folder: A checkpoint in safetensors, with its tokenizer.
        name: What it is called in rows.
        dtype: Type of the weights, one of :data:`DTYPES`.
        device_map: How transformers spreads a large model over devices, such as ``"auto"``.
        device: Where the model runs otherwise.
        trust_remote_code: Run code that lies beside the weights.

    Raises:
        ValueError: There is no causal model or no tokenizer in the folder, it is damaged, or it needs code of its own
            that is not allowed.
    """
    check_names([dtype], DTYPES, "dtype")
    if device_map == "auto" and not any(isinstance(key, int) for key in get_max_memory()):
        device_map = None  # nothing to spread over, and disk offloading would only be slower
    _check_causal(read_config(folder), name)
    check_weights(folder)
    own = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    tokenizer = load_tokenizer(folder, name, trust_remote_code)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, device_map=device_map, use_safetensors=True, output_loading_info=True, **own
        )
    except (OSError, KeyError) as error:
        raise ValueError(f"checkpoint: {name!r} holds no causal model that can be loaded ({error})") from error
    if info["missing_keys"]:
        raise ValueError(
            f"checkpoint: {name!r} lacks {sorted(info['missing_keys'])[0]}, which would be random; give a checkpoint "
            f"of {type(model).__name__}"
        )
    if device_map is None and device is not None:
        model = model.to(device)
    return Subject(name, model.eval(), tokenizer, weights_digest(folder) if Path(folder).is_dir() else "")


def _check_causal(config: dict[str, Any], name: str) -> None:
    """Refuse a classifier: it has no scores of next tokens, also where its body would load into a causal model."""
    saved = config.get("architectures") or []
    if saved and str(config.get("model_type")).startswith("memory_") and not str(saved[0]).endswith("ForCausalLM"):
        raise ValueError(
            f"checkpoint: a probe needs a model ForCausalLM, {name!r} is {saved[0]}; evaluate it on its task"
        )


def load_tokenizer(folder: str | os.PathLike[str], name: str, trust_remote_code: bool = False) -> Any:
    """Load a tokenizer from a folder. Raises a ``ValueError`` where there is none."""
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"checkpoint: {name!r} has no tokenizer that can be loaded ({error})") from error
