"""xLSTM of transformers, whose blocks are mLSTMs."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import MLP_MAPS, Pairs, Source

_UP = ("proj_up_gate", "proj_up", "proj_down")


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    factor, multiple = config.ffn_proj_factor, config.ffn_round_up_to_multiple_of
    return {
        "intermediate_size": -(-int(factor * config.hidden_size) // multiple) * multiple,
        "mlp_gated": True,
        "hidden_act": "silu",
        "norm_eps": config.norm_eps,
        "num_heads": config.num_heads,
        "key_head_dim": config.qk_head_dim,
        "gate_soft_cap": config.gate_soft_cap,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    config, found = theirs.config, []
    if config.use_bias:
        found.append("use_bias=True: maps and norms have no biases here")
    if config.weight_mode != "single":
        found.append(f"weight_mode={config.weight_mode!r}: give a checkpoint with 'single' weights")
    if not config.add_out_norm:
        found.append("add_out_norm=False: there is a last norm here")
    if config.v_dim_factor != 1:
        found.append(f"v_dim_factor={config.v_dim_factor}: values are as wide as the model here")
    return found


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    body, gates = theirs.backbone, ("igate_preact", "fgate_preact")
    pairs = [(body.embeddings.weight, ours.model.embed_tokens.weight), (theirs.lm_head.weight, ours.lm_head.weight)]
    pairs += [(body.out_norm.weight, ours.model.norm.weight)]
    for block, layer in zip(body.blocks, ours.model.layers, strict=True):
        cell, mixer = block.mlstm_layer, layer.mixer
        pairs += [(block.norm_mlstm.weight, layer.norm.weight), (block.norm_ffn.weight, layer.mlp_norm.weight)]
        pairs += [(torch.cat([part.weight for part in (cell.q, cell.k, cell.v)]), mixer.qkv_proj.weight)]
        pairs += [(torch.cat([getattr(cell, name).weight for name in gates]), mixer.gates_proj.weight)]
        pairs += [(cell.igate_preact.bias, mixer.input_bias), (cell.fgate_preact.bias, mixer.forget_bias)]
        pairs += [(cell.ogate_preact.weight, mixer.gate_proj.weight), (cell.out_proj.weight, mixer.out_proj.weight)]
        pairs += [(cell.multihead_norm.weight, mixer.head_norm.weight)]
        for old, new in zip(_UP, MLP_MAPS, strict=True):
            pairs += [(getattr(block.ffn, old).weight, getattr(layer.mlp, new).weight)]
    return pairs


SOURCE = Source(
    "mlstm",
    "backbone.blocks",
    _fields,
    _pairs,
    _refusals,
    before={"autocast_kernel_dtype": "float32"},
    soft_cap="output_logit_soft_cap",
)
