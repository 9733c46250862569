"""Kernels prove themselves on the machine where they are to run, before ``auto`` uses them.

On the first use of an operation on a GPU each of its kernels is tried in a process of its own
(:mod:`hf_memory.ops.backends.trial`): outputs, final states and all gradients against torch in float32, then a training
step of a realistic size against the time of torch. Of those that are right and faster the fastest is used, and torch
where there is none. A verdict holds for the same device, dtype, sizes, options, packages and code, and lies on disk
under them, so that no later process asks again.

Processes that train together agree: whoever asks first decides, by the store through which they found each other. It
is no collective operation, since not every process need come by the operation.

What was chosen is noted while a run goes on, goes with its checkpoints and rows, and is kept where one is resumed.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.trial import LONGEST, Verdict, try_kernel
from hf_memory.storage import claim, decode, digest, encode, find_files, read_json, sealed, unsealed, write_text

logger = logging.getLogger(__name__)

REALISTIC = (8, 1024, 512)
"""Rows, steps and channels at which a kernel must be faster than torch."""

POLL_SECONDS = 0.2


class Choice(NamedTuple):
    """What runs an operation: a name in ``KERNELS`` or ``torch``; for what, and why, in words.

    Where there is nothing to choose from, the words are empty.
    """

    name: str
    place: str
    text: str


_choices: dict[tuple[Any, ...], Choice] = {}
"""What has been chosen in this process."""

_notes: list[dict[str, str]] = []
_kept: dict[str, str] = {}
_lock = threading.RLock()


def choose(op: str, what: Mapping[str, Any], prove: bool = True) -> str:
    """The kernel that runs an operation, or ``torch``.

    Args:
        op: Name of the operation.
        what: Facts about its tensors, as for :func:`hf_memory.ops.backends.dispatch.resolve_backend`.
        prove: Whether a kernel without a verdict is tried.
    """
    key = (op, dispatch.in_function_transform(), *what.items())
    choice = _choices.get(key)
    if choice is None:
        with _lock:
            choice = _choices.get(key) or _choose(op, what, prove)
            if prove:
                _choices[key] = choice
    if choice.place:
        for notes in _notes:
            notes[choice.place] = choice.text
    if choice.name != "torch" and dispatch.load_kernel(op, choice.name).refusal(**what):
        return "torch"
    return choice.name


def forget() -> None:
    """Choose anew on the next use."""
    _choices.clear()


def _choose(op: str, what: Mapping[str, Any], prove: bool) -> Choice:
    names = [name for name, reason in dispatch.refusals(op, **what).items() if reason is None]
    names = [name for name in names if name not in dispatch.AUTO]
    device = device_name(what["device"])
    if not names or device is None:
        return Choice("torch", "", "")
    place = f"{op} on {device}: {', '.join(_words(what))}"
    kept = _kept.get(place, "")
    if kept.partition(":")[0] in (*names, "torch"):
        return Choice(kept.partition(":")[0], place, kept)
    if kept:
        logger.warning("%s: %s was used before and cannot be any more", place, kept.partition(":")[0])
    text = (
        _agreed(place, lambda: _fastest(op, names, what, True), len(names) * LONGEST)
        if prove
        else _fastest(op, names, what, False)
    )
    return Choice(text.partition(":")[0], place, text)


def _words(what: Mapping[str, Any]) -> Iterator[str]:
    """Facts in words, without the device."""
    for name, value in plain(what).items():
        if name == "dtype":
            yield str(value)
        elif value is not False:
            yield name.replace("_", " ") + ("" if value is True else f" {value}")


def _fastest(op: str, names: list[str], what: Mapping[str, Any], prove: bool) -> str:
    """Name and reasons of the fastest kernel that is right and faster than torch; else of torch."""
    found = {name: verdict_of(op, name, what, prove=prove) for name in names}
    verdicts = {name: verdict for name, verdict in found.items() if verdict is not None}
    right = {name: verdict for name, verdict in verdicts.items() if verdict.reason is None}
    best = min(right, key=lambda name: right[name].milliseconds or 0.0, default="torch")
    texts = [right[best].text] if right else []
    texts += [f"{name}: {verdict.text}" for name, verdict in verdicts.items() if name != best]
    texts += [f"{name}: it has not been tried yet" for name in names if name not in verdicts]
    return f"{best}: {'; '.join(texts)}"


def verdict_of(op: str, kernel: str, what: Mapping[str, Any], prove: bool = True, anew: bool = False) -> Verdict | None:
    """The verdict on a kernel: from disk, else by a trial, for which only one process of a machine is at work.

    Args:
        op: Name of the operation.
        kernel: Name of the kernel in ``KERNELS``.
        what: Facts about its tensors.
        prove: Whether it is tried where there is no verdict; None is the answer otherwise.
        anew: Try it in any case.
    """
    facts = facts_of(op, kernel, what)
    path = cache_folder() / f"{digest(facts)}.json"
    known = None if anew else _read(path, facts)
    if known is not None or not prove:
        return known
    if anew:
        path.unlink(missing_ok=True)
    try:
        return _tried_once(op, kernel, what, facts, path)
    except OSError as error:
        logger.warning("%s cannot be written (%s); the verdict on %s is lost with the process", path, error, kernel)
        return _try(op, kernel, what)


def _tried_once(op: str, kernel: str, what: Mapping[str, Any], facts: dict[str, Any], path: Path) -> Verdict:
    """Try a kernel, or wait for the process that does."""
    deadline = time.monotonic() + LONGEST
    while True:
        with claim(path) as mine:
            if mine:
                verdict = _try(op, kernel, what)
                if verdict.for_good:
                    content = {"facts": facts, "verdict": dataclasses.asdict(verdict)}
                    write_text(path, json.dumps(sealed(encode(content)), indent=2) + "\n")
                return verdict
        known = _read(path, facts)
        if known is not None:
            return known
        if time.monotonic() > deadline:
            return Verdict("another process tries it without end", for_good=False)
        time.sleep(POLL_SECONDS)


def _try(op: str, kernel: str, what: Mapping[str, Any]) -> Verdict:
    """Try a kernel, and say in one line what came of it."""
    logger.debug("%s is tried for %s: %s", kernel, op, ", ".join(_words(what)))
    request = {
        "operation": op,
        "kernel": kernel,
        "module": dispatch.KERNELS[op, kernel],
        "facts": plain(what),
        "device": str(what["device"]),
        "size": REALISTIC,
    }
    verdict = try_kernel(request)
    level = logging.WARNING if verdict.faulty else logging.INFO
    used = "can run on" if verdict.reason is None else "does not run on"
    logger.log(level, "%s %s %s (%s): %s", op, used, kernel, ", ".join(_words(what)), verdict.text)
    return verdict


def plain(what: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as JSON values, without the device; dtypes by their names in torch."""
    named = {name: value for name, value in what.items() if name != "device"}
    return {
        name: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
        for name, value in sorted(named.items())
    }


