"""What a source says of itself, and what several sources have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

Pairs = list[tuple[Tensor, Tensor]]
"""Weights of a source, each beside the parameter that it becomes."""

MLP_MAPS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Source:
    """How a model of transformers becomes one of this package.

    Attributes:
        mixer: Key of the mixer.
        layers: Where the blocks of the causal model lie.
        fields: The fields of the config here that follow from the one there, beside the sizes of :func:`sizes`.
        pairs: The weights of a model there beside the parameters of one here.
        refusals: What of the kept layers has no counterpart, each in words.
        before: Fields of the source's config that are set before it is loaded, where a default would only round.
        soft_cap: Field of the source's config with the bound c of its scores, c tanh(scores / c); empty where none.
    """

    mixer: str
    layers: str
    fields: Callable[[PreTrainedConfig], dict[str, Any]]
    pairs: Callable[[PreTrainedModel, PreTrainedModel], Pairs]
    refusals: Callable[[PreTrainedModel, Sequence[int]], list[str]]
    before: Mapping[str, Any] = field(default_factory=dict)
    soft_cap: str = ""

    def blocks(self, theirs: PreTrainedModel) -> nn.ModuleList:
        """The blocks of a causal model."""
        return theirs.get_submodule(self.layers)

    def keep(self, theirs: PreTrainedModel, kept: Sequence[int]) -> None:
        """Leave the layers ``kept`` in a model, in this order, and take the others out."""
        parent, _, name = self.layers.rpartition(".")
        blocks, config = self.blocks(theirs), theirs.config
        setattr(theirs.get_submodule(parent), name, nn.ModuleList(blocks[index] for index in kept))
        for listed in ("layer_types", "mlp_layer_types"):
            kinds = vars(config).get(listed)  # some configs compute them
            if kinds is not None and len(kinds) == len(blocks):
                setattr(config, listed, [kinds[index] for index in kept])
        config.num_hidden_layers = len(kept)

    def cap(self, config: PreTrainedConfig) -> float | None:
        """The bound of the scores of a source."""
        return getattr(config, self.soft_cap) if self.soft_cap else None


def capped(scores: Tensor, cap: float | None) -> Tensor:
    """Scores bounded as a source bounds them."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def other_kinds(kinds: Sequence[str], kept: Sequence[int], wanted: str, what: str) -> list[str]:
    """The layers whose kind has no counterpart, and those that have one."""
    found = [index for index in kept if kinds[index] != wanted]
    if not found:
        return []
    fit = [index for index, kind in enumerate(kinds) if kind == wanted]
    advice = f"; of this kind are {', '.join(map(str, fit))}" if fit else ""
    names = ", ".join(f"{index} ({kinds[index]})" for index in found)
    return [f"{what} of layers {names}: only {wanted!r} has a counterpart{advice}"]


def backbone_refusals(config: PreTrainedConfig) -> list[str]:
    """What of a config of Mamba or Mamba-2 has no counterpart."""
    found = []
    if config.use_bias:
        found.append("use_bias=True: the maps into and out of the mixer have no biases here")
    if config.hidden_act != "silu":
        found.append(f"hidden_act={config.hidden_act!r}: only 'silu' has a counterpart")
    return found


def backbone_pairs(theirs: PreTrainedModel, ours: PreTrainedModel) -> Pairs:
    """The weights around the mixers of Mamba and Mamba-2, with those of their convolutions."""
    body = theirs.backbone
    pairs = [(body.embeddings.weight, ours.model.embed_tokens.weight), (body.norm_f.weight, ours.model.norm.weight)]
    pairs += [(theirs.lm_head.weight, ours.lm_head.weight)]
    for block, layer in zip(body.layers, ours.model.layers, strict=True):
        conv, own = block.mixer.conv1d, layer.mixer.conv
        pairs += [(block.norm.weight, layer.norm.weight), (conv.weight, own.weight)]
        pairs += [] if conv.bias is None else [(conv.bias, own.bias)]
    return pairs


def decoder_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a decoder of blocks with an RMS norm before the mixer and before a gated MLP."""
    return {
        "intermediate_size": config.intermediate_size,
        "hidden_act": config.hidden_act,
        "mlp_gated": True,
        "norm_eps": config.rms_norm_eps,
    }


def decoder_pairs(theirs: PreTrainedModel, ours: PreTrainedModel, one_plus: bool = False) -> Pairs:
    """The weights around the mixers of such a decoder; with ``one_plus`` its norms scale by 1 + weight."""
    add, body = float(one_plus), theirs.model
    pairs = [(body.embed_tokens.weight, ours.model.embed_tokens.weight)]
    pairs += [(body.norm.weight + add, ours.model.norm.weight), (theirs.lm_head.weight, ours.lm_head.weight)]
    for block, layer in zip(body.layers, ours.model.layers, strict=True):
        pairs += [
            (block.input_layernorm.weight + add, layer.norm.weight),
            (block.post_attention_layernorm.weight + add, layer.mlp_norm.weight),
        ]
        pairs += named_pairs(block.mlp, layer.mlp, MLP_MAPS)
    return pairs


def named_pairs(theirs: nn.Module, ours: nn.Module, names: Sequence[str]) -> Pairs:
    """The weights, and the biases where there are some, of modules of one name."""
    parts = [(getattr(theirs, name), getattr(ours, name)) for name in names]
    return [
        (getattr(old, leaf), getattr(new, leaf))
        for old, new in parts
        for leaf in ("weight", "bias")
        if getattr(old, leaf, None) is not None
    ]
