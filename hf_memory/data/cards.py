"""Dataset cards, written from the tasks and from the rows themselves."""

import inspect
import re
from collections.abc import Mapping

import datasets
import numpy as np
from datasets.info import DatasetInfosDict
from huggingface_hub import DatasetCard, DatasetCardData

from hf_memory.data.folders import rows_of_table
from hf_memory.data.specification import Part, Specification, Split, changed_knobs, data_version, length_bounds
from hf_memory.data.splits import row_hashes
from hf_memory.tasks.base import Task

_HEADS = {
    "causal": "A label stands one position after the output that must give it, as for causal heads in `transformers`.",
    "token_classification": "A label stands at the position of the output that must give it.",
}
_CATEGORIES = {"causal": "text-generation", "token_classification": "token-classification"}
_CITATION = """```bibtex
@misc{{hf_memory_{key},
  title = {{hf\\_memory, a synthetic memory task: {name}}},
  author = {{The hf\\_memory authors}},
  note = {{Dataset, version {version}, Apache-2.0}}
}}
```"""


LICENSE = "apache-2.0"
"""License of what is generated and measured here, unless somebody says another."""


def dataset_card(
    published: Mapping[str, Specification],
    stored: Mapping[str, datasets.DatasetDict],
    files: Mapping[str, Mapping[str, str]],
    infos: Mapping[str, datasets.DatasetInfo],
) -> DatasetCard:
    """The card of a task's dataset.

    Args:
        published: What each configuration consists of, by its published name.
        stored: The rows of each configuration.
        files: Pattern of the data files of each split of each configuration, relative to the card.
        infos: What ``datasets`` knows of each configuration.
    """
    task = next(iter(published.values())).task
    data = DatasetCardData(
        pretty_name=f"hf_memory: {task.key.replace('_', ' ')}",
        license=LICENSE,
        task_categories=[task_category(task)],
        tags=["synthetic", "sequence-modeling", "length-generalization", task.category, "hf_memory"],
        size_categories=[size_category(sum(len(split) for rows in stored.values() for split in rows.values()))],
        configs=[
            {
                "config_name": name,
                "data_files": [{"split": split, "path": path} for split, path in files[name].items()],
                **({"default": True} if name == next(iter(published)) else {}),
            }
            for name in published
        ],
    )
    DatasetInfosDict(infos).to_dataset_card_data(data)
    parts = [_law(task), *_columns(task), *(_configuration(name, published[name], stored[name]) for name in published)]
    body = "\n\n".join([*parts, _splits(), _loading(*next(iter(published.items()))), _reference(task, published)])
    return DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n")


def split_statistics(rows: datasets.DatasetDict) -> dict[str, tuple[int, int, int]]:
    """Rows, distinct rows and rows shared with training or validation, of each split."""
    hashes = {name: _distinct(split) for name, split in rows.items()}
    statistics = {}
    for name, own in hashes.items():
        others = [hashes[other] for other in ("train", "validation") if other in hashes and other != name]
        shared = np.intersect1d(own, np.concatenate(others)) if others else own[:0]
        statistics[name] = (len(rows[name]), len(own), len(shared))
    return statistics


def _law(task: Task) -> str:
    """The law, from the docstring of the task."""
    text, _ = docstring_of(type(task))
    lines, in_example = [], False
    for line in text.splitlines():
        is_example = line.startswith(">>>") or (in_example and bool(line.strip()))
        if is_example != in_example:
            lines.append("```python" if is_example else "```")
        lines.append(line if is_example else line.replace("``", "`"))
        in_example = is_example
    closed = [*lines, "```"] if in_example else lines
    return f"# {task.key}\n\n" + "\n".join(closed)


def _columns(task: Task) -> list[str]:
    """What the columns hold."""
    kind = "float32" if task.problem_type == "regression" else f"int32, {task.num_labels} classes"
    return [
        "## Columns\n\n"
        f"- `input_ids`: List(int32), {task.vocab_size} symbols.\n"
        f"- `labels`: List({kind}); -100 where nothing is due. {_HEADS[task.head]}\n\n"
        f"Kind of memory: {task.category}. Headline metric: `{task.headline_metric}`, on the positions that "
        "`annotate(input_ids, labels)['score']` of the task marks."
    ]


