"""A model's own code: what is exported, how it is rewritten, and that it loads where the package is refused."""

import ast
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_memory.experiments.code import collect
from hf_memory.hub.remote_code import REQUIREMENTS, export_remote_code, flat_name, replace_value, rewrite
from hf_memory.mixers.auto import mixer_config, mixer_model, model_keys
from hf_memory.ops.backends.dispatch import use_backend
from hf_memory.testing.models import VOCAB, close, make, tokens
from tests.hub.clients import environment, run

HEADS = ("causal", "token_classification", "base")
AUTO = {
    "causal": "AutoModelForCausalLM",
    "token_classification": "AutoModelForTokenClassification",
    "base": "AutoModel",
}

LOAD_ALL = """
import importlib.util, pathlib, torch, transformers
from safetensors.torch import load_file
assert importlib.util.find_spec("hf_memory") is None
torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
root = pathlib.Path("models")
for folder in sorted(root.iterdir()):
    auto = getattr(transformers, (folder / "auto.txt").read_text())
    reference = load_file(folder / "reference.st")
    again = pathlib.Path("again") / folder.name
    names = []
    for place in (folder, again):
        model = auto.from_pretrained(place, trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules."), type(model)
        with torch.no_grad():
            outputs = model(reference["input_ids"], use_cache=True)
        values = outputs[0] if "logits" not in outputs else outputs.logits
        names.append([type(model).__name__, float((values - reference["values"]).abs().max())])
        if place == folder:
            model.save_pretrained(again)
            auto_map = transformers.AutoConfig.from_pretrained(again, trust_remote_code=True).auto_map
    other = transformers.AutoModelForCausalLM.from_config(model.config, trust_remote_code=True)
    files = [sorted(path.name for path in place.glob("*.py")) for place in (folder, again)]
    found[folder.name] = {"models": names, "auto_map": sorted(auto_map), "files": files, "other": type(other).__name__}
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a process without the package finds in the exports of all model types, each with one of the heads."""
    root = tmp_path_factory.mktemp("remote")
    for index, key in enumerate(model_keys()):
        head = HEADS[index % len(HEADS)]
        model, folder = make(key, head), root / "models" / key
        model.save_pretrained(folder)
        export_remote_code(model, folder)
        ids = tokens()
        with torch.no_grad(), use_backend("torch"):  # on which an export runs
            outputs = model(ids)
        values = outputs.last_hidden_state if head == "base" else outputs.logits
        write_reference(folder / "reference.st", ids, values)
        (folder / "auto.txt").write_text(AUTO[head])
    return run(LOAD_ALL, environment(root / "home"), root, package=False)


def write_reference(path: Path, ids: torch.Tensor, values: torch.Tensor) -> None:
    from safetensors.torch import save_file

    save_file({"input_ids": ids, "values": values.contiguous()}, path)


@pytest.mark.parametrize("key", model_keys())
def test_code_loads_saves_and_loads_again_without_the_package(loaded: dict, key: str) -> None:
    found, name = loaded[key], type(make(key, HEADS[model_keys().index(key) % len(HEADS)])).__name__
    assert [entry[0] for entry in found["models"]] == [name, name]
    assert max(entry[1] for entry in found["models"]) <= 1e-6
    assert found["files"][0] == found["files"][1] != []
    assert found["auto_map"] == ["AutoConfig", *sorted(AUTO.values())]
    assert found["other"].endswith("ForCausalLM")


def test_every_exported_file_is_flat_and_needs_what_transformers_needs_alone(tmp_path: Path) -> None:
    for key in ("rwkv", "hybrid"):
        files = export_remote_code(make(key), tmp_path / key)
        names = {path.stem for path in files}
        for path in files:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level:
                    assert node.level == 1 and node.module in names
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
                    assert not {name.split(".")[0] for name in named} & {"hf_memory", "numba", "triton", "fla"}


def test_private_helpers_are_exported_where_they_are_needed_and_kernels_never(tmp_path: Path) -> None:
    export_remote_code(make("lru"), tmp_path)
    names = {path.name for path in tmp_path.glob("*.py")}
    assert names == {
        *("models_cache.py", "models_configuration.py", "models_heads.py", "models_layers.py", "models_modeling.py"),
        *(
            "models_generation.py",
            "models_groups.py",
            "models_stepwise.py",
            "models_inputs.py",
            "models_padding.py",
            "mixers_lru.py",
            "ops_backends_dispatch.py",
            "ops_diagonal_scan.py",
        ),
        *("models_values.py", "ops__graph.py", "ops__recorded.py", "ops_linear_cross_entropy.py", "ops_rms_norm.py"),
        "ops_short_convolution.py",
    }
    namespace: dict = {}
    lines = (tmp_path / "ops_backends_dispatch.py").read_text().splitlines()
    table = next(line for line in lines if line.startswith("KERNELS"))
    exec(table, namespace)  # noqa: S102
    assert namespace["KERNELS"] == {}
    assert "hf_memory.ops._ids4_loop" in collect(["hf_memory.mixers.ids4"])


