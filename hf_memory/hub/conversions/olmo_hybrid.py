"""The Gated DeltaNet layers of Olmo Hybrid.

The norm of its heads has an epsilon of its own, e = 1e-5, where ours has that of all norms. A norm of x with epsilon d
is one of sqrt(e / d) x with epsilon e, so that all that is written into the residual stream is scaled by that.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_memory.hub.conversions.source import Pairs, Source, decoder_fields, decoder_pairs, other_kinds

_HEAD_EPS = 1e-5

_MAPS = {"beta_proj": "b_proj", "decay_proj": "a_proj", "gate_proj": "g_proj", "out_proj": "o_proj"}


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        **decoder_fields(config),
        "norm_eps": _HEAD_EPS,
        "tie_word_embeddings": False,
        "num_heads": config.linear_num_value_heads,
        "num_key_heads": config.linear_num_key_heads,
        "key_head_dim": config.linear_key_head_dim,
        "value_head_dim": config.linear_value_head_dim,
        "conv_kernel": config.linear_conv_kernel_dim,
        "allow_neg_eigval": config.linear_allow_neg_eigval,
    }


def _refusals(theirs: PreTrainedModel, kept: Sequence[int]) -> list[str]:
    return other_kinds(theirs.config.layer_types, kept, "linear_attention", "the mixer")


def _pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    pairs, scale = decoder_pairs(theirs, ours), (_HEAD_EPS / theirs.config.rms_norm_eps) ** 0.5
    written = {id(ours.model.embed_tokens.weight)}
    for block, layer in zip(theirs.model.layers, ours.model.layers, strict=True):
        mixer, own = block.linear_attn, layer.mixer
        pairs += [(getattr(mixer, old).weight, getattr(own, new).weight) for new, old in _MAPS.items()]
        maps = torch.cat((mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight))
        pairs += [(maps, own.qkv_proj.weight), (mixer.conv1d.weight, own.conv.weight)]
        pairs += [(mixer.o_norm.weight, own.head_norm.norm.weight)]
        pairs += [(mixer.A_log, own.A_log), (mixer.dt_bias, own.dt_bias)]
        written |= {id(own.out_proj.weight), id(layer.mlp.down_proj.weight)}
    return [(scale * weight if id(place) in written else weight, place) for weight, place in pairs]


SOURCE = Source("gated_delta_net", "model.layers", _fields, _pairs, _refusals)
