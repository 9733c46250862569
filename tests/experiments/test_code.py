"""The digest of code: it moves where numbers may, and stays where only words or places do."""

import pytest

from hf_memory.experiments import code
from hf_memory.experiments.code import code_digest, collect, meaning
from hf_memory.experiments.training import model_for_task
from hf_memory.tasks import make_task

TASK = make_task("bit_parity")
SOURCE = '"""Doc."""\nimport torch\n\n\ndef f(x):\n    """Doc."""\n    return x + 1  # why\n'


def digest_of(mixer, monkeypatch=None, changed=None, task=TASK):
    """The digest of a mixer's code, with the source of one module changed."""
    if changed:
        module, edit = changed
        source = code._source
        monkeypatch.setattr(code, "_source", lambda name: edit(source(name)) if name == module else source(name))
    code._digest.cache_clear()
    try:
        return code_digest(model_for_task(mixer, task, hidden_size=16), task)
    finally:
        code._digest.cache_clear()


def test_words_layout_and_imports_mean_nothing():
    other = '"""Other."""\nfrom torch import nn\n\ndef f( x ):\n    return x + 1\n'
    assert meaning(SOURCE) == meaning(other)
    assert meaning(SOURCE) != meaning(SOURCE.replace("+ 1", "+ 2"))
    assert meaning("def f():\n    'doc'\n") == meaning("def f():\n    pass\n")


@pytest.mark.parametrize(
    ("module", "moves"),
    [
        ("hf_memory.mixers.lru", True),
        ("hf_memory.ops.diagonal_scan", True),
        ("hf_memory.ops.backends.numba_diagonal_scan", True),
        ("hf_memory.ops.backends.numba_common", True),
        ("hf_memory.tasks.bit_parity", True),
        ("hf_memory.tasks.base", True),
        ("hf_memory.mixers.gru", False),
        ("hf_memory.models.modeling", False),
        ("hf_memory.ops.backends.dispatch", False),
    ],
)
def test_an_edit_of_mixer_operation_or_task_moves_the_digest(module, moves, monkeypatch):
    before = digest_of("lru")
    assert digest_of("lru") == before
    after = digest_of("lru", monkeypatch, (module, lambda text: text + "\nadded = 1\n"))
    assert (after != before) == moves


def test_a_comment_does_not(monkeypatch):
    before = digest_of("lru")
    assert digest_of("lru", monkeypatch, ("hf_memory.mixers.lru", lambda text: "# why\n" + text)) == before


def test_mixers_and_tasks_differ_and_a_hybrid_has_those_of_its_layers():
    found = [digest_of("lru"), digest_of("gru"), digest_of("hybrid"), digest_of("lru", task=make_task("mqar"))]
    assert len(set(found)) == 4
    assert all(len(digest) == 16 for digest in found)


def test_a_module_that_is_not_there_has_no_source():
    with pytest.raises(ValueError, match="hf_memory.nothing has no source file"):
        collect(["hf_memory.nothing"])
