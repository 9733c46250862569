"""The shape of the package: who imports whom, what things are called, and what no file may contain.

The rules stand in ``tests/architecture/rules.py``. Each is shown a bad sample first, so that a rule that finds nothing
anywhere would fail.
"""

import importlib
import re

import pytest

from hf_memory.mixers import MIXERS
from hf_memory.tasks import TASKS
from tests.architecture.rules import (
    HEADS,
    ROOT,
    SOURCE_FOLDERS,
    TABLE_READERS,
    circle_faults,
    danger_faults,
    eager_imports,
    facade_faults,
    is_ignored,
    kernel_faults,
    leaf_faults,
    numpy_only_faults,
    order_faults,
    place,
    sibling_faults,
    sources,
    stem,
    text_faults,
)

GOOD = {
    "hf_memory": "",
    "hf_memory.ops": "",
    "hf_memory.ops.scan": "def scan(): ...",
    "hf_memory.mixers": "MIXERS = {}",
    "hf_memory.mixers.lru": "from hf_memory.ops.scan import scan\nfrom hf_memory.models.modeling import Mixer",
    "hf_memory.models.modeling": "import torch\nclass Mixer: ...\nimport hf_memory.ops.scan",
    "hf_memory.tasks": "import importlib\nimportlib.import_module(f'hf_memory.tasks.{key}')",
    "hf_memory.tasks.dyck": "import numpy as np\nclass Dyck: ...",
    "hf_memory.experiments.metrics": "import numpy\ndef wrap():\n    import evaluate",
    "hf_memory.ops.backends.scan": "importlib.import_module('numba')",
}
BAD = [
    (order_faults, "hf_memory.models.modeling", "from hf_memory.mixers.lru import LRUMixer"),
    (order_faults, "hf_memory.models.modeling", "from hf_memory import mixers"),
    (order_faults, "hf_memory.models.modeling", "def late():\n    import hf_memory.tasks.dyck"),
    (order_faults, "hf_memory.models.modeling", "import importlib\nimportlib.import_module(f'hf_memory.mixers.{key}')"),
    (order_faults, "hf_memory.tasks.dyck", "from hf_memory.mixers.lru import LRUMixer"),
    (order_faults, "hf_memory.tasks.dyck", "import hf_memory"),
    (order_faults, "hf_memory.newcomer", ""),
    (order_faults, "hf_memory.ops.backends.scan", "def late():\n    from hf_memory.hub.results import rows"),
    (sibling_faults, "hf_memory.mixers.s4d", "from hf_memory.mixers.lru import LRUMixer"),
    (sibling_faults, "hf_memory.mixers.s4d", "from hf_memory.mixers import MIXERS"),
    (facade_faults, "hf_memory.mixers.s4d", "from hf_memory.ops import chunked"),
    (facade_faults, "hf_memory.mixers.s4d", "from ..ops.scan import scan"),
    (numpy_only_faults, "hf_memory.tasks.dyck", "def late():\n    import torch"),
    (numpy_only_faults, "hf_memory.experiments.metrics", "import evaluate"),
    (numpy_only_faults, "hf_memory.experiments.metrics", "def late():\n    import torch"),
    (kernel_faults, "hf_memory.mixers.s4d", "def late():\n    import fla.ops"),
    (kernel_faults, "hf_memory.ops.scan", "import importlib\nimportlib.import_module('numba')"),
    (danger_faults, "hf_memory.hub.checkpoints", "import pickle"),
    (danger_faults, "hf_memory.hub.checkpoints", "torch.load('weights.bin')"),
    (danger_faults, "hf_memory.hub.checkpoints", "eval(text)"),
    (danger_faults, "hf_memory.hub.checkpoints", "datasets.load_dataset('dataset_scripts/mqar.py')"),
]
RULES = [order_faults, circle_faults, sibling_faults, facade_faults, numpy_only_faults, kernel_faults, danger_faults]
GOOD_LEAF = """
class MemoryLRUConfig(MemoryConfig): ...
class LRUMixer(Mixer):
    def forward(self, hidden_states, state=None): ...
class MemoryLRUModel(MemoryModel):
    config_class = MemoryLRUConfig
class MemoryLRUForCausalLM(MemoryForCausalLM): ...
class MemoryLRUForTokenClassification(MemoryForTokenClassification): ...
"""


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_passes_what_keeps_to_it(rule):
    assert rule(GOOD) == []


