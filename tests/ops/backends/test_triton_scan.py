"""The package's own Triton kernels, without a GPU: what they compute, and that they compile for one.

Both need an environment of their own when Triton is imported, hence a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is published for Linux only")
FOLDER = Path(__file__).parent

COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hf_memory.ops.backends import triton_diagonal_scan as diagonal
from hf_memory.ops.backends import triton_selective_scan as selective
from hf_memory.ops.backends import triton_ids4 as ids4
from hf_memory.ops.backends import triton_nru as nru

WHOLE = {"time", "channels", "decay_row", "decay_start", "decay_step", "start", "step", "steps", "width", "size",
         "stride", "heads", "rank", "side", "batch"}


def build(kernel, number, constants, options):
    kinds = {name: "i32" if name in WHOLE else "fp32" if name in ("scale", "offset") else "*" + number
             for name in kernel.arg_names} | ({"constants": "*fp64"} if "constants" in kernel.arg_names else {})
    source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
    for capability in (80, 90) if number == "fp32" else (90,):
        target = GPUTarget("cuda", capability, 32)
        assembly = triton.compile(source, target=target, options=options).asm["ptx"]
        print(kernel.__name__, number, "st.global" in assembly, f".target sm_{capability}" in assembly)


for number in ("fp32", "fp64"):
    for reverse in (False, True):
        for kernel in (diagonal._scan, diagonal._complex_scan):
            build(kernel, number, {"REVERSE": reverse, "BLOCK": diagonal.BLOCK}, {"num_warps": 2})
    for kernel in (selective._scan, selective._gradient):
        sizes = {"BLOCK": selective.BLOCK, "STATES": 16, "CHANNELS": 16}
        for fixed in ({}, {"steps": 1}):  # Triton makes a constant of an argument that is 1
            build(kernel, number, sizes | fixed, {"num_warps": 1})
    for kernel in (nru._write, nru._gradient):
        for relu in (False, True):
            build(kernel, number, {"K": 4, "RANK": 4, "SIDE": 16, "RELU": relu}, {"num_warps": 1})
    for back in (False, True):
        for product in (False, True):
            switches = {"HAS_ADDED": back or not product, "BACK": back, "COLUMN": product == back}
            for size in (32, 64):
                build(ids4._kernel, number, switches | {"N": size}, {"num_warps": 4 if size > 32 else 1})
for device, dtype in (("cpu", torch.float32), ("cuda", torch.float16), ("cuda", torch.complex64)):
    print(diagonal.refusal(device=torch.device(device), dtype=dtype))
print(selective.refusal(device=torch.device("cuda"), dtype=torch.complex64))
"""


def run(arguments: list[str], environment: dict[str, str]) -> str:
    """Standard output of a Python process that must end well."""
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpreted(*names: str) -> int:
    """Tests that have passed in files that need the interpreter; none was skipped."""
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    files = [str(FOLDER / f"interpreted_{name}.py") for name in names]
    output = run(["-m", "pytest", *options, *files], {"TRITON_INTERPRET": "1"})
    passed = re.search(r"(\d+) passed in", output)
    assert passed is not None, output
    assert "skipped" not in output
    return int(passed[1])


def test_the_interpreted_kernels_are_the_definition():
    assert interpreted("scan", "selective_scan", "nru", "ids4") == 82


@pytest.mark.timeout(400)  # on a busy machine
def test_the_interpreted_kernels_prove_themselves():
    assert interpreted("proof") == 5


def test_the_kernels_compile_for_a_gpu_and_refuse_tensors_elsewhere(tmp_path):
    output = run(["-c", COMPILE], {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"})
    *compiled, on_cpu, half, complex_numbers, complex_states = output.splitlines()
    assert len(compiled) == 60
    assert all(line.split()[2:] == ["True", "True"] for line in compiled), output
    assert on_cpu == "its kernels need tensors on cuda, not on cpu"
    assert half == "its kernels do not take torch.float16"
    assert complex_numbers == "None"
    assert complex_states == "its kernels do not take torch.complex64"
