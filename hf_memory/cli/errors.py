"""What an error means to the one who typed the command, in one line; None for faults of the package itself."""

import errno
import re
from collections.abc import Iterator
from typing import Any

from hf_memory.storage import ClaimLostError

_DISK = {
    errno.ENOSPC: "no space is left; free some, or give another folder",
    errno.EDQUOT: "the quota is used up; free some space, or give another folder",
    errno.EIO: "a file could not be written in full; look whether space is left, or give another folder",
    errno.EFBIG: "no file may be as large here; raise the limit, or give another folder",
    errno.EROFS: "the file system is read-only; give another folder",
    errno.EACCES: "it may not be read or written; change its rights, or give another folder",
    errno.EPERM: "it may not be read or written; change its rights, or give another folder",
    errno.ENOTDIR: "a part of this path is a file; give another folder",
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "it is a folder; give a file",
    errno.EEXIST: "it is a file; give a folder, or another name",
}
_MISSING = re.compile(
    r"[`']?([\w.-]+)(?:[<>=]=[\d.]+)?[`']? (?:to be installed|distribution was not found)|install `([\w.-]+)`"
)
_TORCH_WRITES = re.compile(r"PytorchStreamWriter|inline_container.*unexpected pos")
"""How torch says, in a ``RuntimeError`` without a path, that a file could not be written."""
_LONGEST = 600


def explain(error: BaseException) -> str | None:
    """The error in one line with what mends it; None where no user can.

    An error that only wraps another one, as ``datasets`` raises them, is looked through.
    """
    for found in _chain(error):
        text = _explain(found)
        if text is not None:
            line = " ".join(text.split())
            return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return None


def _explain(error: BaseException) -> str | None:
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    missing = _missing_package(error)
    if missing is not None:
        return f"the package {missing} is missing; `pip install {missing}` installs it"
    if isinstance(error, OSError):
        return _of_files(error)
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        return str(error.__cause__)  # which names the field; the error itself only says that a check was made
    if callable(getattr(error, "format_message", None)):
        return _of_usage(error)
    if isinstance(error, SafetensorError):
        return f"a safetensors file is damaged ({error}); copy or download it again, or train again"
    if isinstance(error, RuntimeError) and _TORCH_WRITES.search(str(error)):
        return (
            "a file of the checkpoint could not be written in full; look whether space is left, or give another folder"
        )
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"memory ran out ({error}); take fewer rows per step, a smaller model or fewer workers"
    return str(error) if isinstance(error, (ValueError, StrictDataclassError, ClaimLostError)) else None


def _of_files(error: OSError) -> str:
    """An error of the system, with the file and the way out."""
    advice = _DISK.get(error.errno or 0)
    if error.filename is None or advice is None:
        return error.strerror if error.strerror and error.filename is None else str(error)
    return f"{error.filename}: {advice}"


def _of_usage(error: Any) -> str:
    """What the parser of a command refuses, and where the command says what it takes."""
    told, context = str(error.format_message()).rstrip("."), getattr(error, "ctx", None)
    return told if context is None or not told else f"{told}; `{context.command_path} --help` lists what it takes"


def _missing_package(error: BaseException) -> str | None:
    """Name of a package that is not installed; libraries say so by several types of errors."""
    if not isinstance(error, (ImportError, RuntimeError)):
        return None
    found = _MISSING.search(str(error))
    if found:
        return next(filter(None, found.groups()))
    module = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else "hf_memory"
    return None if module == "hf_memory" else module


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from where it only says that something went wrong."""
    yield error
    while type(error).__name__ == "DatasetGenerationError" and error.__cause__ is not None:
        error = error.__cause__
        yield error
