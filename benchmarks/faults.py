"""Attacks on everything that keeps results: kills, strange inputs, damaged files, full disks, and two at once.

``python -m benchmarks.faults --output benchmarks/results`` writes ``faults-<date>.json`` and ``.md``, after each
kind of attack anew. Wanted: nothing lost, doubled, torn, left over or hung; every error one line that names the thing;
no number that is another than the one that was measured.

Everything happens below one temporary folder, in a process with caches of its own and a Hub on the loopback address.
"""

import argparse
import contextlib
import dataclasses
import importlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.faults_report import SECTIONS, Plan

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Start a Hub on the loopback address, and the attacks in a process of their own; returns its exit code."""
    options = _parse(arguments)
    if options.inside:
        from benchmarks.faults_run import attack_all  # torch and all else, in the process that is forked

        names = [field.name for field in dataclasses.fields(Plan)]
        plan = Plan(**{**{name: getattr(options, name) for name in names}, "sections": tuple(options.sections)})
        return attack_all(plan, Path(options.inside), options.output.resolve())
    running_hub = importlib.import_module(options.hub).running_hub
    with tempfile.TemporaryDirectory(prefix="hf_memory-faults-") as folder, running_hub() as (address, _):
        # A client that is killed in the middle of a request makes the server print a traceback.
        words = list(sys.argv[1:] if arguments is None else arguments)
        command = [sys.executable, "-m", "benchmarks.faults", *words, "--inside", folder]
        with contextlib.redirect_stderr(io.StringIO()):
            code = subprocess.run(command, env=_environment(Path(folder), address), cwd=ROOT, check=False).returncode
        if os.path.ismount(Path(folder) / "trial"):  # a small disk of an attack that was stopped
            subprocess.run(["umount", Path(folder) / "trial"], check=False)
        return code


def _environment(home: Path, address: str) -> dict[str, str]:
    """Variables of a process with one thread, caches of its own, and that Hub alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_HOME": str(home / "home"), "HF_ENDPOINT": address, "HF_TOKEN": "hf_writer", "HF_HUB_DISABLE_XET": "1"}
    own |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "MPLBACKEND": "Agg"}
    one = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}
    return {**kept, **own, **one, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50, help="moments at which each command is killed")
    parser.add_argument("--inputs", type=int, default=10_000, help="random configs and inputs")
    parser.add_argument("--files", type=int, default=2_000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=7200.0, help="seconds after which nothing new begins")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--output", type=Path, required=True, help="folder for the table")
    parser.add_argument("--hub", default="tests.hub.server", help="module whose running_hub serves a Hub to push to")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
