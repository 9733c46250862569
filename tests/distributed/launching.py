"""Runs a script in several processes that exchange tensors through gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
