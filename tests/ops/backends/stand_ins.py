"""Packages that are not there: modules with stand-ins for their kernels, gone without a trace afterwards."""

import contextlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import pytest

from hf_memory.ops.backends import dispatch


@contextlib.contextmanager
def fresh_adapters(monkeypatch: pytest.MonkeyPatch, prefix: str) -> Iterator[None]:
    """Import the adapters ``backends/<prefix>*`` anew inside, with every backend there and nothing said before."""

    def forget() -> None:
        dispatch.load_kernel.cache_clear()
        dispatch._warn_once.cache_clear()
        for name in [name for name in sys.modules if name.startswith(f"hf_memory.ops.backends.{prefix}")]:
            del sys.modules[name]

    monkeypatch.delenv("HF_MEMORY_BACKEND", raising=False)
    monkeypatch.setattr(dispatch, "available_backends", lambda: ("torch", "numba", "triton"))
    forget()
    try:
        yield
    finally:
        forget()


@contextlib.contextmanager
def stand_in_package(
    monkeypatch: pytest.MonkeyPatch,
    distribution: str,
    version: str,
    modules: Mapping[str, Mapping[str, Callable]],
    prefix: str,
) -> Iterator[None]:
    """Put modules with these functions where a package would be, installed as this version of its distribution."""
    packages = {".".join(name.split(".")[:depth]) for name in modules for depth in range(1, name.count(".") + 1)}
    for name in packages | set(modules):
        module = ModuleType(name)
        module.__dict__.update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    tops = {name.partition(".")[0] for name in modules}
    installed, number = dispatch._is_installed, importlib.metadata.version
    monkeypatch.setattr(dispatch, "_is_installed", lambda name: name in tops or installed(name))
    monkeypatch.setattr(
        dispatch.importlib.metadata, "version", lambda name: version if name == distribution else number(name)
    )
    with fresh_adapters(monkeypatch, prefix):
        yield
