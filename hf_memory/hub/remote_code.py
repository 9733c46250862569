"""A model's own code as flat files beside its weights, so that it loads where this package is not installed.

transformers copies one level of files that import each other relatively. So a module ``hf_memory.ops.delta_rule``
becomes the file ``ops_delta_rule.py``, and an import of it ``from .ops_delta_rule import ...``. What is exported is
what the model's module imports, directly or not. Kernels are reached through the table ``KERNELS`` of
``ops/backends/dispatch.py`` and by nothing else; the exported table is empty, and every operation runs in torch.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_memory.experiments.code import PACKAGE, collect, homes
from hf_memory.mixers import MIXERS, OUTSIDE, mixer_module
from hf_memory.mixers.auto import BASES, HEADS
from hf_memory.mixers.hybrid import MemoryHybridConfig
from hf_memory.models.modeling import MemoryModel
from hf_memory.storage import write_text

DISPATCH = f"{PACKAGE}.ops.backends.dispatch"
REQUIREMENTS = frozenset({"huggingface_hub", "numpy", "packaging", "torch", "transformers"})
"""Packages that exported code may import: those that transformers itself needs."""

AUTO_CLASSES = {
    "AutoModel": HEADS["base"],
    "AutoModelForCausalLM": HEADS["causal"],
    "AutoModelForTokenClassification": HEADS["token_classification"],
}
"""Auto class to the suffix of the model class that it loads."""

_HEADER = f"# Part of {PACKAGE} (Apache-2.0), exported so that the model beside it loads without the package.\n"

Edit = tuple[int, int, str]


def export_remote_code(model: PreTrainedModel, folder: str | Path) -> list[Path]:
    """Write the code of a model into a folder, and name it in the ``auto_map`` of the config there.

    Args:
        model: A model of the package, with any head; the code holds the base model and both heads.
        folder: Folder of the checkpoint. Where it has no ``config.json``, the model's is written.

    Returns:
        The files of code. Afterwards ``AutoConfig``, ``AutoModel``, ``AutoModelForCausalLM`` and
        ``AutoModelForTokenClassification`` load the folder with ``trust_remote_code=True``. The exported classes are
        registered for these, so that saving them again keeps the code.

    Raises:
        ValueError: The model is not of the package, or its code needs what remote code must not require.
    """
    leaf = type(model).__module__
    if not leaf.startswith(f"{PACKAGE}.") and leaf not in OUTSIDE.values():
        raise ValueError(f"model must be of {PACKAGE} or registered with it, got {type(model).__name__} of {leaf}")
    mixers = _mixers_of(model)
    leaves = [leaf, *(mixer_module(key).__name__ for key in mixers)]
    bases = [base.__module__ for base in BASES] if set(leaves) & set(OUTSIDE.values()) else []
    sources = collect([*leaves, *bases])
    texts = {module: rewrite(module, text, sources) for module, text in sources.items()}
    if DISPATCH in texts:
        texts[DISPATCH] = replace_value(texts[DISPATCH], "KERNELS", {})
    if f"{PACKAGE}.mixers" in texts:
        table = {key: MIXERS[key] for key in mixers}
        texts[f"{PACKAGE}.mixers"] = replace_value(texts[f"{PACKAGE}.mixers"], "MIXERS", table)
        texts[f"{PACKAGE}.mixers"] = replace_value(texts[f"{PACKAGE}.mixers"], "OUTSIDE", {})
    for module in texts.keys() & set(OUTSIDE.values()):
        texts[module] += _declarations(module, texts[module])
    stem = type(model.config).__name__.removesuffix("Config")
    texts[leaf] += _registration(stem, mixers)
    folder = Path(folder)
    files = [write_text(folder / f"{flat_name(module)}.py", _HEADER + text) for module, text in sorted(texts.items())]
    _set_auto_map(model, folder, flat_name(leaf), stem)
    return files


def flat_name(module: str) -> str:
    """Name of the file of a module, without its ending: ``hf_memory.ops.gru`` is ``ops_gru``.

    A mixer of another package gets the name that it would have here.
    """
    keys = [key for key, outside in OUTSIDE.items() if outside == module]
    return f"mixers_{keys[0]}" if keys else module.removeprefix(f"{PACKAGE}.").replace(".", "_")


def rewrite(module: str, text: str, exported: Iterable[str]) -> str:
    """Make a module's imports from the package relative and flat.

    Args:
        module: Name of the module.
        text: Its source.
        exported: The modules that are exported with it.

    Raises:
        ValueError: It imports a package that is none of :data:`REQUIREMENTS`, or the package in another way than
            ``from hf_memory.module import name`` or ``from hf_memory import name``.
    """
    exported, edits = set(exported), []
    tree = ast.parse(text)
    offsets = _line_offsets(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (found := homes(module, node)).keys() <= exported:
            start, end = _span(node, offsets)
            edits.append((start, end, _flat_import(node, found, text.encode()[start:end].decode())))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            _check_foreign(module, node)
        elif isinstance(node, ast.Call) and _is_import_module(node):
            edits.extend(_rewrite_call(node.args[0], text, offsets))
    return _apply(text, edits)


def _flat_import(node: ast.ImportFrom, found: Mapping[str, list[ast.alias]], statement: str) -> str:
    """An import from exported modules as one from the files beside; its names stay as they are written."""
    (first, *others) = found
    if not others and first == node.module:
        return re.sub(r"^from\s+[\w.]+\s+import", f"from .{flat_name(first)} import", statement)
    parts = [ast.ImportFrom(flat_name(home), names, level=1) for home, names in found.items()]
    return "; ".join(ast.unparse(part) for part in parts)


def replace_value(text: str, name: str, value: Any) -> str:
    """Replace what a module assigns to a name on its top level by a literal.

    Raises:
        ValueError: The module assigns nothing to that name.
    """
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets) and node.value is not None:
            start, end = _span(node.value, _line_offsets(text))
            return _apply(text, [(start, end, repr(value))])
    raise ValueError(f"{name} must be assigned on the top level of the exported module")


def _mixers_of(model: PreTrainedModel) -> list[str]:
    """Keys of the mixers that a hybrid stack resolves by name; none for the other models, which import theirs."""
    config = model.config
    if not isinstance(config, MemoryHybridConfig):
        return []
    return sorted({config.layer_config(layer).model_type.removeprefix("memory_") for layer in config.layers})


def _registration(stem: str, mixers: Iterable[str]) -> str:
    """Lines at the end of a model's module: the mixers that it finds by name, and the auto classes of its classes."""
    lines = [f"from .mixers_{key} import {MIXERS[key]}Mixer  # so that transformers copies its file" for key in mixers]
    lines += [f'{stem}Config.register_for_auto_class("AutoConfig")']
    lines += [f'{stem}{suffix}.register_for_auto_class("{auto}")' for auto, suffix in AUTO_CLASSES.items()]
    return "\n\n" + "\n".join(lines) + "\n"


