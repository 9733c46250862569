"""Worker processes: a killed one costs its cell alone, and two sweeps on one folder share the work."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from filelock import SoftFileLease

from hf_memory.experiments.results import cell_path, read_rows
from hf_memory.storage import claim
from hf_memory.studies.cells import ATTEMPTS, run_cell, state_of
from hf_memory.studies.ray import MAX_RETRIES, RayWorkers
from hf_memory.studies.workers import Ended, LocalWorkers, Pool, Reached, Started, report_stack, write_failures
from tests.studies.pieces import work
from tests.studies.sweep_examples import planned, tiny_recipe


def report_to(found: list):
    return lambda cell, outcome, text, seconds: found.append((cell.digest, outcome, text))


def endings(events) -> list:
    return [(event.value, event.error) for event in events if isinstance(event, Ended)]


def test_a_pool_tells_of_steps_errors_and_deaths_and_goes_on(tmp_path):
    with Pool(work, 1) as pool:
        (first,) = endings(pool.run([("process", None)]))
        events = list(pool.run([("double", 2), ("raise", "bad"), ("walk", 50), ("die", None), ("process", None)]))
        assert [event.piece[0] for event in events if isinstance(event, Started)] == [
            "double", "raise", "walk", "die", "process",
        ]  # fmt: skip
        double, failed, walked, died, last = endings(events)
        assert double == (4, "")
        assert failed[0] is None
        assert failed[1].startswith("Traceback")
        assert failed[1].endswith("ValueError: bad\n")
        assert walked == (50, "")
        assert died == (None, "the worker process ended with code -9")
        steps = [event.step for event in events if isinstance(event, Reached)]
        assert steps == sorted(steps)
        assert 1 < len(steps) < 50  # told now and then
        # One thread each; the worker stays between runs, and another one takes the place of the dead.
        assert first[0]["threads"] == last[0]["threads"] == 1
        own = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
        assert own.items() <= first[0]["environment"].items()
        assert "MALLOC_TRIM_THRESHOLD_" not in os.environ
        assert first[0]["pid"] != last[0]["pid"]
        again = endings(pool.run([("process", None), ("process", None)]))
        assert [value["pid"] for value, _ in again] == [last[0]["pid"]] * 2
        assert list(pool.run([])) == []
        # A run that is left ends its worker, which gives up its claim.
        for event in pool.run([("hold", str(tmp_path / "rows")), ("double", 1)]):
            if isinstance(event, Reached):
                break
        assert multiprocessing.active_children() == []
        with claim(tmp_path / "rows") as mine:
            assert mine


def test_a_pool_has_at_least_one_worker():
    for make in (LocalWorkers, lambda workers: Pool(work, workers)):
        with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
            make(0)


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(tmp_path):
    path, root = tmp_path / "rows", Path(__file__).resolve().parents[2]
    (tmp_path / "parent.py").write_text(
        "from hf_memory.studies.workers import Pool\nfrom tests.studies.pieces import work\n\n"
        "if __name__ == '__main__':\n"
        f"    for event in Pool(work, 1).run([('hold', {str(path)!r})]):\n"
        "        print(type(event).__name__, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert [parent.stdout.readline().strip() for _ in range(2)] == ["Started", "Reached"]
        with claim(path) as mine:
            assert not mine
        parent.kill()
    worker = Path("/proc", (tmp_path / "pid").read_text())
    deadline = time.monotonic() + 20
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.exists()
    with claim(path) as mine:
        assert mine


def test_a_killed_worker_costs_its_cell_alone(tmp_path):
    quick = planned(tiny_recipe(arms={"lstm": {}}))[0]
    endless = dataclasses.replace(quick, training={**quick.training, "steps": 1_000_000})
    lease = SoftFileLease(cell_path(tmp_path, endless.digest).with_suffix(".jsonl.lease"))

    def kill():
        while lease.pid is None:
            time.sleep(0.05)
        os.kill(lease.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found: list = []
    with LocalWorkers(1) as pool:
        pool.run([(endless,), (quick,)], tmp_path, report_to(found))
        pool.run([(quick,)], tmp_path / "other", report_to(found))  # the same worker, another folder
    killer.join(timeout=5)
    assert found == [
        (endless.digest, "crashed", "the worker process ended with code -9"),
        (quick.digest, "trained", ""),
        (quick.digest, "trained", ""),
    ]
    assert state_of(tmp_path, endless) == "open"  # a crash says nothing of the model, and is tried again
    for folder in (tmp_path, tmp_path / "other"):
        assert len(read_rows(cell_path(folder, quick.digest))) == 3


def test_cells_of_a_stack_whose_process_was_killed_run_alone(tmp_path):
    cells = planned(tiny_recipe(arms={"lstm": {}}))
    run_cell(cells[0], tmp_path)
    outcomes = write_failures(tmp_path, tuple(cells), "the worker process ended with code -9")
    assert [outcome for outcome, _ in outcomes] == ["trained", "claimed elsewhere", "claimed elsewhere"]
    assert [state_of(tmp_path, cell) for cell in cells] == ["finished", "open", "open"]
    found: list = []
    again = report_stack(tuple(cells), outcomes, 6.0, lambda *ended: found.append(ended))
    assert again == [(cells[1],), (cells[2],)]
    assert found == [(cells[0], "trained", "", 2.0)]
    for outcome in ["crashed"] * (ATTEMPTS - 1) + ["failed"]:
        assert write_failures(tmp_path, again[0], "killed") == [(outcome, "killed")]
    assert [state_of(tmp_path, cell) for cell in cells] == ["finished", "failed", "open"]
    assert write_failures(tmp_path, tuple(cells[1:]), "killed")[0] == ("failed before", "killed")


@pytest.mark.slow
def test_two_sweeps_on_one_folder_share_the_work(tmp_path):
    cells = planned(tiny_recipe(learning_rates=[1e-3, 2e-3, 4e-3]))
    found: list = []

    def sweep():
        own: list = []
        with LocalWorkers(1) as pool:
            pool.run([(cell,) for cell in cells], tmp_path, report_to(own))
        found.append(own)

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [{digest: outcome for digest, outcome, _ in own} for own in found]
    assert [set(own) for own in outcomes] == [{cell.digest for cell in cells}] * 2
    for cell in cells:
        assert sorted(own[cell.digest] for own in outcomes) == ["finished before", "trained"]
    assert len(read_rows(tmp_path)) == 3 * len(cells)
    assert not list(tmp_path.glob("*.lock"))


class Task:
    def __init__(self, run):
        self.run = run


class FakeRay(types.ModuleType):
    """Runs each task when its outcome is asked for; the first one is lost."""

    def __init__(self, lose: int = 0):
        super().__init__("ray")
        self.lose, self.options, self.most, self.open = lose, None, 0, 0
        self.exceptions = types.SimpleNamespace(RayError=ConnectionError)
        self.started = self.stopped = 0

    def is_initialized(self):
        return False

    def init(self, **options):
        self.started += 1

    def shutdown(self):
        self.stopped += 1

    def cluster_resources(self):
        return {"CPU": 3.0}

    def remote(self, **options):
        self.options = options

        def wrap(function):
            def submit(*arguments):
                self.open += 1
                self.most = max(self.most, self.open)
                return Task(lambda: function(*arguments))

            return types.SimpleNamespace(remote=submit)

        return wrap

    def wait(self, tasks, timeout):
        return [tasks[0]], tasks[1:]

    def get(self, task):
        self.open -= 1
        if self.lose:
            self.lose -= 1
            raise ConnectionError("the node died\nat night")
        return task.run()


def test_ray_gets_one_cpu_and_the_gpu_share_of_each_cell(tmp_path, monkeypatch):
    fake = FakeRay(lose=1)
    monkeypatch.setitem(sys.modules, "ray", fake)
    services = types.SimpleNamespace(find_bootstrap_address=lambda directory: "127.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray._private.services", services)
    monkeypatch.setattr("hf_memory.studies.ray.prepare_process", lambda: None)
    cells = planned(tiny_recipe())[:4]
    found: list = []
    with RayWorkers(None, 0.25) as pool:
        assert pool.size == 3
        pool.run([(cell,) for cell in cells], tmp_path, report_to(found))
    assert fake.options == {"num_cpus": 1, "num_gpus": 0.25, "max_retries": MAX_RETRIES}
    assert fake.most == 3
    assert (fake.started, fake.stopped) == (1, 1)
    assert found[0] == (cells[0].digest, "crashed", "ConnectionError: the node died")
    assert [outcome for _, outcome, _ in found[1:]] == ["trained"] * 3
    assert [state_of(tmp_path, cell) for cell in cells] == ["open", "finished", "finished", "finished"]


def test_ray_is_needed_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs the extra: pip install 'hf_memory\[ray\]'"):
        RayWorkers()
    with pytest.raises(ValueError, match="gpu_share must be at least 0"):
        RayWorkers(None, -0.5)
