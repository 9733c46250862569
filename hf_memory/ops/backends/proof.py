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
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.trial import LONGEST
from hf_memory.ops.backends.verdicts import device_name, verdict_of, words

logger = logging.getLogger(__name__)


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
    names = list(_runnable(op, what))
    device = device_name(what["device"])
    if not names or device is None:
        return Choice("torch", "", "")
    place = f"{op} on {device}: {', '.join(words(what))}"
    kept = _kept.get(place, "")
    if kept.partition(":")[0] in (*names, "torch"):
        return Choice(kept.partition(":")[0], place, kept)
    if kept:
        logger.warning("%s: %s was used before and cannot be any more", place, kept.partition(":")[0])
    if prove:
        text = _agreed(place, lambda: _fastest(op, names, what, True), len(names) * LONGEST)
    else:
        text = _fastest(op, names, what, False)
    if text.partition(":")[0] not in (*names, "torch"):  # another process chose what is not installed here
        text = f"torch: {text.partition(':')[0]} is not here"
    return Choice(text.partition(":")[0], place, text)


def _runnable(op: str, what: Mapping[str, Any]) -> Iterator[str]:
    """Names of the kernels that take such tensors. One that cannot even be imported is none of them, and says so."""
    for other, name in dispatch.KERNELS:
        if other != op or name in dispatch.AUTO:
            continue
        try:
            if dispatch.load_kernel(op, name).refusal(**what) is None:
                yield name
        except ImportError:
            continue  # a package that is not there is no fault
        except Exception as error:  # noqa: BLE001 (a driver that is missing, a compiler that fails: the run goes on)
            logger.warning("%s does not run on %s: %s: %s", op, name, type(error).__name__, error)


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


def _agreed(place: str, decide: Callable[[], str], limit: float) -> str:
    """What all processes that train together decide: the first to ask does, and the others wait for it."""
    store = _store()
    if store is None:
        return decide()
    key = f"hf_memory/{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    own = str(torch.distributed.get_rank())
    if store.check([key]):
        return store.get(key).decode()
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
