"""Model cards, written from a model and its result rows, and merged with what others wrote.

What is written here stands between two marks, in the text and in the metadata. Everything else on a card belongs to
whoever wrote it, and stays.
"""

import importlib
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub.repocard_data import eval_results_to_model_index
from transformers import PreTrainedModel

from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import best_learning_rate, curves, studies, study_key, title
from hf_memory.hub.remote_code import AUTO_CLASSES
from hf_memory.hub.results import model_index_results
from hf_memory.reports.plotting import figure_name
from hf_memory.reports.report import length_table, note

BEGIN, END = "<!-- hf_memory: begin -->", "<!-- hf_memory: end -->"
"""Marks around the part of a card that is written here and replaced by the next push."""

PIPELINES = {"ForCausalLM": "text-generation", "ForTokenClassification": "token-classification"}
FIGURES = "figures/hf_memory"
"""Folder of a repository in which the figures lie."""

_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n?", re.DOTALL)


def model_card(
    model: PreTrainedModel,
    repo_id: str,
    rows: Sequence[Row] = (),
    *,
    siblings: Sequence[Row] = (),
    commands: Sequence[str] = (),
    tags: Sequence[str] = (),
    has_tokenizer: bool = False,
    previous: str = "",
) -> str:
    """The text of a model's card.

    Args:
        model: The model.
        repo_id: Repository to which it goes.
        rows: Rows that were measured with its weights.
        siblings: Rows of the same search, from which the curve over learning rates is read.
        commands: Commands that trained it.
        tags: Further tags.
        has_tokenizer: Whether a tokenizer lies beside the weights.
        previous: The card that is there already.
    """
    results, stood = _results(rows), split_card(previous)
    parts = [
        f"# {repo_id.split('/')[-1]}\n\n{_opening(model, rows)}",
        _facts(model, rows),
        _mixer(model),
        _training(rows, siblings, commands),
        results,
        _loading(model, repo_id, has_tokenizer),
        _limits(model, rows),
    ]
    metadata = merge_metadata(stood[0], model, repo_id, rows, tags)
    return _compose(metadata, merge_text(stood[1], "\n\n".join(filter(None, parts))))


def split_card(text: str) -> tuple[dict[str, Any], str]:
    """Metadata and text of a card. Raises a ``ValueError`` where the metadata are not readable."""
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    try:
        metadata = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"card: its metadata are not YAML ({error})") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"card: its metadata must be fields with values, got {type(metadata).__name__}")
    return metadata, text[found.end() :]


def merge_text(previous: str, own: str) -> str:
    """A card's text with the part between the marks replaced, or added at the end."""
    part = f"{BEGIN}\n{own.strip()}\n{END}"
    before, begin, rest = previous.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return f"{before}{part}{after}"
    return "\n".join(filter(None, [previous.rstrip("\n"), part])) + "\n"


def merge_card(previous: str, own: str) -> str:
    """A card of another kind, merged with the one that is there: own fields win, tags are joined."""
    (stood, text), (metadata, body) = split_card(previous), split_card(own)
    tags = list(dict.fromkeys([*_listed(stood.get("tags")), *_listed(metadata.get("tags"))]))
    merged = {**stood, **metadata} | ({"tags": tags} if tags else {})
    return _compose(merged, merge_text(text, body))


def merge_metadata(
    previous: Mapping[str, Any], model: PreTrainedModel, repo_id: str, rows: Sequence[Row], tags: Sequence[str] = ()
) -> dict[str, Any]:
    """A card's metadata: what is there, with own tags added and own results replaced."""
    pipeline = next((name for suffix, name in PIPELINES.items() if type(model).__name__.endswith(suffix)), None)
    own = {"library_name": "transformers"} | ({"pipeline_tag": pipeline} if pipeline else {})
    tags = ["hf_memory", model.config.model_type.removeprefix("memory_"), *(row.task for row in rows), *tags]
    merged = {**{name: value for name, value in previous.items() if value is not None}, **own}
    merged["tags"] = list(dict.fromkeys([*_listed(merged.get("tags")), *tags]))
    index = _without_own(merged.pop("model-index", None) or [])
    entries = model_index_results(rows, pipeline or "other")
    if entries:
        new = eval_results_to_model_index(repo_id.split("/")[-1], entries)[0]
        if index:
            index[0]["results"] = [*index[0].get("results", []), *new["results"]]
        else:
            index = [new]
    if index:
        merged["model-index"] = index
    return merged


def _compose(metadata: Mapping[str, Any], text: str) -> str:
    front = yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{front}---\n{text}"


