"""Files that several processes share: strict JSON, whole writes, and claims on work.

Values that JSON lacks (NaN, infinities) are written as strings. A file is written beside its place and renamed.

A piece of work is claimed by two locks of ``filelock``, always both, since no question to a file system says reliably
what its locks are worth: on NFS, `flock` may be shared by all clients or known to one host alone, as it was mounted.

- The operating system's lock on ``<path>.lock`` decides among the processes of a host, and on folders whose server
  shares it. A process that is killed frees it at once, one that is suspended keeps it, and what the file holds or how
  old it is makes no difference. Where the file system has no such locks, it is done without.
- A lease, the file ``<path>.lease``, decides among hosts. Its owner touches it every ``HEARTBEAT_SECONDS``. Another
  host takes it over once the owner has not done so for ``STALE_SECONDS`` while it looked: by its own steady clock, so
  that no two clocks need to agree.

Whoever is too slow may so lose a lease while it works. A :class:`Claim` therefore is asked anew each time, and
:func:`write_bytes` asks before it renames.

What the library leaves to this module: it remembers how long a lease has stood still for as long as one call waits,
while work is asked for again and again by calls that do not wait; and it takes a lease over by exchanging two names,
which NFS and most other network file systems refuse.
"""

import contextlib
import errno
import glob
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from filelock import BaseFileLock, FileLock, SoftFileLease, Timeout

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
"""How often the owner of a claim touches its lease."""

STALE_SECONDS = 120.0
"""For how long a lease must have stood still before its owner counts as gone. The same for all who share a folder."""

_DEEPEST = 100
"""Levels of values within values that a file may have."""

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
"""This machine, in names of files that others may see."""


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


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with their own SHA-256 under the key ``sha256``."""
    return {**content, "sha256": _seal_of(content)}


def unsealed(content: Any) -> Any:
    """Undo :func:`sealed`. What has no such key is from before there were seals, and stands as it is.

    Raises:
        ValueError: The values are not those that were sealed.
    """
    if not isinstance(content, dict) or "sha256" not in content:
        return content
    rest = {key: value for key, value in content.items() if key != "sha256"}
    if _seal_of(rest) != content["sha256"]:
        raise ValueError("its values were changed after it was written")
    return rest


def _seal_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file beside its place and rename it, so that no reader ever sees half of it."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file beside its place and rename it, so that no reader ever sees half of it.

    Raises:
        ClaimLostError: If this process claimed the work that ends in the file, and has lost it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{HOST}-{os.getpid()}-{uuid.uuid4().hex[:16]}.tmp")
    _remove_left(path)
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        check_claim(path)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def copy_folder(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Path:
    """Copy the files of a folder beside its new place and rename it, so that no reader ever sees half of it.

    Hidden files, such as locks, stay where they are. A folder that stands there gives way; what processes of this
    machine that were killed have left is removed.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target)
    beside = target.with_name(f".{target.name}.{HOST}-{os.getpid()}-{uuid.uuid4().hex[:16]}.tmp")
    try:
        shutil.copytree(source, beside, ignore=shutil.ignore_patterns(".*"))
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _remove_left(path: Path) -> None:
    """Remove what processes of this machine that were killed have left beside a file or folder."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.{HOST}-*.tmp"):
        pid = other.name.removesuffix(".tmp").split("-")[-2]
        if psutil.pid_exists(int(pid)):
            continue
        if other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
        else:
            other.unlink(missing_ok=True)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file lies at a path. What else lies there is named in the log.

    A pipe would be waited for without end, and a folder or a link to nothing cannot be read.
    """
    if os.path.isfile(path):
        return True
    if os.path.lexists(path):
        logger.warning("%s is %s and is passed over", path, what_lies_at(path))
    return False


def what_lies_at(path: str | os.PathLike[str]) -> str:
    """What lies at a path that is no regular file, in words; empty for a regular file."""
    if os.path.isfile(path):
        return ""
    if not os.path.lexists(path):
        return "not there"
    if not os.path.exists(path):
        return "a link to nothing"
    return "a folder" if os.path.isdir(path) else "no regular file"


def find_files(folder: str | os.PathLike[str], pattern: str, *, below: bool = False) -> list[Path]:
    """The regular files of a folder, and with ``below`` of the folders in it, whose names are of a pattern, in order.

    What else has such a name is named in the log.
    """
    search = Path(folder).rglob if below else Path(folder).glob
    return [path for path in sorted(search(pattern)) if is_file(path)]


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file.

    Raises:
        ValueError: There is no regular file, or it holds no JSON in UTF-8; the message says why, without the path.
    """
    if what := what_lies_at(path):
        raise ValueError(f"it is {what}")
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises a ``ValueError`` for what is none, or is nested more than a hundredfold."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError("its values are nested too deeply")


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Make a folder, and write and remove a file in it, before work is done whose results would find no place.

    Raises:
        OSError: The folder is read-only, the disk is full, or a part of the path is a file; it names the folder.
    """
    probe = Path(folder) / ".probe"  # one name for all, so that the next look removes what a killed process left
    try:
        write_bytes(probe, bytes(1 << 16))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


