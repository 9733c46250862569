"""Kernels with faults where a GPU's would be, a cache of their own, and a count of the processes that were started."""

import sys

import torch

from hf_memory.ops.backends import dispatch, proof, trial, verdicts

WHAT = {
    "device": torch.device("cpu"),
    "dtype": torch.float32,
    "state_size": 4,
    "negative_eigenvalues": False,
    "has_initial_state": True,
    "state_needs_grad": True,
}


def write_kernels(folder, *faults):
    """Modules with faulty kernels in a folder; the table that holds them, by the fault as the kernel's name."""
    kernels = {}
    for fault in faults:
        module = f"kernel_that_{fault.replace(' ', '_')}"
        text = "from tests.ops.backends.faulty_scan import PACKAGE, make, refusal\n"
        (folder / f"{module}.py").write_text(f"{text}scan, gradient = make({fault!r})\n")
        kernels["selective_scan", fault] = module
    return kernels


def install(monkeypatch, folder, *faults):
    """Let ``auto`` on the CPU choose among kernels with these faults; returns the kernels that were tried, in turn."""
    tried = []
    run = trial.try_kernel

    def counted(request):
        tried.append(request["kernel"])
        return run(request)

    monkeypatch.delenv("HF_MEMORY_BACKEND", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(dispatch, "KERNELS", write_kernels(folder, *faults))
    monkeypatch.setattr(dispatch, "PROVED_ON", ("cpu",))
    monkeypatch.setattr(verdicts, "cache_folder", lambda: folder / "verdicts")
    monkeypatch.setattr(verdicts, "REALISTIC", (4, 256, 32))
    monkeypatch.setattr(verdicts, "try_kernel", counted)
    for module in [name for name in sys.modules if name.startswith("kernel_that_")]:
        del sys.modules[module]
    for cache in (dispatch.load_kernel, verdicts._code):
        cache.cache_clear()
    proof.forget()
    return tried