def _configuration(name: str, specification: Specification, rows: datasets.DatasetDict) -> str:
    """Knobs, sizes, distinct rows, chance levels and baselines of one configuration."""
    _, meanings = docstring_of(type(specification.task))
    knobs = changed_knobs(specification.task)
    lines = [
        f"## Configuration `{name}`",
        "",
        f"Data seed {specification.seed}. Knobs that differ from the defaults:",
        "",
    ]
    lines += [f"- `{knob} = {value!r}`: {meanings.get(knob, '')}" for knob, value in knobs.items()] or ["- none"]
    lines += ["", "| split | length | rows | distinct rows | shared with training | chance | baselines |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for split, (count, distinct, shared) in split_statistics(rows).items():
        cells = [split, _lengths(specification.splits[split], specification.task), count, distinct, shared]
        lines.append("| " + " | ".join(map(str, [*cells, *_levels(specification.splits[split])])) + " |")
    return "\n".join(lines)


def _levels(split: Split) -> tuple[str, str]:
    """Chance level and baselines of the headline metric, where all rows of the split share a length and a law."""
    part = split.parts[0]
    if len(split.parts) > 1 or not isinstance(part.length, int):
        return "", ""
    chance = part.task.known_chance(part.task.headline_metric, part.length)
    baselines = part.task.known_baselines(part.length)
    named = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in baselines.items())
    return ("" if chance is None else f"{chance:.3g}"), named


def _lengths(split: Split, task: Task) -> str:
    """The lengths of a split, each with the knobs in which its law differs from that of the configuration."""
    return ", ".join(dict.fromkeys(_length(part, task) for part in split.parts))


def _length(part: Part, task: Task) -> str:
    low, high = length_bounds(part.length)
    text = str(low) if low == high else f"{low} to {high}"
    usual = task.knobs()
    own = [f"`{knob}={value!r}`" for knob, value in part.task.knobs().items() if value != usual[knob]]
    return f"{text} ({', '.join(own)})" if own else text


def _splits() -> str:
    return (
        "## Splits\n\n"
        "`validation` has the lengths of training; `test_<length>` are longer, equal or shorter. A 64-bit hash of "
        "`input_ids` assigns every possible row to one split (14/16 train, 1/16 validation, 1/16 test), whatever its "
        "length. A space with few rows is enumerated and dealt instead: 80 % train, 10 % validation, 10 % test. The "
        "table counts rows that a split shares with `train` or `validation`."
    )


def _loading(published: str, specification: Specification) -> str:
    """How the dataset is loaded, by each of the three roads."""
    task, preset = specification.task.key, specification.preset
    given = "".join(f", {key}={value!r}" for key, value in specification.overrides.items())
    return (
        "## Loading\n\n"
        "```python\n"
        "from datasets import load_dataset\n\n"
        f'load_dataset("<namespace or folder>/{task}", "{published}")  # these files\n'
        "```\n\n"
        "The rows can be generated as well, with any length and knob, by the package `hf_memory`:\n\n"
        "```python\n"
        "import hf_memory\n\n"
        f'hf_memory.load_dataset("hf_memory/{task}", "{preset}"{given})\n'
        f'hf_memory.load_dataset("hf_memory/{task}", "{preset}"{given}, streaming=True)  # training rows without end\n'
        "```\n\n"
        f"After `hf-memory data build {task} --config {preset}`, plain "
        f'`datasets.load_dataset("hf_memory/{task}", "{preset}")` finds the preset without a network.'
    )


def _reference(task: Task, published: Mapping[str, Specification]) -> str:
    """Version, licence and sources."""
    presets = {specification.preset: task.presets[specification.preset].source for specification in published.values()}
    sources = [f"- `{preset}`: {source}" for preset, source in presets.items() if source]
    return "\n".join(
        [
            "## Version, licence, citation",
            "",
            f"Version {task.version}, drawn as {data_version(task.key)}; read with `datasets` 4 or later. Apache-2.0. "
            "All rows are synthetic. Settings come from:",
            "",
            *sources,
            "",
            _CITATION.format(key=task.key, name=task.key.replace("_", " "), version=task.version),
        ]
    )


def docstring_of(cls: type) -> tuple[str, dict[str, str]]:
    """The text of a class's docstring, and the meaning of each attribute, which is a knob of a task."""
    text, _, attributes = inspect.cleandoc(cls.__doc__ or "").partition("\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", attributes, flags=re.MULTILINE)
    return text.strip(), {name: re.sub(r"\s+", " ", meaning).replace("``", "`") for name, meaning in entries}


def _distinct(split: datasets.Dataset) -> np.ndarray:
    """Hashes of the distinct rows of a split."""
    rows = rows_of_table(split.with_format("arrow")[:])
    lengths = np.diff(rows.offsets)
    found = np.unique(lengths)
    if len(found) == 1:
        return np.unique(row_hashes(rows.input_ids.reshape(len(rows), -1)))
    places = [rows.offsets[:-1][lengths == length, None] + np.arange(length) for length in found]
    return np.unique(np.concatenate([row_hashes(rows.input_ids[place]) for place in places]))


def task_category(task: Task) -> str:
    """The category of the Hub that a task belongs to."""
    return "time-series-forecasting" if task.problem_type == "regression" else _CATEGORIES[task.head]


def size_category(total: int) -> str:
    """The size of the Hub that a number of rows has."""
    for name, limit in (("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6)):
        if total < limit:
            return name
    return "1M<n<10M" if total < 10**7 else "10M<n<100M"
