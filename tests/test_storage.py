"""Claims are held by one process at a time, whatever happens to it; files are whole, and nothing is left behind."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_memory import storage
from hf_memory.storage import HOST, ClaimLostError, check_claim, claim, copy_folder, write_text

ROOT = Path(__file__).resolve().parents[1]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

# A process of its own loads the module alone, without the seconds that torch takes.
PROLOGUE = """
import importlib.util, os, pathlib, signal, socket, subprocess, sys, time
spec = importlib.util.spec_from_file_location("storage", sys.argv[1])
storage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(storage)
folder = pathlib.Path(sys.argv[2])
def say(text):
    os.write(1, f"{text}{os.linesep}".encode())
"""
# Another machine: its locks of the operating system are its own, and it cannot look for processes here.
ELSEWHERE = """
socket.gethostname = lambda: "elsewhere"
real = storage.FileLock
storage.FileLock = lambda path, **options: real(f"{path}.elsewhere", **options)
"""
QUICK = "storage.STALE_SECONDS, storage.HEARTBEAT_SECONDS = 1.5, 0.1\n"
HOLD = """
with storage.claim(folder / "a") as mine:
    say(bool(mine))
    sys.stdin.readline()
    say(bool(mine))
    try:
        storage.write_text(folder / "a", "first")
        say("written")
    except storage.ClaimLostError as error:
        say(error)
"""


@contextlib.contextmanager
def process(code: str, folder: Path):
    """A Python process with the module as ``storage`` and the folder as ``folder``."""
    command = [sys.executable, "-c", PROLOGUE + code, storage.__file__, str(folder)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def line(child: subprocess.Popen) -> str:
    return child.stdout.readline().strip()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_free(path: Path) -> bool:
    with claim(path) as mine:
        return bool(mine)


def test_claim_is_exclusive_and_ends_with_the_work(tmp_path):
    target = tmp_path / "a.jsonl"
    with claim(target) as mine:
        with claim(target) as other:
            assert (bool(mine), bool(other)) == (True, False)
        assert mine
        assert names(tmp_path) == ["a.jsonl.lease", "a.jsonl.lock"]
        assert f"pid={os.getpid()}\n" in (tmp_path / "a.jsonl.lease").read_text()
    assert not mine
    assert names(tmp_path) == []
    target.write_text("done")
    with claim(target) as mine:
        assert not mine


def test_claim_is_released_after_an_error(tmp_path):
    with pytest.raises(KeyError), claim(tmp_path / "a"):
        raise KeyError
    assert is_free(tmp_path / "a")
    assert names(tmp_path) == []


def test_what_an_earlier_release_left_blocks_nobody(tmp_path):
    (tmp_path / "a.lock").write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "other"}))
    assert is_free(tmp_path / "a")
    assert names(tmp_path) == []


@posix
def test_a_process_that_is_killed_frees_its_claim_at_once(tmp_path):
    with process(HOLD, tmp_path) as child:
        assert line(child) == "True"
        assert not is_free(tmp_path / "a")
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert names(tmp_path) == ["a.lease", "a.lock"]
        assert is_free(tmp_path / "a")
    assert names(tmp_path) == []


@posix
def test_a_child_that_outlives_a_killed_process_does_not_keep_its_claim(tmp_path):
    forks = 'with storage.claim(folder / "a"):\n    if os.fork() == 0:\n        say("forked")\n        time.sleep(30)\n'
    runs = '    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])\n'
    with process(f"os.setpgrp()\n{forks}{runs}    say('started')\n    time.sleep(30)\n", tmp_path) as child:
        # A child gives up the lock when it first runs, so it is waited for.
        assert {line(child), line(child)} == {"started", "forked"}
        group = os.getpgid(child.pid)
        try:
            child.kill()
            child.wait()
            assert is_free(tmp_path / "a")
        finally:
            os.killpg(group, signal.SIGKILL)


@posix
def test_what_a_process_left_that_was_killed_while_it_looked_for_room_is_removed(tmp_path):
    slow = "storage.os.fsync = lambda file: time.sleep(30)\nstorage.check_writable(folder)\n"
    with process(slow, tmp_path) as child:
        while not (left := names(tmp_path)):
            time.sleep(0.01)
        assert left[0].startswith("..probe.")
        child.kill()
        child.wait()
    storage.check_writable(tmp_path)
    assert names(tmp_path) == []


@posix
def test_a_suspended_process_keeps_its_claim_on_its_host(tmp_path):
    with process(QUICK + HOLD, tmp_path) as child, process(QUICK + WATCH, tmp_path) as other:
        assert line(child) == "True"
        child.send_signal(signal.SIGSTOP)
        assert other.communicate("2.5\n")[0].split() == ["None"]
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert [line(child), line(child)] == ["True", "written"]
        assert child.wait() == 0
    assert names(tmp_path) == ["a"]


# Asks for a claim for as many seconds as it is told, and says after how many it got it.
WATCH = """
seconds, start = float(sys.stdin.readline()), time.monotonic()
taken = None
while taken is None and time.monotonic() - start < seconds:
    with storage.claim(folder / "a") as mine:
        if mine:
            taken = time.monotonic() - start
            storage.write_text(folder / "a", "second")
    time.sleep(0.05)
