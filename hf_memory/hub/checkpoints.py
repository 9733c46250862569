"""Checkpoints on the Hub.

What is pushed is first written to a folder, checked, and then uploaded in one commit: an error leaves the branch as it
was. Weights are safetensors, arguments are JSON; no pickle is ever uploaded. A second push sends what has changed.
"""

import dataclasses
import fnmatch
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from huggingface_hub import CommitInfo, HfApi
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from hf_memory.data.folders import working_folder
from hf_memory.data.tokenizers import task_tokenizer
from hf_memory.data.values import from_json
from hf_memory.experiments.provenance import RUN_FILE, weights_digest
from hf_memory.experiments.results import Row, read_definition, read_rows
from hf_memory.experiments.training import ARGUMENTS_NAME
from hf_memory.hub.client import CARD, WORK, check_repo_id, make_repo, read_card, upload
from hf_memory.hub.loading import load_checkpoint
from hf_memory.hub.merging import open_card
from hf_memory.hub.model_card import model_card
from hf_memory.hub.remote_code import export_remote_code
from hf_memory.hub.results import eval_results_yaml, rows_of_weights, training_command
from hf_memory.hub.sections import FIGURES
from hf_memory.reports.length_plots import save_figures
from hf_memory.storage import find_files, is_file, read_json, write_text
from hf_memory.tasks import make_task
from hf_memory.tasks.base import Task

EVAL_RESULTS = ".eval_results/hf_memory.yaml"

_CARRIED = ("*.safetensors", "model.safetensors.index.json", "generation_config.json", ARGUMENTS_NAME, RUN_FILE)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# What an earlier push may have left and this one need not replace: shards, code, figures and results of other weights.
_OUTDATED = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "mixers_*.py",
    "ops_*.py",
    f"{FIGURES}/*",
    EVAL_RESULTS,
)

Source: TypeAlias = PreTrainedModel | str | os.PathLike[str]
Results: TypeAlias = str | os.PathLike[str] | Sequence[Row] | None


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A folder that is complete but for its card, and what the card is made of."""

    folder: Path
    model: PreTrainedModel
    card: Mapping[str, Any]
    local_card: str

    def write_card(self, repo_id: str, previous: str | None) -> Path:
        """Write the card, merged with the one on the Hub, else with the one beside the checkpoint."""
        stood = self.local_card if previous is None else previous
        write_text(self.folder / CARD, model_card(self.model, repo_id, **self.card, previous=stood))
        return self.folder


def save_for_hub(
    source: Source,
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    results: Results = None,
    task: Task | str | None = None,
    tags: Sequence[str] = (),
    license: str | None = None,
    allow_pickle: bool = False,
    max_shard_size: int | str = "50GB",
) -> Path:
    """Write what :func:`push` uploads: weights, configs, code, the tokenizer of the task, and a card.

    Args:
        source: A model of the package, or the folder of a checkpoint, which is only read.
        folder: A new or empty folder.
        repo_id: Repository that the card names.
        results: Folder or rows of results; those measured with these weights are shown. A model without any gets a
            card without a section of results.
        task: Task whose tokenizer is written; by default that of the rows. A tokenizer beside the weights stays.
        tags: Further tags of the card.
        license: License of the weights, as the Hub names it; that of the card that is there, else Apache-2.0.
        allow_pickle: Read weights that exist as a pickle only. They are written as safetensors.
        max_shard_size: Size above which the weights of a model are split.

    Raises:
        ValueError: The folder holds files; the mixer is unknown; tensors are missing or in excess; the weights are a
            pickle; the task is unknown.
    """
    marks = {"tags": tags, "license": license}
    prepared = _prepare(source, Path(folder), results, task, marks, allow_pickle, max_shard_size)
    return prepared.write_card(repo_id, None)


def push(
    source: Source,
    repo_id: str,
    *,
    results: Results = None,
    task: Task | str | None = None,
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    create_pr: bool = False,
    tags: Sequence[str] | None = None,
    license: str | None = None,
    allow_pickle: bool = False,
    max_shard_size: int | str | None = "50GB",
) -> CommitInfo:
    """Push a model: its weights, config, tokenizer, own code and card, in one commit.

    Args:
        source: A model of the package, or the folder of a checkpoint.
        repo_id: ``<namespace>/<name>`` of the repository, which is made where it does not exist.
        results: As for :func:`save_for_hub`.
        task: As for :func:`save_for_hub`.
        revision: Branch to push to, made where it does not exist; the main branch by default.
        private: Whether a new repository is private.
        token: Access token; that of the login by default.
        commit_message: Title of the commit.
        commit_description: Text of the commit.
        create_pr: Open a pull request instead of changing the branch.
        tags: As for :func:`save_for_hub`.
        license: As for :func:`save_for_hub`.
        allow_pickle: As for :func:`save_for_hub`.
        max_shard_size: As for :func:`save_for_hub`.

    Raises:
        ValueError: As for :func:`save_for_hub`, and for what the Hub refuses; the message says what to do.
    """
    check_repo_id(repo_id)
    api = HfApi(token=token)
    with working_folder(tempfile.gettempdir(), WORK) as temporary:
        # Whatever is wrong with the checkpoint is found before the Hub is asked for anything.
        folder = temporary / "model"
        marks = {"tags": tags or (), "license": license}
        prepared = _prepare(source, folder, results, task, marks, allow_pickle, max_shard_size or "50GB")
        repo_id = make_repo(api, repo_id, "model", revision=revision, private=private, create_pr=create_pr)
        prepared.write_card(repo_id, read_card(api, repo_id, "model", revision))
        title = commit_message or f"Upload {type(prepared.model).__name__}"
        return upload(
            api,
            folder,
            repo_id,
            "model",
            title=title,
            text=commit_description,
            revision=revision,
            create_pr=create_pr,
            outdated=_OUTDATED,
        )


def _prepare(
    source: Source,
    folder: Path,
    results: Results,
    task: Task | str | None,
    marks: Mapping[str, Any],
    allow_pickle: bool,
    max_shard_size: int | str,
) -> _Prepared:
    """Write everything but the card, whose tags and license are ``marks``."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder must be new or empty: {folder} holds files")
    folder.mkdir(parents=True, exist_ok=True)
    local_card = ""
    if isinstance(source, PreTrainedModel):
        model = source
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    else:
        model = load_checkpoint(source, allow_pickle=allow_pickle)
        local_card = _carry(Path(source), model, folder)
    export_remote_code(model, folder)
    rows, commands = _read_results(results, model)
    own = rows_of_weights(rows, weights_digest(folder))
    _write_tokenizer(folder, task, own, model.config.vocab_size)
    save_figures(own, folder / FIGURES)
    if text := eval_results_yaml(own):
        write_text(folder / EVAL_RESULTS, text)
    card = {
        "rows": own,
        "siblings": rows,
        "commands": list(dict.fromkeys(commands[row.cell] for row in own if row.cell in commands)),
        **marks,
        "has_tokenizer": (folder / _TOKENIZER[0]).is_file(),
    }
    return _Prepared(folder, model, card, local_card)


