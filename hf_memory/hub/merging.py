"""Cards that others have written on: what is ours is replaced, and everything else stays.

``huggingface_hub`` reads and writes cards. What it lacks stands here: a part of the text that is replaced while the
rest stays, tags and dataset fields that are joined instead of overwritten, and results that are replaced without those
of others being read into objects, which have no place for what they do not know. (``metadata_update`` commits to the
Hub by itself, refuses a value that has changed, and knows no text.)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import RepoCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK

BEGIN, END = "<!-- hf_memory: begin -->", "<!-- hf_memory: end -->"
"""Marks around the part of a card that is written here and replaced by the next push."""

OWN_ARGUMENT = "data_version"
"""Argument of the dataset by which a result in a ``model-index`` is known as one that was written here."""

_FORMER_ARGUMENT = "weights_sha256"
"""Argument of a metric that was written here before."""


def open_card(text: str) -> RepoCard:
    """A card whose metadata are as they stand, fields of others included.

    Raises:
        ValueError: The metadata are not readable.
    """
    if not REGEX_YAML_BLOCK.search(text):  # which is no fault, but the reader would warn of it
        text = f"---\n{{}}\n---\n{text}"
    try:
        return RepoCard(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"card: its metadata are not YAML with names and values ({error})") from error


def set_fields(card: RepoCard, fields: Mapping[str, Any]) -> None:
    """Set metadata of a card; a field of None falls away."""
    for name, value in fields.items():
        card.data[name] = value


def merge_card(previous: str, own: RepoCard) -> str:
    """The text of a card, merged with the one that is there: own fields win but for a license, tags are joined."""
    card = open_card(previous)
    fields = own.data.to_dict()
    if card.data.get("license"):
        fields.pop("license", None)
    tags = join_tags(card.data.get("tags"), fields.pop("tags", None))
    set_fields(card, fields | ({"tags": tags} if tags else {}))
    card.text = merge_text(card.text, own.text)
    return card.content


def merge_text(previous: str, own: str) -> str:
    """A card's text with the part between the marks replaced, or added at the end."""
    part = f"{BEGIN}\n{own.strip()}\n{END}"
    before, begin, rest = previous.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return f"{before}{part}{after}"
    return "\n".join(filter(None, [previous.rstrip("\n"), part])) + "\n"


def join_tags(stood: Any, own: Any) -> list[Any]:
    """Tags of others and own ones, each once; a field holds one, several, or none."""
    return list(dict.fromkeys([*_listed(stood), *_listed(own)]))


def merge_index(stood: Sequence[Mapping[str, Any]] | None, own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A ``model-index`` with the results that were written here replaced; own ones join the first model of others."""
    kept = _without_own(stood or [])
    if not kept or not own:
        return kept or [dict(entry) for entry in own]
    first, *others = kept
    return [{**first, "results": [*first["results"], *own[0]["results"]]}, *others]


def _without_own(index: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A ``model-index`` without what was written here."""
    kept = []
    for entry in index:
        results = []
        for result in entry.get("results", []):
            metrics = [metric for metric in result.get("metrics", []) if not _has(metric, _FORMER_ARGUMENT)]
            if metrics and not _has(result.get("dataset", {}), OWN_ARGUMENT):
                results.append({**result, "metrics": metrics})
        if results:
            kept.append({**entry, "results": results})
    return kept


def _has(described: Mapping[str, Any], argument: str) -> bool:
    return argument in (described.get("args") or {})


def _listed(value: Any) -> list[Any]:
    """A metadata field that holds one value, several, or none."""
    return [] if value is None else list(value) if isinstance(value, list) else [value]