say(taken)
"""


@posix
def test_a_lease_that_is_lost_does_not_publish_its_result(tmp_path):
    with process(QUICK + HOLD, tmp_path) as child, process(QUICK + ELSEWHERE + WATCH, tmp_path) as other:
        assert line(child) == "True"
        child.send_signal(signal.SIGSTOP)
        assert 1.5 <= float(other.communicate("20\n")[0]) < 15
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert line(child) == "False"
        assert "another process has taken this work over" in line(child)
        assert child.wait() == 0
    assert (tmp_path / "a").read_text() == "second"
    assert names(tmp_path) == ["a", "a.lock.elsewhere"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_of_another_host_decides_nothing(tmp_path, hours):
    with process(QUICK + HOLD, tmp_path) as child, process(QUICK + ELSEWHERE + WATCH, tmp_path) as other:
        assert line(child) == "True"
        other.stdin.write("3\n")
        other.stdin.flush()
        while other.poll() is None:  # the heart beats, whatever time its clock shows
            with contextlib.suppress(FileNotFoundError):
                os.utime(tmp_path / "a.lease", (time.time() + 3600 * hours,) * 2)
            time.sleep(0.05)
        assert line(other) == "None"
        child.stdin.write("\n")
        child.stdin.flush()
        assert [line(child), line(child)] == ["True", "written"]


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_lease_of_a_lost_host_is_taken_after_its_time_by_the_clock_of_the_waiting_one(tmp_path, hours):
    (tmp_path / "a.lock").touch()
    record = "filelock/2\npid=1\nhost=elsewhere\nmode=lease\ntoken=0123\nduration=1.5\n"
    (tmp_path / "a.lease").write_text(record)
    (tmp_path / ".a.0123.tmp").write_text("half of it")
    os.utime(tmp_path / "a.lease", (time.time() + 3600 * hours,) * 2)
    with process(QUICK + WATCH, tmp_path) as child:
        assert 1.5 <= float(child.communicate("20\n")[0]) < 15
    assert names(tmp_path) == ["a"]


def test_what_belongs_to_a_lost_claim_can_be_guarded_too(tmp_path):
    check_claim(tmp_path / "a")
    with claim(tmp_path / "a") as mine:
        check_claim(tmp_path / "a")
        lease = tmp_path / "a.lease"
        lease.write_text(re.sub("token=.*", "token=0123", lease.read_text()))
        assert not mine
        with pytest.raises(ClaimLostError, match="taken this work over"):
            check_claim(tmp_path / "a")
        write_text(tmp_path / "b", "not claimed")
        lease.unlink()
        assert not mine
    check_claim(tmp_path / "a")
    assert names(tmp_path) == ["b"]


RACE = """
say("ready")
sys.stdin.readline()
for number in range(50):
    target = folder / f"{number}.done"
    with storage.claim(target) as mine:
        if mine:
            with open(target.with_suffix(".log"), "a") as log:
                log.write("done\\n")
            storage.write_text(target, "done")
