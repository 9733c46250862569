"""The choice of a backend: by argument, context, environment, and what each may refuse."""

import importlib
import logging
import subprocess
import sys

import pytest
import torch

from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.dispatch import available_backends, resolve_backend, use_backend
from hf_memory.ops.diagonal_scan import diagonal_scan

CPU = {"device": torch.device("cpu"), "dtype": torch.float32}


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch):
    monkeypatch.delenv("HF_MEMORY_BACKEND", raising=False)
    dispatch._warn_once.cache_clear()
    dispatch.load_kernel.cache_clear()


@pytest.fixture
def without_numba(monkeypatch):
    """Make every import of the kernel fail as it does where numba is absent."""

    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(dispatch.importlib, "import_module", missing)


def test_torch_is_always_available_and_named_first():
    assert available_backends()[0] == "torch"
    assert set(available_backends()) <= {"torch", "numba", "triton"}


def test_the_argument_wins_over_the_context_and_the_context_over_the_environment(monkeypatch):
    assert resolve_backend("diagonal_scan", **CPU) == "numba"
    monkeypatch.setenv("HF_MEMORY_BACKEND", "torch")
    assert resolve_backend("diagonal_scan", **CPU) == "torch"
    with use_backend("numba"):
        assert resolve_backend("diagonal_scan", **CPU) == "numba"
        assert resolve_backend("diagonal_scan", "torch", **CPU) == "torch"
        with use_backend("torch"):
            assert resolve_backend("diagonal_scan", **CPU) == "torch"
        assert resolve_backend("diagonal_scan", **CPU) == "numba"
    assert resolve_backend("diagonal_scan", **CPU) == "torch"


def test_the_context_ends_also_where_its_block_raises():
    with pytest.raises(RuntimeError, match="inside"), use_backend("torch"):
        raise RuntimeError("inside")
    assert resolve_backend("diagonal_scan", **CPU) == "numba"


def test_an_unknown_name_is_refused_with_the_nearest_one(monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'numba'"):
        resolve_backend("diagonal_scan", "nunba", **CPU)
    with pytest.raises(ValueError, match="did you mean 'triton'"), use_backend("trition"):
        pass
    monkeypatch.setenv("HF_MEMORY_BACKEND", "pytorch")
    with pytest.raises(ValueError, match=r"HF_MEMORY_BACKEND must be one of .* did you mean 'torch'"):
        resolve_backend("diagonal_scan", **CPU)


def test_a_backend_that_is_not_installed_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(dispatch, "available_backends", lambda: ("torch",))
    with pytest.raises(ValueError, match="'numba' is not installed; available: torch"):
        resolve_backend("diagonal_scan", "numba", **CPU)


def test_an_operation_without_a_kernel_runs_in_torch_and_says_so_once(caplog):
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        assert [resolve_backend("linear_attention", "numba", **CPU) for _ in range(3)] == ["torch"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "linear_attention runs in torch instead of numba: it has no kernel for this operation"
    ]


def test_the_choice_left_to_auto_falls_back_in_silence(caplog):
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        assert resolve_backend("linear_attention", **CPU) == "torch"
        assert resolve_backend("diagonal_scan", device=torch.device("meta"), dtype=torch.float32) == "torch"
        assert resolve_backend("diagonal_scan", device=torch.device("cpu"), dtype=torch.bfloat16) == "torch"
    assert caplog.records == []


def test_a_kernel_that_refuses_names_its_reason(caplog):
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        assert resolve_backend("diagonal_scan", "numba", device=torch.device("meta"), dtype=torch.float32) == "torch"
    assert "its loops need tensors on the CPU, not on meta" in caplog.text


@pytest.mark.usefixtures("without_numba")
def test_a_package_that_cannot_be_imported_leaves_the_work_to_torch(caplog):
    inputs = torch.randn(2, 5, 3)
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        states, _ = diagonal_scan(torch.full((1, 1, 3), 0.5), inputs, backend="numba")
    torch.testing.assert_close(states[:, 1], inputs[:, 1] + 0.5 * inputs[:, 0])
    assert "it cannot be imported" in caplog.text


def test_an_error_other_than_a_failed_import_is_not_hidden(monkeypatch):
    def broken(name):
        raise AttributeError(f"half of {name} is missing")

    monkeypatch.setattr(dispatch.importlib, "import_module", broken)
    with pytest.raises(AttributeError, match="half of"):
        resolve_backend("diagonal_scan", **CPU)


def test_the_package_and_its_version_are_reported_once(caplog):
    with caplog.at_level(logging.INFO, logger=dispatch.__name__):
        for _ in range(2):
            diagonal_scan(torch.ones(1, 1, 3), torch.ones(2, 5, 3), backend="numba")
    version = importlib.metadata.version("numba")
    assert [record.getMessage() for record in caplog.records] == [f"diagonal_scan can run on numba {version}"]


def test_importing_an_operation_imports_no_kernel_package_and_importing_a_kernel_does():
    seen = "print(sorted({'numba', 'triton', 'fla'} & (set(sys.modules) - before)))"
    others = "import sys, transformers.modeling_utils; before = set(sys.modules)"  # torch imports triton where it is
    kernel = "import hf_memory.ops.backends.numba_diagonal_scan"
    code = f"{others}; import hf_memory.ops.diagonal_scan; {seen}; {kernel}; {seen}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['numba']"]


# torch.compile itself instantiates the class whose instantiation torch deprecates.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_graph_holds_the_whole_scan_in_torch():
    inputs, decay = torch.randn(2, 5, 3), torch.rand(2, 5, 3)
    compiled = torch.compile(lambda a, b: diagonal_scan(a, b)[0], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(decay, inputs), diagonal_scan(decay, inputs)[0])


def test_every_kernel_for_the_cpu_offers_its_refusal():
    for op in [op for op, backend in dispatch.KERNELS if backend == "numba"]:
        kernel = dispatch.load_kernel(op, "numba")
        assert kernel.refusal(**CPU) is None
        assert kernel.refusal(device=torch.device("meta"), dtype=torch.float32)


def test_every_kernel_of_an_operation_says_whether_it_can_run(monkeypatch):
    monkeypatch.setattr(dispatch, "_refusal", lambda op, name, **what: None if name == "numba" else f"{op} on {what}")
    found = dispatch.refusals("diagonal_scan", device="here")
    assert found == {name: None if name == "numba" else "diagonal_scan on {'device': 'here'}" for name in found}
    assert list(found) == ["numba", "triton", "fla"]
    assert dispatch.refusals("lstm", device="here") == {}
