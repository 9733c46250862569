"""Files for clusters: scripts that a shell and its linter accept, and that call the package as it is."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from hf_memory.cli.app import app
from hf_memory.studies.recipes_yaml import find_file, load_recipe

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "cluster"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
JOB = FOLDER / "kubernetes_job.yaml"

# What each script is given, in the order of its own usage; the last is the options that its call must hold.
GIVEN = {
    "slurm": ["r1_bit_parity", "cpu", "/shared/results"],
    "slurm_array": ["r1_bit_parity", "cpu", "/own/results"],
    "slurm_gpu": ["r6_mqar_widths", "full", "/shared/results"],
    "gpu_share": ["r6_mqar_widths", "full", "0.5"],
    "ray_address": ["10.0.0.1:6379", "r1_bit_parity", "cpu", "/shared/results"],
    "shared_folder": ["/shared/with space", "r1_bit_parity", "cpu", "first", "second"],
}
HOLDS = {
    "slurm": {"results": Path("/shared/results"), "workers": 16, "backend": "local"},
    "slurm_array": {"results": Path("/own/results"), "workers": 16, "backend": "local", "shard": "3/8"},
    "slurm_gpu": {"results": Path("/shared/results"), "backend": "ray", "gpu_share": 0.25},
    "gpu_share": {"backend": "ray", "gpu_share": 0.5},
    "ray_address": {"results": Path("/shared/results"), "backend": "ray", "gpu_share": 0.0},
    "shared_folder": {"results": Path("/shared/with space"), "profile": "cpu"},
}
# Programs of a cluster: each writes down the command that it was to run. ssh hands its last word to a shell.
STAND_IN = """#!/usr/bin/env bash
case "$(basename "$0")" in
  srun) while [[ "$1" == --* ]]; do shift; done; exec "$@" ;;
  ssh) exec bash -c "${!#}" ;;
  *) { printf '%s|' "${RAY_ADDRESS:-}" "${OMP_NUM_THREADS:-}"; printf '%q ' "$@"; echo; } >> "$CALLS" ;;
esac
"""


def sweep_options(words: list[str]) -> dict:
    """The options of a call of ``sweep``, read by the command itself; whatever it does not know is an error."""
    command = typer.main.get_command(app).commands["sweep"]
    return command.make_context("sweep", words).params


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Run a script where the programs of a cluster are stand-ins; returns what it called."""
    programs, log = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name in ("srun", "ssh", "hf-memory"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CALLS": str(log), "SLURM_CPUS_PER_TASK": "16"}
    env |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8"}

    def run(script: Path, *given: str) -> list[list[str]]:
        done = subprocess.run(["bash", script, *given], capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in log.read_text().splitlines()]

    return run


def test_every_script_is_tried():
    assert {path.stem for path in SCRIPTS} == set(GIVEN) == set(HOLDS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_accepted_by_the_shell_and_its_linter(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    linter = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [linter, "--enable=all", "--exclude=SC2310,SC2312", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_calls_the_sweep_with_what_it_was_given(script, calls):
    made = calls(script, *GIVEN[script.stem])
    assert len(made) == (2 if script.stem == "shared_folder" else 1)
    for address, threads, line in made:
        first, *words = shlex.split(line)
        assert first == "sweep"
        options = sweep_options(words)
        assert {name: options[name] for name in HOLDS[script.stem]} == HOLDS[script.stem]
        assert load_recipe(find_file(options["recipe"], "recipes"), options["profile"]).name == options["recipe"]
        assert address == ("10.0.0.1:6379" if script.stem == "ray_address" else "")
        assert threads == ("" if script.stem == "ray_address" else "1")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_without_arguments_says_what_it_wants(script):
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "1: " in done.stderr


@pytest.mark.parametrize("name", ["slurm", "slurm_array", "slurm_gpu"])
def test_the_head_of_a_slurm_script_asks_for_nodes_cores_and_time(name):
    head = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in (FOLDER / f"{name}.sh").read_text().splitlines()
        if line.startswith("#SBATCH")
    )
    assert {"cpus-per-task", "time", "requeue", "output"} <= set(head)
    # A task of an array is one process; else there is one on each node.
    one = {"ntasks": "1"} if name == "slurm_array" else {"nodes": "2", "ntasks-per-node": "1"}
    assert head.items() >= one.items()
    assert ("gpus-per-node" in head) == (name == "slurm_gpu")


def test_the_job_of_kubernetes_is_whole():
    claim, job = yaml.safe_load_all(JOB.read_text())
    assert (claim["kind"], claim["spec"]["accessModes"]) == ("PersistentVolumeClaim", ["ReadWriteMany"])
    assert (job["apiVersion"], job["kind"], job["spec"]["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] > 1
    assert job["spec"]["backoffLimit"] >= job["spec"]["completions"]
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert all(isinstance(entry["value"], str) for entry in container["env"])


def test_the_job_of_kubernetes_calls_the_sweep_in_the_volume_with_a_worker_per_core():
    _, job = yaml.safe_load_all(JOB.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program, command, *words = container["command"]
    assert (program, command) == ("hf-memory", "sweep")
    assert all(isinstance(word, str) for word in words)
    options = sweep_options(words)
    assert options["results"].is_relative_to("/results")
    assert options["workers"] == int(container["resources"]["limits"]["cpu"])
    assert load_recipe(find_file(options["recipe"], "recipes"), options["profile"])
