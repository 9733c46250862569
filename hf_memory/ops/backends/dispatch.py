"""The only door to kernels: which backend runs an operation, and why.

Three backends have names: ``torch`` (always there), ``numba`` (compiled loops on the CPU) and ``triton`` (GPU: kernels
of this package, and of flash-linear-attention, causal-conv1d and mamba-ssm where those are installed). A kernel module
is one line of ``KERNELS``; it is imported on first use and offers

    refusal(**what) -> str | None    why it cannot run on tensors like these, or None where it can
    PACKAGE                          the distribution behind it, where that has another name than the backend

beside the loops that the file of the operation calls. An operation without a kernel runs in torch.

``auto`` takes a backend of ``AUTO`` only. The kernels of ``triton`` run where they are asked for by name: what they
compute is tested by interpretation and with a stand-in for their package, not on a GPU.
"""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from types import ModuleType

import torch

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "torch", "numba", "triton")

AUTO = ("numba",)
"""The backends besides torch that need not be asked for by name."""

# (operation, backend) -> the module behind it.
KERNELS = {
    ("diagonal_scan", "numba"): "hf_memory.ops.backends.numba_diagonal_scan",
    ("selective_scan", "numba"): "hf_memory.ops.backends.numba_selective_scan",
    ("wkv", "numba"): "hf_memory.ops.backends.numba_wkv",
    ("slstm", "numba"): "hf_memory.ops.backends.numba_slstm",
    ("diagonal_scan", "triton"): "hf_memory.ops.backends.triton_diagonal_scan",
    ("selective_scan", "triton"): "hf_memory.ops.backends.triton_selective_scan",
    ("nru", "triton"): "hf_memory.ops.backends.triton_nru",
    ("ids4", "triton"): "hf_memory.ops.backends.triton_ids4",
    ("short_convolution", "triton"): "hf_memory.ops.backends.causal_conv1d",
    ("delta_rule", "triton"): "hf_memory.ops.backends.fla_delta_rule",
    ("linear_attention", "triton"): "hf_memory.ops.backends.fla_linear_attention",
    ("taylor_attention", "triton"): "hf_memory.ops.backends.fla_taylor_attention",
    ("wkv", "triton"): "hf_memory.ops.backends.fla_wkv",
    ("diagonal_scan", "fla"): "hf_memory.ops.backends.fla_hgrn",
    ("selective_scan", "mamba_ssm"): "hf_memory.ops.backends.mamba_ssm",
}

# Where a package has a kernel beside that of the backend, it comes first: (operation, backend) -> its name above.
PACKAGES = {("diagonal_scan", "triton"): "fla", ("selective_scan", "triton"): "mamba_ssm"}

_requested: ContextVar[str | None] = ContextVar("hf_memory_backend", default=None)


def available_backends() -> tuple[str, ...]:
    """Names of the backends whose package is installed, ``torch`` first."""
    return ("torch", *(name for name in BACKENDS[2:] if _is_installed(name)))


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


class _Choice(AbstractContextManager[None]):
    """A choice that is in force already; leaving a ``with`` block takes it back."""

    def __init__(self, token: Token[str | None]):
        self._token = token

    def __exit__(self, *error: object) -> None:
        _requested.reset(self._token)


def use_backend(name: str) -> AbstractContextManager[None]:
    """Run operations on one backend: from this call on, and where it begins a ``with`` block, until the block ends.

    It overrides the environment variable ``HF_MEMORY_BACKEND``; an operation's own ``backend`` argument overrides both.

    Raises:
        ValueError: The name is unknown, or its package is not installed.
    """
    return _Choice(_requested.set(_checked(name, "backend")))


def requested_backend() -> str | None:
    """What ``use_backend`` asks for at this place; None for nothing, and inside of ``torch.compile``.

    A block ``with`` ends, and its thread is not that of every backward pass: what is computed again there is given the
    choice of its forward pass, by :func:`keep_backend`.
    """
    return None if torch.compiler.is_compiling() else _requested.get()


