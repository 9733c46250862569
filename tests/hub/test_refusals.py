"""Bad input to a push or a load: the message says what is wrong, and nothing has changed."""

import re

import pytest

from tests.hub.clients import environment, run
from tests.hub.store import Hub

MESSAGES = {
    "unknown": r"unknown/config.json has the unknown model_type 'memory_grv' \(known: memory_rnn, ",
    "missing": r"missing keys: model\.norm\.weight",
    "excess": r"unexpected keys: model\.extra",
    "no_head": r"missing keys: score\.bias, score\.weight",
    "pickle": r"its weights are a pickle \(pytorch_model\.bin\), which can run code when it is read",
    "nothing": r"nothing has no safetensors; it holds no weights",
    "no_class": r"architectures in no_class/config\.json must name one of MemoryGRUModel, .*, got 'Stranger'",
    "nowhere": r"there is no folder 'nowhere'",
    "task": r"unknown task: 'bit_party'; did you mean 'bit_parity'",
    "name": r"repo_id must be <namespace>/<name> on the Hub, got 'me/no good'",
    "no_token": r"me/bad: no valid token; log in with `hf auth login`, or set HF_TOKEN",
    "bad_token": r"me/bad: no valid token",
    "reader": r"me/bad: the token has no permission to write to me",
    "namespace": r"stranger/bad: the token has no permission to write to stranger",
    "model_to_dataset": r"me/data is a dataset repository; choose another name for the model",
    "dataset_to_model": r"me/there is a model repository; choose another name for the dataset",
    "no_rows": r"'empty' holds no file <cell>\.jsonl",
    "403": r"me/there: the token has no permission to write to me",
    "409": r"me/there: somebody else is changing it; run the same again",
    "412": r"me/there: somebody else has changed it meanwhile",
    "500": r"me/there: the Hub answered with status 500; nothing was committed; run the same again",
    "card_unread": r"me/there: the Hub answered with status 500; nothing was committed",
    "no_repository": r"me/nowhere: there is no such repository, or it is private",
    "no_revision": r"me/there has no branch, tag or commit 'v9'",
    "other_type": r"me/there: there is no such repository, or it is private; check its name and type",
    "no_rows_there": r"me/data: not found",
    "load_missing": r"me/broken: for \w+ the checkpoint has missing keys: model\.norm\.weight",
}


@pytest.fixture(scope="module")
def refused(hub: tuple[str, Hub], tmp_path_factory: pytest.TempPathFactory) -> dict:
    root = tmp_path_factory.mktemp("refused")
    code = "from tests.hub.refusing import refuse\nfound = refuse()"
    return run(code, environment(root / "home", hub[0]), root, package=True)


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_says_what_is_wrong(refused: dict, name: str) -> None:
    assert re.search(MESSAGES[name], refused["messages"][name]), refused["messages"][name]


def test_a_bad_checkpoint_is_found_before_the_hub_is_asked(refused: dict) -> None:
    assert refused["messages"]["requests"] == ""


def test_nothing_is_left_behind(hub: tuple[str, Hub], refused: dict) -> None:
    assert refused["untouched"]
    repos = hub[1].repos
    assert set(repos) == {("model", f"me/{name}") for name in ("there", "broken", "insisted")} | {
        ("dataset", "me/data")
    }
    assert [commit.title for commit in repos["model", "me/there"].commits.values()] == [
        "initial commit",
        "Upload MemoryGRUForTokenClassification",
    ]


def test_a_pickle_that_is_insisted_on_becomes_safetensors(hub: tuple[str, Hub], refused: dict) -> None:
    files = hub[1].repos["model", "me/insisted"].at("main").files
    assert "model.safetensors" in files
    assert [path for path in files if path.endswith(".bin")] == []
