"""A mixer and a task of another package, or of a single file, go the whole road."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hf_memory
from hf_memory.extensions import VARIABLE, include, include_everywhere
from hf_memory.mixers import MIXERS, OUTSIDE
from hf_memory.mixers.auto import register_mixer
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.modeling import Mixer
from hf_memory.tasks import register_task
from hf_memory.tasks.bit_parity import BitParity

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "tests" / "plugin"
LEAKY = (ROOT / "examples" / "leaky.py").read_text()

ROAD = """
import json, sys
from pathlib import Path
import torch
import hf_memory
from hf_memory.cli.app import app
from hf_memory.experiments.evaluation import load_for_task
from hf_memory.hub.remote_code import export_remote_code
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.reports.report import write_report
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.sweep import run_sweep
from typer.testing import CliRunner

def run(*words):
    found = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output

from memory_plugin.echo import MemoryEchoConfig
from memory_plugin.last_mark import LastMark
from hf_memory.testing import check_mixer, check_task

check_mixer(MemoryEchoConfig)
check_task(LastMark)
out = Path(sys.argv[1])
small = ["--data", "num_train=64", "num_validation=16", "num_test=16"]
rows = run("train", "--mixer", "echo", "--task", "last_mark", "--smoke", "--max_steps", "2", *small, "--model",
    "hidden_size=8", "--output_dir", str(out / "run"), "--results", str(out / "rows"))
assert "echo" in rows, rows
assert "echo" in run("evaluate", str(out / "run"), "--task", "last_mark", *small)
assert "last_mark" in run("list") and "echo" in run("list")

recipe = out / "own.yaml"
recipe.write_text(json.dumps({
    "name": "own", "task": "last_mark", "data": {"num_train": 64, "num_validation": 16, "num_test": 16},
    "model": {"num_hidden_layers": 2}, "sizing": {"by": "hidden", "value": 8},
    "training": {"steps": 2, "batch_size": 8},
    "arms": {"echo": {}, "stack": {"mixer": "hybrid", "model": {"layers": ["echo", "gru"]}}},
    "learning_rates": [0.001, 0.01], "seeds": {"search": [0], "final": [100]}, "profiles": {"cpu": {}},
}))
study = run_sweep(load_recipe(recipe, "cpu"), out / "sweep", workers=1, stack=2, progress=False)
assert not study.problems and all(not result.error and result.rows for result in study.results), study.results
assert len(study.results) == 6
assert "echo" in write_report(out / "sweep", out / "page").read_text()

suite = out / "own-1.yaml"
suite.write_text(json.dumps({
    "name": "own-1",
    "base": {"model": {"num_hidden_layers": 1}, "sizing": {"by": "hidden", "value": 8}, "learning_rates": [0.001],
        "training": {"steps": 2, "batch_size": 8}, "seeds": {"search": [0], "looks": [1]},
        "data": {"num_validation": 16, "num_test": 16}},
    "entries": {"mark": {"task": "last_mark", "solved": 0}, "parity": {"task": "bit_parity", "solved": 1}},
}))
profile = run("suite", str(suite), "--mixer", "echo", "--results", str(out / "suite"), "--workers", "1")
assert "1 of 1" in profile and (out / "suite" / "page" / "index.html").exists(), profile

stack = mixer_model(mixer_config("hybrid", layers=["echo", "gru"], vocab_size=3, hidden_size=8), "causal")
stack.save_pretrained(out / "stack")
ids = torch.tensor([[1, 0, 2, 0]])
found = {}
for name, model in (("run", load_for_task(out / "run", hf_memory.make_task("last_mark"))), ("stack", stack)):
    export_remote_code(model, out / name)
    found[name] = model.eval()(ids).logits.tolist()
(out / "logits.json").write_text(json.dumps(found))
"""

ALONE = """
import json, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

out = Path(sys.argv[1])
for name, auto in (("run", AutoModelForTokenClassification), ("stack", AutoModelForCausalLM)):
    model = auto.from_pretrained(out / name, trust_remote_code=True)
    logits = model.eval()(torch.tensor([[1, 0, 2, 0]])).logits
    torch.testing.assert_close(logits, torch.tensor(json.loads((out / "logits.json").read_text())[name]))
