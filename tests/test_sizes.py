"""No function is longer than 60 lines, and no module than 420."""

from tests.architecture.rules import ROOT, SOURCE_FOLDERS, module_name
from tests.architecture.sizes import MAX_FUNCTION, MAX_MODULE, size_faults


def _function(lines: int) -> str:
    return 'def outer():\n    """Return."""\n' + "    # a comment counts\n" * (lines - 3) + "    return 1\n"


def test_a_function_may_have_sixty_lines_with_its_docstring_and_no_more():
    assert size_faults({"fine": _function(MAX_FUNCTION)}) == []
    assert size_faults({"long": _function(MAX_FUNCTION + 1)}) == ["long: outer has 61 lines"]
    inner = "class A:\n" + "".join(f"    {line}\n" for line in _function(MAX_FUNCTION + 2).splitlines())
    assert size_faults({"long": inner}) == ["long: outer has 62 lines"]
    assert size_faults({"long": f"async {_function(MAX_FUNCTION + 1)}"}) == ["long: outer has 61 lines"]


def test_a_module_may_have_420_lines_and_no_more():
    assert size_faults({"fine": "\n" * MAX_MODULE}) == []
    assert size_faults({"long": "\n" * MAX_MODULE + "x = 1"}) == ["long has 421 lines"]


def test_no_file_holds_more():
    paths = [path for folder in (*SOURCE_FOLDERS, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert ROOT / "tests" / "test_sizes.py" in paths
    assert size_faults({module_name(path): path.read_text() for path in paths}) == []
