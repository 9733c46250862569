"""Files that several processes share: strict JSON, whole writes, and claims on work.

Values that JSON lacks (NaN, infinities) are written as strings. A file is written beside its place and renamed. A piece
of work is claimed by a lock file that only one process can create; its owner touches it regularly, and a lock whose
owner is gone is taken over.
"""

import contextlib
import hashlib
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HEARTBEAT_SECONDS = 10.0
"""How often the owner of a claim touches its lock file."""

STALE_SECONDS = 120.0
"""Age of a heartbeat after which its owner counts as gone, wherever it ran."""

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """Turn nested values into strict JSON: non-finite numbers become the strings NaN, Infinity and -Infinity."""
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ValueError(f"results hold JSON values only, got {type(value).__name__}: {value!r}")


def decode(value: Any) -> Any:
    """Undo :func:`encode`."""
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def digest(definition: Mapping[str, Any]) -> str:
    """Digest of JSON values, 16 hexadecimal digits. The order of keys and tuple against list make no difference."""
    text = json.dumps(encode(definition), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file beside its place and rename it, so that no reader ever sees half of it."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file beside its place and rename it, so that no reader ever sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def claim(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Claim the work that ends in the file ``path``.

    Yields True to the one process that may do it, and False where the file exists already or another process is at it.
    The claim is the file ``<path>.lock`` with host, process id and start; it is touched every ``HEARTBEAT_SECONDS`` and
    removed at the end. It is taken over where its process has ended (on this host) or its heartbeat is older than
    ``STALE_SECONDS``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    token = uuid.uuid4().hex
    # The file is looked for twice, since another process may finish between the first look and the claim.
    if path.exists() or not (_create(lock, token) or _take_over(lock, token)):
        yield False
        return
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(lock, stop), daemon=True)
    heart.start()
    try:
        yield not path.exists()
    finally:
        stop.set()
        heart.join()
        if _owner(lock).get("token") == token:
            lock.unlink(missing_ok=True)


def _create(lock: Path, token: str) -> bool:
    """Create a lock file unless it exists."""
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": time.time(), "token": token}
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        json.dump(owner, file)
    return True


def _take_over(lock: Path, token: str) -> bool:
    """Take the lock of an owner that is gone.

    Only one process at a time may look, so that nobody takes a fresh lock for a stale one.
    """
    door = lock.with_name(f"{lock.name}.takeover")
    if not _is_stale(lock):
        return False
    if not _create(door, token):
        if _is_stale(door):
            door.unlink(missing_ok=True)
        return False
    try:
        if not _is_stale(lock):
            return False
        lock.unlink(missing_ok=True)
        return _create(lock, token)
    finally:
        door.unlink(missing_ok=True)


def _owner(lock: Path) -> dict[str, Any]:
    """What a lock file says of its owner; empty where there is none or it is being written."""
    try:
        owner = json.loads(lock.read_text())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_stale(lock: Path) -> bool:
    """Whether the owner of a lock file is gone."""
    try:
        age = time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return False
    owner = _owner(lock)
    pid = owner.get("pid")
    if owner.get("host") == socket.gethostname() and isinstance(pid, int) and not _is_running(pid):
        return True
    return age > STALE_SECONDS


def _is_running(pid: int) -> bool:
    """Whether a process of this host is alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _beat(lock: Path, stop: threading.Event) -> None:
    """Touch a lock file until told to stop, or until it is gone."""
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            os.utime(lock)
        except FileNotFoundError:
            return
