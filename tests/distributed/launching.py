"""Runs a script in several processes that exchange tensors through gloo."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "examples" / "accelerate"


def launch(
    *arguments: str, launcher: tuple[str, ...] = (), environment: dict[str, str] | None = None, timeout: float = 150
) -> dict[str, Any]:
    """Run a script, or a launcher's module and options with it; return what is printed after ``RESULT``.

    The launcher's processes end with it, also where it takes too long.
    """
    known = os.environ.get("PYTHONPATH")
    variables = {
        **os.environ,
        **(environment or {}),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [known])]),
    }
    command = [sys.executable, *(("-m", *launcher) if launcher else ()), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=variables, text=True, start_new_session=True, **pipes) as process:
        try:
            printed, errors = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed + errors
    (line,) = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def fork(world: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work`` returns in the first of some forks of this process, which find each other as torchrun's do.

    Forks share what this process has imported, which takes longer than most of what they are to do. A world of 0 is a
    single process that knows of no group.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    processes = torch.multiprocessing.start_processes(
        _enter, (world, port, writer, work, arguments), max(world, 1), join=False, start_method="fork"
    )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = pipe.read()
    while not processes.join():
        pass
    return json.loads(found)


def _enter(rank: int, world: int, port: int, writer: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if world:
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in {**group, "MASTER_PORT": port}.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    found = work(*arguments)
    if rank == 0:
        with os.fdopen(writer, "w") as pipe:
            pipe.write(json.dumps(found))
    leave(None)


def leave(result: dict[str, Any] | None) -> NoReturn:
    """End a process of a group: print the result, where there is one, wait for the others, and go.

    The interpreter would take the group apart in no certain order, and now and then the threads of gloo abort a process
    whose work is done.
    """
    if result is not None:
        print("RESULT " + json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)
