"""The KDA layers of Kimi Linear that have a plain MLP."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, decoder_fields, decoder_pairs, other_kinds


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        **decoder_fields(config),
        "num_heads": config.linear_num_heads,
        "head_dim": config.linear_head_dim,
        "conv_kernel": config.linear_conv_kernel_dim,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    config = theirs.config
    found = other_kinds(config.layer_types, kept, "linear_attention", "the mixer")
    return [*found, *other_kinds(config.mlp_layer_types, kept, "dense", "the MLP")]


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    pairs = decoder_pairs(theirs, ours)
    for block, layer in zip(theirs.model.layers, ours.model.layers, strict=True):
        mixer, own, forget = block.self_attn, layer.mixer, block.self_attn.forget_gate
        maps = torch.cat((mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight))
        pairs += [(maps, own.qkv_proj.weight), (mixer.conv1d.weight, own.conv.weight)]
        pairs += [(mixer.b_proj.weight, own.beta_proj.weight), (mixer.o_norm.weight, own.head_norm.norm.weight)]
        factors = (forget.f_a_proj, forget.f_b_proj, mixer.g_a_proj, mixer.g_b_proj)
        own_factors = (*own.decay_proj, *own.gate_proj)
        pairs += [(old.weight, new.weight) for old, new in zip(factors, own_factors, strict=True)]
        pairs += [(forget.A_log, own.A_log), (forget.dt_bias, own.dt_bias), (mixer.o_proj.weight, own.out_proj.weight)]
    return pairs


SOURCE = Source("kda", "model.layers", _fields, _pairs, _refusals)
