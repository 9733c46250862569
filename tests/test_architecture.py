"""The shape of the package: who imports whom, what things are called, and what no file may contain.

Every rule is a function from source text to a list of faults, and every rule is shown a bad sample first, so that a
rule that finds nothing anywhere would fail.
"""

import ast
import fnmatch
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_memory.mixers import MIXERS
from hf_memory.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
SOURCE_FOLDERS = ("hf_memory", "examples", "dataset_scripts", "benchmarks")

# Lowest first. A file may import from its own folder and from those below; folders side by side do not meet.
STOREYS = [
    "hf_memory.names hf_memory.storage hf_memory.ops",
    "hf_memory.models",
    "hf_memory.mixers | hf_memory.tasks",
    "hf_memory.data",
    "hf_memory.experiments",
    "hf_memory.studies",
    "hf_memory.reports",
    "hf_memory.hub",
    "hf_memory.cli",
    "hf_memory examples dataset_scripts benchmarks",
]
KERNEL_PACKAGES = {"fla", "mamba_ssm", "selective_scan_cuda", "causal_conv1d", "numba", "triton"}
ACRONYMS = {"rnn", "lstm", "gru", "nru", "qlstm", "lru", "h3", "rwkv", "s4d", "ids4", "mqar"}
TABLE_READERS = {"auto", "hybrid"}  # which alone name mixers, through the table
HEADS = ("Model", "ForCausalLM", "ForTokenClassification")
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
    "selective_scan_cuda": "mamba-ssm",
    "triton": "mamba-ssm",
}


def sources(*folders: str) -> dict[str, str]:
    """Dotted module name to text, of every Python file under the folders."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {module_name(path): path.read_text() for path in paths}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(text: str, known: set[str]) -> Iterator[str]:
    """The modules that a file imports, in functions too, and through ``import_module``.

    ``from package import name`` counts as ``package.name`` where that is one of the ``known`` modules.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__") and node.args:
            first = node.args[0]
            head = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(head, ast.Constant) and isinstance(head.value, str):
                yield head.value.rstrip(".")


def eager_imports(text: str) -> set[str]:
    """The modules that are imported when the file itself is."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [ast.Pass()]
    return set(imports(ast.unparse(tree), set()))


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def place(module: str) -> tuple[int, int] | None:
    """Storey of a module, counted from the ground, and its room there; None for a stranger."""
    best = max(
        (
            (len(prefix), level, room)
            for level, rooms in enumerate(STOREYS)
            for room, prefixes in enumerate(rooms.split("|"))
            for prefix in prefixes.split()
            if module == prefix or module.startswith(prefix + ".")
        ),
        default=None,
    )
    return None if best is None or (module.startswith("hf_memory.") and best[0] == len("hf_memory")) else best[1:]


def order_faults(files: dict[str, str]) -> list[str]:
    """Imports that go up or to the side, and modules that stand in no room."""
    faults = [f"{module} stands in no room" for module in files if place(module) is None]
    for module, text in files.items():
        for target in imports(text, set(files)):
            own, other = place(module), place(target)
            if own is not None and other is not None and other != own and other[0] >= own[0]:
                faults.append(f"{module} imports {target} from {'above' if other[0] > own[0] else 'beside'}")
    return faults


def circle_faults(files: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle, late imports counted."""
    arrows = {module: set(imports(text, set(files))) & set(files) - {module} for module, text in files.items()}
    while leaves := [module for module, targets in arrows.items() if not targets & arrows.keys()]:
        for module in leaves:
            del arrows[module]
    return [f"{module} is in a circle" for module in sorted(arrows)]


def sibling_faults(files: dict[str, str]) -> list[str]:
    """Mixers that import another mixer or the table of mixers; what two share stands in a file with an underscore."""
    return [
        f"{module} imports {target}"
        for module, text in files.items()
        if module.startswith("hf_memory.mixers.") and module.rpartition(".")[2] not in TABLE_READERS
        for target in imports(text, set(files))
        if target.startswith("hf_memory.mixers") and not target.startswith("hf_memory.mixers._")
    ]


def facade_faults(files: dict[str, str]) -> list[str]:
    """Names that the package imports from a place that only passes them on."""
    faults = []
    for module, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or not module.startswith("hf_memory"):
                continue
            if node.level:
                faults.append(f"{module}: relative import in line {node.lineno}")
            elif node.module in files:
                defined = definitions(files[node.module])
                faults += [
                    f"{module} imports {alias.name} from {node.module}, which does not define it"
                    for alias in node.names
                    if alias.name not in defined and f"{node.module}.{alias.name}" not in files
                ]
    return faults


