"""The only door to kernels: which backend runs an operation, and why.

Three backends have names: ``torch`` (always there), ``numba`` (compiled loops on the CPU) and ``triton`` (GPU: kernels
of this package, and of flash-linear-attention, causal-conv1d and mamba-ssm where those are installed). A kernel module
is one line of ``KERNELS``; it is imported on first use and offers

    refusal(**what) -> str | None    why it cannot run on tensors like these, or None where it can
    PACKAGE                          the distribution behind it, where that has another name than the backend
    ORIGIN                           of a package whose kernels the Hub has too: where they come from, None for there

beside the loops that the file of the operation calls. An operation without a kernel runs in torch.

``auto`` takes a backend of ``AUTO``, and on the devices of ``PROVED_ON`` a kernel that has proved itself there, on this
machine: :mod:`hf_memory.ops.backends.proof` holds it against torch before its first use.
"""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from types import ModuleType

import torch

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "torch", "numba", "triton")

AUTO = ("numba",)
"""The backends besides torch that need no proof on the machine."""

PROVED_ON = ("cuda",)
"""Types of devices on which ``auto`` asks for proof."""

PROOF = "hf_memory.ops.backends.proof"
"""The module that proves kernels; imported on first use, and absent where there are no kernels."""

# (operation, backend) -> the module behind it.
KERNELS = {
    ("diagonal_scan", "numba"): "hf_memory.ops.backends.numba_diagonal_scan",
    ("selective_scan", "numba"): "hf_memory.ops.backends.numba_selective_scan",
    ("wkv", "numba"): "hf_memory.ops.backends.numba_wkv",
    ("slstm", "numba"): "hf_memory.ops.backends.numba_slstm",
    ("nru", "numba"): "hf_memory.ops.backends.numba_nru",
    ("rms_norm", "numba"): "hf_memory.ops.backends.numba_rms_norm",
    ("rotation", "numba"): "hf_memory.ops.backends.numba_rotation",
    ("short_convolution", "numba"): "hf_memory.ops.backends.numba_short_convolution",
    ("gated_linear_attention", "numba"): "hf_memory.ops.backends.numba_matrix_memory",
    ("delta_rule", "numba"): "hf_memory.ops.backends.numba_matrix_memory",
    ("generalized_delta_rule", "numba"): "hf_memory.ops.backends.numba_matrix_memory",
    ("diagonal_scan", "triton"): "hf_memory.ops.backends.triton_diagonal_scan",
    ("selective_scan", "triton"): "hf_memory.ops.backends.triton_selective_scan",
    ("nru", "triton"): "hf_memory.ops.backends.triton_nru",
    ("ids4", "triton"): "hf_memory.ops.backends.triton_ids4",
    ("short_convolution", "triton"): "hf_memory.ops.backends.causal_conv1d",
    ("delta_rule", "triton"): "hf_memory.ops.backends.fla_delta_rule",
    ("linear_attention", "triton"): "hf_memory.ops.backends.fla_linear_attention",
    ("gated_linear_attention", "triton"): "hf_memory.ops.backends.fla_gated_linear_attention",
    ("generalized_delta_rule", "triton"): "hf_memory.ops.backends.fla_dplr",
    ("taylor_attention", "triton"): "hf_memory.ops.backends.fla_taylor_attention",
    ("forgetting_attention", "triton"): "hf_memory.ops.backends.fla_forgetting_attention",
    ("wkv", "triton"): "hf_memory.ops.backends.fla_wkv",
    ("diagonal_scan", "fla"): "hf_memory.ops.backends.fla_hgrn",
    ("generalized_delta_rule", "fla"): "hf_memory.ops.backends.fla_gated_delta_rule",
    ("selective_scan", "mamba_ssm"): "hf_memory.ops.backends.mamba_ssm",
    ("linear_attention", "mamba_ssm"): "hf_memory.ops.backends.mamba_ssd",
}

