"""What a user with the package does, run in a process of its own; each function returns what it saw."""

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

QUIET = {"disable_tqdm": True, "use_cpu": True, "per_device_train_batch_size": 8}
SMALL = "--data num_train=40 --data num_validation=8 --data num_test=8"

THEIRS = """\
license: mit
model-index:
- name: other
  results:
  - task:
      type: x
    dataset:
      name: theirs
      type: theirs
    metrics:
    - type: f1
      value: 0.5
"""


def publish() -> dict[str, Any]:
    """Everything in turn, since importing the packages takes longer than all of it."""
    import torch

    torch.set_num_threads(1)
    return {
        **push_a_run_and_update_its_card(),
        **push_other_weights_to_a_branch(),
        **push_while_training(),
        **push_datasets(),
        **push_results_and_evaluate(),
        **push_probes(),
        **push_through_interruptions(),
    }


def command(line: str) -> None:
    from hf_memory.cli.app import app

    app(line.split(), standalone_mode=False)


def control(faults: list[dict] | None = None) -> Any:
    """Tell the hub what shall go wrong, or ask what it has met since."""
    from huggingface_hub import constants

    data = None if faults is None else json.dumps(faults).encode()
    with urllib.request.urlopen(f"{constants.ENDPOINT}/control", data=data) as answer:
        return json.loads(answer.read())


def head(repo_id: str, revision: str | None = None, kind: str = "model") -> str:
    from huggingface_hub import HfApi

    return HfApi().repo_info(repo_id, repo_type=kind, revision=revision).sha


def times(folder: str) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()}


def push_a_run_and_update_its_card() -> dict[str, Any]:
    from huggingface_hub import HfApi

    from hf_memory.data.specification import specify
    from hf_memory.experiments.run import Experiment

    data = {"num_train": 40, "num_validation": 8, "num_test": 8, "test_lengths": [32, 48]}
    run = Experiment(specify("bit_parity", **data), "lru", {"hidden_size": 8}, {"max_steps": 2, **QUIET}, arm="lru")
    run.run("results", "runs/lru")
    before = times("runs/lru")
    command("push runs/lru --repo-id me/lru --results results")
    first = head("me/lru")
    card = Path(HfApi().hf_hub_download("me/lru", "README.md")).read_text()
    front, _, rest = card.partition("model-index:\n")
    card = (
        front.replace("license: apache-2.0\n", "") + THEIRS + rest.partition("results:\n")[2] + "\nWritten by hand.\n"
    )
    for name, text in {"README.md": card, ".eval_results/theirs.yaml": "- value: 1\n"}.items():
        HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo=name, repo_id="me/lru")
    command("push runs/lru --repo-id me/lru --results results")
    merged = head("me/lru")
    control([])
    command("push runs/lru --repo-id me/lru --results results")
    same = {"same": head("me/lru"), "same_log": control(), "untouched": before == times("runs/lru")}
    return {"first": first, "merged": merged, **same}


def push_other_weights_to_a_branch() -> dict[str, Any]:
    import torch

    import hf_memory
    from hf_memory.data.specification import specify
    from hf_memory.experiments.training import model_for_task

    torch.manual_seed(1)
    other = model_for_task("lru", specify("bit_parity").task, hidden_size=8)
    first = head("me/lru")
    commit = other.push_to_hub("me/lru", revision="v2", commit_message="Second", tags=["second"])

    def weights(**where: str) -> list:
        model = hf_memory.MemoryLRUForTokenClassification.from_pretrained("me/lru", **where)
        return model.state_dict()["model.embed_tokens.weight"].tolist()

    loaded = [weights(), weights(revision="v2"), weights(revision=first)]
    proposal = other.push_to_hub("me/lru", create_pr=True, token="hf_writer")
    proposed = {"proposal": proposal.pr_url, "unmoved": head("me/lru") == first}
    return {"branch": commit.oid, "weights": loaded, "other": other.model.embed_tokens.weight.tolist(), **proposed}


def push_while_training() -> dict[str, Any]:
    from hf_memory.data.builder import load_dataset
    from hf_memory.data.collator import MemoryCollator
    from hf_memory.data.specification import specify
    from hf_memory.data.tensors import TensorRows
    from hf_memory.data.tokenizers import task_tokenizer
    from hf_memory.experiments.training import MemoryTrainer, model_for_task, training_arguments

    task = specify("dyck").task
    rows = load_dataset("hf_memory/dyck", num_train=40, num_validation=8, num_test=8, test_lengths=[])
    pushing = {"push_to_hub": True, "hub_model_id": "me/dyck", "hub_strategy": "every_save"}
    arguments = training_arguments("runs/dyck", max_steps=2, save_strategy="steps", save_steps=1, **pushing, **QUIET)
    trainer = MemoryTrainer(
        model=model_for_task("gru", task, hidden_size=8),
        args=arguments,
        data_collator=MemoryCollator(),
        train_dataset=TensorRows(rows["train"]),
        processing_class=task_tokenizer(task),
    )
    trainer.train()
    trainer.push_to_hub(tags=["trained"])
    saved = model_for_task("based", specify("mqar").task, hidden_size=16)
    saved.save_pretrained("runs/based", push_to_hub=True, repo_id="me/based", token="hf_writer")
    return {"pickles": sorted(str(path) for path in Path("runs/dyck").rglob("*.pt"))}


