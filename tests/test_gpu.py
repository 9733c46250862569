"""What needs a CUDA device or the packages of the extra ``kernels``, and the GPU benchmark's road in small.

``make test-gpu`` runs the marked tests. They do not skip: without a device or without the packages they fail.
"""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import correctness
from benchmarks.gpu_common import SMOKE, relative
from benchmarks.gpu_kernels import ROWS, case_of, in_double, on, passes
from hf_memory.mixers import MIXERS
from hf_memory.ops.backends.cases import CASES, HEAD, Size
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.backends.verdicts import prove_anew
from hf_memory.ops.diagonal_scan import diagonal_scan_recurrent
from hf_memory.ops.selective_scan import selective_scan_recurrent

ROOT = Path(__file__).resolve().parents[1]
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
}


WITHOUT_PEERS = """
import runpy, sys
sys.modules.update(dict.fromkeys(["fla", "mamba_ssm", "causal_conv1d"]))  # as if they were not installed
runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
"""


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_PEERS, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, check=False)


def test_the_benchmark_runs_in_small_on_a_cpu_and_names_what_is_missing(tmp_path):
    done = run_benchmark("--output", str(tmp_path), "--smoke", "--mixers", "lru", "mamba", "--lengths", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert set(report["correctness"]) == {"lru", "mamba"}
    for errors in report["correctness"].values():
        assert max(errors["outputs"], errors["gradients"], errors["state"]) < 1e-5
        assert errors["bfloat16 outputs"] < 0.05
    timed = {row["layer"]: row for row in report["speed"] if row["mixer"] == "mamba"}
    assert timed["hf_memory"]["tokens_per_second"] > 0
    assert timed["transformers MambaMixer"]["speed_of_ours"] > 0
    assert "ModuleNotFoundError: import of mamba_ssm" in timed["mamba-ssm Mamba"]["skipped"]
    kernels = {row["kernel"]: row for row in report["kernels"] if "peer" not in row}
    assert set(ROWS) <= set(kernels)
    assert kernels["complex scan"]["why"] == "its kernels need tensors on cuda, not on cpu"
    assert kernels["complex scan"]["torch error"] < 1e-5
    assert kernels["delta rule"]["why"].startswith("ModuleNotFoundError: ")
    assert [(row["mixer"], row["replicas"]) for row in report["replicas"] if row["replica_steps_per_second"] > 0] == [
        ("lru", 1),
        ("lru", 2),
        ("mamba", 1),
        ("mamba", 2),
    ]
    assert report["cells"][0]["curve"][-1]["step"] == 2
    last = done.stdout.splitlines()[-1]
    assert last.startswith("MQAR (64, 4), mamba, width 64, 2 layers")


def test_the_benchmark_in_full_asks_for_a_device(tmp_path):
    done = run_benchmark("--output", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "No CUDA device is visible. Run with --smoke to try the script on a CPU.\n"
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
    # With a state the own kernel runs, whatever package stands before it.
    assert resolve_backend(op, "triton", device=device, **facts) == "triton"
    tensors = case.inputs(Size(3, 67, HEAD), facts)
    expected = passes(lambda wide: case.define(wide, facts), in_double(tensors))
    actual = passes(lambda own: case.run("triton", own, facts), on(device, tensors))
    for part in expected:
        assert relative(actual[part], expected[part]) < tolerance, part


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["real scan", "complex scan", "selective scan", "IDS4 walk", "NRU step"])
def test_the_own_kernels_on_the_device_are_the_definition(name):
    assert_kernel_is_right(name, 1e-5)


@pytest.mark.gpu
@pytest.mark.kernels
@pytest.mark.parametrize("name", ["delta rule", "linear attention", "Taylor attention", "wkv", "short convolution"])
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