def _declarations(module: str, text: str) -> str:
    """The classes that registration added to a module of another package, as source."""
    key = next(key for key, outside in OUTSIDE.items() if outside == module)
    stem, defined = MIXERS[key], {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    added = []
    for base, suffix in BASES.items():
        if f"Memory{stem}{suffix}" not in defined:
            part = f"mixer_class = {stem}Mixer" if base is MemoryModel else f"model_class = Memory{stem}Model"
            added += [
                f"from .{flat_name(base.__module__)} import {base.__name__}\n",
                f"class Memory{stem}{suffix}({base.__name__}):\n    config_class = Memory{stem}Config\n    {part}\n",
            ]
    return "".join(f"\n\n{part}" for part in added)


def _set_auto_map(model: PreTrainedModel, folder: Path, leaf: str, stem: str) -> None:
    path = folder / "config.json"
    if not path.exists():
        model.config.save_pretrained(folder)
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": f"{leaf}.{stem}Config"}
    config["auto_map"] |= {auto: f"{leaf}.{stem}{suffix}" for auto, suffix in AUTO_CLASSES.items()}
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def _check_foreign(module: str, node: ast.Import | ast.ImportFrom) -> None:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
    for name in names:
        package = name.partition(".")[0]
        if package not in REQUIREMENTS and package not in sys.stdlib_module_names:
            allowed = ", ".join(sorted(REQUIREMENTS))
            raise ValueError(f"{module} imports {name}, which remote code must not require (allowed: {allowed})")


def _is_import_module(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "import_module" and len(call.args) == 1


def _rewrite_call(argument: ast.expr, text: str, offsets: list[int]) -> Iterator[Edit]:
    """Turn ``import_module(f"hf_memory.mixers.{key}")`` into ``import_module(f".mixers_{key}", __package__)``."""
    head = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
    if isinstance(head, ast.Constant) and isinstance(head.value, str) and head.value.startswith(f"{PACKAGE}."):
        start, end = _span(argument, offsets)
        literal = text.encode()[start:end].decode()
        yield start, end, literal.replace(head.value, f".{flat_name(head.value)}", 1) + ", __package__"


def _line_offsets(text: str) -> list[int]:
    """Where each line begins, in bytes of UTF-8, in which the positions of a syntax tree count."""
    offsets = [0]
    for line in text.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets


def _span(node: ast.stmt | ast.expr, offsets: list[int]) -> tuple[int, int]:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return offsets[node.lineno - 1] + node.col_offset, offsets[end_line - 1] + end_column


def _apply(text: str, edits: Iterable[Edit]) -> str:
    content = text.encode()
    for start, end, new in sorted(edits, reverse=True):
        content = content[:start] + new.encode() + content[end:]
    return content.decode()
