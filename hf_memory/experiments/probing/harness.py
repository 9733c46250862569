"""Probes as task files of lm-evaluation-harness: YAML, a JSON file of rows, and a small Python file that reads it.

A row is a prompt with its candidates as choices, so that the harness's ``acc`` is the ``recall`` of a probe.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_memory.experiments.probing.cells import VERSION, Plan
from hf_memory.experiments.probing.formats import Layout
from hf_memory.experiments.probing.laws import Law
from hf_memory.experiments.probing.prompts import Case, draw_rows
from hf_memory.experiments.probing.tables import LAWS
from hf_memory.experiments.probing.words import draw_vocabulary, find_pool, needed_words
from hf_memory.names import file_name
from hf_memory.storage import write_text

READER = "hf_memory_tasks"
"""Name of the Python file."""

_READER_TEXT = '''"""Reads the rows of the task files beside it; nothing is downloaded."""

import json
from pathlib import Path

import datasets


def load(rows, **_):
    """The rows of one task as its test split."""
    found = json.loads((Path(__file__).parent / f"{rows}.json").read_text(encoding="utf-8"))
    return datasets.DatasetDict({"test": datasets.Dataset.from_list(found)})
'''


def write_harness(out: str | os.PathLike[str], tokenizer: Any, plan: Plan) -> list[Path]:
    """Write the task files of a plan: one for each task, format and length, of the first size of each task.

    Args:
        out: Folder of the files.
        tokenizer: Tokenizer of the models that are to be evaluated.
        plan: Tasks, lengths and formats. The harness makes its own batches.

    Returns:
        The files.

    Raises:
        ValueError: A task's answers are no single words, or a format is that of chat, whose template is the harness's
            own affair.
    """
    if "chat" in plan.formats:
        raise ValueError("format: 'chat' cannot be exported, since the harness applies templates itself")
    files = []
    for law in (LAWS[task] for task in plan.tasks):
        for form in plan.formats:
            layout = Layout(form, tokenizer)
            pool = find_pool(layout, needed_words(law.role_size(max(plan.sizes or law.sizes))))
            size = law.role_size(max(plan.sizes or law.sizes))
            vocabularies = [draw_vocabulary(pool, size, seed) for seed in range(plan.vocabularies)]
            for length in plan.lengths:
                case = Case(length, (plan.sizes or law.sizes)[0])
                name = file_name(f"hf_memory_{law.key}_{form}_{length}")
                rows = _rows(layout, law, vocabularies, case, plan.rows)
                files.append(write_text(Path(out) / f"{name}.json", json.dumps(rows) + "\n"))
                files.append(write_text(Path(out) / f"{name}.yaml", _task_file(name)))
    return [*files, write_text(Path(out) / f"{READER}.py", _READER_TEXT)]


def _rows(
    layout: Layout, law: Law, vocabularies: Sequence[Any], case: Case, rows_per_vocabulary: int
) -> list[dict[str, Any]]:
    """Prompts with their choices, each of which begins with its blank."""
    rows = []
    for drawn in draw_rows(layout, law, vocabularies, case, rows_per_vocabulary):
        words = drawn.vocabulary.words
        for query in drawn.row.queries:
            if len(query.unit.answer) != 1:
                raise ValueError(f"task: the answers of {law.key} are no single words, and cannot be exported")
            given = "".join(f" {words[number]}" for number in query.unit.given)
            text = drawn.prompt.text + given + layout.tail
            rows.append({
                "text": text[1:] if layout.strip and text.startswith(" ") else text,
                "choices": [f" {words[number]}" for number in query.candidates],
                "gold": query.candidates.index(query.unit.answer[0]),
            })  # fmt: skip
    return rows


def _task_file(name: str) -> str:
    """The YAML of a task; its function is named by a tag that only the harness knows."""
    settings = {
        "task": name,
        "dataset_kwargs": {"rows": name},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": VERSION},
    }
    return f"custom_dataset: !function {READER}.load\n" + yaml.safe_dump(settings, sort_keys=False)
