"""Recipes on disk: YAML, with the overrides of each profile under ``profiles``.

The profile ``smoke`` exists for every recipe: a few steps of each arm, which takes seconds and proves nothing.
"""

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_memory.experiments.schema import Fields, Maybe, Plain
from hf_memory.names import by_number, check_names, nearest
from hf_memory.studies.recipe_schema import PROFILES, check_overrides, check_values
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.registration import check_readable, measures_of

_LONGEST, _DEEPEST, _LARGEST = 1_000_000, 20, 50_000
"""Bytes of a file, levels of its values, and their number with all aliases written out."""

_SMOKE = {"num_train": 64, "num_validation": 32, "num_test": 32}


def shipped_files(kind: str) -> dict[str, Path]:
    """The ``recipes`` or ``suites`` that come with the package, by name.

    They lie within it once it is installed, and beside it in its sources.
    """
    root = Path(__file__).resolve().parents[2]
    folders = (root / place / kind for place in ("hf_memory", "examples"))
    folder = next((folder for folder in folders if folder.is_dir()), root)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: by_number(path.name))}


def find_file(name: str | os.PathLike[str], kind: str) -> Path:
    """The file of that path where there is one, else the one of that name among the ``kind`` of the package.

    Raises:
        ValueError: There is neither; the nearest name is suggested.
    """
    path, shipped = Path(name), shipped_files(kind)
    if path.is_file():
        return path
    if str(name) in shipped:
        return shipped[str(name)]
    near = nearest(path.stem, shipped)
    hint = f"; did you mean {near!r}?" if near else ""
    known = ", ".join(map(repr, shipped))
    raise ValueError(f"{kind.removesuffix('s')}: {str(name)!r} is no file and no name{hint} (known: {known})")


def load_recipe(path: str | os.PathLike[str], profile: str = "cpu") -> Recipe:
    """Read a recipe in one of its profiles.

    Raises:
        ValueError: If the file is not YAML, lacks the profile, or holds what :class:`Recipe` refuses; it is named.
    """
    values = read_mapping(path)
    try:
        _check_file(values)
        known = list(values.get("arms") or {})
        axes = _axis_values(values)
        recipe = Recipe.from_json(in_profile(values, profile))
        _check_named(recipe, [*known, *recipe.arms], axes)
        check_readable(recipe)
        return recipe
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys and values of a YAML file. Raises a ``ValueError`` that names the file where it holds none."""
    try:
        values = _numbers(parse(_read(path)))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, got {type(values).__name__}")
    return values


def _read(path: str | os.PathLike[str]) -> str:
    """The text of a file of a bounded size, whatever the locale. Pipes are refused, which might never end."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    with open(path, "rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST:,} bytes")
    return content.decode("utf-8-sig")


def parse(text: str) -> Any:
    """Values of a YAML document, whose depth and size with all aliases written out are bounded.

    Raises:
        ValueError: It is too deep or too large, refers to itself, or has a key twice.
        yaml.YAMLError: It is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"line {event.start_mark.line + 1}: it is deeper than {_DEEPEST} levels")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > _LARGEST:
            raise ValueError(f"it holds more than {_LARGEST:,} values with its aliases written out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Values of a node with all aliases written out; each node is counted once."""
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError(f"line {node.start_mark.line + 1}: it refers to itself")
        return known[id(node)]
    known[id(node)] = 0
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    seen: set[str] = set()
    for key, _ in pairs:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"line {key.start_mark.line + 1}: keys must be texts")
        if key.value in seen:
            raise ValueError(f"line {key.start_mark.line + 1}: the key {key.value!r} is given twice")
        seen.add(key.value)
    within = [value for _, value in pairs] if pairs else node.value if isinstance(node, yaml.SequenceNode) else []
    known[id(node)] = 1 + sum(_count(item, known) for item in within)
    return known[id(node)]


def _check_file(values: dict[str, Any]) -> None:
    """Check the values of all profiles, also those that are not read."""
    check_values({key: value for key, value in values.items() if key not in ("profiles", "profile")})
    if "profile" in values:
        raise ValueError("unknown key of a recipe: 'profile'; did you mean 'profiles'")
    Maybe(Fields(dict.fromkeys(PROFILES, Plain(_DEEPEST)))).check(values.get("profiles"), "profiles")
    for name, own in (values.get("profiles") or {}).items():
        check_overrides(own, name)


