"""Kernels prove themselves before ``auto`` uses them: who is chosen, who is refused and why, and where that is kept.

The kernels are compiled loops of the CPU, right or with one fault, where those for a GPU would be.
"""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from hf_memory.ops.backends import dispatch, proof, trial, verdicts
from hf_memory.ops.backends.trial import Verdict
from hf_memory.ops.selective_scan import selective_scan, selective_scan_recurrent
from tests.ops.backends.proof_helpers import WHAT, install

ROOT = Path(__file__).resolve().parents[2]
QUICK = Verdict(None, milliseconds=1.0, torch_milliseconds=4.0, error=1e-7)
PLACE = "float32, has initial state, state needs grad, state size 4"


# Of the package only what is used, as in a trial.
LEAN = f"""
import sys, types
sys.modules["hf_memory"] = package = types.ModuleType("hf_memory")
package.__path__ = [{str(ROOT / "hf_memory")!r}]
"""


@pytest.fixture(autouse=True)
def _nothing_chosen():
    yield
    proof.forget()
    dispatch.load_kernel.cache_clear()


def without_trials(monkeypatch, verdict=QUICK, **others):
    """Let trials have this verdict, by name of the kernel where one has another; returns the requests."""
    requests = []

    def judge(request):
        requests.append(request)
        return others.get(request["kernel"], verdict)

    monkeypatch.setattr(verdicts, "try_kernel", judge)
    return requests


# In a process of its own


