"""The section of the README on sharing, executed as it is printed, against the Hub on loopback."""

import pytest

from tests.hub.clients import ROOT, environment, run
from tests.hub.store import Hub
from tests.snippets import codes, section

README = ROOT / "README.md"

COMMANDS = """
import shlex
import torch
from hf_memory.cli.app import app
torch.set_num_threads(1)
for line in {lines!r}:
    words = shlex.split(line)
    if words[0] != "hf-memory":
        raise ValueError(line)
    app(words[1:], standalone_mode=False)
    found[line] = True
"""


def blocks(language: str) -> list[str]:
    """Code of one language in the section, in order."""
    return codes(section(README.read_text(), "Share"), language)


@pytest.fixture(scope="module")
def shared(hub: tuple[str, Hub], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the commands, the snippet without and the snippet with the package leave behind."""
    root = tmp_path_factory.mktemp("readme")
    env = environment(root / "home", hub[0])
    (commands,), (without, with_package) = blocks("bash"), blocks("python")
    done = run(COMMANDS.format(lines=commands.splitlines()), env, root, package=True)
    seen = "\nfound = {'model': type(model).__name__, 'rows': len(rows['train']), 'words': len(closed('( [ ] )'))}"
    clean = run(without + seen, environment(root / "clean", hub[0]), root, package=False)
    back = run(f"{with_package}\nfound = [type(model).__module__, len(rows)]", env, root, package=True)
    return {"commands": list(done), "clean": clean, "back": back}


def test_every_command_runs(hub: tuple[str, Hub], shared: dict) -> None:
    assert shared["commands"] == blocks("bash")[0].splitlines()
    assert set(hub[1].repos) == {
        ("model", "me/lstm-dyck"),
        ("dataset", "me/mqar"),
        ("dataset", "me/memory-results"),
    }
    card = hub[1].repos["model", "me/lstm-dyck"].at("main").files["README.md"].decode()
    assert "## Recall and extrapolation" in card


def test_the_snippet_runs_without_the_package(shared: dict) -> None:
    assert shared["clean"]["model"] == "MemoryLSTMForTokenClassification"
    assert shared["clean"]["rows"] == 2000


def test_the_snippet_runs_with_the_package(hub: tuple[str, Hub], shared: dict) -> None:
    module, rows = shared["back"]
    assert module == "hf_memory.mixers.lstm"
    assert rows > 2
    assert "second-try" in hub[1].repos["model", "me/lstm-dyck"].branches
