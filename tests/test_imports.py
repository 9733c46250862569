"""What importing the package needs, and what it does not.

Each test runs in its own interpreter, where ``sys.modules[name] = None`` makes a package look as if it were absent: its
import raises ``ModuleNotFoundError`` and ``importlib.util.find_spec`` finds nothing.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hf_memory
from hf_memory.mixers import MIXERS

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = [
    *("datasets", "evaluate", "accelerate", "ray", "pandas"),
    *("numba", "fla", "mamba_ssm", "causal_conv1d", "triton"),
    *("matplotlib", "jinja2", "typer", "rich"),
]
SCIENCE = [*OPTIONAL, "torch", "transformers", "huggingface_hub", "safetensors", "pyarrow", "yaml", "tqdm"]


def run_without(absent: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which some packages are absent."""
    block = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); sys.path.insert(0, {str(ROOT)!r})\n"
    command = [sys.executable, "-W", "error", "-c", block + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)


def test_a_blocked_package_is_absent():
    code = "import importlib.util; print(importlib.util.find_spec('yaml') is None)\nimport yaml"
    blocked, free = run_without(["yaml"], code), run_without([], code)
    assert (blocked.returncode, blocked.stdout) == (1, "True\n")
    assert "ModuleNotFoundError: import of yaml halted" in blocked.stderr
    assert (free.returncode, free.stdout) == (0, "False\n")


def test_the_package_and_a_model_need_torch_and_transformers_alone():
    process = run_without(
        OPTIONAL,
        """
import torch
from transformers import AutoConfig, AutoModelForCausalLM
import hf_memory

config = AutoConfig.for_model("memory_attention", vocab_size=5, hidden_size=8, num_hidden_layers=1)
model = AutoModelForCausalLM.from_config(config)
assert type(model) is hf_memory.MemoryAttentionForCausalLM
assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 5)
try:
    hf_memory.load_dataset
except ModuleNotFoundError as error:
    print(error.name)
""",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "datasets\n"


def test_tasks_and_metrics_need_numpy_alone():
    process = run_without(
        SCIENCE,
        """
import hf_memory.experiments.metrics, hf_memory.tasks
import numpy as np

task = hf_memory.tasks.make_task("bit_parity")
ids, labels = task.sample(np.random.default_rng(0), 16, 4)
assert (task.solve(ids) == labels).all() and ids.shape == (4, 16)
for key in hf_memory.tasks.TASKS:
    hf_memory.tasks.make_task(key)
allowed = {*sys.stdlib_module_names, "hf_memory", "numpy", "cython_runtime"}
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
print(sorted(name for name in loaded - allowed if not name.startswith("_")))
""",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "[]\n"


def test_models_do_not_import_without_torch():
    process = run_without(["torch"], "import hf_memory.models.modeling")
    assert process.returncode == 1
    assert "ModuleNotFoundError: import of torch halted" in process.stderr


def test_every_public_name_resolves():
    suffixes = ("Config", "Model", "ForCausalLM", "ForTokenClassification")
    names = {f"Memory{stem}{suffix}" for stem in MIXERS.values() for suffix in suffixes}
    names |= {"load_dataset", "MemoryTrainer", "MemoryConfig", "MemoryCache", "make_task", "evaluate_lengths"}
    assert names <= set(dir(hf_memory))
    for name in sorted(names):
        assert getattr(hf_memory, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'MemoryLSTNConfig'"):
        _ = hf_memory.MemoryLSTNConfig


def test_a_lazy_name_is_the_same_after_all_modules_were_imported():
    """A function that shares its name with a module is replaced by it once that module has been imported."""
    process = run_without(
        [],
        """
import importlib, pkgutil
import hf_memory, hf_memory.data
packages = (hf_memory, hf_memory.data)
first = {
    (package, name): getattr(package, name)
    for package in packages for name in getattr(package, "__all__", None) or package._LAZY
}
optional = ("fla_", "causal_conv1d", "mamba_ss", "triton_", "__main__")
for module in pkgutil.walk_packages(hf_memory.__path__, "hf_memory."):
    if not module.name.rpartition(".")[2].startswith(optional):
        importlib.import_module(module.name)
print(len(first) > 20, sorted(name for (package, name), value in first.items() if getattr(package, name) is not value))
""",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "True []\n"
