"""What needs a CUDA device or the packages of the extra ``kernels``, and the GPU benchmark's road in small.

``make test-gpu`` runs the marked tests. They do not skip: without a device or without the packages they fail.
"""

import inspect
import json
import sys

import pytest
import torch

from benchmarks import gpu_kernels
from benchmarks.gpu import SECTIONS, Run, correctness, main, measure
from benchmarks.gpu_common import SMOKE, Clock, relative
from benchmarks.gpu_kernels import case_of, in_double, on, pairs, passes
from hf_memory.mixers import MIXERS
from hf_memory.ops.backends import dispatch
from hf_memory.ops.backends.cases import CASES, HEAD, TOLERANCES, Size
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.backends.verdicts import prove_anew
from hf_memory.ops.diagonal_scan import diagonal_scan_recurrent
from hf_memory.ops.selective_scan import selective_scan_recurrent

_OPTIONS = ("scale", "initial_state", "output_final_state")
KERNELS_OF_PACKAGE = {
    ("delta_rule", "triton"): (
        ("q", "k", "v", "beta"),
        ("scale", "initial_state", "output_final_state"),
        "chunk_delta_rule",
    ),
    ("linear_attention", "triton"): (
        ("q", "k", "v"),
        ("g", "scale", "initial_state", "output_final_state"),
        "chunk_simple_gla",
    ),
    ("taylor_attention", "triton"): (("q", "k", "v"), ("scale", "use_norm"), "fused_chunk_based"),
    ("wkv", "triton"): (("w", "u", "k", "v", "state"), (), "fused_recurrent_rwkv4"),
    ("diagonal_scan", "fla"): (("x", "g"), (), "chunk_hgrn"),
    ("gated_linear_attention", "triton"): (("q", "k", "v", "g"), _OPTIONS, "chunk_gla"),
    ("generalized_delta_rule", "triton"): (("q", "k", "v", "a", "b", "gk"), _OPTIONS, "chunk_dplr_delta_rule"),
    ("generalized_delta_rule", "fla"): (("q", "k", "v", "g", "beta"), _OPTIONS, "chunk_kda"),
    ("forgetting_attention", "triton"): (("q", "k", "v", "g"), (), "parallel_forgetting_attn"),
    ("linear_attention", "mamba_ssm"): (("B", "C", "x", "dt", "dA_cumsum", "prev_states"), (), "chunk_scan"),
}