"""


def test_processes_that_share_a_folder_do_no_work_twice(tmp_path):
    (tmp_path / "3.done.lock").write_text("left")
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(process(RACE, tmp_path)) for _ in range(3)]
        assert [line(worker) for worker in workers] == ["ready"] * 3
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        assert [worker.wait() for worker in workers] == [0] * 3
    assert [(tmp_path / f"{number}.log").read_text() for number in range(50)] == ["done\n"] * 50
    assert len(names(tmp_path)) == 100


def test_a_full_disk_leaves_no_claim(tmp_path, monkeypatch):
    write = os.write

    def full(descriptor, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"), claim(tmp_path / "a"):
        pass
    monkeypatch.setattr(os, "write", write)
    assert set(names(tmp_path)) <= {"a.lock"}
    assert is_free(tmp_path / "a")
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_left_to_the_lease(tmp_path, monkeypatch, code):
    fcntl = pytest.importorskip("fcntl")

    def refuse(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claim(tmp_path / "a") as mine, claim(tmp_path / "a") as other:
        assert (bool(mine), bool(other)) == (True, False)
    assert is_free(tmp_path / "a")
    assert names(tmp_path) == []


def test_failed_write_leaves_the_old_file_and_nothing_beside(tmp_path, monkeypatch):
    path = write_text(tmp_path / "page.html", "old")

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(storage.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert names(tmp_path) == ["page.html"]
    assert path.read_text() == "old"


@posix
def test_half_a_file_of_a_killed_writer_is_removed_with_its_claim(tmp_path):
    dies = "storage.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
    writes = 'with storage.claim(folder / "a.jsonl"):\n    storage.write_text(folder / "a.jsonl", "x")\n'
    with process(dies + writes, tmp_path) as child:
        assert child.wait() == -signal.SIGKILL
    assert list(tmp_path.glob("*.jsonl")) == []
    (left,) = tmp_path.glob(".a.jsonl.*.tmp")
    kept = left.with_name(".ab.jsonl.0123.tmp")
    kept.write_text("of another")
    with claim(tmp_path / "a.jsonl") as mine:
        assert mine
        write_text(tmp_path / "a.jsonl", "whole")
    assert names(tmp_path) == [kept.name, "a.jsonl"]


def test_no_code_asks_for_a_process_by_a_signal():
    """On Windows, signal 0 ends the process that is asked for."""
    asks = re.compile(r"\bos\.kill\(")
    assert [path.name for path in (ROOT / "hf_memory").rglob("*.py") if asks.search(path.read_text())] == []


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    path = tmp_path / "run-1.json"
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left, ours, foreign = (
        tmp_path / f".run-1.json.{host}-{pid}-{'0' * 16}.tmp"
        for host, pid in ((HOST, int(ended.stdout)), (HOST, os.getpid()), ("f" * 8, int(ended.stdout)))
    )
    other = tmp_path / f".run-2.json.{HOST}-{int(ended.stdout)}-{'0' * 16}.tmp"
    for file in (left, ours, foreign, other):
        file.write_text("half")
    write_text(path, "whole")
    assert path.read_text() == "whole"
    assert [file.exists() for file in (left, ours, foreign, other)] == [False, True, True, True]


def test_a_folder_is_copied_whole_and_takes_the_place_of_another(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "kept" / "cell"
    source.mkdir()
    (source / "a.json").write_text("1")
    (source / ".lock").touch()
    assert copy_folder(source, target) == target
    (source / "a.json").rename(source / "b.json")
    copy_folder(source, target)
    assert [path.name for path in target.iterdir()] == ["b.json"]
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        copy_folder(source, tmp_path / "kept" / "other")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["cell"]
