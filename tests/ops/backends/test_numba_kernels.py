"""The compiled loops of the CPU against the definitions in double precision, at sizes that do not fit their tiles."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from hf_memory.ops import selective_scan as scan_module
from hf_memory.ops.backends import dispatch, numba_common
from hf_memory.ops.backends import numba_selective_scan as scan_kernel
from hf_memory.ops.backends import numba_wkv as wkv_kernel
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent
from hf_memory.ops.wkv import wkv, wkv_recurrent
from tests.ops import recurrence_checks as checks
from tests.ops import test_selective_scan as scan_tests
from tests.ops import test_wkv as wkv_tests

LANES = numba_common.LANES
SIGNS = pytest.mark.parametrize("negative", [False, True])
# Fewer channels than one tile, one tile, and more; fewer steps than one block, one block, and more.
WIDTHS = pytest.mark.parametrize("width", [3, LANES, LANES + 5])
STEPS = pytest.mark.parametrize("steps", [1, 16, 37])
BACKENDS = pytest.mark.parametrize("backend", ["torch", "numba"])


def on(function, backend):
    """The function on one backend."""
    return lambda *inputs, **options: function(*inputs, backend=backend, **options)


def scan(backend, negative=False):
    """The selective scan, rates after the timed inputs."""
    return scan_tests.ordered(on(selective_scan, backend), negative)


@SIGNS
@WIDTHS
@STEPS
def test_selective_scan_equals_the_definition(negative, width, steps):
    slow = scan_tests.ordered(selective_scan_recurrent, negative)
    checks.assert_same(scan("numba", negative), slow, *scan_tests.problem(2, steps, width, 5))


@WIDTHS
@STEPS
def test_wkv_equals_the_definition(width, steps):
    checks.assert_same(on(wkv, "numba"), wkv_recurrent, *wkv_tests.problem(2, steps, width))


@SIGNS
@pytest.mark.parametrize("blocks", [(1, 2), (1 << 18, 16)], ids=["short blocks", "one block"])
def test_selective_scan_in_torch_equals_the_definition_where_numba_is_not_asked_for(negative, blocks, monkeypatch):
    monkeypatch.setattr(scan_module, "_BLOCK_NUMEL", blocks[0])
    monkeypatch.setattr(scan_module, "_BLOCK_STEPS", blocks[1])
    slow, problem = scan_tests.ordered(selective_scan_recurrent, negative), scan_tests.problem(3, 7, 5, 3)
    checks.assert_same(scan("torch", negative), slow, *problem)
    checks.assert_split(scan("torch", negative), *problem)


@STEPS
def test_wkv_in_torch_equals_the_definition_where_numba_is_not_asked_for(steps):
    checks.assert_same(on(wkv, "torch"), wkv_recurrent, *wkv_tests.problem(3, steps, 5))


@BACKENDS
def test_large_keys_and_steep_decays_stay_finite_on_both_backends(backend):
    (key, value), (w, u), _ = wkv_tests.problem(2, 50, 5, torch.float32)
    inputs = [tensor.requires_grad_() for tensor in (1e4 * key, value, 20 * w, u)]
    y, state = wkv(*inputs, backend=backend)
    gradients = torch.autograd.grad(y.square().sum() + state[:, :2].sum(), inputs)
    assert y.abs().max() <= value.abs().max()
    assert all(tensor.isfinite().all() for tensor in (y, state, *gradients))


@BACKENDS
def test_selective_scan_in_float32_is_right_on_both_backends(backend):
    problem = scan_tests.problem(2, 300, LANES + 5, 16, torch.float32)
    checks.assert_same(scan(backend), scan_tests.ordered(selective_scan_recurrent), *problem, 2e-6)


@BACKENDS
def test_wkv_in_float32_is_right_on_both_backends(backend):
    problem = wkv_tests.problem(2, 300, LANES + 5, torch.float32)
    checks.assert_same(on(wkv, backend), wkv_recurrent, *problem, 4e-6)


@BACKENDS
def test_any_split_of_time_gives_one_pass_on_both_backends(backend):
    checks.assert_split(scan(backend), *scan_tests.problem(2, 19, 5, 3))
    checks.assert_split(on(wkv, backend), *wkv_tests.problem(2, 19, 5))


@BACKENDS
def test_padding_is_inert_on_both_backends(backend):
    checks.assert_padding_is_inert(scan(backend), *scan_tests.problem(3, 19, 5, 3))
    checks.assert_padding_is_inert(on(wkv, backend), *wkv_tests.problem(3, 19, 5))


@BACKENDS
def test_replicas_under_vmap_equal_single_runs_on_both_backends(backend):
    checks.assert_vmap(scan(backend), *scan_tests.problem(2, 18, 5, 3))
    checks.assert_vmap(on(wkv, backend), *wkv_tests.problem(2, 18, 5))


def results_of(function, timed, fixed, state):
    """All results and gradients, for comparison bit by bit."""
    return checks.values_and_gradients(function, timed, fixed, state, torch.arange(len(state)) + 30)


def test_bits_depend_neither_on_the_run_nor_on_the_number_of_threads(monkeypatch):
    problems = {
        scan("numba"): scan_tests.problem(3, 40, LANES + 5, 4, torch.float32),
        on(wkv, "numba"): wkv_tests.problem(3, 40, LANES + 5, torch.float32),
    }
    for function, problem in problems.items():
        once, again = results_of(function, *problem), results_of(function, *problem)
        with monkeypatch.context() as patch:
            patch.setattr(numba_common, "_THREAD_WORK", 1)
            patch.setattr(torch, "get_num_threads", lambda: 3)
            threaded = results_of(function, *problem)
        for results in zip(once, again, threaded, strict=True):
            assert torch.equal(results[0], results[1])
            assert torch.equal(results[0], results[2])


def test_every_item_is_handed_out_once_to_as_many_threads_as_torch_has(monkeypatch):
    monkeypatch.setattr(numba_common, "_THREAD_WORK", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    for items, work, threads in ((1, 1000, 1), (10, 5, 1), (10, 20, 2), (10, 1000, 4), (3, 1000, 3)):
        calls = []
        numba_common.run(lambda start, stop, calls: calls.append((start, stop)), items, work, calls)
        assert len(calls) == threads
        assert sorted(i for start, stop in calls for i in range(start, stop)) == list(range(items))


def test_an_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(numba_common, "_THREAD_WORK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def kernel(start, stop):
        if start > 0:
            raise RuntimeError(f"items {start} to {stop}")

    with pytest.raises(RuntimeError, match="items 2 to 4"):
        numba_common.run(kernel, 4, 100)


@numba_common.compiled
def powers(exponents, results):
    for i in range(len(exponents)):
        results[i] = numba_common.exp2(exponents[i])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1.5e-7), (torch.float64, 1e-13)])
def test_powers_of_two_are_right_to_the_last_digits(dtype, tolerance):
    exponents = torch.linspace(-120, 120, 100_001, dtype=dtype)
    results = torch.empty_like(exponents)
    powers(exponents.numpy(), results.numpy())
    assert ((results.double() / torch.exp2(exponents.double()) - 1).abs()).max() < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_at_their_ends(dtype):
    exponents = torch.tensor([0.0, -0.0, 1.0, -3.0, -1e30, -torch.inf, torch.inf, 1e30, torch.nan], dtype=dtype)
    results = torch.empty_like(exponents)
    powers(exponents.numpy(), results.numpy())
    torch.testing.assert_close(results, torch.exp2(exponents), rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_nan_reaches_later_steps_of_its_channel_only(backend):
    timed, fixed, state = wkv_tests.problem(2, 20, LANES + 5, torch.float32)
    timed[1][0, 7, 3] = torch.nan
    y, final = wkv(*timed, *fixed, state, backend=backend)
    seen = y.isnan()
    assert seen[0, 7:, 3].all()
    assert seen.sum() == 13
    assert final.isnan().nonzero().tolist() == [[0, 0, 3]]


@pytest.mark.parametrize("kernel", [scan_kernel, wkv_kernel])
def test_what_the_loops_cannot_take_is_refused_with_a_reason(kernel):
    cpu = torch.device("cpu")
    assert kernel.refusal(device=cpu, dtype=torch.float32) is None
    assert kernel.refusal(device=cpu, dtype=torch.float64) is None
    assert "do not take torch.complex64" in kernel.refusal(device=cpu, dtype=torch.complex64)
    assert "not on meta" in kernel.refusal(device=torch.device("meta"), dtype=torch.float32)


@pytest.mark.parametrize(
    ("function", "problem"), [(scan, scan_tests.problem), (lambda b: on(wkv, b), wkv_tests.problem)]
)
def test_without_numba_the_work_is_left_to_torch_with_one_line_in_the_log(function, problem, monkeypatch, caplog):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    timed, fixed, state = problem()
    expected, _ = function("torch")(*timed, *fixed, initial_state=state)
    dispatch.load_kernel.cache_clear()
    dispatch._warn_once.cache_clear()
    monkeypatch.setattr(dispatch.importlib, "import_module", missing)
    with caplog.at_level(logging.WARNING, logger=dispatch.__name__):
        for _ in range(2):
            actual, _ = function("numba")(*timed, *fixed, initial_state=state)
    assert torch.equal(actual, expected)
    assert len(caplog.records) == 1
    assert "cannot be imported" in caplog.text


def test_machine_code_is_kept_in_the_folder_that_numba_is_told_of(tmp_path):
    code = (
        "import numpy as np; from hf_memory.ops.backends.numba_common import LANES, load;"
        "load(np.ones((1, 3)), 0, np.zeros((1, LANES)), 0)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(tmp_path.rglob("numba_common.load-*.nbc"))
