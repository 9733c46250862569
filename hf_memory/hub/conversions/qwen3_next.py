"""The Gated DeltaNet layers of Qwen3-Next that have a plain MLP."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, decoder_fields, decoder_pairs, other_kinds


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        **decoder_fields(config),
        "num_heads": config.linear_num_value_heads,
        "num_key_heads": config.linear_num_key_heads,
        "key_head_dim": config.linear_key_head_dim,
        "value_head_dim": config.linear_value_head_dim,
        "conv_kernel": config.linear_conv_kernel_dim,
    }


def _is_sparse(config: PreTrainedConfig, index: int) -> bool:
    is_turn = (index + 1) % config.decoder_sparse_step == 0
    return is_turn and config.num_experts > 0 and index not in config.mlp_only_layers


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    config = theirs.config
    mlps = ["mixture of experts" if _is_sparse(config, i) else "dense" for i in range(len(config.layer_types))]
    found = other_kinds(config.layer_types, kept, "linear_attention", "the mixer")
    return [*found, *other_kinds(mlps, kept, "dense", "the MLP")]


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    config, pairs = theirs.config, decoder_pairs(theirs, ours, one_plus=True)
    heads = config.linear_num_key_heads
    share = config.linear_num_value_heads // heads
    K, V = config.linear_key_head_dim, share * config.linear_value_head_dim
    for block, layer in zip(theirs.model.layers, ours.model.layers, strict=True):
        mixer, own = block.linear_attn, layer.mixer
        # One map holds query, key, values and gates of each key head, another strengths and time steps.
        parts = mixer.in_proj_qkvz.weight.unflatten(0, (heads, -1)).split([K, K, V, V], dim=1)
        query, key, value, gate = (part.flatten(0, 1) for part in parts)
        beta, step = mixer.in_proj_ba.weight.unflatten(0, (heads, -1)).split(share, dim=1)
        pairs += [(torch.cat((query, key, value)), own.qkv_proj.weight), (gate, own.gate_proj.weight)]
        pairs += [(beta.flatten(0, 1), own.beta_proj.weight), (step.flatten(0, 1), own.decay_proj.weight)]
        pairs += [(mixer.conv1d.weight, own.conv.weight), (mixer.norm.weight, own.head_norm.norm.weight)]
        pairs += [(mixer.A_log, own.A_log), (mixer.dt_bias, own.dt_bias), (mixer.out_proj.weight, own.out_proj.weight)]
    return pairs


SOURCE = Source("gated_delta_net", "model.layers", _fields, _pairs, _refusals)
