"""Clients of a Hub in processes of their own, since each reads its address and its caches once, when it is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# `sys.modules[name] = None` makes an import fail as if the package were not installed.
WITH_PACKAGE = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
WITHOUT_PACKAGE = f"{WITH_PACKAGE}sys.modules['hf_memory'] = None\n"


def environment(home: Path, endpoint: str = "", token: str = "hf_writer") -> dict[str, str]:
    """Variables of a client with empty caches of its own; without an endpoint it has no network."""
    drop = {
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
        "HF_MODULES_CACHE",
        "HF_TOKEN",
    }
    kept = {name: value for name, value in os.environ.items() if name not in drop}
    kept |= {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    kept |= {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    kept |= {"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    return kept | ({"HF_TOKEN": token} if token else {})


def run(code: str, env: dict[str, str], cwd: Path, *, package: bool, timeout: int = 170) -> Any:
    """Run code in a fresh interpreter; returns what it puts into ``found``, a JSON value."""
    out = cwd / "found.json"
    end = f"\nimport json\nopen({str(out)!r}, 'w').write(json.dumps(found))\n"
    text = (WITH_PACKAGE if package else WITHOUT_PACKAGE) + "found = {}\n" + code + end
    command = [sys.executable, "-P", "-c", text]
    process = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd=cwd, check=False)
    if process.returncode:
        raise AssertionError(f"the client failed:\n{process.stdout[-2000:]}\n{process.stderr[-6000:]}")
    return json.loads(out.read_text())
