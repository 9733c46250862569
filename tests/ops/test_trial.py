"""The trial of a kernel: each fault is found and named, in outputs, final states and every gradient."""

import pytest
import torch

from hf_memory.ops.backends import dispatch, trial_process, verdicts
from hf_memory.ops.backends.cases import CASES, Size
from tests.ops.backends.proof_helpers import WHAT, install


def stages_of(monkeypatch, folder, fault, **facts):
    """What a trial of a kernel reports, in this process."""
    install(monkeypatch, folder, fault)
    found = []
    request = {
        "operation": "selective_scan",
        "kernel": fault,
        "module": dispatch.KERNELS["selective_scan", fault],
        "facts": {**verdicts.plain(WHAT), **facts},
        "device": "cpu",
        "size": (4, 256, 32),
    }
    trial_process.run_trial(request, found.append)
    return found


def test_a_kernel_that_is_right_and_fast_reaches_every_stage(monkeypatch, tmp_path):
    stages = stages_of(monkeypatch, tmp_path, "right")
    assert [stage["stage"] for stage in stages] == ["ready", "compiled", "compared", "timed"]
    assert stages[2]["reason"] is None
    assert stages[2]["error"] < 1e-5
    assert 0 < stages[3]["milliseconds"] < stages[3]["torch_milliseconds"]


@pytest.mark.parametrize("name", ["x", "dt", "A", "B", "C", "initial_state"])
def test_an_error_of_a_thousandth_in_one_gradient_is_found_and_named(name, monkeypatch, tmp_path):
    *_, compared = stages_of(monkeypatch, tmp_path, name)
    assert compared["stage"] == "compared"
    assert compared["reason"] == f"its gradient of {name} is off by 1.0e-03, more than 0.0001"


def test_an_error_in_the_final_state_is_found_and_named(monkeypatch, tmp_path):
    *_, compared = stages_of(monkeypatch, tmp_path, "final state")
    assert compared["reason"] == "its final state is off by 1.0e-03, more than 0.0001"


def test_a_final_state_that_has_no_gradient_is_compared_without_gradients(monkeypatch, tmp_path):
    *_, compared = stages_of(monkeypatch, tmp_path, "final state", state_needs_grad=False)
    assert compared["reason"] == "its final state without gradients is off by 1.0e-03, more than 0.0001"


def test_a_kernel_that_raises_says_what(monkeypatch, tmp_path):
    *before, failed = stages_of(monkeypatch, tmp_path, "raises")
    assert before == [{"stage": "ready"}]
    assert failed == {
        "stage": "failed",
        "reason": "it raises RuntimeError: an illegal memory access",
        "for_good": True,
    }


def test_a_lack_of_memory_says_nothing_of_the_kernel(monkeypatch, tmp_path):
    *_, failed = stages_of(monkeypatch, tmp_path, "finds no memory")
    assert failed["for_good"] is False


def test_a_kernel_that_leaves_the_work_to_torch_is_not_tried_on_torch(monkeypatch, tmp_path):
    *_, failed = stages_of(monkeypatch, tmp_path, "right", dtype="float64")
    assert failed["reason"] == (
        "it raises KernelRefusedError: selective_scan cannot run on right: it does not take torch.float64"
    )


def test_what_is_not_finite_or_of_another_shape_is_infinitely_far_off():
    expected = torch.tensor([0.0, 2.0])
    assert trial_process.distance(torch.tensor([0.0, 2.002]), expected) == pytest.approx(1e-3, rel=1e-3)
    assert trial_process.distance(torch.tensor([0.0, float("nan")]), expected) == float("inf")
    assert trial_process.distance(torch.tensor([[0.0, 2.0]]), expected) == float("inf")
    assert trial_process.distance(torch.tensor([1e-3, 0.0]), torch.zeros(2)) == pytest.approx(1e-3)
    assert trial_process.distance(torch.tensor([2.002j]), torch.tensor([2j])) == pytest.approx(1e-3, rel=1e-3)


def test_every_kernel_for_a_gpu_has_a_case_whose_torch_form_is_its_definition():
    assert {op for op, backend in dispatch.KERNELS if backend not in dispatch.AUTO} == set(CASES)
    for op, case in CASES.items():
        facts = {**case.facts, "dtype": torch.float64, "has_initial_state": True}
        tensors = case.inputs(Size(2, 9, 64), facts)
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float64}
        lengths = {"lengths": torch.tensor([9, 4])} if case.has_lengths else {}
        found, expected = case.run("torch", tensors, facts, **lengths), case.define(tensors, facts, **lengths)
        assert found.keys() == expected.keys(), op
        for name in found:
            pair = [trial_process.real_steps(each, lengths.get("lengths"))[name] for each in (found, expected)]
            assert trial_process.distance(*pair) < 1e-9, (op, name)
