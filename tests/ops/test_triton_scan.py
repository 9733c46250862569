"""The package's own Triton kernels, without a GPU: what they compute, and that they compile for one.

Both need an environment of their own when Triton is imported, hence a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

INTERPRETED = Path(__file__).with_name("interpreted_scan.py")

COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hf_memory.ops import _triton_diagonal_scan as scan

whole = ("time", "channels", "decay_row", "decay_start", "decay_step", "start", "step")
for kernel in (scan._scan, scan._complex_scan):
    for number in ("fp32", "fp64"):
        for reverse in (False, True):
            signature = dict.fromkeys(("decay", "inputs", "initial", "states"), "*" + number)
            signature |= dict.fromkeys(whole, "i32") | dict.fromkeys(("REVERSE", "BLOCK"), "constexpr")
            source = ASTSource(kernel, signature, {"REVERSE": reverse, "BLOCK": scan.BLOCK})
            for capability in (80, 90):
                target = GPUTarget("cuda", capability, 32)
                assembly = triton.compile(source, target=target, options={"num_warps": 2}).asm["ptx"]
                print(kernel.__name__, number, reverse, "st.global" in assembly, f".target sm_{capability}" in assembly)
for device, dtype in (("cpu", torch.float32), ("cuda", torch.float16), ("cuda", torch.complex64)):
    print(scan.refusal(device=torch.device(device), dtype=dtype))
"""


def run(arguments: list[str], environment: dict[str, str]) -> str:
    """Standard output of a Python process that must end well."""
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_interpreted_kernels_are_the_definition():
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", str(INTERPRETED)]
    output = run(["-m", "pytest", *options], {"TRITON_INTERPRET": "1"})
    passed = re.search(r"(\d+) passed in", output)
    assert passed is not None, output
    assert int(passed[1]) == 34
    assert "skipped" not in output


def test_the_kernels_compile_for_a_gpu_and_refuse_tensors_elsewhere(tmp_path):
    output = run(["-c", COMPILE], {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"})
    *compiled, on_cpu, half, complex_numbers = output.splitlines()
    assert len(compiled) == 16
    assert all(line.split()[3:] == ["True", "True"] for line in compiled), output
    assert on_cpu == "its kernels need tensors on cuda, not on cpu"
    assert half == "its kernels do not take torch.float16"
    assert complex_numbers == "None"