@pytest.fixture
def on_cpu(monkeypatch):
    """No device, and none of the packages."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("fla", "mamba_ssm", "causal_conv1d"):
        monkeypatch.setitem(sys.modules, name, None)
    dispatch.load_kernel.cache_clear()
    yield
    dispatch.load_kernel.cache_clear()


@pytest.mark.usefixtures("on_cpu")
def test_the_benchmark_runs_in_small_on_a_cpu_and_names_what_is_missing(tmp_path, capsys):
    main(["--output", str(tmp_path), "--smoke", "--mixers", "lru", "mamba", "--lengths", "16"])
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["mixer"] for row in report["correctness"]] == ["lru", "mamba"]
    for errors in report["correctness"]:
        assert max(errors["outputs"], errors["gradients"], errors["state"]) < 1e-5
        assert errors["bfloat16 outputs"] < 0.05
    timed = {row["layer"]: row for row in report["speed"] if row["mixer"] == "mamba"}
    assert timed["hf_memory"]["tokens_per_second"] > 0
    assert timed["hf_memory"]["roofline_share"] > 0
    assert timed["transformers MambaMixer"]["speed_of_ours"] > 0
    assert "ModuleNotFoundError: import of mamba_ssm" in timed["mamba-ssm Mamba"]["skipped"]
    kernels = {(row["kernel"], row["backend"]): row for row in report["kernels"]}
    assert list(kernels) == pairs()
    assert kernels["complex scan", "triton"]["skipped"] == "its kernels need tensors on cuda, not on cpu"
    assert "cannot be imported" in kernels["gated delta rule", "fla"]["skipped"]
    for (name, backend), row in kernels.items():
        if backend == "torch":
            assert row["error"] < TOLERANCES[case_of(name)[2]["dtype"]]
            assert row["milliseconds"] > 0
    replicas = [(row["mixer"], row["replicas"]) for row in report["replicas"] if row["cells_per_hour"] > 0]
    assert replicas == [("lru", 1), ("lru", 2), ("mamba", 1), ("mamba", 2)]
    decoded = {row["mixer"]: row for row in report["decode"]}
    assert decoded["lru"]["state_bytes"] == 2 * 2 * 16 * 4  # two layers of 16 complex numbers
    assert decoded["mamba"]["roofline_share"] > 0
    reached = {(row["mixer"], row["what"]): row for row in report["reach"]}
    assert reached["lru", "longest row"]["length"] == 64
    assert reached["lru", "most rows"]["batch"] == 4
    assert [row["tokens"] for row in report["data"]] == [64 * 64, 64 * 256]
    assert [(row["mixer"], row["curve"][-1]["step"]) for row in report["cells"]] == [("mamba", 2)]
    assert "kernels, complex scan, triton: its kernels need tensors on cuda, not on cpu" in report["not_measured"]
    text = (tmp_path / "gpu.md").read_text()
    assert capsys.readouterr().out.endswith(text)
    assert all(f"## {name}" in text for name in SECTIONS)


def test_what_there_is_no_time_for_is_named(tmp_path):
    run = Run(["lru"], torch.device("cpu"), SMOKE, {"bytes_per_second": 1e9, "flops_per_second": 1e9})
    report: dict = {}
    measure(SECTIONS, run, Clock(0.0), report, tmp_path / "gpu.json")
    assert json.loads((tmp_path / "gpu.json").read_text()) == report
    assert {name: {row["skipped"] for row in report[name]} for name in SECTIONS if report[name]} == {
        name: {"out of time"} for name in SECTIONS if name != "cells"
    }
    assert "decode, lru, 16, 2: out of time" in report["not_measured"]
    assert len(report["not_measured"]) == sum(len(report[name]) for name in SECTIONS)
    few: dict = {}
    measure(["data"], run, Clock(30.0), few, tmp_path / "few.json")
    assert few["not_measured"] == [f"{name}: not asked for" for name in SECTIONS if name != "data"]


FAULTY = """
import os, sys, json, time
pairs, start = {pairs}, int(sys.argv[1])
for number, (name, backend) in enumerate(pairs[start:], start):
    if number == 2:
        os._exit(3)
    if number == 4:
        time.sleep(600)
    row = dict(kernel=name, backend=backend, milliseconds=4.0 if backend == "torch" else 2.0)
    print(json.dumps(row), flush=True)