def definitions(text: str) -> set[str]:
    """The names that a module's top level assigns, or defines as functions and classes."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(child.id for target in targets for child in ast.walk(target) if isinstance(child, ast.Name))
    return names


def numpy_only_faults(files: dict[str, str]) -> list[str]:
    """Tasks, metrics and storage that need more than numpy; functions of metrics may reach for ``evaluate``."""
    allowed = {*sys.stdlib_module_names, "numpy", "hf_memory"}
    faults = []
    for module, text in files.items():
        if module in ("hf_memory.experiments.metrics", "hf_memory.storage") or module.startswith("hf_memory.tasks"):
            strangers = {target.partition(".")[0] for target in imports(text, set(files))} - allowed
            if module == "hf_memory.experiments.metrics":
                strangers -= {"evaluate", "datasets"} - {target.partition(".")[0] for target in eager_imports(text)}
            faults += [f"{module} imports {name}" for name in sorted(strangers)]
    return faults


def kernel_faults(files: dict[str, str]) -> list[str]:
    """Packages of kernels that are imported elsewhere than behind the one door."""
    return [
        f"{module} imports {target}"
        for module, text in files.items()
        if module.startswith("hf_memory") and not module.startswith("hf_memory.ops.backends.")
        for target in imports(text, set(files))
        if target.partition(".")[0] in KERNEL_PACKAGES
    ]


def danger_faults(files: dict[str, str]) -> list[str]:
    """Calls that run code from data: pickles, ``torch.load``, ``eval``, and loading scripts."""
    faults = []
    for module, text in files.items():
        faults += [
            f"{module} imports {name}" for name in imports(text, set(files)) if name in ("pickle", "dill", "joblib")
        ]
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            strings = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if called in ("eval", "exec", "torch.load", "np.load", "numpy.load"):
                faults.append(f"{module}: {called} in line {node.lineno}")
            if called_name(node) == "load_dataset" and any(value.endswith(".py") for value in strings):
                faults.append(f"{module}: load_dataset of a script in line {node.lineno}")
    return faults


def stem(key: str) -> str:
    """The part of a class name that belongs to a key: words are capitalised, acronyms written in capitals."""
    return "".join(word.upper() if word in ACRONYMS else word.capitalize() for word in key.split("_"))


SPINE_NAMES = {
    *("labels", "lm_head", "embed_tokens", "tie_weights", "cross_entropy", "num_items_in_batch", "attention_mask"),
    *("residual", "_init_weights", "prepare_inputs_for_generation", "past_key_values", "token_loss"),
}


def leaf_faults(key: str, text: str) -> list[str]:
    """What a mixer's file has beside config, mixer and three short classes, or has of the spine's work."""
    tree = ast.parse(text)
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    heads = [f"Memory{stem(key)}{head}" for head in HEADS]
    wanted = [f"Memory{stem(key)}Config", f"{stem(key)}Mixer", *heads]
    faults = [f"{key} lacks {name}" for name in wanted if name not in classes]
    faults += [
        f"{key} has a second model {name}" for name in classes if name.startswith("Memory") and name not in wanted
    ]
    if [name for name in classes if name in wanted] != [name for name in wanted if name in classes]:
        faults.append(f"{key}: the order is config, mixer, models")
    for name in heads:
        if any(not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Pass)) for node in bodies.get(name, [])):
            faults.append(f"{key}: {name} defines behaviour")
    used = {
        getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
        for node in ast.walk(tree)
    }
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return faults + [f"{key} does the spine's work: {name}" for name in sorted(used & SPINE_NAMES)]


def text_faults(name: str, text: str) -> list[str]:
    """Addresses of package registries, and paths of one machine."""
    hosts = (
        "pypi" + ".org",
        "python" + "hosted",
        "download.py" + "torch",
        "conda.ana" + "conda",
        "--extra-" + "index",
        "--index" + "-url",
    )
    local = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/")
    return [f"{name} names {word}" for word in (*hosts, *local) if word in text]


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
    [("mixers", MIXERS, TABLE_READERS), ("tasks", TASKS, {"base", "groups", "heuristics"})],
)
def test_every_leaf_stands_in_its_table(folder, table, others):
    files = {path.stem for path in (ROOT / "hf_memory" / folder).glob("*.py") if not path.stem.startswith("_")}
    assert files - others == set(table)


def test_the_table_of_mixers_imports_nothing():
    assert list(imports((ROOT / "hf_memory" / "mixers" / "__init__.py").read_text(), set())) == []


def test_no_folder_shadows_a_dataset_name():
    assert [key for key in TASKS if (ROOT / "hf_memory" / key).exists()] == []


def test_third_party_imports_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in lines}
    files = sources(*SOURCE_FOLDERS)
    used = {target.partition(".")[0] for text in files.values() for target in imports(text, set(files))}
    foreign = used - set(sys.stdlib_module_names) - {"hf_memory", *SOURCE_FOLDERS}
    assert {name for name in foreign if DISTRIBUTIONS.get(name, name.replace("_", "-")) not in declared} == set()
    assert {"torch", "transformers", "datasets", "numpy"} <= foreign


def test_the_tested_set_meets_every_declared_bound():
    requirements = importlib.import_module("packaging.requirements")
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line)
    tested = {name.lower().replace("_", "-"): version for name, version in tested.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [requirements.Requirement(line) for line in [*project["dependencies"], *extras["cpu"], *extras["dev"]]]
    versions = {need: tested.get(need.name.lower().replace("_", "-")) for need in needed}
    assert [need.name for need, version in versions.items() if version is None] == []
    assert [str(need) for need, version in versions.items() if version and not need.specifier.contains(version)] == []


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


def is_ignored(parts: tuple[str, ...], patterns: list[str]) -> bool:
    """Whether a file lies in a folder, or has a name, that matches a pattern."""
    return any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in patterns)