def test_a_kernel_proves_itself_in_a_process_and_is_then_used_without_one(monkeypatch, tmp_path, caplog):
    tried = install(monkeypatch, tmp_path, "prints")  # what a kernel prints is no report
    with caplog.at_level(logging.INFO, logger="hf_memory.ops.backends.verdicts"):
        assert dispatch.resolve_backend("selective_scan", **WHAT) == "prints"
    (line,) = caplog.messages
    assert line.startswith(f"selective_scan can run on prints ({PLACE}): ")
    (file,) = (tmp_path / "verdicts").glob("*")  # and no claim or half file beside it
    assert json.loads(file.read_text())["verdict"]["error"] < 1e-5
    proof.forget()
    monkeypatch.setattr(trial.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "prints"
    assert tried == ["prints"]
    x = torch.randn(2, 5, 3)
    inputs = [x, torch.rand_like(x), -torch.rand(3, 4), *torch.randn(2, 2, 5, 4), torch.zeros(2, 3, 4)]
    torch.testing.assert_close(selective_scan(*inputs)[0], selective_scan_recurrent(*inputs)[0], rtol=0, atol=1e-5)


def test_a_kernel_that_kills_its_process_leaves_the_run_to_torch(monkeypatch, tmp_path, caplog):
    install(monkeypatch, tmp_path, "dies")
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    assert caplog.messages == [f"selective_scan does not run on dies ({PLACE}): its process was ended by SIGKILL"]
    assert verdicts.verdict_of("selective_scan", "dies", WHAT, prove=False).faulty


def test_a_kernel_that_hangs_is_ended_and_refused(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "hangs")
    monkeypatch.setattr(trial, "COMPILE_SECONDS", 1.0)
    started = []
    begin = trial.subprocess.Popen
    monkeypatch.setattr(trial.subprocess, "Popen", lambda *a, **k: started.append(begin(*a, **k)) or started[-1])
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    verdict = verdicts.verdict_of("selective_scan", "hangs", WHAT, prove=False)
    assert verdict.text == "it hangs: it was not compiled within 1 s"
    assert started[0].returncode == -9


def test_a_trial_ends_with_the_process_that_waits_for_it():
    code = """
import time
from hf_memory.ops.backends import trial_process
trial_process.run_trial = lambda *_: time.sleep(600)
trial_process.main()
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LEAN + code]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    process.communicate("{}\n", timeout=120)
    assert process.returncode == 1


def test_a_kernel_that_is_right_and_slow_is_refused_for_that(monkeypatch):
    stages = [
        {"stage": "ready"},
        {"stage": "compiled"},
        {"stage": "compared", "reason": None, "error": 1e-7},
        {"stage": "timed", "milliseconds": 5.0, "torch_milliseconds": 4.0},
    ]
    monkeypatch.setattr(trial, "_START", f"print({chr(10).join(map(json.dumps, stages))!r})")
    verdict = trial.try_kernel({})
    assert verdict.reason == "it is not faster: 5 ms, torch 4 ms"
    assert (verdict.faulty, verdict.for_good) == (False, True)


def test_a_trial_that_does_not_come_as_far_as_the_kernel_is_not_held_against_it(monkeypatch):
    monkeypatch.setattr(trial, "_START", "import sys; sys.exit('no driver')")
    verdict = trial.try_kernel({})
    assert verdict.reason == "it could not be tried: its process ended with code 1 (no driver)"
    assert not verdict.for_good


# The choice


def test_the_fastest_of_those_that_are_right_is_chosen_and_the_others_have_their_reasons(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right", "slow", "dt")
    others = {
        "slow": dataclasses.replace(QUICK, milliseconds=2.0),
        "dt": Verdict("its gradient of dt is off by 1.0e-03, more than 0.0001", faulty=True),
    }
    without_trials(monkeypatch, **others)
    with proof.noted() as notes:
        assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"
    device = verdicts.device_name(WHAT["device"])
    assert notes == {
        f"selective_scan on {device}: {PLACE}": "right: 1 ms, torch 4 ms, off by 1.0e-07 at most; "
        "slow: 2 ms, torch 4 ms, off by 1.0e-07 at most; "
        "dt: its gradient of dt is off by 1.0e-03, more than 0.0001"
    }


def test_a_choice_by_name_asks_for_no_proof(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    requests = without_trials(monkeypatch)
    monkeypatch.setenv("HF_MEMORY_BACKEND", "torch")
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    monkeypatch.delenv("HF_MEMORY_BACKEND")
    with dispatch.use_backend("torch"):
        assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    assert dispatch.resolve_backend("selective_scan", prove=False, **WHAT) == "torch"
    assert requests == []
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"


@pytest.mark.parametrize("fact", [{"state_size": 8}, {"dtype": torch.float64}, {"has_initial_state": False}])
def test_other_facts_ask_for_a_proof_of_their_own(fact, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    monkeypatch.setattr(dispatch.load_kernel("selective_scan", "right"), "refusal", lambda **_: None)
    requests = without_trials(monkeypatch)
    for what in (WHAT, {**WHAT, **fact}, WHAT):
        dispatch.resolve_backend("selective_scan", **what)
    assert len(requests) == 2


@pytest.mark.parametrize("package", ["torch", "triton", "kernel", "code"])
def test_a_verdict_ends_with_the_versions_it_is_of(package, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    requests = without_trials(monkeypatch)
    dispatch.resolve_backend("selective_scan", **WHAT)
    proof.forget()
    dispatch.resolve_backend("selective_scan", **WHAT)
    assert len(requests) == 1
    if package == "torch":
        monkeypatch.setattr(torch, "__version__", "99.0")
    elif package == "triton":
        monkeypatch.setattr(verdicts, "_version", lambda name: "99.0")
    elif package == "kernel":
        monkeypatch.setattr(dispatch, "release_of", lambda *_: "other 1.0")
    else:
        module = tmp_path / "kernel_that_right.py"
        module.write_text(module.read_text() + "# another\n")
        verdicts._code.cache_clear()
    proof.forget()
    dispatch.resolve_backend("selective_scan", **WHAT)
    assert len(requests) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"facts": {}, "verdict": {"reason": null}}', "changed"])
def test_a_damaged_verdict_is_made_anew(damage, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    requests = without_trials(monkeypatch)
    dispatch.resolve_backend("selective_scan", **WHAT)
    (file,) = (tmp_path / "verdicts").glob("*")
    whole = file.read_text()
    file.write_text(whole.replace("4.0", "5.0") if damage == "changed" else damage)
    proof.forget()
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"
    assert len(requests) == 2
    assert file.read_text() == whole


def test_a_verdict_that_says_nothing_of_the_kernel_holds_for_this_process_alone(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    requests = without_trials(monkeypatch, Verdict("it could not be tried: no memory", for_good=False))
    assert [dispatch.resolve_backend("selective_scan", **WHAT) for _ in range(2)] == ["torch", "torch"]
    assert len(requests) == 1
    assert list((tmp_path / "verdicts").iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(monkeypatch, tmp_path, caplog):
    install(monkeypatch, tmp_path, "right")
    (tmp_path / "verdicts").write_text("a file")
    requests = without_trials(monkeypatch)
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"
    assert len(requests) == 1
    assert "is lost with this process" in caplog.text


def test_of_two_at_once_one_tries_and_the_other_waits(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    begun, may_end, requests, found = threading.Event(), threading.Event(), [], []

    def judge(request):
        requests.append(request)
        begun.set()
        assert may_end.wait(60)
        return QUICK

    monkeypatch.setattr(verdicts, "try_kernel", judge)
    ask = [
        threading.Thread(target=lambda: found.append(verdicts.verdict_of("selective_scan", "right", WHAT)))
        for _ in range(2)
    ]
    ask[0].start()
    assert begun.wait(60)
    ask[1].start()
    ask[1].join(1)
    assert ask[1].is_alive()
    may_end.set()
    for thread in ask:
        thread.join(60)
    assert found == [QUICK, QUICK]
    assert len(requests) == 1


def test_a_kernel_that_cannot_be_imported_leaves_the_run_to_torch(monkeypatch, tmp_path, caplog):
    install(monkeypatch, tmp_path, "right", "absent")
    (tmp_path / "kernel_that_right.py").write_text("raise RuntimeError('0 active drivers')")
    (tmp_path / "kernel_that_absent.py").write_text("import a_package_that_is_not_there")
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    assert caplog.messages == ["selective_scan does not run on right: RuntimeError: 0 active drivers"]


def test_where_no_process_can_be_started_torch_does_the_work(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")

    def refuse(*_, **__):
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(trial.subprocess, "Popen", refuse)
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    assert list((tmp_path / "verdicts").iterdir()) == []


def test_a_gpu_that_is_not_there_is_left_to_torch(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    monkeypatch.setattr(dispatch, "PROVED_ON", ("cuda",))
    requests = without_trials(monkeypatch)
    assert dispatch.resolve_backend("selective_scan", **{**WHAT, "device": torch.device("cuda")}) == "torch"
    assert requests == []


def test_what_was_kept_stands_where_it_can(monkeypatch, tmp_path, caplog):
    install(monkeypatch, tmp_path, "right", "slow")
    requests = without_trials(monkeypatch)
    with proof.noted() as notes:
        dispatch.resolve_backend("selective_scan", **WHAT)
    (place,) = notes
    for text, name in (("torch: right: it raises", "torch"), ("slow: 1 ms", "slow")):
        with proof.noted({place: text}) as again:
            assert dispatch.resolve_backend("selective_scan", **WHAT) == name
        assert again == {place: text}
        assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"
    assert len(requests) == 2
    with proof.noted({place: "gone: 1 ms"}):
        assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"
    assert "gone was used before and cannot be any more" in caplog.text


# Processes that train together


def test_a_choice_of_another_process_that_cannot_run_here_leaves_the_work_to_torch(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    monkeypatch.setattr(proof, "_agreed", lambda place, decide, limit: "fla: 1 ms")
    with proof.noted() as notes:
        assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"
    assert list(notes.values()) == ["torch: fla is not here"]


RANKS = """
import json
from datetime import timedelta
import torch
import torch.distributed as dist
from hf_memory.ops.backends import dispatch, proof, verdicts
from hf_memory.ops.backends.trial import Verdict
from tests.ops.backends.proof_helpers import WHAT
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
dispatch.KERNELS = {("selective_scan", "right"): "kernel_that_right"}
dispatch.PROVED_ON = ("cpu",)
from pathlib import Path
verdicts.cache_folder = lambda: Path(folder) / f"verdicts {rank}"  # machines that share no disk, and do not agree
tried = []
reason = None if rank == int(sys.argv[3]) else "it raises"
verdicts.try_kernel = lambda request: tried.append(1) or Verdict(reason, 1.0, 2.0, 0.0)
if rank != int(sys.argv[3]):
    dist.distributed_c10d._get_default_store().wait(["first"], timedelta(seconds=60))
found = dispatch.resolve_backend("selective_scan", **WHAT)
dist.distributed_c10d._get_default_store().set("first", "done")
print(json.dumps([found, len(tried)]))
dist.barrier()
dist.destroy_process_group()
"""


def test_processes_that_train_together_agree_with_the_first_to_ask(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right")
    first = 1
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    commands = [[sys.executable, "-c", LEAN + RANKS, str(rank), str(tmp_path), str(first)] for rank in range(2)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for command in commands]
    outputs = [process.communicate(timeout=150)[0] for process in processes]
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert found[first] == ["right", 1]
    assert found[1 - first] == ["right", 0]
