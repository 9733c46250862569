"""Machine code on disk is that of the sources, helpers in other files included."""

import contextlib
import importlib.util

import pytest
from numba.core.caching import IndexDataCacheFile

from hf_memory.ops.backends import numba_common

SOURCE = "from hf_memory.ops.backends.numba_common import compiled\n\n\n@compiled\ndef twice(x):\n    return 2 * x\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Imports a module with a compiled function anew, as another process would."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)

    def run():
        spec = importlib.util.spec_from_file_location("kernel", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.twice

    return run


def count(function):
    """Signatures that were found on disk, and those that were compiled, up to a call with an integer."""
    assert function(4) == 8
    return sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values())


def test_an_edited_helper_is_compiled_anew(load, monkeypatch):
    assert [count(load()), count(load())] == [(0, 1), (1, 0)]
    monkeypatch.setattr(numba_common, "sources_digest", lambda: "edited")
    assert [count(load()), count(load())] == [(0, 1), (1, 0)]


def test_another_release_of_numba_compiles_for_itself(load, monkeypatch):
    count(load())
    with monkeypatch.context() as patch:
        patch.setattr("numba.__version__", "0.0")
        assert count(load()) == (0, 1)
    assert count(load()) == (1, 0)


def test_what_compiles_at_the_same_time_reads_its_own_signature_alone(load, monkeypatch):
    """Between any two writes of one process others begin: with the same signature, and with one of their own."""
    write, found = IndexDataCacheFile._open_for_write, []

    @contextlib.contextmanager
    def interrupted(self, path):
        monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", write)
        found.append((load()(1.5), load()(4)))
        with write(self, path) as file:
            yield file
        found.append((load()(1.5), load()(4)))

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", interrupted)
    assert load()(4) == 8
    assert found == [(3.0, 8)] * 2
    assert all(type(exact) is int and type(real) is float for real, exact in found)
    assert [count(load()), load()(1.5)] == [(1, 0), 3.0]


def test_a_flushed_function_is_compiled_anew(load):
    count(load())
    load()._cache.flush()
    assert count(load()) == (0, 1)


def test_the_digest_is_that_of_all_loops(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_common, "__file__", str(tmp_path / "numba_common.py"))
    found = []
    for name in ("numba_common.py", "numba_wkv.py"):
        (tmp_path / name).write_text(name)
        numba_common.sources_digest.cache_clear()
        found.append(numba_common.sources_digest())
    numba_common.sources_digest.cache_clear()
    assert len(set(found)) == 2