def _listed(value: Any) -> list[Any]:
    """A metadata field that holds one value, several, or none."""
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _without_own(index: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A ``model-index`` without the metrics that were written here."""
    kept = []
    for entry in index:
        results = []
        for result in entry.get("results", []):
            metrics = [
                found for found in result.get("metrics", []) if "weights_sha256" not in (found.get("args") or {})
            ]
            if metrics:
                results.append({**result, "metrics": metrics})
        if results:
            kept.append({**entry, "results": results})
    return kept


def _opening(model: PreTrainedModel, rows: Sequence[Row]) -> str:
    key = model.config.model_type.removeprefix("memory_")
    tasks = ", ".join(dict.fromkeys(f"`hf_memory/{row.task}`" for row in rows))
    measured = f", measured on the synthetic memory task {tasks}" if tasks else ""
    return f"A sequence model with the mixer `{key}` (`{type(model).__name__}`){measured}."


def _facts(model: PreTrainedModel, rows: Sequence[Row]) -> str:
    config = model.config
    lines = {
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "layers and width": f"{config.num_hidden_layers} and {config.hidden_size}",
        "input ids": f"{config.vocab_size:,}",
    }
    if rows:
        longest = max(rows, key=lambda row: row.length)
        lines["parameters without embeddings and head"] = f"{longest.parameters_non_embedding:,}"
        state = f"{longest.state_numbers:,} numbers, {longest.state_bytes:,} bytes"
        lines[f"state per sequence, after length {longest.length:,}"] = state
        lines["SHA-256 of the weights"] = f"`{longest.weights_sha256}`"
    return "## Model\n\n| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in lines.items())


def _mixer(model: PreTrainedModel) -> str:
    """Equations, symbols, source and deviations of the mixer, as its module states them."""
    text = inspect.getdoc(importlib.import_module(type(model).__module__)) or ""
    return f"## Equations and source\n\n```text\n{text}\n```"


def _training(rows: Sequence[Row], siblings: Sequence[Row], commands: Sequence[str]) -> str:
    if not rows:
        return ""
    row = rows[0]
    grid = ", ".join(f"{rate:g}" for rate in row.learning_rate_grid)
    known = {
        "learning rate": None if row.learning_rate is None else f"{row.learning_rate:g}",
        "learning rates tried": grid if len(row.learning_rate_grid) > 1 else None,
        "schedule": row.schedule,
        "optimiser groups": row.optim_groups,
        "stopped after": row.stop_rule,
        "tokens": None if row.tokens is None else f"{row.tokens:,}",
        "seed of the weights": row.seed,
        "seed of the data": row.data_seed,
        "seconds": None if row.train_seconds is None else f"{row.train_seconds:.0f}",
        "evaluated on": f"{row.device}, {row.backend} backend",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(row.versions.items())),
    }
    lines = [f"| {name} | {value} |" for name, value in known.items() if value not in (None, "")]
    text = "## Training\n\n" + "".join(f"```bash\n{command}\n```\n\n" for command in commands)
    return text + "| | |\n|---|---|\n" + "\n".join(lines) + _curve(row, siblings)


def _curve(row: Row, siblings: Sequence[Row]) -> str:
    """The validation value at each learning rate of the search, where the rows hold several."""
    search = [found for found in siblings if study_key(found) == study_key(row) and found.arm == row.arm]
    if row.learning_rate is None or len({found.learning_rate for found in search}) < 2:
        return ""
    if not any(found.split == "validation" for found in search):
        return ""
    choice = best_learning_rate(search)
    edge = " The best rate lies on the edge of the grid." if choice.on_edge else ""
    head = f"\n\nMean {row.headline.replace('_', ' ')} on `validation` by learning rate, {choice.tries} runs.{edge}\n\n"
    lines = [f"| {rate:g} | {value:.3f} |" for rate, value in choice.curve.items()]
    return head + "| learning rate | value |\n|---|---|\n" + "\n".join(lines)


def _results(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return "## Recall and extrapolation\n\n" + results_section(rows)


def results_section(rows: Sequence[Row]) -> str:
    """Per study: a figure and a table of the headline metric by test length, with chance level and baselines."""
    parts = []
    for study in studies(rows):
        lengths, lines = length_table(study)
        if not lengths:
            parts.append(f"### {title(study)}\n\n{_plain_table(study)}")
            continue
        parts.append(f"### {title(study)}\n\n{note(study)}")
        parts.append(f"![{study[0].headline} by test length]({FIGURES}/{figure_name(study)}.png)")
        table = [f"| | {' | '.join(map(str, lengths))} |", "|---" * (len(lengths) + 1) + "|"]
        for line in lines:
            values = dict(line.cells)
            table.append(f"| {line.name} | {' | '.join(values[length] for length in lengths)} |")
        parts.append("\n".join(table))
    return "\n\n".join(parts)


def _plain_table(rows: Sequence[Row]) -> str:
    lines = [f"| {row.split} | {row.length} | {row.value():.3f} |" for row in rows]
    return "| split | length | value |\n|---|---|---|\n" + "\n".join(lines)


def _loading(model: PreTrainedModel, repo_id: str, has_tokenizer: bool) -> str:
    suffixes = {suffix: auto for auto, suffix in AUTO_CLASSES.items()}
    auto = next(auto for suffix, auto in suffixes.items() if type(model).__name__.endswith(suffix))
    text = (
        "## Use\n\n"
        "The repository holds the model's code, so the package need not be installed:\n\n"
        f"```python\nfrom transformers import {auto}\n\n"
        f'model = {auto}.from_pretrained("{repo_id}", trust_remote_code=True)\n```\n\n'
        "With the package:\n\n"
        f"```python\nimport hf_memory\nfrom transformers import {auto}\n\n"
        f'model = {auto}.from_pretrained("{repo_id}")\n```'
    )
    if has_tokenizer:
        text += "\n\nThe tokenizer beside the weights has one word for each input id, separated by blanks."
    return text


def _limits(model: PreTrainedModel, rows: Sequence[Row]) -> str:
    lines = ["The model knows synthetic sequences only; it is made for measuring, not for use on natural data."]
    for study in studies(rows):
        metric = study[0].headline.replace("_", " ")
        for points in curves(study).values():
            reached = extrapolation_length({length: point.values for length, point in points.items()})
            kept = f"is above 0.9 up to test length {reached}" if reached else "is above 0.9 at no test length"
            lines.append(
                f"{title(study)}: its {metric} {kept}; the longest test length is {max(points)}, and nothing is known "
                "of longer ones."
            )
    unknown = [row for row in rows if not math.isfinite(row.value())]
    lines += [f"On `{row.split}` the {row.headline.replace('_', ' ')} is not a number." for row in unknown]
    if any(layer.mixer.growing_state for layer in model.base_model.layers):
        lines.append("Its state grows with the length of the sequence.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)
