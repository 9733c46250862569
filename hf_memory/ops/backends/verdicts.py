"""Verdicts on kernels: what each depends on, where it lies on disk, and the trial that it comes from."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.trial import LONGEST, Verdict, try_kernel
from hf_memory.storage import (
    ClaimLostError,
    claim,
    decode,
    digest,
    encode,
    find_files,
    read_json,
    sealed,
    unsealed,
    write_text,
)

logger = logging.getLogger(__name__)

REALISTIC = (8, 1024, 512)
"""Rows, steps and channels at which a kernel must be faster than torch."""

POLL_SECONDS = 0.2


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
        logger.warning("%s cannot be written (%s); the verdict on %s is lost with this process", path, error, kernel)
        return _try(op, kernel, what)


def _tried_once(op: str, kernel: str, what: Mapping[str, Any], facts: dict[str, Any], path: Path) -> Verdict:
    """Try a kernel, or wait for the process that does."""
    deadline = time.monotonic() + LONGEST
    while True:
        with claim(path) as mine:
            if mine:
                verdict = _try(op, kernel, what)
                if verdict.for_good:
                    _write(path, facts, verdict)
                return verdict
        known = _read(path, facts)
        if known is not None:
            return known
        if time.monotonic() > deadline:
            return Verdict("another process tries it without end", for_good=False)
        time.sleep(POLL_SECONDS)


def _write(path: Path, facts: dict[str, Any], verdict: Verdict) -> None:
    """Keep a verdict where that is possible."""
    content = {"facts": facts, "verdict": dataclasses.asdict(verdict)}
    try:
        write_text(path, json.dumps(sealed(encode(content)), indent=2) + "\n")
    except (OSError, ClaimLostError) as error:
        logger.warning("%s was not written (%s); a later process will try the kernel again", path, error)


def _try(op: str, kernel: str, what: Mapping[str, Any]) -> Verdict:
    """Try a kernel, and say in one line what came of it."""
    logger.debug("%s is tried for %s: %s", kernel, op, ", ".join(words(what)))
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
    logger.log(level, "%s %s %s (%s): %s", op, used, kernel, ", ".join(words(what)), verdict.text)
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


def all_verdicts() -> Iterator[tuple[dict[str, Any], Verdict]]:
    """All verdicts on disk, each with what it depends on."""
    for path in find_files(cache_folder(), "*.json"):
        verdict = _read(path)
        if verdict is not None:
            yield read_json(path)["facts"], verdict


def prove_anew(
    device: torch.device, usual: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[dict[str, Any], Verdict]]:
    """Try every kernel for a device again, under the facts of all verdicts on it and the usual ones.

    Args:
        device: The device.
        usual: Facts under which an operation is tried that has no verdict, by its name.

    Yields:
        What each verdict depends on, and the verdict.
    """
    wanted = [(op, plain(what)) for op, what in usual.items()]
    here = device_name(device)
    wanted += [(facts["operation"], facts["facts"]) for facts, _ in all_verdicts() if facts["device"] == here]
    for op, facts in {digest({"operation": op, **facts}): (op, facts) for op, facts in wanted}.values():
        what = {"device": device, **facts, "dtype": getattr(torch, facts["dtype"])}
        for kernel, reason in dispatch.refusals(op, **what).items():
            if reason is None and kernel not in dispatch.AUTO:
                verdict = verdict_of(op, kernel, what, anew=True)
                if verdict is not None:
                    yield facts_of(op, kernel, what), verdict


def words(what: Mapping[str, Any]) -> Iterator[str]:
    """Facts in words, without the device."""
    for name, value in plain(what).items():
        if name == "dtype":
            yield str(value)
        elif value is not False:
            yield name.replace("_", " ") + ("" if value is True else f" {value}")
