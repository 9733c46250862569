"""Small random models of transformers whose weights can be those of ours, by their model type."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)

from tests.mixers.memory_checks import scramble, without_biases

NO_ENDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SIZES = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, **NO_ENDS}
DECODER = {**SIZES, "intermediate_size": 24, "num_attention_heads": 2}
LINEAR = {"layer_types": ["linear_attention"] * 2}
HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5}

CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {**SIZES, "state_size": 4},
    "mamba2": {**SIZES, "state_size": 6, "chunk_size": 16, "num_heads": 4, "head_dim": 8, "n_groups": 2},
    "rwkv": {**SIZES, "num_hidden_layers": 3, "context_length": 64},
    "xlstm": {**SIZES, "hidden_size": 128, "num_heads": 2, "ffn_round_up_to_multiple_of": 8},
    "recurrent_gemma": {
        **DECODER, "intermediate_size": 48, "lru_width": 24, "block_types": ["recurrent"], "tie_word_embeddings": True,
    },
    "qwen3_next": {**DECODER, **LINEAR, **HEADS, "head_dim": 8, "mlp_only_layers": [0, 1], "num_experts": 2},
    "olmo_hybrid": {**DECODER, **HEADS, "num_hidden_layers": 4},
    "kimi_linear": {
        **DECODER, **LINEAR, "mlp_layer_types": ["dense"] * 2, "linear_num_heads": 4, "linear_head_dim": 6,
    },
}  # fmt: skip

KEPT = {"olmo_hybrid": [0, 1]}
"""The layers that have a counterpart, where not all have."""


def random_source(model_type: str, **fields: Any) -> PreTrainedModel:
    """A random model whose weights are all different from their start."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**CONFIGS[model_type], **fields})
    model = scramble(AutoModelForCausalLM.from_config(config))
    return without_biases(model) if model_type == "recurrent_gemma" else model
