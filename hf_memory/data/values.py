"""Values of keywords: their JSON form, digests of them, and counts in proportion."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """The JSON form of a keyword's value: tuples become lists and numbers of numpy become Python's."""
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_json(entry) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"keywords must be numbers, strings, lists or None, got {value!r} of type {type(value).__name__}")


def from_json(value: Any) -> Any:
    """Lists back to tuples, because a task is a hashable value."""
    return tuple(from_json(entry) for entry in value) if isinstance(value, list) else value


def stable_digest(value: Any, size: int = 16) -> bytes:
    """Digest of a JSON value that is the same in every process and on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def apportion(total: int, weights: list[int]) -> list[int]:
    """Share ``total`` out in proportion to ``weights`` by largest remainders; the first wins a tie."""
    whole = max(1, sum(weights))
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for index in order[: total - sum(shares)]:
        shares[index] += 1
    return shares
