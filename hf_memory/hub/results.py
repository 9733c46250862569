"""Result rows in the forms of the Hub: ``model-index``, ``.eval_results``, and a dataset of rows."""

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from hf_memory.data.benchmark import FRAMEWORK, task_id
from hf_memory.data.specification import changed_knobs, length_bounds, specify
from hf_memory.experiments.results import Row
from hf_memory.experiments.summary import title
from hf_memory.experiments.training import training_arguments
from hf_memory.hub.merging import OWN_ARGUMENT
from hf_memory.mixers.auto import mixer_config
from hf_memory.models.configuration import MemoryConfig
from hf_memory.reports.formats import words
from hf_memory.storage import encode
from hf_memory.tasks import make_task, task_class

REPEATABLE = frozenset(
    {"task", "preset", "data", "data_version", "arm", "mixer", "config", "training", "rows_per_step", "optim_groups"}
) | {"learning_rate_grid", "seed", "data_seed"}
"""Parts of a run's definition that :func:`training_command` states, or that follow from those it states."""

_NOT_ASKED_FOR = {"architectures", "dtype", "hf_memory_version", "id2label", "label2id", "problem_type"}
_NOT_ASKED_FOR |= {"transformers_version", "use_cache", "vocab_size"}  # Trainer switches the cache off
_JSON = (str, bool, int, float, list, dict)


def rows_of_weights(rows: Sequence[Row], weights: str) -> list[Row]:
    """The rows measured with these weights. Where a split was evaluated twice, the row with more targets counts."""
    best: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if weights and row.weights_sha256 == weights:
            key = (row.task, json.dumps(row.task_knobs, sort_keys=True), row.split)
            if key not in best or row.measured().denominator > best[key].measured().denominator:
                best[key] = row
    return sorted(best.values(), key=lambda row: (row.task, row.train_length or (0, 0), row.length, row.split))


def preset_of(row: Row) -> str | None:
    """Name of the preset whose knobs and training lengths are those of a row; None where no preset has them."""
    for name in task_class(row.task).presets:
        found = specify(row.task, name)
        same_length = length_bounds(found.train_length) == row.train_length
        if same_length and encode(changed_knobs(found.task)) == encode(row.task_knobs) and row.split in found.splits:
            return name
    return None


def model_index_results(rows: Sequence[Row], task_type: str) -> list[EvalResult]:
    """The headline values of test splits as entries of a card's ``model-index``, where they are finite.

    That is what the Hub's page of a model shows; all other metrics stand in the rows.
    """
    return [
        EvalResult(
            task_type=task_type,
            task_name=row.task,
            dataset_type=f"hf_memory/{row.task}",
            dataset_name=title([row]),
            dataset_config=preset_of(row),
            dataset_split=row.split,
            dataset_args={OWN_ARGUMENT: row.data_version},
            metric_type=row.headline,
            metric_name=words(row.headline),
            metric_value=row.value(),
        )
        for row in rows
        if row.split.startswith("test") and math.isfinite(row.value())
    ]


def eval_results_yaml(rows: Sequence[Row]) -> str:
    """The headline values as a file of ``.eval_results/``, for whole test splits of published configurations."""
    entries = []
    for row in rows:
        preset, measured = preset_of(row), row.measured()
        if preset is not None and _is_published(row, preset) and math.isfinite(measured.value):
            entries.append(
                EvalResultEntry(
                    dataset_id=f"hf_memory/{row.task}",
                    task_id=task_id(preset, row.split),
                    value=measured.value,
                    notes=f"{row.headline}, {measured.denominator} targets, data version {row.data_version}",
                )
            )
    listed = [{**entry, "evaluation_framework": FRAMEWORK} for entry in eval_result_entries_to_yaml(entries)]
    return yaml.safe_dump(listed, sort_keys=False) if listed else ""


def _is_published(row: Row, preset: str) -> bool:
    """Whether a row was measured on all rows of a published test split; sequences are counted one by one."""
    specification, sequences = specify(row.task, preset), row.metrics.get("sequence_accuracy")
    whole = sequences is not None and sequences.denominator == specification.splits[row.split].num_examples
    return whole and row.data_seed == specification.seed and row.split.startswith("test")


def training_command(definition: Mapping[str, Any], config: MemoryConfig) -> str | None:
    """The ``hf-memory train`` that repeats a run in one process.

    Args:
        definition: Definition of the run's cell, see :meth:`hf_memory.experiments.run.Experiment.definition`.
        config: Config of its model.

    Returns:
        The command; None for a cell that is no training run, or one with rules that the command does not know.
    """
    if not definition.keys() >= REPEATABLE or any(definition[name] for name in definition.keys() - REPEATABLE):
        return None
    words = ["hf-memory", "train", "--mixer", definition["mixer"], "--task", definition["task"]]
    words += ["--config", definition["preset"]]
    if definition["arm"] != definition["mixer"]:
        words += ["--arm", definition["arm"]]
    for option, fields in (("--data", definition["data"]), ("--model", _chosen_fields(config, definition))):
        pairs = [f"{name}={json.dumps(value)}" for name, value in sorted(fields.items())]
        words += [option, *pairs] if pairs else []
    if definition["optim_groups"] != "documented":
        words += ["--optim_groups", definition["optim_groups"]]
    usual = training_arguments("unused")
    given = {**definition["training"], "seed": definition["seed"]}
    given["per_device_train_batch_size"] = definition["rows_per_step"]
    defaults = {**usual.to_dict(), "seed": 0}
    for name, value in given.items():
        if value is not None and value != defaults[name]:
            words += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return shlex.join(words)


def _chosen_fields(config: MemoryConfig, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a config that are neither its defaults nor given by the task."""
    task = make_task(definition["task"])
    usual = mixer_config(definition["mixer"], vocab_size=task.vocab_size)
    names = {field.name for field in dataclasses.fields(config)} - _NOT_ASKED_FOR
    chosen = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(usual, name)}
    return {name: value for name, value in chosen.items() if value is None or isinstance(value, _JSON)}


def rows_table(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table: what people sort and filter by, and the whole row as JSON in the column ``row``."""
    listed = []
    for row in rows:
        measured = row.measured()
        facts = {"mixer": row.mixer, "arm": row.arm, "task": row.task, "split": row.split, "length": row.length}
        facts |= {"metric": row.headline, "value": measured.value, "chance": measured.chance}
        facts |= {"targets": measured.denominator, "seed": row.seed, "learning_rate": row.learning_rate}
        facts |= {"parameters": row.parameters, "state_bytes": row.state_bytes, "cell": row.cell}
        listed.append({**facts, "row": json.dumps(row.to_json(), sort_keys=True)})
    types = {"length": pa.int64(), "value": pa.float64(), "chance": pa.float64(), "targets": pa.int64()}
    types |= {"seed": pa.int64(), "learning_rate": pa.float64(), "parameters": pa.int64(), "state_bytes": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in listed[0]])
    return pa.Table.from_pylist(listed, schema=schema)


def rows_from_table(table: pa.Table) -> list[Row]:
    """Undo :func:`rows_table`. Raises a ``ValueError`` for a table that is none of rows."""
    if "row" not in table.column_names:
        raise ValueError(f"results: the column 'row' is missing (there are: {', '.join(table.column_names)})")
    return [Row.from_json(json.loads(text)) for text in table["row"].to_pylist()]
