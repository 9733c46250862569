"""What the compiled loops for the CPU share: compilation, arrays, threads, and an exponential that vectorises.

A kernel runs in as many threads as torch would use at the time of the call. Each thread takes a range of independent
items and releases the interpreter lock, and an item is computed the same way whichever thread takes it, so that results
do not depend on the number of threads. There is no thread pool between calls, so that a forked process inherits none.
"""

import functools
import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import torch
from numba import types
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher
from numba.extending import overload

LN_2 = math.log(2)
LOG2_E = 1 / LN_2

# Channels that a kernel takes at once, as the innermost axis of its loops: four vectors of 512 bits in float32.
LANES = 64

# 2^f = 1 + f (c_0 + c_1 f + ...) for f in [-1/2, 1/2]: Chebyshev interpolation, relative error below 6e-9.
_POWERS = tuple(
    np.float32(c)
    for c in (
        0.6931471880293424,
        0.24022650922342728,
        0.05550357104253095,
        0.009618056669889543,
        0.0013390867351329083,
        0.00015461447461506453,
    )
)
_C0, _C1, _C2, _C3, _C4, _C5 = _POWERS
# Adding 1.5 * 2^23 rounds a float32 to an integer and leaves that integer in the low bits of its mantissa.
_ROUNDER = np.float32(1.5 * 2**23)
_LOWEST, _HIGHEST = np.float32(-127), np.float32(128)
_MANTISSA_BITS, _ONE_BITS = np.int32(23), np.int32(0x3F800000)

# Work, in numbers touched, below which starting a thread costs more than it saves.
_THREAD_WORK = 1 << 17


def refusal(*, device: torch.device, dtype: torch.dtype, **_: Any) -> str | None:
    """Say why real loops cannot run on such tensors, or nothing where they can."""
    if device.type != "cpu":
        return f"its loops need tensors on the CPU, not on {device.type}"
    return None if dtype in (torch.float32, torch.float64) else f"its loops do not take {dtype}"


def compiled(function: Callable | None = None, *, sums: bool = False) -> Any:
    """Compile on first call and keep the machine code on disk where some cache folder is writable.

    Args:
        function: The function to compile.
        sums: Let sums over a vector be taken in any order, which their vectorisation needs.
    """
    if function is None:
        return lambda inner: compiled(inner, sums=sums)
    options = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"contract", "reassoc", "nsz"} if sums else {"contract"},
    }
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)
    if isinstance(dispatcher, Dispatcher):  # and not the function itself, where compilation is switched off
        cache = cast(Any, dispatcher)._cache
        stamp = (cache._cache_file._source_stamp, sources_digest())
        cache._cache_file = _CodeFiles(cache.cache_path, cache._impl.filename_base, stamp)
    return dispatcher


class _CodeFiles(IndexDataCacheFile):
    """A function's machine code on disk: a file for each signature, named by all that the code comes from.

    Numba numbers its files and keeps an index of the numbers, which it writes before the code. Of processes that
    compile at the same time, as the ranks of one job do, one can then read under its signature what was compiled for
    another one, or by another release.
    """

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), data)

    def load(self, key: Any) -> Any:
        try:
            return self._load_data(self._name(key))
        except OSError:
            return None

    def flush(self) -> None:
        for file in Path(self._cache_path).glob(f"{Path(self._index_name).stem}.*.nbc"):
            file.unlink(missing_ok=True)

    def _name(self, key: Any) -> str:
        origin = repr((key, self._version, self._source_stamp))
        return self._data_name(int(hashlib.sha256(origin.encode()).hexdigest()[:16], 16))


@functools.cache
def sources_digest() -> str:
    """Digest of the files of all compiled loops.

    Numba recompiles where the file of a function has changed; what the function calls in another one is none of its
    business, so that an edited helper would go on as it was.
    """
    files = sorted(Path(__file__).parent.glob("numba_*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def array(tensor: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor, rows one after the other, shared where they lie so already.

    Those of a parameter are copied: memory that numpy has seen cannot be resized, as FSDP2 does with gathered weights.
    """
    owner = tensor if tensor._base is None else tensor._base
    own = tensor.detach().contiguous()
    return (own.clone() if isinstance(owner, torch.nn.Parameter) else own).numpy()


def per_row(tensor: torch.Tensor) -> np.ndarray:
    """As ``array``, with a first axis of one where all rows are the same memory."""
    return array(tensor[:1] if tensor.stride(0) == 0 else tensor)


def run(kernel: Callable, items: int, work: int, *arguments: Any) -> None:
    """Call ``kernel(start, stop, *arguments)`` over ``range(items)``, in ranges of about equal length.

    Args:
        kernel: A compiled function that may write to the places of its own items only.
        items: Independent items.
        work: Numbers that all items together touch; little work stays in the calling thread.
        *arguments: Arrays and numbers.
    """
    threads = max(1, min(torch.get_num_threads(), items, work // _THREAD_WORK))
    if threads == 1:
        kernel(0, items, *arguments)
        return
    cuts = [items * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(kernel, *cuts[i : i + 2], *arguments) for i in range(1, threads)]
        kernel(cuts[0], cuts[1], *arguments)
        for other in others:
            other.result()


@compiled
def load(source, low, target, place):
    """Copy channels of each row, from ``low`` on, to ``LANES`` numbers of ``target``; zeros where there are no more."""
    lanes, first = min(LANES, source.shape[1] - low), place * LANES
    for row in range(source.shape[0]):
        piece, own = source[row, low : low + lanes], target[row, first : first + LANES]
        for c in range(lanes):
            own[c] = piece[c]
        for c in range(lanes, LANES):
            own[c] = 0


@compiled
def store(source, place, target, low):
    """Copy ``LANES`` numbers of each row to the channels of ``target`` from ``low`` on, as many as there are."""
    lanes, first = min(LANES, target.shape[1] - low), place * LANES
    for row in range(target.shape[0]):
        piece, own = source[row, first : first + lanes], target[row, low : low + lanes]
        for c in range(lanes):
            own[c] = piece[c]


def exp2(power: Any) -> Any:
    """2 to a power, in compiled code; in float32 without a call or a branch, so that loops around it vectorise."""
    return 2.0**power


@overload(exp2, jit_options={"fastmath": {"contract"}}, inline="never")
def _exp2(power: Any) -> Callable:
    return _exp2_single if power == types.float32 else _exp2_double


def _exp2_single(power: Any) -> Any:
    # Comparisons are written so that a NaN passes.
    power = _LOWEST if power < _LOWEST else power
    power = _HIGHEST if power > _HIGHEST else power
    shifted = np.float32(power + _ROUNDER)
    f = np.float32(power - np.float32(shifted - _ROUNDER))
    series = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))
    scale = np.int32((np.int32(shifted.view(np.int32)) << _MANTISSA_BITS) + _ONE_BITS)
    return (np.float32(1) + f * series) * scale.view(np.float32)


def _exp2_double(power: Any) -> Any:
    return math.exp(power * LN_2)
