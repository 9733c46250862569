"""``hf-memory doctor``: what it finds where something is missing, and what it says to do."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from hf_memory import extensions
from hf_memory.cli import doctor, facts
from hf_memory.cli.doctor import Finding
from hf_memory.ops.backends import dispatch, proof, verdicts
from hf_memory.ops.backends.trial import Verdict
from tests.ops.backends.proof_helpers import WHAT, install

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hf_" + "a" * 34


def found(find, *arguments) -> dict[str, Finding]:
    """The findings of a section by name."""
    return {finding.name: finding for finding in find(*arguments)}


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.delenv("HF_MEMORY_BACKEND", raising=False)
    for place, name in ((datasets.config, "HF_DATASETS_CACHE"), (datasets.config, "HF_MODULES_CACHE")):
        monkeypatch.setattr(place, name, tmp_path / name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_a_machine_without_a_problem_has_nothing_to_do(call, monkeypatch):
    monkeypatch.setattr(extensions, "REFUSED", {})
    code, output, _ = call("doctor")
    assert code == 0
    assert output.endswith("Everything that was looked at works.\n")
    for word in ("Python", torch.__version__, "diagonal_scan", "not logged in", "HF_HUB_OFFLINE", "none"):
        assert word in output


def test_versions_are_held_against_those_that_are_asked_for(call, monkeypatch):
    given = {"torch": None, "transformers": "5.0.0", "numba": None, "ray": "2.0", "tqdm": None, "mamba-ssm": None}
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: given[name] if name in given else real(name))
    versions = found(doctor.versions)
    assert versions["torch"] == Finding("torch", "missing", '`pip install "torch>=2.6"`', fatal=True)
    assert versions["transformers"].value == "5.0.0, not <6,>=5.17"
    assert versions["transformers"].advice == '`pip install "transformers<6,>=5.17"`'
    assert not versions["transformers"].fatal
    assert versions["numba"] == Finding("numba", "absent; the extra `cpu` brings it")
    assert versions["ray"].advice == '`pip install "ray>=2.9"`'
    assert versions["tqdm"].fatal  # needed, and shown because it is missing
    assert "rich" not in versions
    assert versions["datasets"] == Finding("datasets", datasets.__version__)
    assert versions.keys() >= set(doctor.PACKAGES)
    code, output, _ = call("doctor")
    assert code == 1
    assert '- torch: `pip install "torch>=2.6"`' in output.splitlines()


def test_a_package_that_was_not_installed_is_asked_for_nothing(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    versions = found(doctor.versions)
    assert versions["hf_memory"].value == "not installed, found on the path"
    assert versions["torch"] == Finding("torch", "absent")


def test_a_part_that_does_not_import_is_fatal(monkeypatch):
    monkeypatch.setitem(sys.modules, "hf_memory.data.builder", None)
    parts = found(doctor.parts)
    assert parts["hf_memory.tasks"] == Finding("hf_memory.tasks", "imports")
    assert parts["hf_memory.data.builder"].fatal
    assert parts["hf_memory.data.builder"].value.startswith("ModuleNotFoundError: ")


def test_without_torch_the_command_still_says_so():
    code = "import sys; sys.modules['torch'] = None; from hf_memory.cli.app import main; main()"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", code, "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "- hf_memory.mixers.auto: install or mend what the error names" in done.stdout
    assert "import of torch halted" in done.stdout


def test_a_gpu_is_named_with_its_memory(monkeypatch):
    properties = SimpleNamespace(name="H9", total_memory=80_000_000_000, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    devices = found(doctor.devices)
    assert devices["cuda:0"] == Finding("cuda:0", "H9, 80.0 GB, compute capability 9.0")
    assert "CUDA" not in devices


@pytest.mark.parametrize(("build", "text"), [(None, "is built without CUDA"), ("12.8", "torch for CUDA 12.8 finds no")])
def test_a_driver_without_a_gpu_for_torch_is_a_problem(build, text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found(doctor.devices)["CUDA"] == Finding("CUDA", "no device")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(torch.version, "cuda", build)
    assert text in found(doctor.devices)["CUDA"].advice


def test_every_operation_says_what_runs_it_and_why_others_do_not(monkeypatch):
    expected = set(doctor.operations())
    assert expected >= {*(op for op, _ in dispatch.KERNELS), "lstm", "gru", "elman", "diagonal_ssm", "long_convolution"}
    assert not expected & {"attention", "implicit_filter"}  # without a choice
    monkeypatch.setattr(facts, "default_device", lambda: torch.device("cuda"))
    shown = found(doctor.backends)
    assert shown.keys() == {"HF_MEMORY_BACKEND", *expected}
    assert shown["lstm"].value == "torch"
    lines = shown["wkv"].value.splitlines()
    assert lines[0] == "torch"
    numba = next(line for line in lines if line.startswith("numba"))
    assert numba in (
        "numba: its loops need tensors on the CPU, not on cuda",
        "numba: it cannot be imported (No module named 'numba')",
    )
    assert not any(finding.advice for finding in shown.values())


def test_a_kernel_that_must_be_asked_for_says_how(monkeypatch):
    monkeypatch.setattr(dispatch, "refusals", lambda op, **what: {"triton": None, "fla": None, "numba": "not here"})
    monkeypatch.setattr(dispatch, "resolve_backend", lambda op, **what: "torch")
    assert found(doctor.backends)["wkv"].value.splitlines() == [
        "torch",
        "triton: can run, where it is asked for: HF_MEMORY_BACKEND=triton",
        "fla: can run, where it is asked for: HF_MEMORY_BACKEND=triton",
        "numba: not here",
    ]


def test_kernels_are_shown_with_their_proof_and_tried_again_where_that_is_asked_for(call, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "right", "dies")
    monkeypatch.setattr(verdicts, "device_name", lambda device: "H9")
    monkeypatch.setattr(doctor, "operations", lambda: ["selective_scan"])
    given = {"right": Verdict(None, 1.0, 4.0, 1e-7), "dies": Verdict("its process was ended by SIGKILL", faulty=True)}
    requests = []
    monkeypatch.setattr(verdicts, "try_kernel", lambda request: requests.append(request) or given[request["kernel"]])
    (nothing,) = doctor.kernels(prove=False)
    assert nothing.value == "each is tried on first use; `hf-memory doctor --prove` tries all that can run"
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "right"
    assert len(requests) == 2
    facts = "dtype float32, has_initial_state True, negative_eigenvalues False, state_needs_grad True, state_size 4"
    release = f"torch {torch.__version__}"
    wanted = {
        ("selective_scan: right", f"H9, {facts}\n{release} runs: 1 ms, torch 4 ms, off by 1.0e-07 at most"),
        ("selective_scan: dies", f"H9, {facts}\n{release} is not used: its process was ended by SIGKILL"),
    }
    assert {(name, value) for name, value, *_ in doctor.kernels(prove=False)} == wanted
    found(doctor.backends)  # looks, and tries nothing
    assert len(requests) == 2
    given["right"] = Verdict("it raises RuntimeError: worn out", faulty=True)
    code, output, _ = call("doctor", "--prove")
    assert code == 0
    assert "is not used: it raises RuntimeError: worn out" in output
    assert len(requests) == 6  # under these facts, and under those of training
    proof.forget()
    assert dispatch.resolve_backend("selective_scan", **WHAT) == "torch"


def test_without_a_gpu_there_is_no_kernel_to_try(monkeypatch, tmp_path):
    monkeypatch.setattr(verdicts, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(verdicts, "try_kernel", lambda request: pytest.fail("tried"))
    assert list(doctor.kernels(prove=True)) == [Finding("none", "on cpu there is nothing to try")]


def test_a_backend_that_does_not_exist_is_a_problem(monkeypatch):
    monkeypatch.setenv("HF_MEMORY_BACKEND", "tritom")
    shown = found(doctor.backends)
    assert shown.keys() == {"HF_MEMORY_BACKEND"}
    assert "did you mean 'triton'?" in shown["HF_MEMORY_BACKEND"].value
    assert shown["HF_MEMORY_BACKEND"].advice.startswith("unset it")


def test_caches_have_sizes_and_say_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "hub" / "deep").mkdir(parents=True)
    (tmp_path / "hub" / "deep" / "a").write_bytes(bytes(1500))
    (tmp_path / "hub" / "b").symlink_to(tmp_path / "hub" / "deep" / "a")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    shown = found(doctor.caches)
    link = os.lstat(tmp_path / "hub" / "b").st_size
    assert shown["files of the Hub"].value == f"{tmp_path}/hub: {(1500 + link) / 1000:.1f} kB, writable"
    assert shown["code of checkpoints"].value.endswith("HF_MODULES_CACHE: 0 B, writable")
    assert not (tmp_path / "HF_MODULES_CACHE").exists()  # looking makes nothing
    assert shown["rows"].value.endswith("not writable")
    assert "or name another folder by the variable HF_DATASETS_CACHE" in shown["rows"].advice


def test_the_token_is_never_shown(call, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: SECRET)
    monkeypatch.setattr(huggingface_hub.HfApi, "whoami", lambda self: pytest.fail("asked the Hub"))
    code, output, _ = call("doctor")
    assert code == 0
    assert "a token is there" in output
    assert SECRET not in output
    monkeypatch.setattr(huggingface_hub.HfApi, "whoami", lambda self: {"name": "me", "auth": SECRET})
    assert found(doctor.hub, True)["login"] == Finding("login", "me")

    def refuse(self):
        raise OSError(f"{SECRET} is no token")

    monkeypatch.setattr(huggingface_hub.HfApi, "whoami", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, output, _ = call("doctor", "--online")
    assert code == 0
    assert "- login: unset HF_HUB_OFFLINE" in output.splitlines()
    assert "set: nothing is fetched or pushed" in output
    assert SECRET not in output


def test_extensions_are_listed_and_so_are_those_that_failed(monkeypatch, tables):
    monkeypatch.setattr(extensions, "REFUSED", {"other.mixer:Config": "ImportError: no torch"})
    extensions.include(ROOT / "examples" / "leaky.py")
    shown = found(doctor.extensions)
    assert shown["mixer leaky"].value.startswith("leaky_")
    assert shown["other.mixer:Config"].value == "ImportError: no torch"
    assert "was not registered" in shown["other.mixer:Config"].advice
    assert "registered" not in shown


def test_an_entry_point_that_fails_is_kept_with_its_reason(monkeypatch):
    def load():
        raise RuntimeError("broken")

    monkeypatch.setattr(extensions, "REFUSED", {})
    monkeypatch.setattr(extensions, "_named", list)
    entry = SimpleNamespace(value="other.mixer:Config", load=load)
    monkeypatch.setattr(extensions.importlib.metadata, "entry_points", lambda group: [entry])
    extensions.load_extensions((extensions.TASK_GROUP,))
    assert extensions.REFUSED == {"other.mixer:Config": "RuntimeError: broken"}


def test_a_section_that_fails_is_a_finding():
    def find():
        yield Finding("first", "fine")
        raise RuntimeError("broken driver")

    first, second = doctor.careful("Devices", find)
    assert first == Finding("first", "fine")
    assert (second.name, second.value, second.fatal) == ("Devices", "RuntimeError: broken driver", False)
    assert second.advice
