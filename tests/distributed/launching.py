"""Runs a script in several processes that exchange tensors through gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "examples" / "accelerate"


def launch(*arguments: str, launcher: tuple[str, ...], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a script with a launcher's module and options; return what its first process printed after ``RESULT``."""
    known = os.environ.get("PYTHONPATH")
    variables = {
        **os.environ,
        **(environment or {}),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [known])]),
    }
    command = [sys.executable, "-m", *launcher, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def leave(result: dict[str, Any] | None) -> NoReturn:
    """End a process of a group: print the result, where there is one, wait for the others, and go.

    The interpreter would take the group apart in no certain order, and now and then the threads of gloo abort a process
    whose work is done.
    """
    if result is not None:
        print("RESULT " + json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    torch.distributed.barrier()
    os._exit(0)
