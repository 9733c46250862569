"""Models of transformers, with weights that were released, as models of this package: ``hf-memory convert``.

What is written gives the scores of its source, which is looked at before anything is written. So a mixer of a released
checkpoint can be probed, cut, continued and trained on with everything that is here.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hf_memory.data.folders import working_folder
from hf_memory.experiments.provenance import check_weights, read_config
from hf_memory.hub.client import TOKENIZER_FILES, local_checkpoint
from hf_memory.hub.conversions import source_of
from hf_memory.hub.conversions.source import Pairs, Source, capped
from hf_memory.mixers.auto import mixer_config, mixer_model

TOLERANCE = 1e-3
"""Largest difference of scores, of the largest score, with which a conversion counts as exact: deep stacks round."""

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
_TOKENIZER = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", *TOKENIZER_FILES)


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        folder: The folder of the checkpoint.
        model: Its class.
        layers: The layers of the source that it holds.
        difference: Largest difference of scores from those of the source, of the largest.
        cap: Bound of the source's scores, which models here do not have; None where it has none.
    """

    folder: Path
    model: str
    layers: tuple[int, ...]
    difference: float
    cap: float | None


def convert(
    source: str, output: str | Path, layers: Sequence[int] | None = None, revision: str | None = None
) -> Converted:
    """Write a checkpoint of this package with the weights of a causal model of transformers, in float32.

    Args:
        source: A folder, or a repository on the Hub.
        output: A new or empty folder.
        layers: The layers to keep, in this order; all by default. The model is then that of the source without the
            others.
        revision: Branch, tag or commit of a repository.

    Raises:
        ValueError: There is no such checkpoint; it is damaged; it is of a model that cannot be converted; a part of it
            has no counterpart, which is named; the folder holds files; scores are not those of the source.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"output must be a new or an empty folder, and {str(output)!r} is not")
    folder = local_checkpoint(source, revision, tokenizer=True)
    known = source_of(str(read_config(folder).get("model_type")))
    check_weights(folder)
    theirs = _load(folder, known)
    kept = _kept(layers, len(known.blocks(theirs)))
    if refused := known.refusals(theirs, kept):
        advice = "" if layers is not None else "; --layer N keeps one layer, and may be given several times"
        raise ValueError(f"{source} cannot be converted: {'; '.join(refused)}{advice}")
    known.keep(theirs, kept)
    ours = model_of(known, theirs)
    difference = check_scores(known, theirs, ours)
    _write(ours, folder, output)
    cap = known.cap(theirs.config)
    return Converted(output, type(ours).__name__, kept, difference, cap)


def model_of(known: Source, theirs: PreTrainedModel) -> PreTrainedModel:
    """A model of this package with the weights of one of transformers, all of whose layers have a counterpart."""
    config = mixer_config(known.mixer, **{**sizes(theirs.config), **known.fields(theirs.config)})
    ours = mixer_model(config, "causal").float().eval()
    with torch.no_grad():
        copy(known.pairs(theirs, ours), ours)
    if theirs.can_generate():
        ours.generation_config = theirs.generation_config
    return ours


def sizes(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields that all sources have under the same names."""
    special = {name: getattr(config, name, None) for name in _SPECIAL}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
        **{name: token for name, token in special.items() if token is not None},
    }


def copy(pairs: Pairs, ours: PreTrainedModel) -> None:
    """Copy the first of each pair into the second, which together must be all parameters of a model.

    Raises:
        ValueError: A weight has another number of values than its place, or a parameter gets none.
    """
    names = {id(parameter): name for name, parameter in ours.named_parameters()}
    left = dict(names)
    for weight, place in pairs:
        if weight.numel() != place.numel():
            raise ValueError(f"{names[id(place)]} has {tuple(place.shape)}, and the source has {tuple(weight.shape)}")
        place.copy_(weight.reshape(place.shape))
        left.pop(id(place), None)
    if left:
        raise ValueError(f"the source has no weight for {', '.join(sorted(left.values()))}")


@torch.no_grad()
def check_scores(known: Source, theirs: PreTrainedModel, ours: PreTrainedModel, length: int = 48) -> float:
    """The largest difference of the scores of random tokens, as a share of the largest score.

    Raises:
        ValueError: It is above :data:`TOLERANCE`.
    """
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(0, theirs.config.vocab_size, (1, length), generator=draws)
    expected = theirs(ids, use_cache=False).logits
    found = capped(ours(ids, use_cache=False).logits, known.cap(theirs.config))
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the scores of the converted model differ by {difference:.1e} of the largest from those of its source, "
            "whose config asks for something that has no counterpart; nothing was written"
        )
    return difference


def _load(folder: Path, known: Source) -> PreTrainedModel:
    """The source in float32. Raises a ``ValueError`` where weights are missing, which would be random."""
    config = AutoConfig.from_pretrained(folder)
    for name, value in known.before.items():
        setattr(config, name, value)
    theirs, info = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys"):
        if info[kind]:
            raise ValueError(f"checkpoint: {folder} has {kind.replace('_', ' ')}: {', '.join(sorted(info[kind])[:3])}")
    return theirs.eval()


def _kept(layers: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """The layers that are kept, checked."""
    if layers is None:
        return tuple(range(depth))
    wrong = [layer for layer in layers if not 0 <= layer < depth]
    if wrong or not layers:
        raise ValueError(f"layer must be from 0 to {depth - 1}, got {wrong[0] if wrong else 'none'}")
    return tuple(layers)


def _write(ours: PreTrainedModel, folder: Path, output: Path) -> None:
    """Write a whole checkpoint with the tokenizer of its source, or nothing."""
    with working_folder(output.absolute().parent, "hf_memory-convert") as work:
        written = work / "model"
        ours.save_pretrained(written)
        for pattern in _TOKENIZER:
            for path in folder.glob(pattern):
                shutil.copyfile(path, written / path.name)
        if output.exists():
            output.rmdir()
        written.rename(output)