assert not any(name.split(".")[0] in ("hf_memory", "memory_plugin") for name in sys.modules)
"""


def install(folder: Path) -> None:
    """Leave the plugin in a folder as pip would: its package, and the entry points of its metadata."""
    (folder / "memory_plugin").symlink_to(PLUGIN / "memory_plugin")
    info = folder / "memory_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: memory-plugin\nVersion: 1.0\n")
    lines, table = [], ""
    for line in (PLUGIN / "pyproject.toml").read_text().splitlines():
        if line.startswith("["):
            table = line
            lines += [f"[{line.split(chr(34))[1]}]"] if "entry-points" in line else []
        elif "entry-points" in table and line:
            lines.append(line.replace('"', ""))
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def python(code: str, *arguments: str, path: list[Path], **variables: str) -> str:
    """Run code in a fresh interpreter that finds packages in some folders only."""
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"} | variables
    command = [sys.executable, "-P", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env, check=False, cwd=arguments[0])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_package_beside_this_one_goes_the_whole_road(tmp_path):
    site, out = tmp_path / "site", tmp_path / "out"
    for folder in (site, out):
        folder.mkdir()
    install(site)
    python(ROAD, str(out), path=[site, ROOT])
    blocked = "import sys; sys.modules.update(dict.fromkeys(['hf_memory', 'memory_plugin']))\n"
    alone = ALONE.replace("assert not any(", "assert not any(sys.modules[name] is not None and ")
    python(blocked + alone, str(out), path=[], HF_MODULES_CACHE=str(tmp_path / "modules"))


def test_pytest_runs_the_contracts_on_a_file_and_finds_a_law_that_does_not_hold(tmp_path):
    file = tmp_path / "leaky.py"
    file.write_text(LEAKY.replace('None if state is None else state["hidden"], lengths', "None, lengths"))
    words = ["-p", "hf_memory.testing.plugin", "--hf-memory", str(file), "-q", "-k", "steps_give or spectrum"]
    code = f"import sys, pytest; sys.exit(pytest.main({[*words, '-c', os.devnull]!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "leaky-test_single_steps_give_the_outputs_and_the_state_of_one_pass" in done.stdout
    assert "in the case dtype=torch.float32" in done.stdout


def test_a_file_is_included_by_the_command_line_and_by_all_processes_of_a_sweep(tmp_path, tables, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    file = tmp_path / "own.py"
    file.write_text(LEAKY.replace("Leaky", "Slow").replace("leaky", "slow"))
    include_everywhere([str(file)])
    assert os.environ[VARIABLE] == str(file)
    assert MIXERS["slow"] == "Slow"
    config = hf_memory.mixer_config("slow", vocab_size=5, hidden_size=8, slowest=2)
    model = hf_memory.mixer_model(config, "causal")
    assert type(model).__name__ == "MemorySlowForCausalLM" and type(model).__module__ == OUTSIDE["slow"]
    code = "import hf_memory; print(hf_memory.mixer_config('slow', vocab_size=5).model_type)"
    assert python(code, str(tmp_path), path=[ROOT]) == "memory_slow\n"
    assert include(file) == ["slow"]  # again, without a change


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "defines no mixer and no task"),
        ("raise RuntimeError('broken')", "failed: RuntimeError: broken"),
        ("def (", "failed: SyntaxError"),
        (LEAKY.replace('"memory_leaky"', '"memory_gru"'), "model_type of MemoryLeakyConfig"),
        (LEAKY.replace("Leaky", "GRU").replace("leaky", "gru"), "the key 'gru' is taken by hf_memory.mixers.gru"),
        (LEAKY.replace("class LeakyMixer", "class Leaky"), "mixer must be a subclass of Mixer, got None"),
    ],
)
def test_a_file_that_cannot_be_included_says_why(text, words, tmp_path, tables):
    file = tmp_path / "own.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        include(file)
    assert MIXERS.keys() == {key for key in MIXERS if key not in OUTSIDE}


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.py", ROOT / "README.md"):
        with pytest.raises(ValueError, match="is no Python file"):
            include(path)


def test_classes_of_the_wrong_kind_or_name_are_refused(tables):
    class MemoryOtherConfig(MemoryConfig):
        model_type = "memory_other"

    class Nameless(Mixer):
        pass

    with pytest.raises(ValueError, match="config must be a subclass of MemoryConfig"):
        register_mixer(Mixer, Nameless)
    with pytest.raises(ValueError, match="names must be Memory<Name>Config and <Name>Mixer, got MemoryOtherConfig and"):
        register_mixer(MemoryOtherConfig, Nameless)
    with pytest.raises(ValueError, match="task must be a subclass of Task"):
        register_task(Mixer)

    class Parity(BitParity):
        key = "Parity"

    for key, words in (("Parity", "a word in small letters"), ("mqar", "the key 'mqar' is taken by MQAR")):
        Parity.key = key
        with pytest.raises(ValueError, match=words):
            register_task(Parity)


def test_a_task_with_knobs_is_a_dataset(tables, tmp_path):
    class Parity(BitParity):
        """Parity under another name."""

        key = "own_parity"

    globals()["Parity"] = Parity
    Parity.__qualname__ = "Parity"
    register_task(Parity)
    keywords = {"length": 8, "num_train": 16, "num_validation": 4, "num_test": 4, "cache_dir": tmp_path}
    named = hf_memory.load_dataset("hf_memory/own_parity", modulus=3, **keywords)
    given = hf_memory.load_dataset(Parity(modulus=3), **keywords)
    assert given["train"][:] == named["train"][:]
    assert set(np.unique(given["train"]["labels"])) == {0, 1, 2}
    streamed = hf_memory.load_dataset(Parity(modulus=3), split="train", streaming=True, **keywords)
    assert [row["input_ids"] for _, row in zip(range(4), streamed, strict=False)] == given["train"][:4]["input_ids"]
    assert json.loads(json.dumps(hf_memory.make_task("own_parity", modulus=3).knobs()))["modulus"] == 3
