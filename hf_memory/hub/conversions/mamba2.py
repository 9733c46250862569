"""Mamba-2 of transformers."""

import math
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, named_pairs


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
    config, found = theirs.config, []
    if config.use_bias:
        found.append("use_bias=True: the maps into and out of the mixer have no biases here")
    if config.hidden_act != "silu":
        found.append(f"hidden_act={config.hidden_act!r}: only 'silu' has a counterpart")
    if tuple(map(float, config.time_step_limit)) != (0.0, math.inf):
        found.append(f"time_step_limit={tuple(config.time_step_limit)}: time steps have no bounds here")
    return found


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    body = theirs.backbone
    pairs = [(body.embeddings.weight, ours.model.embed_tokens.weight), (body.norm_f.weight, ours.model.norm.weight)]
    pairs += [(theirs.lm_head.weight, ours.lm_head.weight)]
    for block, layer in zip(body.layers, ours.model.layers, strict=True):
        mixer, own = block.mixer, layer.mixer
        pairs += [(block.norm.weight, layer.norm.weight), (mixer.norm.weight, own.out_norm.weight)]
        pairs += [(getattr(mixer, name), getattr(own, name)) for name in ("A_log", "D", "dt_bias")]
        pairs += named_pairs(mixer, own, ("in_proj", "out_proj"))
        pairs += [(mixer.conv1d.weight, own.conv.weight)]
        if mixer.conv1d.bias is not None:
            pairs += [(mixer.conv1d.bias, own.conv.bias)]
    return pairs


SOURCE = Source("mamba2", "backbone.layers", _fields, _pairs, _refusals)
