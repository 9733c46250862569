"""Machine code on disk is that of the sources, helpers in other files included."""

import importlib.util

import pytest

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
        assert module.twice(4) == 8
        return sum(module.twice.stats.cache_hits.values()), sum(module.twice.stats.cache_misses.values())

    return run


def test_an_edited_helper_is_compiled_anew(load, monkeypatch):
    assert [load(), load()] == [(0, 1), (1, 0)]
    monkeypatch.setattr(numba_common, "sources_digest", lambda: "edited")
    assert [load(), load()] == [(0, 1), (1, 0)]


def test_the_digest_is_that_of_all_loops(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_common, "__file__", str(tmp_path / "numba_common.py"))
    found = []
    for name in ("numba_common.py", "numba_wkv.py"):
        (tmp_path / name).write_text(name)
        numba_common.sources_digest.cache_clear()
        found.append(numba_common.sources_digest())
    numba_common.sources_digest.cache_clear()
    assert len(set(found)) == 2
