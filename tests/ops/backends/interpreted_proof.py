"""The package's own Triton kernels prove themselves, under interpretation; run by ``test_triton_scan.py``.

All but their speed: the trial is that of a GPU, at sizes for which an interpreter has the time.
"""

import pytest
import torch

from hf_memory.ops.backends import trial_process
from hf_memory.ops.backends.cases import CASES, Size
from hf_memory.ops.backends.dispatch import KERNELS
from hf_memory.ops.backends.verdicts import plain

FACTS = {"ids4": {"state_size": 4}, "selective_scan": {"has_initial_state": True, "state_needs_grad": True}}


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, torch.float32) for op in ("diagonal_scan", "selective_scan", "nru", "ids4")]
    + [("diagonal_scan", torch.complex64)],
)
def test_an_own_kernel_is_right_in_its_trial(op, dtype, monkeypatch):
    monkeypatch.setattr(trial_process, "SMALL", (Size(2, 3, 8), Size(1, 1, 8)))
    monkeypatch.setattr(trial_process, "REPEATS", 1)
    stages = []
    request = {
        "operation": op,
        "kernel": "triton",
        "module": KERNELS[op, "triton"],
        "facts": plain({**CASES[op].facts, **FACTS.get(op, {}), "dtype": dtype}),
        "device": "cpu",
        "size": (1, 2, 8),
    }
    trial_process.run_trial(request, stages.append)
    assert [stage["stage"] for stage in stages] == ["ready", "compiled", "compared", "timed"], stages
    assert stages[2]["reason"] is None
    assert stages[2]["error"] < 1e-5
    assert stages[3]["milliseconds"] > stages[3]["torch_milliseconds"]  # the interpreter it was
