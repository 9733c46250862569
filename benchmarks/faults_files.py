"""Damaged files of all kinds: the reader names the file, or reads what was written; it never reads something else.

What a program wrote carries its own digest, so that every change is found. Text that people edit, recipes, configs,
tokenizers and cards, is read as it stands where it still is what it should be: nobody can tell an edit from damage.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.faults_cases import Nonsense, pick, run_cases
from benchmarks.faults_common import Tally, run, short
from benchmarks.faults_kills import SWEEP, lay_out
from hf_memory.cli.errors import explain
from hf_memory.experiments.evaluation import load_for_task
from hf_memory.experiments.provenance import config_digest, read_run, weights_digest
from hf_memory.experiments.results import recover_rows
from hf_memory.hub.checkpoints import save_for_hub
from hf_memory.hub.datasets import read_rows_table
from hf_memory.hub.loading import load_checkpoint
from hf_memory.hub.results import rows_table
from hf_memory.studies.outcomes import find_records, read_study
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.tasks import make_task

KINDS = {
    "rows": ("rows", "*.jsonl"),
    "histories": ("rows", "*.history.json"),
    "records": ("rows", "*.sweep.json"),
    "recipes": (".", "tiny.yaml"),
    "run files": ("run", "hf_memory_run.json"),
    "weights": ("run", "model.safetensors"),
    "configs": ("run", "config.json"),
    "tokenizers": ("run", "tokenizer*.json"),
    "cards": ("run", "README.md"),
    "Parquet": ("parquet", "rows.parquet"),
}
"""Folder and names of the files of each kind."""

_AS_IT_STANDS = ("recipes", "configs", "tokenizers", "cards")


class _Log(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.text += record.getMessage() + "\n"


def attack(root: Path, given: Path, number: int, seed: int) -> Iterator[Callable[[], Tally]]:
    """A case for each kind, which share the number."""
    whole = root / "whole"
    for index, kind in enumerate(KINDS):
        own = number * (index + 1) // len(KINDS) - number * index // len(KINDS)

        def case(kind: str = kind, own: int = own) -> Tally:
            if not whole.exists():
                _prepare(whole, given)
            return run_cases(root, kind, own, seed, lambda rng: _case(whole, kind, rng))

        yield case


def _prepare(whole: Path, given: Path) -> None:
    """One of each file."""
    place = whole.with_name("made")
    lay_out(place, given)
    code, text = run(place, SWEEP)
    if code != 0:
        raise RuntimeError(f"the sweep failed: {short(text)}")

    def write() -> None:
        rows, _ = recover_rows(place / "rows")
        (place / "parquet").mkdir()
        pq.write_table(rows_table(rows), place / "parquet" / "rows.parquet", write_page_checksum=True)
        save_for_hub(place / "given" / "run", place / "run", "me/lru", results=place / "given" / "rows")

    code, text = run(place, write)
    if code != 0:
        raise RuntimeError(f"the files could not be made: {short(text)}")
    place.rename(whole)


def _case(whole: Path, kind: str, rng: np.random.Generator) -> str:
    """Damage one file of a copy, and read it."""
    folder, pattern = KINDS[kind]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) / "copy"
        if folder == ".":
            place.mkdir()
            shutil.copy(whole / pattern, place)
        else:
            shutil.copytree(whole / folder, place)
        path = pick(rng, sorted(place.glob(pattern)))
        before = READERS[kind](path)
        what = f"{path.name} {damage(path, sorted(place.iterdir()), rng)}"
        return _judge(kind, path, before, what)


def _judge(kind: str, path: Path, before: Any, what: str) -> str:
    """Read a damaged file, and say how that ended."""
    log = _Log()
    loggers = [logging.getLogger("hf_memory"), logging.getLogger("transformers")]
    for logger in loggers:
        logger.addHandler(log)
    try:
        found = READERS[kind](path)
    except Exception as error:
        text = explain(error)
        # What one file of a checkpoint lacks is said of the checkpoint.
        names = (path.name, str(path.parent)) if kind == "weights" else (path.name,)
        if text is None or not any(name in text + log.text for name in names):
            raise Nonsense(f"{what}: {type(error).__name__}: {error}") from error
        return "refused, the file is named"
    finally:
        for logger in loggers:
            logger.removeHandler(log)
    problems = [problem for problem in found[1] if path.name in problem]
    if problems or path.name in log.text or (kind == "weights" and "hf_memory_run.json is of other" in log.text):
        return "passed over, the file is named"
    if found[0] == before[0]:
        return "read what was written"
    if kind in _AS_IT_STANDS:
        return "read as it stands"
    raise Nonsense(f"{what}: other content was read without a word")


def damage(path: Path, others: list[Path], rng: np.random.Generator) -> str:
    """Damage a file in one of many ways; returns what was done."""
    content, kind = path.read_bytes(), int(rng.integers(11))
    at = int(rng.integers(len(content)))
    if kind <= 2:
        changed = bytearray(content)
        for place in rng.integers(len(content), size=int(rng.integers(1, 4))):
            changed[place] ^= 1 << int(rng.integers(8))
        return _write(path, bytes(changed), "with flipped bits")
    if kind == 3:
        return _write(path, content[:at], f"cut to {at} bytes")
    if kind == 4:
        return _write(path, b"", "emptied")
    if kind == 5:
        other = pick(rng, others)
        own = other.read_bytes() if other.is_file() else content[::-1]
        return _write(path, own, f"swapped with {other.name}")
    if kind == 6:
        text = content.decode("utf-8", errors="replace")
        return _write(path, text.encode(pick(rng, ("utf-16", "utf-32"))), "in another encoding")
    if kind == 7:
        deep = pick(rng, (b"[" * 100_000, b'{"a":' * 100_000, b"- " * 50_000, b"[" * 500 + b"]" * 500))
        return _write(path, deep, "nested deeply")
    if kind == 8:
        return _write(path, content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :], "with zeros in it")
    if kind == 9:
        return _write(path, content[:at] + b"\xff\xfe\x00garbage" + content[at:], "with garbage in it")
    path.unlink()
    what = pick(rng, ("pipe", "folder", "link"))
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.with_name("gone"))
    return f"replaced by a {what}"


def _write(path: Path, content: bytes, what: str) -> str:
    path.write_bytes(content)
    return what


Read = tuple[Any, list[str]]
"""What was read, and what the reader says is wrong."""


def _rows(path: Path) -> Read:
    rows, problems = recover_rows(path.parent)
    return [row.to_json() for row in rows], problems


def _study(path: Path) -> Read:
    record = path if path.name.endswith(".sweep.json") else find_records(path.parent)[0]
    study = read_study(record)
    history = [[(point.steps, point.split, dict(point.values)) for point in own.history] for own in study.results]
    values = [[row.to_json() for row in own.rows.values()] for own in study.results]
    return [study.recipe.to_json(), [dict(size) for size in study.sizes], study.complete, history, values], list(
        study.problems
    )


def _checkpoint(path: Path) -> Read:
    model = load_checkpoint(path.parent)
    again = load_for_task(path.parent, make_task("bit_parity"))
    read_run(str(path.parent))
    return [weights_digest(path.parent), config_digest(model.config), config_digest(again.config)], []


def _pushed(path: Path) -> Read:
    out = path.parent.parent / "pushed"
    shutil.rmtree(out, ignore_errors=True)
    save_for_hub(path.parent, out, "me/lru")
    return (out / path.name).read_bytes() if (out / path.name).is_file() else None, []


READERS: dict[str, Callable[[Path], Read]] = {
    "rows": _rows,
    "histories": _study,
    "records": _study,
    "recipes": lambda path: (load_recipe(path).to_json(), []),
    "run files": lambda path: (read_run(str(path.parent)), []),
    "weights": _checkpoint,
    "configs": _checkpoint,
    "tokenizers": _pushed,
    "cards": _pushed,
    "Parquet": lambda path: ([row.to_json() for row in read_rows_table(path)], []),
}