def keep_backend(name: str | None) -> AbstractContextManager[None]:
    """``use_backend`` for a name of :func:`requested_backend`; nothing for None."""
    return nullcontext() if name is None else use_backend(name)


def resolve_backend(op: str, requested: str = "auto", **what: object) -> str:
    """Choose the backend that runs an operation.

    Args:
        op: Name of the operation, for instance ``"diagonal_scan"``.
        requested: The caller's ``backend`` argument; ``"auto"`` leaves the choice to ``use_backend``, then to
            ``HF_MEMORY_BACKEND``, then to the first of ``AUTO`` that is installed and takes such tensors.
        **what: Facts that a kernel may refuse, at least ``device`` (``torch.device``) and ``dtype`` (``torch.dtype``).

    Returns:
        ``"torch"``, or the name in ``KERNELS`` of a kernel that takes tensors like these: that of a backend, or of a
        package before it. A kernel that is missing or refuses leaves the work to the next and at last to torch, with
        one line in the log where the backend was asked for by name. Inside of ``torch.compile`` it is torch, without a
        look at anything that would break the graph.

    Raises:
        ValueError: The requested name is unknown, or its package is not installed.
    """
    if torch.compiler.is_compiling():
        return "torch"
    name = _checked(requested, "backend")
    if name == "auto":
        name = _requested.get() or _checked(os.environ.get("HF_MEMORY_BACKEND") or "auto", "HF_MEMORY_BACKEND")
    candidates = [*_kernels_of(op, AUTO if name == "auto" else (name,)), "torch"]
    for candidate, following in itertools.pairwise(candidates):
        reason = _refusal(op, candidate, **what)
        if not reason:
            return candidate
        if name != "auto":
            _warn_once(f"{op} runs in {following} instead of {candidate}: {reason}")
    return "torch"


def refusals(op: str, **what: object) -> dict[str, str | None]:
    """Each kernel of an operation, by its name in ``KERNELS``, with why it cannot run; None where it can.

    Args:
        op: Name of the operation.
        **what: Facts that a kernel may refuse, as for :func:`resolve_backend`.
    """
    return {name: _refusal(op, name, **what) for other, name in KERNELS if other == op}


def _kernels_of(op: str, backends: tuple[str, ...]) -> Iterator[str]:
    """Names of the kernels to try in turn, packages only where they are installed."""
    for backend in backends:
        package = PACKAGES.get((op, backend))
        if package is not None and _is_installed(package):
            yield package
        if backend != "torch":
            yield backend


def in_function_transform() -> bool:
    """Whether ``torch.func`` is at work (vmap, grad); native recurrent kernels have no rules for it."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@functools.cache
def load_kernel(op: str, backend: str) -> ModuleType:
    """Import the kernel module of an operation, once, and report the package behind it.

    Raises:
        ImportError: The package behind the backend cannot be imported.
    """
    module = importlib.import_module(KERNELS[op, backend])
    package = getattr(module, "PACKAGE", backend)
    logger.info("%s can run on %s %s", op, package, importlib.metadata.version(package))
    return module


def _refusal(op: str, backend: str, **what: object) -> str | None:
    """Say why a backend cannot run an operation on such tensors, or nothing where it can."""
    if (op, backend) not in KERNELS:
        return "it has no kernel for this operation"
    try:
        return load_kernel(op, backend).refusal(**what)
    except ImportError as error:
        return f"it cannot be imported ({error})"


def _checked(name: str, field: str) -> str:
    if name not in BACKENDS:
        nearest = difflib.get_close_matches(str(name), BACKENDS, n=1, cutoff=0.0)[0]
        raise ValueError(f"{field} must be one of {', '.join(BACKENDS)}; got {name!r}, did you mean {nearest!r}?")
    if name not in ("auto", *available_backends()):
        raise ValueError(f"{field} {name!r} is not installed; available: {', '.join(available_backends())}")
    return name


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)
