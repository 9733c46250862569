"""The subcommand ``hf-memory doctor``: what this machine has, what does not work on it, and what to do."""

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGES = (
    *("torch", "transformers", "datasets", "accelerate", "numpy"),
    *("numba", "triton", "flash-linear-attention", "mamba-ssm", "causal-conv1d", "ray"),
)
"""Distributions whose versions are shown whatever they are. Others that hf_memory needs are shown where they fail."""

PARTS = ("hf_memory.tasks", "hf_memory.mixers.auto", "hf_memory.data.builder", "hf_memory.experiments.training")
"""Modules without which nothing can be trained."""

_OF_KERNELS: dict[str, dict[str, int]] = {"short_convolution": {"width": 4, "channels": 64}}
"""Facts about tensors without which a kernel cannot be asked, by operation."""


class Finding(NamedTuple):
    """A fact, with what to do where it is a problem, and whether nothing works with it."""

    name: str
    value: str
    advice: str = ""
    fatal: bool = False


def doctor(
    online: Annotated[bool, typer.Option("--online", help="Also ask the Hub whose token is in use.")] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Try the kernels on this GPU again; it takes minutes.")
    ] = False,
) -> None:
    """Show versions, devices, backends, kernels, caches, login and extensions, and what to do where one does not work.

    Example: `hf-memory doctor`
    """
    from rich.table import Table
    from rich.text import Text

    from hf_memory.cli.list import wide_console

    console, found = wide_console(), []
    for title, find in sections(online, prove).items():
        table = Table(title=title, title_justify="left", show_header=False)
        for finding in careful(title, find):
            found.append(finding)
            table.add_row(finding.name, Text(finding.value, overflow="fold"))
        console.print(table)
    problems = [finding for finding in found if finding.advice]
    typer.echo("What to do:" if problems else "Everything that was looked at works.")
    for finding in problems:
        typer.echo(f"- {finding.name}: {finding.advice}")
    if any(finding.fatal for finding in found):
        raise typer.Exit(1)


def sections(online: bool, prove: bool) -> dict[str, Callable[[], Iterator[Finding]]]:
    """What is looked at, by title."""
    return {
        "Versions": versions,
        "Parts of hf_memory": parts,
        "Devices": devices,
        "Backends of the operations, in float32": backends,
        "Kernels that were tried on this machine": lambda: kernels(prove),
        "Caches": caches,
        "Hub": lambda: hub(online),
        "Extensions": extensions,
    }


