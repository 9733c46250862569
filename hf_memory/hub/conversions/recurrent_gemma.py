"""The recurrent layers of RecurrentGemma. Its embedding is scaled, which is part of the embedding here."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import MLP_MAPS, Pairs, Source, other_kinds

_MAPS = (("linear_x", "in_proj"), ("linear_y", "branch_proj"), ("linear_out", "out_proj"), ("conv_1d", "conv"))


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "intermediate_size": config.intermediate_size // 2,
        "mlp_gated": True,
        "hidden_act": config.hidden_activation,
        "norm_eps": config.rms_norm_eps,
        "num_heads": config.num_attention_heads,
        "lru_width": config.lru_width,
        "conv_kernel": config.conv1d_width,
        "tie_word_embeddings": False,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    blocks = [layer.temporal_block for layer in theirs.model.layers]
    kinds = ["recurrent" if hasattr(block, "rg_lru") else "attention" for block in blocks]
    found = other_kinds(kinds, kept, "recurrent", "the temporal block")
    for index in kept:
        mlp = theirs.model.layers[index].mlp_block
        if any(getattr(mlp, name).bias.any() for name in MLP_MAPS):
            found.append(f"the biases of the MLP of layer {index}: an MLP has none here")
            break
    return found


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    body = theirs.model
    pairs = [(body.embed_tokens.weight * body.normalizer.float(), ours.model.embed_tokens.weight)]
    pairs += [(theirs.lm_head.weight, ours.lm_head.weight), (1 + body.final_norm.weight, ours.model.norm.weight)]
    for block, layer in zip(body.layers, ours.model.layers, strict=True):
        cell, mixer, gates = block.temporal_block, layer.mixer, block.temporal_block.rg_lru
        pairs += [(1 + block.temporal_pre_norm.weight, layer.norm.weight)]
        pairs += [(1 + block.channel_pre_norm.weight, layer.mlp_norm.weight)]
        for old, new in _MAPS:
            source, target = getattr(cell, old), getattr(mixer, new)
            pairs += [(source.weight, target.weight), (source.bias, target.bias)]
        weights = torch.stack((gates.recurrent_gate_weight, gates.input_gate_weight), dim=2)
        biases = torch.stack((gates.recurrent_gate_bias, gates.input_gate_bias), dim=1)
        pairs += [(weights, mixer.gate_weight), (biases, mixer.gate_bias), (gates.recurrent_param, mixer.rate)]
        pairs += [(getattr(block.mlp_block, name).weight, getattr(layer.mlp, name).weight) for name in MLP_MAPS]
    return pairs


SOURCE = Source("rg_lru", "model.layers", _fields, _pairs, _refusals, soft_cap="logits_soft_cap")
