"""What is pushed with the package is whole, and loads in a process without it."""

import csv
import io
import json

import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard

from hf_memory.hub.merging import open_card
from tests.hub.clients import environment, run
from tests.hub.store import Hub


@pytest.fixture(scope="module")
def published(hub: tuple[str, Hub], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the publisher saw; the repositories stay on the server."""
    root = tmp_path_factory.mktemp("publisher")
    code = "from tests.hub.publishing import publish\nfound = publish()"
    return run(code, environment(root / "home", hub[0]), root, package=True)


@pytest.fixture(scope="module")
def loaded(hub: tuple[str, Hub], published: dict, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a process without the package saw, with empty caches."""
    root = tmp_path_factory.mktemp("clean")
    code = f"from tests.hub.loading import load\nfound = load({published['data_first']!r})"
    return run(code, environment(root / "home", hub[0]), root, package=False)


@pytest.fixture(scope="module")
def pushed_study(hub: tuple[str, Hub], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the publisher of a study saw."""
    root = tmp_path_factory.mktemp("study")
    code = "from tests.hub.publishing import push_a_study\nfound = push_a_study()"
    return run(code, environment(root / "home", hub[0]), root, package=True)


def files(hub: tuple[str, Hub], kind: str, name: str, revision: str = "main") -> dict[str, bytes]:
    commit = hub[1].repos[kind, name].at(revision)
    assert commit is not None
    return commit.files


def test_a_checkpoint_carries_weights_settings_tokenizer_code_card_and_figure(
    hub: tuple[str, Hub], published: dict
) -> None:
    assert set(files(hub, "model", "me/lru", published["first"])) == {
        *(".gitattributes", "README.md", "config.json", "model.safetensors", "training_args.json"),
        *("hf_memory_run.json", "tokenizer.json", "tokenizer_config.json"),
        *("models_cache.py", "models_configuration.py", "models_heads.py", "models_layers.py", "models_modeling.py"),
        *("models_inputs.py", "models_padding.py", "mixers_lru.py", "ops_backends_dispatch.py", "ops_diagonal_scan.py"),
        *("models_generation.py", "models_groups.py", "models_stepwise.py", "models_values.py", "ops__graph.py"),
        *("ops__recorded.py", "ops_linear_cross_entropy.py", "ops_rms_norm.py", "ops_short_convolution.py"),
        "figures/hf_memory/bit_parity_at_32_token_accuracy.png",
    }
    assert published["untouched"]


def test_no_pickle_is_ever_pushed(hub: tuple[str, Hub], published: dict) -> None:
    assert published["pickles"] != []  # the optimiser's state, which stays local
    every = {path for repo in hub[1].repos.values() for commit in repo.commits.values() for path in commit.files}
    assert [path for path in every if path.endswith((".bin", ".pt", ".pth", ".pkl"))] == []
    assert "training_args.json" in files(hub, "model", "me/dyck")


def test_the_card_shows_the_rows_and_parses(hub: tuple[str, Hub], published: dict) -> None:
    text = files(hub, "model", "me/lru", published["first"])["README.md"].decode()
    rows = dict(published["rows"]["results"])
    card = ModelCard(text)
    index = {(result.dataset_split, result.metric_type): result for result in card.data.eval_results}
    assert index["test_48", "token_accuracy"].metric_value == rows["test_48"]
    assert index["test_48", "token_accuracy"].dataset_config == "iid_32"
    assert f"| lru | {rows['test_32']:.3f} | {rows['test_48']:.3f} |" in text
    assert "hf-memory train --mixer lru --task bit_parity --config iid_32" in text
    assert "null" not in text.split("---")[1]


def test_updating_a_card_keeps_what_others_wrote(hub: tuple[str, Hub], published: dict) -> None:
    now = files(hub, "model", "me/lru", published["merged"])
    card = ModelCard(now["README.md"].decode())
    assert card.data.license == "mit"
    metrics = [(result.dataset_type, result.metric_type) for result in card.data.eval_results]
    assert metrics.count(("theirs", "f1")) == 1
    assert len(metrics) == len({(result.dataset_split, result.metric_type) for result in card.data.eval_results})
    assert card.text.count("hf_memory: begin") == 1
    assert card.text.rstrip().endswith("Written by hand.")
    assert now[".eval_results/theirs.yaml"] == b"- value: 1\n"


def test_pushing_the_same_again_commits_nothing(published: dict) -> None:
    assert published["same"] == published["merged"]
    assert [line for line in published["same_log"] if line.startswith("PUT") or "/commit/" in line] == []


def test_a_branch_has_its_own_weights_and_no_results_of_others(hub: tuple[str, Hub], published: dict) -> None:
    main, branch, first = published["weights"]
    assert branch == published["other"] != main == first
    assert hub[1].repos["model", "me/lru"].branches["v2"] == published["branch"]
    there = files(hub, "model", "me/lru", "v2")
    card = ModelCard(there["README.md"].decode())
    assert "Recall and extrapolation" not in card.text and "Written by hand." in card.text
    assert [result.metric_type for result in card.data.eval_results] == ["f1"]
    assert "second" in card.data.tags
    assert [path for path in there if path.startswith("figures/")] == []


def test_a_proposal_leaves_the_main_branch(hub: tuple[str, Hub], published: dict) -> None:
    assert published["proposal"].endswith("me/lru/discussions/1")
    assert published["unmoved"]
    assert "refs/pr/1" in hub[1].repos["model", "me/lru"].branches


def test_a_trainer_pushes_while_it_trains_and_at_the_end(hub: tuple[str, Hub], published: dict) -> None:
    titles = [commit.title for commit in hub[1].repos["model", "me/dyck"].commits.values()]
    assert titles[1:3] == ["Training in progress, step 1", "Training in progress, step 2"]
    assert titles[-1] == "End of training"
    names = files(hub, "model", "me/dyck")
    assert {"mixers_gru.py", "tokenizer.json", "model.safetensors", "README.md"} <= set(names)
    assert "trained" in ModelCard(names["README.md"].decode()).data.tags
    assert "mixers_based.py" in files(hub, "model", "me/based")


def test_a_dataset_has_parquet_a_card_a_benchmark_file_and_a_tag(hub: tuple[str, Hub], published: dict) -> None:
    repo = hub[1].repos["dataset", "ns/mqar"]
    names = files(hub, "dataset", "ns/mqar", published["data_first"])
    assert repo.tags["1.0.0"] == published["data_first"]
    assert "kv4_len64/train-00000-of-00001.parquet" in names
    assert pq.read_table(io.BytesIO(names["kv4_len64/train-00000-of-00001.parquet"])).num_rows == 40
    benchmark = yaml.safe_load(names["eval.yaml"])
    assert benchmark["evaluation_framework"] == "hf_memory"
    assert benchmark["tasks"][0] == {"id": "kv4_len64_test_64", "config": "kv4_len64", "split": "test_64"}


def test_pushing_the_same_data_again_uploads_nothing(published: dict) -> None:
    assert [line for line in published["data_log"] if line.startswith("PUT") or "/commit/" in line] == []


def test_results_are_read_back_by_repository(hub: tuple[str, Hub], published: dict) -> None:
    assert published["equal"]
    names = files(hub, "dataset", "ns/results")
    assert {"rows.parquet", "cells.parquet", "README.md"} <= set(names)
    cells = pq.read_table(io.BytesIO(names["cells.parquet"])).to_pylist()
    assert [json.loads(cell["definition"])["mixer"] for cell in cells] == ["lru"]


def test_results_say_what_they_are_for_whom(hub: tuple[str, Hub], published: dict) -> None:
    data = DatasetCard(files(hub, "dataset", "ns/results")["README.md"].decode()).data
    assert (data.license, data.size_categories) == ("apache-2.0", ["n<1K"])
    assert data.task_categories == ["token-classification"]


def test_results_become_a_page(hub: tuple[str, Hub], published: dict) -> None:
    found = files(hub, "space", "me/leaderboard")
    card = open_card(found["README.md"].decode()).data
    assert (card["sdk"], card["app_file"], card["license"]) == ("static", "index.html", "apache-2.0")
    assert b'id="leaderboard"' in found["index.html"]
    assert found["leaderboard.csv"].startswith(b"model,value,at length,task,")
    # What has not changed is neither sent nor committed again.
    assert not [line for line in published["space_log"] if line.startswith("PUT")]
    assert [commit.title for commit in hub[1].repos["space", "me/leaderboard"].commits.values()] == [
        "initial commit", "Page of 3 rows of 1 runs",
    ]  # fmt: skip


def test_probes_are_read_back_and_stand_on_the_page_of_all_models(hub: tuple[str, Hub], published: dict) -> None:
    assert published["probes_equal"]
    assert {arm for arm, *_ in published["probes"]} == {"gpt2", "mamba"}
    lines = list(csv.DictReader(files(hub, "space", "me/probes")["leaderboard.csv"].decode().splitlines()))
    assert [(line["model"], line["task"], line["at length"]) for line in lines] == [
        (name, "mqar", "32") for name in sorted(("gpt2", "mamba"), key=lambda name: -found(published, name))
    ]
    # Keys and values of 2 layers of width 32; 64 channels of 4 + 8 numbers in each of 2 layers.
    assert {line["model"]: line["state bytes"] for line in lines} == {"gpt2": "16,384", "mamba": "6,144"}
    assert {line["model"]: float(line["value"]) for line in lines} == {
        name: pytest.approx(found(published, name), abs=5e-4) for name in ("gpt2", "mamba")
    }
    assert b"counterfactual recall" in files(hub, "space", "me/probes")["index.html"]


def found(published: dict, name: str) -> float:
    """A probed model's value at the longest length."""
    return next(value for arm, split, value in published["probes"] if (arm, split) == (name, "test_32"))


def test_a_checkpoint_on_the_hub_is_evaluated(published: dict) -> None:
    rows = dict(published["rows"]["results"])
    assert dict(published["rows"]["evaluated"]) == {"validation": rows["validation"], "test_32": rows["test_32"]}


def test_an_interrupted_push_leaves_the_branch_and_resumes(published: dict) -> None:
    assert published["interrupted"].startswith("me/interrupted: the connection to the Hub was lost")
    assert "nothing was committed; run the same again" in published["interrupted"]
    assert published["half"] == [".gitattributes"]
    sent = [line for line in published["interrupted_log"] if line.startswith("PUT")]
    assert sum("dropped" in line for line in sent) == 1
    # Some versions of the client send a dropped file again by themselves; what has arrived is never sent twice.
    arrived = {line for line in sent if line.endswith(" 200")}
    missing = {line.split()[1] for line in sent} - {line.split()[1] for line in arrived}
    again = [line for line in published["resumed_log"] if line.startswith("PUT")]
    assert sorted(line.split()[1] for line in again) == sorted(missing)
    assert published["whole"] > 12


def test_a_clean_process_loads_models_and_datasets(loaded: dict) -> None:
    assert loaded["types"] == ["MemoryLRUModel", "MemoryLRUForTokenClassification", "MemoryBasedForCausalLM"]
    splits = dict.fromkeys(("validation", "test_64", "test_128", "test_256", "test_128_kv8", "test_256_kv16"), 8)
    assert loaded["sizes"]["ns/mqar"] == {"train": 30, **splits}
    assert loaded["sizes"]["hf_memory/mqar"] == {"train": 40, **splits}
    assert loaded["pinned"] == 40


def test_a_pipeline_reads_brackets(loaded: dict) -> None:
    assert [word for word, _ in loaded["dyck"]] == ["(", "[", "]", ")"]
    assert {label for _, label in loaded["dyck"]} <= {"0", "1"}


def test_a_clean_process_generates_and_pushes_with_the_code(hub: tuple[str, Hub], loaded: dict) -> None:
    assert loaded["generated"] == [1, 5]
    assert loaded["again"]
    assert {"mixers_based.py", "models_modeling.py"} <= set(files(hub, "model", "me/again"))


def test_a_study_is_one_repository_with_recipe_rows_page_cards_and_checkpoints(
    hub: tuple[str, Hub], pushed_study: dict
) -> None:
    held = files(hub, "model", "me/tiny-study")
    search, final = (pushed_study["study_cells"][stage] for stage in ("search", "final"))
    assert {name for name in held if "/" not in name} == {".gitattributes", "README.md", "recipe.yaml", "rows.parquet"}
    assert {name for name in held if name.startswith("results/")} == {
        "results/tiny.cpu.sweep.json", *(f"results/{cell}.jsonl" for cell in (*search, *final)),
    }  # fmt: skip
    assert {name.split("/")[1] for name in held if name.startswith("checkpoints/")} == set(final)
    assert {name.rsplit("/")[-1] for name in held if name.startswith(f"checkpoints/{final[0]}/")} == {
        *("README.md", "config.json", "model.safetensors", "hf_memory_run.json", "bit_parity_at_8_token_accuracy.png"),
    }
    assert {"report/index.html", "report/tiny-verdicts-cpu.png"} <= set(held)
    assert yaml.safe_load(held["recipe.yaml"])["arms"]["lstm"]["mixer"] == "lstm"
    assert pq.read_table(io.BytesIO(held["rows.parquet"])).num_rows == 3 * 4
    assert pushed_study["study_same"]
    assert [line for line in pushed_study["study_log"] if line.startswith("PUT") or "/commit/" in line] == []


def test_the_cards_of_a_study_tell_its_claims_and_how_a_checkpoint_is_loaded(
    hub: tuple[str, Hub], pushed_study: dict
) -> None:
    held, cell = files(hub, "model", "me/tiny-study"), pushed_study["study_cells"]["final"][0]
    card = ModelCard(held["README.md"].decode())
    assert card.data.datasets == ["hf_memory/bit_parity"]
    assert {"study", "lstm", "gru"} <= set(card.data.tags)
    assert "LSTM keeps it." in card.text
    assert "Claim: It is kept." in card.text
    assert f'from_pretrained("me/tiny-study", subfolder="checkpoints/{cell}")' in card.text
    own = held[f"checkpoints/{cell}/README.md"].decode()
    assert pushed_study["study_weights"] in own
    assert f'subfolder="checkpoints/{cell}"' in own
    assert "trust_remote_code" not in own