def careful(title: str, find: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a section; whatever it fails with is one of them."""
    try:
        yield from find()
    except Exception as error:  # noqa: BLE001 (a broken package may raise anything, and is what is looked for)
        yield Finding(title, f"{type(error).__name__}: {error}", "this could not be looked at; see the error above")


def versions() -> Iterator[Finding]:
    """Python, hf_memory, and the packages that it needs or can use, held against the versions that it takes."""
    from packaging.utils import canonicalize_name

    yield Finding("Python", platform.python_version())
    needed, extras = requirements()
    yield Finding("hf_memory", _version("hf_memory") or "not installed, found on the path")
    for name in (*PACKAGES, *(name for name in needed if name not in PACKAGES)):
        key = canonicalize_name(name)
        requirement, extra = needed.get(key) or extras.get(key, (None, ""))
        finding = _held_against(name, requirement, extra)
        if name in PACKAGES or finding.advice:
            yield finding


def requirements() -> tuple[dict[str, Any], dict[str, Any]]:
    """What the metadata of hf_memory asks for on this machine, by name: requirements, each with its extra.

    Returns:
        Those that it cannot do without, with an empty extra, and those that extras bring.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    needed: dict[str, tuple[Requirement, str]] = {}
    extras: dict[str, tuple[Requirement, str]] = {}
    if _version("hf_memory") is None:
        return needed, extras
    names = importlib.metadata.metadata("hf_memory").get_all("Provides-Extra") or []
    for line in importlib.metadata.requires("hf_memory") or []:
        requirement = Requirement(line)
        key = canonicalize_name(requirement.name)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed[key] = requirement, ""
            continue
        for extra in names:
            if requirement.marker.evaluate({"extra": extra}):
                extras.setdefault(key, (requirement, extra))
    return needed, extras


def _held_against(name: str, requirement: "Requirement | None", extra: str) -> Finding:
    """The version of a package, and what to do where it is missing or not one that is asked for."""
    found = _version(name)
    if requirement is None:
        return Finding(name, found or "absent")
    wanted = f'`pip install "{requirement.name}{requirement.specifier}"`'
    if found is None and extra:
        return Finding(name, f"absent; the extra `{extra}` brings it")
    if found is None:
        return Finding(name, "missing", wanted, fatal=True)
    if not requirement.specifier.contains(found, prereleases=True):
        return Finding(name, f"{found}, not {requirement.specifier}", wanted)
    return Finding(name, found)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def parts() -> Iterator[Finding]:
    """Whether the modules import without which nothing can be trained."""
    for name in PARTS:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 (a broken package may raise anything)
            text = f"{type(error).__name__}: {error}"
            yield Finding(name, text, "install or mend what the error names; nothing trains without it", fatal=True)
        else:
            yield Finding(name, "imports")


def devices() -> Iterator[Finding]:
    """Cores and accelerators, as torch sees them."""
    import torch

    from hf_memory.studies.workers import available_cores

    yield Finding("CPU", f"{available_cores()} cores for this process, {torch.get_num_threads()} threads of torch")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        device = torch.cuda.get_device_properties(index)
        version = f"compute capability {device.major}.{device.minor}"
        yield Finding(f"cuda:{index}", f"{device.name}, {size_text(device.total_memory)}, {version}")
    if not count:
        yield Finding("CUDA", "no device", _why_no_gpu(torch.version.cuda) if shutil.which("nvidia-smi") else "")
    if torch.backends.mps.is_available():
        yield Finding("MPS", "available")


def _why_no_gpu(build: str | None) -> str:
    """What to do where there is a driver and torch sees no GPU, by the version of CUDA that torch is built for."""
    if build is None:
        return "a driver is there, but this torch is built without CUDA: install a build for it"
    return f"a driver is there, and torch for CUDA {build} finds no GPU: look at `nvidia-smi` and CUDA_VISIBLE_DEVICES"


def backends() -> Iterator[Finding]:
    """The backend that runs each operation on this machine, and what each other kernel says."""
    import torch

    from hf_memory.cli.facts import default_device
    from hf_memory.ops.backends import dispatch

    asked = os.environ.get("HF_MEMORY_BACKEND")
    try:
        dispatch.resolve_backend("diagonal_scan", device=torch.device("cpu"), dtype=torch.float32)
    except ValueError as error:
        yield Finding("HF_MEMORY_BACKEND", f"{asked}: {error}", "unset it, or set it to one that is available")
        return
    yield Finding("HF_MEMORY_BACKEND", asked or "not set: the choice is made for each operation")
    for op in operations():
        what = {"device": default_device(), "dtype": torch.float32, **_OF_KERNELS.get(op, {})}
        chosen = dispatch.resolve_backend(op, prove=False, **what)
        lines = [chosen]
        for name, reason in dispatch.refusals(op, **what).items():
            if name != chosen:
                by = name if name in dispatch.BACKENDS else "triton"
                lines.append(f"{name}: {reason or f'can run, where it is asked for: HF_MEMORY_BACKEND={by}'}")
        yield Finding(op, "\n".join(lines))


def kernels(prove: bool) -> Iterator[Finding]:
    """The verdicts on the kernels for a GPU, which with ``prove`` are made anew."""
    from hf_memory.cli.facts import default_device
    from hf_memory.ops.backends import dispatch, verdicts
    from hf_memory.ops.backends.cases import CASES

    device, none = default_device(), True
    usual = {op: case.facts for op, case in CASES.items()}
    is_gpu = device.type in dispatch.PROVED_ON
    for facts, verdict in verdicts.prove_anew(device, usual) if prove and is_gpu else verdicts.all_verdicts():
        none = False
        what = ", ".join([facts["device"], *(f"{name} {value}" for name, value in facts["facts"].items())])
        used = "runs" if verdict.reason is None else "is not used"
        yield Finding(f"{facts['operation']}: {facts['kernel']}", f"{what}\n{facts['release']} {used}: {verdict.text}")
    if none:
        hint = "each is tried on first use; `hf-memory doctor --prove` tries all that can run"
        yield Finding("none", hint if is_gpu else f"on {device.type} there is nothing to try")


def operations() -> list[str]:
    """The operations with a choice of backends."""
    from hf_memory import ops
    from hf_memory.cli.facts import operations_of

    modules = [name for _, name, is_package in pkgutil.iter_modules(ops.__path__) if not is_package]
    found = {op for name in modules for op in operations_of(importlib.import_module(f"{ops.__name__}.{name}"))}
    return sorted(op for op in found if not op.startswith("_"))


def caches() -> Iterator[Finding]:
    """Where rows, checkpoints and their code are kept, how much it is, and whether more can be written."""
    import datasets
    from huggingface_hub import constants

    folders = {
        "HF_DATASETS_CACHE": ("rows", datasets.config.HF_DATASETS_CACHE),
        "HF_HUB_CACHE": ("files of the Hub", constants.HF_HUB_CACHE),
        "HF_MODULES_CACHE": ("code of checkpoints", datasets.config.HF_MODULES_CACHE),
    }
    for variable, (name, path) in folders.items():
        folder = Path(path).expanduser()
        if is_writable(folder):
            yield Finding(name, f"{folder}: {size_text(folder_size(folder))}, writable")
        else:
            advice = f"make {folder} writable, or name another folder by the variable {variable}"
            yield Finding(name, f"{folder}: {size_text(folder_size(folder))}, not writable", advice)


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which need not be there: then it is its nearest parent that counts."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def folder_size(folder: Path) -> int:
    """Bytes of the files below a folder, links not followed; what may not be read counts as nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def size_text(size: float) -> str:
    """Bytes in units of a thousand.

    >>> size_text(0), size_text(999), size_text(1_500), size_text(85_000_000_000)
    ('0 B', '999 B', '1.5 kB', '85.0 GB')
    """
    if size < 1000:
        return f"{size:.0f} B"
    units = iter(("kB", "MB", "GB"))
    unit = next(units)
    size /= 1000
    for larger in units:
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"


def hub(online: bool) -> Iterator[Finding]:
    """Whether there is a token, and whose it is where that may be asked; the token itself is never shown."""
    from huggingface_hub import HfApi, constants, get_token

    offline = constants.HF_HUB_OFFLINE
    yield Finding("HF_HUB_OFFLINE", "set: nothing is fetched or pushed" if offline else "not set")
    if get_token() is None:
        yield Finding("login", "not logged in; pushing needs `hf auth login`")
        return
    if not online:
        yield Finding("login", "a token is there; `hf-memory doctor --online` asks whose it is")
        return
    try:
        yield Finding("login", str(HfApi().whoami()["name"]))
    except Exception as error:  # noqa: BLE001 (an error of any layer; its text might hold what was sent)
        advice = "unset HF_HUB_OFFLINE" if offline else "look at the connection, or log in again: `hf auth login`"
        yield Finding("login", f"a token is there, and the Hub did not say whose: {type(error).__name__}", advice)


def extensions() -> Iterator[Finding]:
    """Mixers and tasks of other packages and files, and the entry points that could not be registered."""
    from hf_memory import mixers, tasks
    from hf_memory.extensions import REFUSED

    added = {"mixer": mixers.OUTSIDE, "task": tasks.OUTSIDE}
    for kind, modules in added.items():
        for key, module in modules.items():
            yield Finding(f"{kind} {key}", module)
    for entry, reason in REFUSED.items():
        yield Finding(entry, reason, "this entry point was not registered; mend its package, or uninstall it")
    if not (REFUSED or any(added.values())):
        yield Finding("registered", "none")