@pytest.mark.parametrize(("rule", "module", "text"), BAD)
def test_a_rule_finds_what_breaks_it(rule, module, text):
    faults = rule({**GOOD, module: text})
    assert len(faults) == 1
    assert faults[0].startswith(module)


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    assert rule(sources(*SOURCE_FOLDERS)) == []


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (GOOD_LEAF.replace("class LRUMixer", "class LruMixer"), "lru lacks LRUMixer"),
        (GOOD_LEAF + "class MemoryLRUForMasking(MemoryModel): ...", "lru has a second model MemoryLRUForMasking"),
        (
            GOOD_LEAF.replace("    config_class = MemoryLRUConfig", "    def forward(self): ..."),
            "lru: MemoryLRUModel defines",
        ),
        (GOOD_LEAF.replace("state=None", "labels=None"), "lru does the spine's work: labels"),
        ("class LRUMixer(Mixer): ...\n" + GOOD_LEAF.replace("class LRUMixer", "class Other"), "lru: the order is"),
    ],
)
def test_the_rule_for_mixers_finds_what_breaks_it(bad, fault):
    assert leaf_faults("lru", GOOD_LEAF) == []
    faults = leaf_faults("lru", bad)
    assert len(faults) == 1
    assert faults[0].startswith(fault)


@pytest.mark.parametrize("key", MIXERS)
def test_a_mixer_file_holds_config_mixer_and_three_short_classes(key):
    assert leaf_faults(key, (ROOT / "hf_memory" / "mixers" / f"{key}.py").read_text()) == []


def test_stems_follow_the_formula():
    keys = ["delta_net", "lru", "base_conv", "h3", "updating_mqar", "bit_parity", "s4d"]
    assert [stem(key) for key in keys] == ["DeltaNet", "LRU", "BaseConv", "H3", "UpdatingMQAR", "BitParity", "S4D"]


@pytest.mark.parametrize("key", [*MIXERS, "hybrid"])
def test_names_of_a_mixer_follow_from_its_key(key):
    module = importlib.import_module(f"hf_memory.mixers.{key}")
    config_class = getattr(module, f"Memory{stem(key)}Config")
    assert config_class.model_type == f"memory_{key}"
    for head in HEADS:
        assert getattr(module, f"Memory{stem(key)}{head}").config_class is config_class
    assert key == "hybrid" or MIXERS[key] == stem(key)


@pytest.mark.parametrize("key", TASKS)
def test_names_of_a_task_follow_from_its_key(key):
    assert TASKS[key] == stem(key)
    task_class = getattr(importlib.import_module(f"hf_memory.tasks.{key}"), stem(key))
    assert task_class.__module__ == f"hf_memory.tasks.{key}"
    assert (ROOT / "dataset_scripts" / f"{key}.py").is_file()


@pytest.mark.parametrize(
    ("folder", "table", "others"),
    [("mixers", MIXERS, TABLE_READERS), ("tasks", TASKS, {"bags", "base", "groups", "heuristics"})],
)
def test_every_leaf_stands_in_its_table(folder, table, others):
    files = {path.stem for path in (ROOT / "hf_memory" / folder).glob("*.py") if not path.stem.startswith("_")}
    assert files - others == set(table)


def test_the_table_of_mixers_imports_nothing_until_a_mixer_is_asked_for():
    text = (ROOT / "hf_memory" / "mixers" / "__init__.py").read_text()
    assert eager_imports(text) == {"importlib", "types"}


def test_no_folder_shadows_a_dataset_name():
    assert [key for key in TASKS if (ROOT / "hf_memory" / key).exists()] == []


def test_no_file_names_a_registry_or_a_machine():
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split() if not line.startswith("#")]
    suffixes = {".py", ".toml", ".txt", ".md", ".yaml", ".yml", ".html", ".jinja", ""}
    files = [
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and path.suffix in suffixes
        and not is_ignored(path.relative_to(ROOT).parts, [".git", *ignored])
    ]
    assert {ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "README.md"} <= set(files)
    assert text_faults("sample", "pip install --extra-" + "index-url x") != []
    assert [fault for path in files for fault in text_faults(path.name, path.read_text(errors="ignore"))] == []


def test_the_map_of_contributing_shows_the_rooms_in_their_order():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = re.findall(r"`hf_memory/(\w+)(?:/|\.py)`", text[text.index("## The rooms") : text.index("| a line that")])
    here = [path for path in (ROOT / "hf_memory").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    assert set(rooms) == {path.stem for path in here} - {"__init__"}
    levels = [place(f"hf_memory.{room}")[0] for room in rooms]
    assert levels == sorted(levels, reverse=True)


def test_where_a_line_lives_names_rooms_and_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("| a line that") : text.index("## Add a mixer")]
    places = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    named = [name for cell in places for name in re.findall(r"`([\w/]+(?:\.py)?/?)`", cell)]
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / "hf_memory" / name).exists()] == []


def test_the_root_holds_rooms_and_four_files():
    files = {path.name for path in (ROOT / "hf_memory").iterdir() if path.is_file()}
    assert files == {"__init__.py", "extensions.py", "names.py", "storage.py", "py.typed"}
    folders = {path.name for path in (ROOT / "hf_memory").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {
        *("ops", "models", "mixers", "tasks", "data", "experiments", "studies", "reports", "hub", "cli", "testing"),
    }
