"""Mamba of transformers (``state-spaces/mamba-130m-hf`` and its like)."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, named_pairs


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
    config, found = theirs.config, []
    if config.use_bias:
        found.append("use_bias=True: the maps into and out of the mixer have no biases here")
    if config.hidden_act != "silu":
        found.append(f"hidden_act={config.hidden_act!r}: only 'silu' has a counterpart")
    return found


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    body = theirs.backbone
    pairs = [(body.embeddings.weight, ours.model.embed_tokens.weight), (body.norm_f.weight, ours.model.norm.weight)]
    pairs += [(theirs.lm_head.weight, ours.lm_head.weight)]
    for block, layer in zip(body.layers, ours.model.layers, strict=True):
        mixer, own = block.mixer, layer.mixer
        pairs += [(block.norm.weight, layer.norm.weight), (mixer.A_log, own.A_log), (mixer.D, own.D)]
        pairs += named_pairs(mixer, own, ("in_proj", "x_proj", "out_proj"))
        pairs += [(mixer.dt_proj.weight, own.dt_proj.weight), (mixer.dt_proj.bias, own.dt_bias)]
        pairs += [(mixer.conv1d.weight, own.conv.weight)]
        if mixer.conv1d.bias is not None:
            pairs += [(mixer.conv1d.bias, own.conv.bias)]
    return pairs


SOURCE = Source("mamba", "backbone.layers", _fields, _pairs, _refusals)
