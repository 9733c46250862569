"""Mamba of transformers (``state-spaces/mamba-130m-hf`` and its like)."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, backbone_pairs, backbone_refusals, named_pairs


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    rank = config.time_step_rank
    return {
        "norm_eps": config.layer_norm_epsilon,
        "state_size": config.state_size,
        "expand": config.expand,
        "conv_kernel": config.conv_kernel,
        "conv_bias": config.use_conv_bias,
        "time_step_rank": 0 if rank == "auto" else rank,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    return backbone_refusals(theirs.config)


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    pairs = backbone_pairs(theirs, ours)
    for block, layer in zip(theirs.backbone.layers, ours.model.layers, strict=True):
        mixer, own = block.mixer, layer.mixer
        pairs += [(mixer.A_log, own.A_log), (mixer.D, own.D)]
        pairs += named_pairs(mixer, own, ("in_proj", "x_proj", "out_proj"))
        pairs += [(mixer.dt_proj.weight, own.dt_proj.weight), (mixer.dt_proj.bias, own.dt_bias)]
    return pairs


SOURCE = Source("mamba", "backbone.layers", _fields, _pairs, _refusals)
