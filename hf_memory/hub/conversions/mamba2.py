"""Mamba-2 of transformers."""

import math
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, backbone_pairs, backbone_refusals, named_pairs


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "norm_eps": config.layer_norm_epsilon,
        "num_heads": config.num_heads,
        "num_groups": config.n_groups,
        "state_size": config.state_size,
        "expand": config.expand,
        "conv_kernel": config.conv_kernel,
        "conv_bias": config.use_conv_bias,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    config = theirs.config
    found = backbone_refusals(config)
    if tuple(map(float, config.time_step_limit)) != (0.0, math.inf):
        found.append(f"time_step_limit={tuple(config.time_step_limit)}: time steps have no bounds here")
    return found


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    pairs = backbone_pairs(theirs, ours)
    for block, layer in zip(theirs.backbone.layers, ours.model.layers, strict=True):
        mixer, own = block.mixer, layer.mixer
        pairs += [(mixer.norm.weight, own.out_norm.weight)]
        pairs += [(getattr(mixer, name), getattr(own, name)) for name in ("A_log", "D", "dt_bias")]
        pairs += named_pairs(mixer, own, ("in_proj", "out_proj"))
    return pairs


SOURCE = Source("mamba2", "backbone.layers", _fields, _pairs, _refusals)
