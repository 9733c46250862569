"""Checkpoints of a run in progress: written beside their place and renamed, and found again only where whole."""

import errno
import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from hf_memory.experiments.provenance import check_weights
from hf_memory.experiments.schema import MapOf, Text
from hf_memory.ops.backends.proof import noted
from hf_memory.storage import find_files, is_file, read_json, write_text

logger = logging.getLogger(__name__)

SAVING = ".saving"
"""Folder beside the checkpoints in which one is written; what a start finds there was left by a run that was killed."""

KERNELS_FILE = "hf_memory_kernels.json"
"""File of a checkpoint that says which kernels the run was left to, so that it goes on with them."""

_LATEST = ("true", "latest", "last")


_UNWRITTEN = re.compile("inline_container|iostream error|PytorchStreamWriter|I/O error|No space left", re.IGNORECASE)
"""What torch and safetensors say in place of an error of the system where a file could not be written in full."""


class WholeCheckpoints:
    """For a Trainer: no reader ever sees half a checkpoint, and a run that is killed leaves the last one whole.

    Attributes:
        kernels: What ran the operations of the training, where they had a choice of kernels on a GPU.
    """

    _is_saving = False
    kernels: Mapping[str, str] = {}

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does, on the kernels of the checkpoint from which it goes on."""
        trainer: Any = self
        found = last_checkpoint(trainer.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        with noted(kernels_of(found) if found else None) as self.kernels:
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _get_output_dir(self, trial: Any) -> str:
        """Folder of the checkpoints; while one is saved, the one beside it."""
        folder = super()._get_output_dir(trial)  # type: ignore[misc]
        return os.path.join(folder, SAVING) if self._is_saving else folder

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        """Train for an epoch; not where a checkpoint of the last step was resumed, to which Trainer would add one."""
        trainer: Any = self
        if trainer.state.global_step >= trainer.state.max_steps > 0:
            trainer.control.should_training_stop = True
            return None
        return super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save as Trainer does, then rename and remove what is more than the limit."""
        trainer: Any = self
        place = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        beside, whole = place / SAVING / name, place / name
        if trainer.args.should_save:
            shutil.rmtree(place / SAVING, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        except (RuntimeError, SafetensorError, OSError) as error:
            shutil.rmtree(place / SAVING, ignore_errors=True)
            if isinstance(error, OSError) or not _UNWRITTEN.search(str(error)):
                raise
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(place)) from error
        finally:
            self._is_saving = False
        if trainer.state.best_model_checkpoint == str(beside):
            trainer.state.best_model_checkpoint = str(whole)
        trainer.accelerator.wait_for_everyone()  # other processes write into the folder as well
        if trainer.args.should_save:
            trainer.state.save_to_json(str(beside / TRAINER_STATE_NAME))
            if self.kernels:
                write_text(beside / KERNELS_FILE, json.dumps(self.kernels, indent=2) + "\n")
            if whole.exists():
                whole.rename(place / SAVING / f"{name}-before")
            beside.rename(whole)
            shutil.rmtree(place / SAVING, ignore_errors=True)
            rotate_checkpoints(
                output_dir=str(place),
                save_total_limit=trainer.args.save_total_limit,
                best_model_checkpoint=trainer.state.best_model_checkpoint,
                use_mtime=True,
            )
        trainer.accelerator.wait_for_everyone()


def resume_point(given: str | bool | None, output_dir: str | os.PathLike[str]) -> str | None:
    """The checkpoint from which a run goes on, and None where it starts anew.

    Args:
        given: ``--resume_from_checkpoint``: a folder, or ``True``, ``latest`` or ``last`` for the last whole one in
            ``output_dir``, if there is any.
        output_dir: Folder of the run.

    Raises:
        ValueError: The folder that was given does not exist, or is not whole; the message says why.
    """
    text = "" if given is None else str(given)
    if text.lower() in ("", "false", "none"):
        return None
    if text.lower() in _LATEST and not Path(text).is_dir():
        found = last_checkpoint(output_dir)
        if found is None:
            logger.warning("%s holds no whole checkpoint; training starts anew", output_dir)
        return None if found is None else str(found)
    if not Path(text).is_dir():
        raise ValueError(f"resume_from_checkpoint: there is no folder {text!r}")
    fault = fault_of(Path(text))
    if fault:
        raise ValueError(f"resume_from_checkpoint: {text} is not whole ({fault}); give another one, or `latest`")
    return text


def last_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The last whole checkpoint of a run; those that are not whole are named in the log and passed over."""
    named = [(re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name), path) for path in Path(folder).glob("*")]
    for _, path in sorted(((int(match[1]), path) for match, path in named if match and path.is_dir()), reverse=True):
        fault = fault_of(path)
        if not fault:
            return path
        logger.warning("%s is not whole (%s) and is passed over", path, fault)
    return None


def kernels_of(checkpoint: str | os.PathLike[str]) -> dict[str, str]:
    """The kernels on which a checkpoint was trained; nothing where it does not say, or its file is damaged."""
    path = Path(checkpoint) / KERNELS_FILE
    if not is_file(path):
        return {}
    try:
        kernels = read_json(path)
        MapOf(Text()).check(kernels, KERNELS_FILE)
    except ValueError as error:
        logger.warning("%s is damaged (%s); kernels are chosen anew", path, error)
        return {}
    return kernels


def fault_of(checkpoint: Path) -> str:
    """Why a checkpoint is not whole; empty where it is."""
    try:
        step = read_json(checkpoint / TRAINER_STATE_NAME)["global_step"]
        if not isinstance(step, int):
            return f"{TRAINER_STATE_NAME} has no step"
        if not find_files(checkpoint, "*.safetensors"):
            return "it has no weights"
        check_weights(checkpoint)
    except (OSError, ValueError, TypeError, KeyError) as error:
        return str(error)
    for file in (checkpoint / OPTIMIZER_NAME, checkpoint / SCHEDULER_NAME):
        if os.path.lexists(file) and not (is_file(file) and zipfile.is_zipfile(file)):
            return f"{file.name} is cut short"
    return ""
