"""Pushes and loads that cannot succeed, run in a process of its own; each leaves its message."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hub.publishing import control


def refuse() -> dict[str, Any]:
    """Message of each refusal by name, and whether the repository and the local files are as before."""
    import torch

    from hf_memory.data.specification import specify
    from hf_memory.experiments.training import model_for_task
    from hf_memory.hub.checkpoints import push

    torch.set_num_threads(1)
    model = model_for_task("gru", specify("bit_parity").task, hidden_size=8)
    model.save_pretrained("good")
    before = {path.name: path.read_bytes() for path in Path("good").iterdir()}
    push("good", "me/there")
    make_bad_checkpoints()
    messages = {**checkpoint_messages(), **hub_messages(), **loading_messages()}
    untouched = before == {path.name: path.read_bytes() for path in Path("good").iterdir()}
    push("pickle", "me/insisted", allow_pickle=True)
    return {"messages": messages, "untouched": untouched}


def message(action: Callable[[], Any]) -> str:
    """The message of a ``ValueError``; an empty one where nothing was refused."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def make_bad_checkpoints() -> None:
    """Copies of the good checkpoint, each with one fault."""
    import torch
    from safetensors.torch import load_file, save_file

    for name in ("unknown", "missing", "excess", "no_head", "pickle", "nothing", "no_class"):
        shutil.copytree("good", name)
    weights = load_file("good/model.safetensors")
    kept = {name: value for name, value in weights.items() if name != "model.norm.weight"}
    headless = {name: value for name, value in weights.items() if not name.startswith("score.")}
    for name, tensors in {
        "missing": kept,
        "excess": {**weights, "model.extra": torch.ones(2)},
        "no_head": headless,
    }.items():
        save_file(tensors, f"{name}/model.safetensors", metadata={"format": "pt"})
    for name in ("pickle", "nothing"):
        Path(name, "model.safetensors").unlink()
    torch.save(weights, "pickle/pytorch_model.bin")
    for name, change in {"unknown": {"model_type": "memory_grv"}, "no_class": {"architectures": ["Stranger"]}}.items():
        config = json.loads(Path(name, "config.json").read_text())
        Path(name, "config.json").write_text(json.dumps({**config, **change}))


def checkpoint_messages() -> dict[str, str]:
    """Checkpoints that are refused before the Hub is asked for anything."""
    from hf_memory.hub.checkpoints import push

    control([])
    names = ("unknown", "missing", "excess", "no_head", "pickle", "nothing", "no_class", "nowhere")
    found = {name: message(lambda name=name: push(name, "me/bad")) for name in names}
    found["task"] = message(lambda: push("good", "me/bad", task="bit_party"))
    found["name"] = message(lambda: push("good", "me/no good"))
    return {**found, "requests": ", ".join(control())}


def hub_messages() -> dict[str, str]:
    """What the Hub refuses."""
    from huggingface_hub import HfApi

    from hf_memory.hub.checkpoints import push
    from hf_memory.hub.datasets import push_dataset, push_results

    found = {name: message(lambda token=token: push("good", "me/bad", token=token)) for name, token in
             {"no_token": False, "reader": "hf_reader", "bad_token": "hf_bad"}.items()}  # fmt: skip
    found["namespace"] = message(lambda: push("good", "stranger/bad"))
    HfApi().create_repo("me/data", repo_type="dataset")
    found["model_to_dataset"] = message(lambda: push("good", "me/data"))
    small = {"num_train": 8, "num_validation": 2, "num_test": 2, "test_lengths": []}
    found["dataset_to_model"] = message(lambda: push_dataset("bit_parity", "me/there", **small))
    Path("empty").mkdir()
    found["no_rows"] = message(lambda: push_results("empty", "me/rows"))
    Path("good/model.safetensors").touch()
    for status in (403, 409, 412, 500):
        control([{"method": "POST", "path": "/commit/", "status": status}])
        found[str(status)] = message(lambda: push("good", "me/there", tags=["changed"]))
    control([{"method": "HEAD", "path": "README.md", "status": 500, "times": 9}])
    found["card_unread"] = message(lambda: push("good", "me/there", tags=["changed"]))
    control([])
    return found


def loading_messages() -> dict[str, str]:
    """Repositories and revisions that are not there, and weights that are not whole."""
    from huggingface_hub import HfApi

    from hf_memory import MemoryGRUForTokenClassification
    from hf_memory.hub.client import local_checkpoint
    from hf_memory.hub.datasets import load_results

    HfApi().create_repo("me/broken")
    HfApi().upload_folder(repo_id="me/broken", folder_path="missing")
    return {
        "no_repository": message(lambda: local_checkpoint("me/nowhere")),
        "no_revision": message(lambda: local_checkpoint("me/there", revision="v9")),
        "other_type": message(lambda: load_results("me/there")),
        "no_rows_there": message(lambda: load_results("me/data")),
        "load_missing": message(lambda: MemoryGRUForTokenClassification.from_pretrained("me/broken")),
    }