"""


def test_a_kernel_that_ends_its_process_or_holds_it_up_costs_its_own_row_alone(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "MODULE", ["-c", FAULTY.format(pairs=pairs())])
    monkeypatch.setattr(gpu_kernels, "SLOWEST", 10.0)
    rows = gpu_kernels.kernel_rows(torch.device("cpu"), SMOKE, Clock(120.0))
    assert [(row["kernel"], row["backend"]) for row in rows] == pairs()
    skipped = {number: row["skipped"] for number, row in enumerate(rows) if "skipped" in row}
    assert skipped == {2: "its process ended with code 3", 4: "it holds its process up for 10 s"}
    assert {row["speed"] for row in rows if "speed" in row} == {2.0}


def test_a_process_that_does_not_begin_is_told_once(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "MODULE", ["-c", "raise SystemExit(5)"])
    rows = gpu_kernels.kernel_rows(torch.device("cpu"), SMOKE, Clock(60.0))
    assert {row["skipped"] for row in rows} == {"its process ended with code 5"}


@pytest.mark.usefixtures("on_cpu")
def test_the_benchmark_in_full_asks_for_a_device(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--output", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "No CUDA device is visible. Run with --smoke to try the script on a CPU.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kernels
@pytest.mark.parametrize("op, kernel", KERNELS_OF_PACKAGE)
def test_the_package_has_the_functions_with_the_parameters_that_the_adapters_use(op, kernel):
    positional, by_name, function = KERNELS_OF_PACKAGE[op, kernel]
    module = load_kernel(op, kernel)
    parameters = inspect.signature(getattr(module, function)).parameters
    assert tuple(parameters)[: len(positional)] == positional
    assert set(by_name) <= set(parameters)
    assert module.refusal(device=torch.device("cpu"), dtype=module.DTYPES[0]) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("key", MIXERS)
def test_every_mixer_on_the_device_is_the_float64_form_on_the_cpu(key):
    errors = correctness(key, torch.device("cuda"), SMOKE)
    assert max(errors["outputs"], errors["state"]) < 1e-3
    assert errors["gradients"] < 1e-2
    assert errors["bfloat16 outputs"] < 0.05


def assert_kernel_is_right(name: str, tolerance: float) -> None:
    """Outputs, final state and gradients against the float64 definition, at an odd length with a state."""
    op, case, facts = case_of(name)
    device = torch.device("cuda")
    # With a state the own kernel of a scan runs, whatever package stands before it.
    assert resolve_backend(op, "triton", device=device, **facts) in ("triton", "fla")
    tensors = case.inputs(Size(3, 67, HEAD), facts)
    expected = passes(lambda wide: case.define(wide, facts), in_double(tensors))
    actual = passes(lambda own: case.run("triton", own, facts), on(device, tensors))
    for part in expected:
        assert relative(actual[part], expected[part]) < tolerance, part


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["real scan", "complex scan", "selective scan", "IDS4 walk", "NRU step"])
def test_the_own_kernels_on_the_device_are_the_definition(name):
    assert_kernel_is_right(name, 1e-5)


PACKAGE_ROWS = (
    "delta rule",
    "gated delta rule",
    "delta rule, decay of each key",
    "delta rule, two steps a token",
    "rule of RWKV-7",
    "linear attention",
    "gated linear attention",
    "gated linear attention, read before",
    "Taylor attention",
    "forgetting attention",
    "wkv",
    "short convolution",
)


@pytest.mark.gpu
@pytest.mark.kernels
@pytest.mark.parametrize("name", PACKAGE_ROWS)
def test_the_kernels_of_the_package_on_the_device_are_the_definition(name):
    assert_kernel_is_right(name, 1e-4 if name == "wkv" else 3e-2)


@pytest.mark.gpu
@pytest.mark.kernels
@pytest.mark.parametrize("op, kernel", [("selective_scan", "mamba_ssm"), ("diagonal_scan", "fla")])
def test_the_scans_of_packages_on_the_device_are_the_definition(op, kernel):
    module = load_kernel(op, kernel)
    facts = {"dtype": torch.float32, "has_initial_state": op != "selective_scan", "forget_gate": True}
    inputs = CASES[op].inputs(Size(3, 67, HEAD), facts).values()
    if op == "selective_scan":
        fast, slow = module.selective_scan, selective_scan_recurrent
    else:
        fast, slow = module.scan, diagonal_scan_recurrent
    results = []
    for scan, device, dtype in ((fast, "cuda", torch.float32), (slow, "cpu", torch.float64)):
        leaves = [tensor.to(device, dtype).requires_grad_() for tensor in inputs]
        states = scan(*leaves)
        states = states if isinstance(states, torch.Tensor) else states[0]
        results.append([states, *torch.autograd.grad(states.square().mean(), leaves)])
    for actual, expected in zip(*results, strict=True):
        assert relative(actual, expected) < 1e-5


@pytest.mark.gpu
def test_every_own_kernel_for_the_device_proves_itself_right():
    found = prove_anew(torch.device("cuda"), {op: case.facts for op, case in CASES.items()})
    verdicts = {(facts["operation"], facts["kernel"]): verdict for facts, verdict in found}
    assert {op for op, kernel in verdicts if kernel == "triton"} >= {"diagonal_scan", "selective_scan", "nru", "ids4"}
    assert {names: verdict.text for names, verdict in verdicts.items() if verdict.faulty or not verdict.for_good} == {}