def facts_of(op: str, kernel: str, what: Mapping[str, Any]) -> dict[str, Any]:
    """What a verdict depends on."""
    device: torch.device = what["device"]
    on_gpu = device.type == "cuda"
    return {
        "operation": op,
        "kernel": kernel,
        "facts": plain(what),
        "device": device_name(device),
        "capability": list(torch.cuda.get_device_capability(device)) if on_gpu else [],
        "size": list(REALISTIC),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip or "",
        "triton": _version("triton"),
        "release": dispatch.release_of(dispatch.load_kernel(op, kernel), kernel),
        "code": _code(dispatch.KERNELS[op, kernel]),
    }


def device_name(device: torch.device) -> str | None:
    """Name of the device; None where it is a GPU and there is none."""
    if device.type != "cuda":
        return platform.machine() or device.type
    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else None


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _code(module: str) -> str:
    """Digest of the operations, of how they are tried, and of a kernel's own module."""
    own = Path(importlib.import_module(module).__file__ or "")
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    text = b"".join(file.read_bytes() for file in [*files, own])
    return hashlib.sha256(text).hexdigest()[:16]


def cache_folder() -> Path:
    """Where verdicts lie."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "hf_memory" / "kernels"


def _read(path: Path, facts: Mapping[str, Any] | None = None) -> Verdict | None:
    """A verdict on disk; None where there is none, and where it is damaged, which is removed."""
    if not path.exists():
        return None
    try:
        content = decode(unsealed(read_json(path)))
        if facts is not None and encode(content["facts"]) != encode(facts):
            raise ValueError("it is of other facts")
        return Verdict(**content["verdict"])
    except (ValueError, TypeError, KeyError) as error:
        logger.warning("%s is damaged (%s) and is made anew", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def verdicts() -> Iterator[tuple[dict[str, Any], Verdict]]:
    """All verdicts on disk, each with what it depends on."""
    for path in find_files(cache_folder(), "*.json"):
        verdict = _read(path)
        if verdict is not None:
            yield read_json(path)["facts"], verdict


def _agreed(place: str, decide: Callable[[], str], limit: float) -> str:
    """What all processes that train together decide: the first to ask does, and the others wait for it."""
    store = _store()
    if store is None:
        return decide()
    key = f"hf_memory/{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    own = str(torch.distributed.get_rank())
    if store.compare_set(f"{key}/by", "", own).decode() == own:
        text = "torch: it could not be decided"
        try:
            text = decide()
        finally:
            store.set(key, text)
        return text
    try:
        store.wait([key], timedelta(seconds=limit))
        return store.get(key).decode()
    except RuntimeError as error:
        logger.warning("%s: the process that decides was not heard of (%s)", place, error)
        return "torch: the process that decides was not heard of"


def _store() -> Any:
    """The store of the processes that train together; None where this one is alone."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    return distributed.distributed_c10d._get_default_store()


@contextlib.contextmanager
def noted(kept: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Note what runs the operations that are called inside the ``with`` block.

    Args:
        kept: Notes of before, whose choices stand where they can.

    Yields:
        Notes: for each operation with its facts the kernel, a colon, and why it was chosen.
    """
    global _kept  # noqa: PLW0603 (a scope, which is left at the end)
    notes: dict[str, str] = {}
    before = _kept
    _notes.append(notes)
    if kept:
        _kept = {**before, **kept}
        _choices.clear()
    try:
        yield notes
    finally:
        _notes[:] = [other for other in _notes if other is not notes]
        if kept:
            _kept = before
            _choices.clear()
