"""Rules for the shape of the package: each is a function from source text to a list of faults."""

import ast
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("hf_memory", "examples", "dataset_scripts", "benchmarks", "docs")

# Lowest first. A file may import from its own folder and from those below; folders side by side do not meet.
STOREYS = [
    "hf_memory.names hf_memory.storage hf_memory.ops",
    "hf_memory.models",
    "hf_memory.mixers | hf_memory.tasks",
    "hf_memory.extensions",
    "hf_memory.data",
    "hf_memory.experiments",
    "hf_memory.studies",
    "hf_memory.reports",
    "hf_memory.hub",
    "hf_memory.cli | hf_memory.testing",
    "hf_memory examples dataset_scripts benchmarks docs",
]
KERNEL_PACKAGES = {"fla", "kernels", "mamba_ssm", "selective_scan_cuda", "causal_conv1d", "numba", "triton"}
ACRONYMS = {
    "rnn",
    "lstm",
    "gru",
    "nru",
    "qlstm",
    "lru",
    "h3",
    "rwkv",
    "s4d",
    "ids4",
    "mqar",
    "kda",
    "gla",
    "hgrn2",
    "rwkv6",
    "rwkv7",
    "mlstm",
    "slstm",
    "rg",
}
TABLE_READERS = {"auto", "hybrid"}  # which alone name mixers, through the table
HEADS = ("Model", "ForCausalLM", "ForTokenClassification")
DISTRIBUTIONS = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
    "selective_scan_cuda": "mamba-ssm",
    "triton": "mamba-ssm",
    "docutils": "sphinx",
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
    """Tasks, metrics and storage that need more than numpy.

    Storage locks with ``filelock`` and asks ``psutil`` for processes; functions of metrics may reach for ``evaluate``.
    """
    allowed = {*sys.stdlib_module_names, "numpy", "hf_memory"}
    faults = []
    for module, text in files.items():
        if module in ("hf_memory.experiments.metrics", "hf_memory.storage") or module.startswith("hf_memory.tasks"):
            strangers = {target.partition(".")[0] for target in imports(text, set(files))} - allowed
            if module == "hf_memory.storage":
                strangers -= {"filelock", "psutil"}
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


def is_ignored(parts: tuple[str, ...], patterns: list[str]) -> bool:
    """Whether a file lies in a folder, or has a name, that matches a pattern."""
    return any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in patterns)
