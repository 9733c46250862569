"""Model cards, written from a model and its result rows."""

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub.repocard_data import eval_results_to_model_index
from transformers import PreTrainedModel

from hf_memory.data.cards import LICENSE
from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import best_learning_rate, curves, studies, study_key, title
from hf_memory.hub.merging import join_tags, merge_index, merge_text, open_card, set_fields
from hf_memory.hub.remote_code import AUTO_CLASSES
from hf_memory.hub.results import model_index_results
from hf_memory.hub.sections import results_section
from hf_memory.reports.formats import count, rate, share, versions, words
from hf_memory.reports.pages import device
from hf_memory.reports.tables import markdown_table

PIPELINES = {"ForCausalLM": "text-generation", "ForTokenClassification": "token-classification"}


def model_card(
    model: PreTrainedModel,
    repo_id: str,
    rows: Sequence[Row] = (),
    *,
    siblings: Sequence[Row] = (),
    commands: Sequence[str] = (),
    tags: Sequence[str] = (),
    license: str | None = None,
    has_tokenizer: bool = False,
    subfolder: str = "",
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
        license: License of the weights, as the Hub names it. By default that of the card that is there already, else
            that of the package, whose code goes with them.
        has_tokenizer: Whether a tokenizer lies beside the weights.
        subfolder: Folder of the repository in which the weights lie, without the model's code; empty for its root.
        previous: The card that is there already.
    """
    card = open_card(previous)
    set_fields(card, _metadata(card.data.to_dict(), model, repo_id, rows, tags, license))
    parts = [
        f"# {repo_id.split('/')[-1]}\n\n{_opening(model, rows)}",
        _facts(model, rows),
        _mixer(model),
        _training(rows, siblings, commands),
        _results(rows),
        _loading(model, repo_id, has_tokenizer, subfolder),
        _limits(model, rows),
    ]
    card.text = merge_text(card.text, "\n\n".join(filter(None, parts)))
    return card.content


def _metadata(
    stood: Mapping[str, Any],
    model: PreTrainedModel,
    repo_id: str,
    rows: Sequence[Row],
    tags: Sequence[str],
    license: str | None,
) -> dict[str, Any]:
    """Own metadata of a card, joined with those that stood there; None for a field that falls away."""
    pipeline = next((name for suffix, name in PIPELINES.items() if type(model).__name__.endswith(suffix)), None)
    own = {"license": license or stood.get("license") or LICENSE, "library_name": "transformers"}
    own |= {"pipeline_tag": pipeline} if pipeline else {}
    tags = ["hf_memory", model.config.model_type.removeprefix("memory_"), *(row.task for row in rows), *tags]
    own["datasets"] = join_tags(stood.get("datasets"), [f"hf_memory/{row.task}" for row in rows]) or None
    entries = model_index_results(rows, pipeline or "other")
    index = eval_results_to_model_index(repo_id.split("/")[-1], entries) if entries else []
    merged = merge_index(stood.get("model-index"), index) or None
    return {**own, "tags": join_tags(stood.get("tags"), tags), "model-index": merged}


def _opening(model: PreTrainedModel, rows: Sequence[Row]) -> str:
    key = model.config.model_type.removeprefix("memory_")
    tasks = ", ".join(dict.fromkeys(f"`hf_memory/{row.task}`" for row in rows))
    measured = f", measured on the synthetic memory task {tasks}" if tasks else ""
    return f"A sequence model with the mixer `{key}` (`{type(model).__name__}`){measured}."


def _facts(model: PreTrainedModel, rows: Sequence[Row]) -> str:
    config = model.config
    lines = {
        "parameters": count(sum(parameter.numel() for parameter in model.parameters())),
        "layers and width": f"{config.num_hidden_layers} and {config.hidden_size}",
        "input ids": count(config.vocab_size),
    }
    if rows:
        longest = max(rows, key=lambda row: row.length)
        lines["parameters without embeddings and head"] = count(longest.parameters_non_embedding)
        state = f"{count(longest.state_numbers)} numbers, {count(longest.state_bytes)} bytes"
        lines[f"state per sequence, after length {count(longest.length)}"] = state
        lines["SHA-256 of the weights"] = f"`{longest.weights_sha256}`"
    return f"## Model\n\n{markdown_table(['', ''], lines.items())}"


def _mixer(model: PreTrainedModel) -> str:
    """Equations, symbols, source and deviations of the mixer, as its module states them."""
    text = inspect.getdoc(importlib.import_module(type(model).__module__)) or ""
    return f"## Equations and source\n\n```text\n{text}\n```"


def _training(rows: Sequence[Row], siblings: Sequence[Row], commands: Sequence[str]) -> str:
    if not rows:
        return ""
    row = rows[0]
    known = {
        "learning rate": None if row.learning_rate is None else rate(row.learning_rate),
        "learning rates tried": ", ".join(map(rate, row.learning_rate_grid)) if len(row.learning_rate_grid) > 1 else "",
        "schedule": row.schedule,
        "optimiser groups": row.optim_groups,
        "stopped after": row.stop_rule,
        "tokens": None if row.tokens is None else count(row.tokens),
        "seed of the weights": row.seed,
        "seed of the data": row.data_seed,
        "seconds": None if row.train_seconds is None else count(row.train_seconds),
        "evaluated on": device(row),
        "versions": versions(row.versions.items()),
    }
    table = markdown_table(["", ""], [pair for pair in known.items() if pair[1] not in (None, "")])
    text = "## Training\n\n" + "".join(f"```bash\n{command}\n```\n\n" for command in commands)
    return text + table + _curve(row, siblings)


def _curve(row: Row, siblings: Sequence[Row]) -> str:
    """The validation value at each learning rate of the search, where the rows hold several."""
    search = [found for found in siblings if study_key(found) == study_key(row) and found.arm == row.arm]
    if row.learning_rate is None or len({found.learning_rate for found in search}) < 2:
        return ""
    if not any(found.split == "validation" for found in search):
        return ""
    choice = best_learning_rate(search)
    edge = " The best rate lies on the edge of the grid." if choice.on_edge else ""
    head = f"Mean {words(row.headline)} on `validation` by learning rate, {choice.tries} runs.{edge}"
    lines = [(rate(value), share(reached)) for value, reached in choice.curve.items()]
    return f"\n\n{head}\n\n{markdown_table(['learning rate', 'value'], lines)}"


def _results(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return "## Recall and extrapolation\n\n" + results_section(rows)


def _loading(model: PreTrainedModel, repo_id: str, has_tokenizer: bool, subfolder: str = "") -> str:
    suffixes = {suffix: auto for auto, suffix in AUTO_CLASSES.items()}
    auto = next(auto for suffix, auto in suffixes.items() if type(model).__name__.endswith(suffix))
    if subfolder:
        call = f'{auto}.from_pretrained("{repo_id}", subfolder="{subfolder}")'
        return f"## Use\n\n```python\nimport hf_memory\nfrom transformers import {auto}\n\nmodel = {call}\n```"
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
        metric = words(study[0].headline)
        for points in curves(study).values():
            reached = extrapolation_length({length: point.values for length, point in points.items()})
            kept = f"is above 0.9 up to test length {reached}" if reached else "is above 0.9 at no test length"
            lines.append(
                f"{title(study)}: its {metric} {kept}; the longest test length is {max(points)}, and nothing is known "
                "of longer ones."
            )
    unknown = [row for row in rows if not math.isfinite(row.value())]
    lines += [f"On `{row.split}` the {words(row.headline)} is not a number." for row in unknown]
    if any(layer.mixer.growing_state for layer in model.base_model.layers):
        lines.append("Its state grows with the length of the sequence.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)