def push_datasets() -> dict[str, Any]:
    for name in ("ns/mqar", "hf_memory/mqar"):
        command(f"data push mqar --repo-id {name} --config kv4_len64 {SMALL}")
    first = head("ns/mqar", kind="dataset")
    control([])
    command(f"data push mqar --repo-id ns/mqar --config kv4_len64 {SMALL}")
    log = control()
    command(f"data push mqar --repo-id ns/mqar --config kv4_len64 {SMALL.replace('40', '30')}")
    return {"data_first": first, "data_log": log}


def push_results_and_evaluate() -> dict[str, Any]:
    from hf_memory.experiments.results import read_rows
    from hf_memory.hub.datasets import load_results, recover_results

    command("push results --repo-id ns/results")
    command(f"evaluate me/lru --task bit_parity {SMALL} --data test_lengths=[32] --results evaluated")
    rows = {name: [[row.split, row.value()] for row in read_rows(name)] for name in ("results", "evaluated")}
    same = load_results("ns/results") == recover_results("ns/results", revision="main")[0] == read_rows("results")
    command("report ns/results --out published --revision main")
    command("push results --space me/leaderboard")
    control([])
    shutil.copytree("results", "all/of/results")
    command("push all --space me/leaderboard")
    again = control()
    return {"equal": same, "rows": rows, "space_log": again}


def push_probes() -> dict[str, Any]:
    """Rows of models that were not trained here: to a dataset and back, and on the page of all models."""
    from hf_memory.experiments.results import read_rows
    from hf_memory.hub.datasets import load_results
    from tests.experiments.probing.pieces import tiny, word_tokenizer

    for name in ("gpt2", "mamba"):
        tiny(name).save_pretrained(name)
        word_tokenizer().save_pretrained(name)
    asked = "--task mqar --lengths 16,32 --pairs 2 --vocabularies 2 --rows 2"
    command(f"probe gpt2 mamba {asked} --results probes")
    command("push probes --repo-id ns/probes")
    command("report ns/probes --out published_probes")
    command("push probes --space me/probes")
    rows = read_rows("probes")
    same = load_results("ns/probes") == rows
    return {"probes_equal": same, "probes": [[row.arm, row.split, row.value()] for row in rows]}


def push_through_interruptions() -> dict[str, Any]:
    """The connection is lost in the middle of a file, then at the commit; the second push has little left to do."""
    from huggingface_hub import HfApi

    from hf_memory.data.specification import specify
    from hf_memory.experiments.training import model_for_task
    from hf_memory.hub.checkpoints import push

    model = model_for_task("lstm", specify("bit_parity").task, hidden_size=64)
    fault = {"status": "drop", "times": 1}
    control([{"method": "PUT", "path": "/large/", **fault}, {"method": "POST", "path": "/commit/", **fault}])
    message = ""
    try:
        push(model, "me/interrupted")
    except ValueError as error:
        message = str(error)
    first = {"interrupted": message, "interrupted_log": control()}
    half = [item.rfilename for item in HfApi().model_info("me/interrupted").siblings]
    control([])
    push(model, "me/interrupted")
    whole = len(HfApi().model_info("me/interrupted").siblings)
    return {**first, "half": half, "resumed_log": control(), "whole": whole}


def push_a_study() -> dict[str, Any]:
    """A sweep of two arms, pushed twice, and one of its checkpoints loaded from the Hub."""
    import torch
    from transformers import AutoModelForTokenClassification

    import hf_memory.studies.sweep
    from hf_memory.studies.watched import checkpoint_path
    from tests.studies.sweep_examples import InlineWorkers, tiny_recipe

    hf_memory.studies.sweep.make_workers = lambda *args: InlineWorkers()
    claim = {"claim": "LSTM keeps it.", "left": {"arms": "lstm", "split": "test_12"}, "relation": ">=", "right": 0.7}
    recipe = tiny_recipe(learning_rates=[1e-3], expectations=[claim], title="Tiny parity", claim="It is kept.")
    study = hf_memory.studies.sweep.run_sweep(recipe, "sweeps/tiny/cpu", progress=False)
    command("push sweeps/tiny/cpu --repo-id me/tiny-study")
    control([])
    command("push sweeps/tiny/cpu --repo-id me/tiny-study")
    final = next(result for result in study.results if result.cell.stage == "final")
    local = AutoModelForTokenClassification.from_pretrained(checkpoint_path(Path("sweeps/tiny/cpu"), final.digest))
    remote = AutoModelForTokenClassification.from_pretrained("me/tiny-study", subfolder=f"checkpoints/{final.digest}")
    same = all(torch.equal(a, b) for a, b in zip(local.parameters(), remote.parameters(), strict=True))
    cells = {stage: [r.digest for r in study.results if r.cell.stage == stage] for stage in ("search", "final")}
    weights = final.rows["validation"].weights_sha256
    return {"study_cells": cells, "study_same": same, "study_weights": weights, "study_log": control()}