def _carry(source: Path, model: PreTrainedModel, folder: Path) -> str:
    """Copy the files of a checkpoint that are pushed, byte by byte, and return its card.

    The config is written anew, so that its code is that of this version; pickled weights are written as safetensors.
    """
    if find_files(source, "*.safetensors"):
        model.config.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    for path in sorted(source.iterdir()):
        if path.is_file() and any(fnmatch.fnmatch(path.name, pattern) for pattern in (*_CARRIED, *_TOKENIZER)):
            shutil.copyfile(path, folder / path.name)
    _check_tokenizer(source)
    return _read_card(source / CARD) if is_file(source / CARD) else ""


def _check_tokenizer(source: Path) -> None:
    """Raise a ``ValueError`` that names a tokenizer's file which nobody could load."""
    for name in _TOKENIZER:
        path = source / name
        if is_file(path):
            try:
                found = Tokenizer.from_file(str(path)) if name == _TOKENIZER[0] else read_json(path)
                if isinstance(found, list):
                    raise ValueError("it must hold a mapping")
            except Exception as error:  # tokenizers raises nothing more special
                raise ValueError(f"{path} is damaged ({error}); copy it again, or remove it") from error


def _read_card(path: Path) -> str:
    """The text of a local card. Raises a ``ValueError`` that names it where it is no card."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        open_card(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); mend it, or remove it") from error
    return text


def _read_results(results: Results, model: PreTrainedModel) -> tuple[list[Row], dict[str, str]]:
    """Rows, and the training command of each cell that is a training run of such a model."""
    if results is None:
        return [], {}
    if not isinstance(results, str | os.PathLike):
        return list(results), {}
    path, mixer, rows = Path(results), model.config.model_type.removeprefix("memory_"), read_rows(results)
    commands = {}
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        definition = read_definition(file)
        if definition.get("mixer") == mixer and (command := training_command(definition, model.config)):
            commands[file.stem] = command
    return rows, commands


def _write_tokenizer(folder: Path, task: Task | str | None, rows: Sequence[Row], vocab_size: int) -> None:
    """Write the tokenizer of a task, or of the task of the rows, unless there is one."""
    if task is not None:
        task = make_task(task) if isinstance(task, str) else task
        if task.vocab_size > vocab_size:
            raise ValueError(f"task: {task.key} has {task.vocab_size} symbols, and the checkpoint knows {vocab_size}")
    if (folder / _TOKENIZER[0]).exists():
        return
    if task is None and rows:
        task = make_task(rows[0].task, **{name: from_json(value) for name, value in rows[0].task_knobs.items()})
    if task is not None:
        task_tokenizer(task).save_pretrained(folder)