class ClaimLostError(RuntimeError):
    """Another process has taken over the work of this one, which was not heard of for too long."""


_claims: dict[Path, "Claim"] = {}
"""What this process has claimed, by the file in which the work ends."""

_watched: dict[Path, tuple[tuple[int, int], float]] = {}
"""Leases of others: what they looked like, and since when, by the steady clock of this process."""

_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
"""What a file system without locks answers."""


class Claim:
    """A claim on the work that ends in the file ``path``: true while it is held, and asked anew each time."""

    def __init__(self, path: Path):
        self._path = path.resolve()
        self._lock_path, self._lease_path = (path.with_name(path.name + ending) for ending in (".lock", ".lease"))
        self._lock = FileLock(self._lock_path, thread_local=False, fallback_to_soft=False)
        self._lease = SoftFileLease(
            self._lease_path,
            thread_local=False,
            lease_duration=STALE_SECONDS,
            heartbeat_interval=HEARTBEAT_SECONDS,
        )

    def __bool__(self) -> bool:
        if not self._lease.is_locked:
            return False
        try:
            os.utime(self._lease_path)  # those who watch it begin to count anew
        except OSError:
            return False
        owner = self._lease.owner
        return owner is not None and owner.token == self._lease.token

    def take(self) -> None:
        """Take both locks, or none where another process has one of them."""
        # Whoever ends its work removes this file, so that one which is there was left by a process that was killed,
        # or belongs to one at work.
        was_left = self._lock_path.exists()
        try:
            if not _acquire(self._lock):
                return
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        try:
            if _acquire(self._lease) or (self._stands_still() and self._take_over()):
                _watched.pop(self._lease_path, None)
                _claims[self._path] = self
                for beside in self._path.parent.glob(f".{glob.escape(self._path.name)}.*.tmp") if was_left else ():
                    beside.unlink(missing_ok=True)
        finally:
            if not self._lease.is_locked:
                self._lock.release()

    def release(self) -> None:
        """Give both locks back, and remove their files."""
        if not self._lease.is_locked:
            return
        _claims.pop(self._path, None)
        self._lease.release()
        # Removed while it is held, and the library takes no lock on a file that has no name any more: so nobody locks
        # another file than the next one does. Windows refuses, and the library removes it there.
        with contextlib.suppress(OSError):
            self._lock_path.unlink()
        self._lock.release()

    def is_littered(self) -> bool:
        """Whether files of a claim lie there, of a process at work or of one that was killed."""
        return self._lock_path.exists()

    def _stands_still(self) -> bool:
        """Whether the lease of another has not been touched for its whole time, as far as this process has looked."""
        try:
            found = self._lease_path.stat()
        except FileNotFoundError:
            return False
        now, look = time.monotonic(), (found.st_ino, found.st_mtime_ns)
        before, since = _watched.setdefault(self._lease_path, (look, now))
        if before != look:
            _watched[self._lease_path] = look, now
            return False
        return now - since >= STALE_SECONDS

    def _take_over(self) -> bool:
        """Remove a lease that stands still, and take one. Of two hosts that do so at once, the first loses it again."""
        self._lease.force_break()
        return _acquire(self._lease)


def _acquire(lock: BaseFileLock) -> bool:
    """Take a lock without waiting for it."""
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True


@contextlib.contextmanager
def claim(path: str | os.PathLike[str]) -> Iterator[Claim]:
    """Claim the work that ends in the file ``path``.

    Yields a :class:`Claim`, which is true for the one process that may do it, and false where the file exists already
    or another process is at it. It turns false when another host takes the work over; then :func:`write_bytes` does
    not write that file, and :func:`check_claim` guards whatever else belongs to it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = Claim(path)
    try:
        if not path.exists() or mine.is_littered():
            mine.take()
            # Looked for again, since another process may have finished between the first look and the claim.
            if path.exists():
                mine.release()
        yield mine
    finally:
        mine.release()


def clear_claim(path: str | os.PathLike[str]) -> None:
    """Remove the claim on finished work of a process that was killed between its last write and its end."""
    with claim(path):
        pass


def check_claim(path: str | os.PathLike[str]) -> None:
    """Raise a :class:`ClaimLostError` if this process claimed the work that ends in ``path``, and has lost it."""
    mine = _claims.get(Path(path).resolve())
    if mine is not None and not mine:
        raise ClaimLostError(f"{path}: another process has taken this work over, so the result of this one is dropped")
