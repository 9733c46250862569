"""What the package declares that it needs: nothing is missing, and both sets of releases that are tested meet it.

``constraints.txt`` holds the releases that the package is developed with, ``constraints-lowest.txt`` the oldest that it
accepts: every bound in ``pyproject.toml`` is run, and a bound that does not work is not declared.
"""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.rules import DISTRIBUTIONS, SOURCE_FOLDERS, imports, sources

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# What the tests need that run on the oldest releases; the rest of the extra `dev` are tools and other rooms.
NEEDED = {"pytest", "pytest-xdist", "pytest-timeout", "tensorboard", "einops", "mambapy"}


def requirements(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(need.name): need for need in map(Requirement, lines)}


def pins(name: str) -> dict[str, tuple[str, str]]:
    """Release and comment of each line of a file of constraints."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        pin, _, comment = line.partition("#")
        if "==" in pin:
            package, version = pin.split("==")
            found[canonicalize_name(package)] = version.strip(), comment.strip()
    return found


def lower_bound(need: Requirement) -> Version:
    (bound,) = [item.version for item in need.specifier if item.operator == ">="]
    return Version(bound)


def floor_faults(needs: dict[str, Requirement], lowest: dict[str, tuple[str, str]]) -> list[str]:
    """Declared bounds that the lowest set does not run, without a reason."""
    faults = [f"{name} is not in the set" for name in needs if name not in lowest]
    for name, need in needs.items():
        version, why = lowest.get(name, (str(lower_bound(need)), ""))
        if Version(version) < lower_bound(need) or (Version(version) > lower_bound(need) and not why):
            faults.append(f"{need} is run as {version}")
    return faults


def test_third_party_imports_are_declared():
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    declared = set(requirements(lines))
    files = sources(*SOURCE_FOLDERS)
    used = {target.partition(".")[0] for text in files.values() for target in imports(text, set(files))}
    foreign = used - set(sys.stdlib_module_names) - {"hf_memory", *SOURCE_FOLDERS}
    assert {name for name in foreign if DISTRIBUTIONS.get(name, name.replace("_", "-")) not in declared} == set()
    assert {"torch", "transformers", "datasets", "numpy"} <= foreign


def test_the_tested_set_meets_every_declared_bound():
    tested = pins("constraints.txt")
    needed = requirements([*PROJECT["dependencies"], *EXTRAS["cpu"], *EXTRAS["dev"], *EXTRAS["docs"]])
    assert [name for name in needed if name not in tested] == []
    assert [str(need) for name, need in needed.items() if not need.specifier.contains(tested[name][0])] == []


def test_every_lower_bound_is_in_the_lowest_set():
    needs = requirements([*PROJECT["dependencies"], *EXTRAS["cpu"]])
    tools = requirements(EXTRAS["dev"])
    assert floor_faults(needs | {name: tools[name] for name in NEEDED}, pins("constraints-lowest.txt")) == []


def test_a_bound_that_is_not_run_is_found():
    needs = requirements(["a>=1.0", "b>=2,<3", "c>=3"])
    good = {"a": ("1", ""), "b": ("2.5", "another floor asks for it"), "c": ("3.0.0", "")}
    assert floor_faults(needs, good) == []
    assert floor_faults(needs, {**good, "b": ("2.5", "")}) == ["b<3,>=2 is run as 2.5"]
    assert floor_faults(needs, {**good, "a": ("0.9", "why")}) == ["a>=1.0 is run as 0.9"]
    assert floor_faults(needs, {"a": good["a"], "b": good["b"]}) == ["c is not in the set"]


@pytest.mark.parametrize(("name", "needs"), [("dependencies", PROJECT["dependencies"]), ("docs", EXTRAS["docs"])])
def test_every_lower_bound_says_why(name, needs):
    lines = (ROOT / "pyproject.toml").read_text().partition(f"\n{name} = [")[2].partition("\n]\n")[0].splitlines()
    assert [line for line in lines if re.match(r'\s+"', line) and "# " not in line] == []
    assert len(lines) == len(needs) + 1


def test_files_that_collection_leaves_out_exist():
    """Paths in the options of pytest follow the package when it moves."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    makefile = (ROOT / "Makefile").read_text()
    named = [option.partition("=")[2] for option in options if option.startswith("--ignore")]
    ignored = re.search(r"LOWEST_IGNORED := ((?:.*\\\n)*.*)", makefile)
    named += [f"tests/{name}" for name in ignored[1].replace("\\", " ").split()]
    assert len(named) >= 8
    assert [path for path in named if not list(ROOT.glob(path))] == []