def test_a_hybrid_carries_the_mixers_of_its_layers_and_no_others(tmp_path: Path) -> None:
    layers = ["gru", {"mixer": "attention", "num_heads": 2}, "gru"]
    model = mixer_model(mixer_config("hybrid", vocab_size=VOCAB, hidden_size=16, layers=layers))
    export_remote_code(model, tmp_path)
    assert sorted(path.stem for path in tmp_path.glob("mixers*")) == [
        *("mixers", "mixers__cells", "mixers__columns", "mixers_attention", "mixers_gru", "mixers_hybrid")
    ]
    assert "MIXERS: dict[str, str] = {'attention': 'Attention', 'gru': 'GRU'}" in (tmp_path / "mixers.py").read_text()


def test_the_config_names_the_code_and_keeps_its_fields(tmp_path: Path) -> None:
    model = make("gru", "token_classification")
    export_remote_code(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoConfig": "mixers_gru.MemoryGRUConfig",
        "AutoModel": "mixers_gru.MemoryGRUModel",
        "AutoModelForCausalLM": "mixers_gru.MemoryGRUForCausalLM",
        "AutoModelForTokenClassification": "mixers_gru.MemoryGRUForTokenClassification",
    }
    assert getattr(model.config, "auto_map", None) is None
    # With the package imported, its own class reads the folder, and nobody is asked to trust anything.
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)


def test_rewriting_keeps_every_other_character() -> None:
    text = (
        '"""Uses α; from hf_memory.ops.gru import gru stays."""\n'
        "from hf_memory.ops.gru import (  # why\n    gru,\n    gru_spectrum,\n)\n"
        "def late(key):\n    from hf_memory.models.layers import State\n"
        '    return importlib.import_module(f"hf_memory.mixers.{key}")\n'
    )
    exported = ["hf_memory.ops.gru", "hf_memory.models.layers"]
    assert rewrite("hf_memory.x", text, exported) == (
        '"""Uses α; from hf_memory.ops.gru import gru stays."""\n'
        "from .ops_gru import (  # why\n    gru,\n    gru_spectrum,\n)\n"
        "def late(key):\n    from .models_layers import State\n"
        '    return importlib.import_module(f".mixers_{key}", __package__)\n'
    )
    assert flat_name("hf_memory.ops.backends.dispatch") == "ops_backends_dispatch"


@pytest.mark.parametrize(
    "line", ["import numba", "from fla.ops import scan", "import hf_memory.ops", "from .a import b"]
)
def test_code_that_needs_more_is_refused(line: str) -> None:
    assert "numba" not in REQUIREMENTS
    with pytest.raises(ValueError, match=r"hf_memory\.x imports .*, which remote code must not require"):
        rewrite("hf_memory.x", f"def late():\n    {line}\n", [])


def test_values_are_replaced_on_the_top_level_alone() -> None:
    text = "def f():\n    TABLE = 1\nTABLE: dict = {\n    'a': 1,\n}  # kept\nlast = TABLE\n"
    assert replace_value(text, "TABLE", {}) == "def f():\n    TABLE = 1\nTABLE: dict = {}  # kept\nlast = TABLE\n"
    with pytest.raises(ValueError, match="OTHER must be assigned"):
        replace_value(text, "OTHER", {})


def test_models_of_other_packages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model must be of hf_memory or registered with it, got Linear"):
        export_remote_code(torch.nn.Linear(1, 1), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_operators_of_a_copy_beside_a_checkpoint_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = make("gru")
    model.save_pretrained(tmp_path / "model")
    export_remote_code(model, tmp_path / "model")
    copy = get_class_from_dynamic_module("mixers_gru.MemoryGRUForCausalLM", str(tmp_path / "model"))
    theirs = copy.from_pretrained(tmp_path / "model").eval()
    ids = tokens()
    for own in (model, theirs):
        close(
            torch.compile(own, backend="aot_eager", fullgraph=True)(ids, use_cache=False).logits,
            model(ids).logits,
            1e-6,
        )
