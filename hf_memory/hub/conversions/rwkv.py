"""RWKV-4 of transformers. Its first norm follows the embedding, and is part of the embedding here."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, named_pairs

_LAST_EPS = 1e-5
"""Epsilon of the last norm there, whatever the config says."""


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "norm": "layer",
        "norm_eps": config.layer_norm_epsilon,
        "channel_mix": True,
        "intermediate_size": config.intermediate_size,
        "tie_word_embeddings": False,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    config = theirs.config
    found = []
    if config.attention_hidden_size != config.hidden_size:
        found.append(f"attention_hidden_size={config.attention_hidden_size}: the mixer is as wide as the model here")
    if config.layer_norm_epsilon != _LAST_EPS:
        epsilon = config.layer_norm_epsilon
        found.append(f"layer_norm_epsilon={epsilon}: the last norm has {_LAST_EPS}, and all have the same here")
    if kept[0] != 0:
        found.append(f"layer {kept[0]} as the first: the norm of the embedding belongs to layer 0")
    return found


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    body = theirs.rwkv
    embedded = body.blocks[0].pre_ln(body.embeddings.weight)
    pairs = [(embedded, ours.model.embed_tokens.weight), (theirs.head.weight, ours.lm_head.weight)]
    pairs += [(body.ln_out.weight, ours.model.norm.weight), (body.ln_out.bias, ours.model.norm.bias)]
    for block, layer in zip(body.blocks, ours.model.layers, strict=True):
        cell, mixer, forward, mlp = block.attention, layer.mixer, block.feed_forward, layer.mlp
        for norm, own in ((block.ln1, layer.norm), (block.ln2, layer.mlp_norm)):
            pairs += [(norm.weight, own.weight), (norm.bias, own.bias)]
        pairs += named_pairs(cell, mixer, ("key", "value", "receptance"))
        pairs += [(cell.output.weight, mixer.out_proj.weight)]
        pairs += [(cell.time_decay, mixer.time_decay), (cell.time_first, mixer.time_first)]
        pairs += [(getattr(cell, f"time_mix_{n}"), getattr(mixer, f"mix_{n}")) for n in ("key", "value", "receptance")]
        pairs += named_pairs(forward, mlp, ("key", "value", "receptance"))
        pairs += [(getattr(forward, f"time_mix_{name}"), getattr(mlp, f"mix_{name}")) for name in ("key", "receptance")]
    return pairs


SOURCE = Source("rwkv", "rwkv.blocks", _fields, _pairs, _refusals, before={"rescale_every": 0})