def in_profile(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """The keys of a file with those of one profile over them."""
    profiles = values.pop("profiles", None) or {}
    check_names([profile], PROFILES, "profile")
    if profile not in profiles and profile != "smoke":
        known = ", ".join(["smoke", *(name for name in profiles if name != "smoke")])
        raise ValueError(f"profile: {profile!r} is not one of this recipe's ({known}); add it below `profiles:`")
    base = "cpu" if "cpu" in profiles else next(iter(profiles), None)
    chosen = merge(values, profiles.get(base if profile == "smoke" else profile) or {})
    if profile == "smoke":
        chosen = merge(_smoke(chosen), profiles.get("smoke") or {})
    return {**chosen, "profile": profile}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides laid over values, mapping by mapping; a list of names over a mapping keeps these of its keys.

    A ``grid`` takes the place of the other one as a whole.

    >>> merge({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 5}, "b": 4})
    {'a': {'x': 1, 'y': 5}, 'b': 4}
    >>> merge({"arms": {"lstm": {}, "gru": {}}}, {"arms": ["gru"]})
    {'arms': {'gru': {}}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "grid":
            merged[key] = merge(old, value)
        elif isinstance(old, Mapping) and isinstance(value, list):
            check_names(value, old, f"entry of {key}")
            merged[key] = {name: old[name] for name in value}
        else:
            merged[key] = value
    return merged


def _smoke(values: dict[str, Any]) -> dict[str, Any]:
    """A few steps of every arm at one rate and one value of every axis but ``config``, where rates are searched."""
    grid, search_on = {}, values.get("search_on") or {}
    for axis, choices in (values.get("grid") or {}).items():
        searched = [one for one in choices if axis in search_on and one == search_on[axis]]
        grid[axis] = choices if axis == "config" else [*searched, *choices][:1]
    arms = {
        name: {**(arm or {}), "training": {**((arm or {}).get("training") or {}), "steps": 3}}
        for name, arm in (values.get("arms") or {}).items()
    }
    rate = values.get("fixed_learning_rate") or (values.get("learning_rates") or [1e-3])[0]
    seeds = values.get("seeds") or {}
    after = {"looks": [1]} if seeds.get("looks") else {"final": (seeds.get("final") or [])[:1]}
    training = {**(values.get("training") or {}), "steps": 3, "batch_size": 8}
    return {
        **values,
        "grid": grid,
        "arms": arms,
        "training": training,
        "learning_rates": [rate],
        "extend": None,
        "runs_of": None,
        "data": {**(values.get("data") or {}), **_SMOKE},
        "seeds": {"search": (seeds.get("search") or [0])[:1], **after, "rows": seeds.get("rows", "shared")},
        "evaluate": {
            **(values.get("evaluate") or {}),
            "points": min(2, (values.get("evaluate") or {}).get("points", 0)),
            **({"every": 2} if (values.get("evaluate") or {}).get("every") else {}),
        },
    }


def _numbers(value: Any) -> Any:
    """Values as JSON has them: YAML 1.1 reads ``1e-3``, which has no point, as text, and dates as objects."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value)
    return float(value) if is_number else value


def _axis_values(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """All values of each axis of the grid in any profile."""
    found: dict[str, list[Any]] = {}
    for grid in [values.get("grid"), *((own or {}).get("grid") for own in (values.get("profiles") or {}).values())]:
        for axis, choices in (grid or {}).items():
            found.setdefault(axis, []).extend(choices if isinstance(choices, list) else [])
    return found


def _check_named(recipe: Recipe, known: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raise where a name is no arm, or a value on no axis, of any profile; what this one leaves out is not decided."""
    for claim, measure in measures_of(recipe):
        check_names(measure.arms, known, f"arm in {claim!r}")
        for axis, value in measure.at.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                check_names([str(one)], list(map(str, axes.get(axis, []))), f"{axis} of at in {claim!r}")