# Where a package has a kernel beside that of the backend, it comes first: (operation, backend) -> its name above.
PACKAGES = {
    ("diagonal_scan", "triton"): "fla",
    ("generalized_delta_rule", "triton"): "fla",
    ("selective_scan", "triton"): "mamba_ssm",
}

_requested: ContextVar[str | None] = ContextVar("hf_memory_backend", default=None)
_held: ContextVar[bool] = ContextVar("hf_memory_kernel_is_held", default=False)
_hub_kernels = False


class KernelRefusedError(RuntimeError):
    """A kernel that :func:`hold_to_kernel` asks for does not take tensors like these."""


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


@contextmanager
def hold_to_kernel(name: str) -> Iterator[None]:
    """Run the operations called inside the ``with`` block on one kernel, by its name in ``KERNELS``, for a trial of it.

    Where it cannot run, operations raise a :class:`KernelRefusedError` instead of leaving the work to torch.
    """
    tokens = _requested.set(name), _held.set(True)
    try:
        yield
    finally:
        _requested.reset(tokens[0])
        _held.reset(tokens[1])


def allow_hub_kernels() -> None:
    """Take kernels from the Hub in this process, as ``HF_MEMORY_HUB_KERNELS=1`` does in all.

    See :mod:`hf_memory.ops.backends.hub_kernels`. Kernels of packages that were loaded before are looked for again.
    """
    global _hub_kernels  # noqa: PLW0603 (a switch of the process, which nothing turns back)
    if hub_kernels_wanted():
        return
    _hub_kernels = True
    load_kernel.cache_clear()
    for module in KERNELS.values():
        if hasattr(sys.modules.get(module), "ORIGIN"):
            del sys.modules[module]
    if PROOF in sys.modules:
        sys.modules[PROOF].forget()


def hub_kernels_wanted() -> bool:
    """Whether kernels may be taken from the Hub."""
    return _hub_kernels or os.environ.get("HF_MEMORY_HUB_KERNELS", "").lower() in ("1", "true", "yes", "on")


def requested_backend() -> str | None:
    """What ``use_backend`` asks for at this place; None for nothing, and inside of ``torch.compile``.

    A block ``with`` ends, and its thread is not that of every backward pass: what is computed again there is given the
    choice of its forward pass, by :func:`keep_backend`.
    """
    return None if torch.compiler.is_compiling() else _requested.get()


def keep_backend(name: str | None) -> AbstractContextManager[None]:
    """``use_backend`` for a name of :func:`requested_backend`; nothing for None."""
    return nullcontext() if name is None else use_backend(name)


def resolve_backend(op: str, requested: str = "auto", prove: bool = True, **what: object) -> str:
    """Choose the backend that runs an operation.

    Args:
        op: Name of the operation, for instance ``"diagonal_scan"``.
        requested: The caller's ``backend`` argument; ``"auto"`` leaves the choice to ``use_backend``, then to
            ``HF_MEMORY_BACKEND``, then to the first of ``AUTO`` that is installed and takes such tensors, then on a GPU
            to the kernel that has proved to be right and fastest.
        prove: Whether a kernel without a proof is given one, which takes up to minutes; only looked up otherwise.
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
        if _held.get():
            raise KernelRefusedError(f"{op} cannot run on {candidate}: {reason}")
        if name != "auto":
            _warn_once(f"{op} runs in {following} instead of {candidate}: {reason}")
    if name == "auto" and KERNELS and what["device"].type in PROVED_ON:  # type: ignore[attr-defined]
        return importlib.import_module(PROOF).choose(op, what, prove)
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
        if package is not None and not _held.get() and (_is_installed(package) or hub_kernels_wanted()):
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
    logger.info("%s can run on %s", op, release_of(module, backend))
    return module


def release_of(kernel: ModuleType, backend: str) -> str:
    """What is behind a kernel module, with its version."""
    package = getattr(kernel, "PACKAGE", backend)
    return getattr(kernel, "ORIGIN", None) or f"{package} {importlib.metadata.version(package)}"


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
