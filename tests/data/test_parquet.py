"""Parquet folders, their cards, their upload, and the scripts that make editions."""

import runpy
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard

from hf_memory.data import folders, parquet
from hf_memory.data.cards import split_statistics
from hf_memory.data.parquet import config_names, export
from hf_memory.data.specification import specify
from hf_memory.hub.editions import Edition, run_edition
from hf_memory.tasks import TASKS, task_class

SMALL = {"num_train": 90, "num_validation": 20, "num_test": 20}
SCRIPTS = Path(__file__).parents[2] / "dataset_scripts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    configs = {"iid_32": {"preset": "iid_32"}, "ones12_len16": {"preset": "ones12_len16"}, "seven": {"seed": 7}}
    return export("bit_parity", tmp_path_factory.mktemp("out"), configs, **SMALL)


def test_the_card_is_parsed_back(folder: Path) -> None:
    data = DatasetCard.load(folder / "README.md").data
    assert data.license == "apache-2.0"
    assert [config["config_name"] for config in data.configs] == ["iid_32", "ones12_len16", "seven"]
    assert [config.get("default", False) for config in data.configs] == [True, False, False]
    files = {entry["split"]: entry["path"] for entry in data.configs[0]["data_files"]}
    assert files["test_48"] == "iid_32/test_48-*.parquet"
    sizes = {split["name"]: split["num_examples"] for split in data.dataset_info[0]["splits"]}
    assert sizes == {"train": 90, "validation": 20, **{f"test_{length}": 20 for length in (32, 48, 64, 128, 256)}}


@pytest.mark.parametrize("task", TASKS)
def test_the_card_of_every_task_is_metadata_that_the_hub_reads(task: str, tmp_path: Path) -> None:
    names = config_names(task)[:2]
    lengths = {name: task_class(task).presets[name].test_lengths[0] for name in names}
    requests = {name: {"preset": name, "test_lengths": [lengths[name]]} for name in names}
    folder = export(task, tmp_path, requests, num_train=40, num_validation=8, num_test=8)
    card = DatasetCard.load(folder / "README.md")
    assert DatasetCard(str(card)).data.to_dict() == card.data.to_dict()
    data = card.data
    assert (data.license, data.pretty_name) == ("apache-2.0", f"hf_memory: {task.replace('_', ' ')}")
    assert {"hf_memory", "synthetic", task_class(task).category} <= set(data.tags)
    category = {"causal": "text-generation", "token_classification": "token-classification"}[task_class(task).head]
    assert data.task_categories == ["time-series-forecasting" if task == "interval_counting" else category]
    assert data.size_categories == ["n<1K"]
    # The readers of `datasets` itself, which also refuse what is out of form.
    configs, infos = MetadataConfigs.from_dataset_card_data(data), DatasetInfosDict.from_dataset_card_data(data)
    assert list(configs) == names
    assert sorted(infos) == sorted(names)
    for name in names:
        splits = {split.name: split.num_examples for split in infos[name].splits.values()}
        for entry in configs[name]["data_files"]:
            files = sorted(folder.glob(entry["path"]))
            assert files, entry
            assert sum(pq.read_metadata(file).num_rows for file in files) == splits.pop(entry["split"])
        assert splits == {}
        loaded = datasets.load_dataset(str(folder), name, cache_dir=str(tmp_path / "cache"))
        assert loaded["train"].features == infos[name].features


def test_the_card_states_law_knobs_chance_and_overlap(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "Track the parity of a bit string: `y_t = (x_1 + ... + x_t) mod 2`" in text
    assert "- `num_ones = 12`: Number of ones in each row" in text
    assert "| train | 16 | 90 | 90 | 0 | 0.614 |" in text
    assert (
        'hf_memory.load_dataset("hf_memory/bit_parity", "iid_32", num_test=20, num_train=90, num_validation=20)' in text
    )
    assert "| test_16_iid | 16 (`num_ones=None`) | 20 |" in text
    assert "``" not in text.replace("```", "")
    assert "Attributes" not in text


def test_each_configuration_is_loaded_by_its_name(folder: Path, tmp_path: Path) -> None:
    assert sorted(datasets.get_dataset_config_names(str(folder))) == ["iid_32", "ones12_len16", "seven"]
    rows = {name: datasets.load_dataset(str(folder), name, cache_dir=str(tmp_path)) for name in ("iid_32", "seven")}
    assert rows["iid_32"]["train"][0] != rows["seven"]["train"][0]
    assert {name: len(split) for name, split in rows["seven"].items()}["validation"] == 20


def test_statistics_count_distinct_and_shared_rows() -> None:
    def split(rows: list[list[int]]) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})

    rows = datasets.DatasetDict({"train": split([[1], [1, 2], [1]]), "test_1": split([[1], [3], [2, 1], [3]])})
    assert split_statistics(rows) == {"train": (3, 2, 0), "test_1": (4, 3, 1)}


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    export("bit_parity", tmp_path, ["iid_32"], **SMALL)
    folder = export("bit_parity", tmp_path, ["iid_16"], **SMALL)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "iid_16"]
    (tmp_path / "mqar").mkdir()
    (tmp_path / "mqar" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no earlier export"):
        export("mqar", tmp_path, **SMALL)
    assert (tmp_path / "mqar" / "notes.txt").read_text() == "mine"


def test_a_failed_export_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export("bit_parity", tmp_path, **SMALL)
    before = (folder / "README.md").read_text()

    def fail(*arguments: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(parquet, "_write_split", fail)
    with pytest.raises(OSError, match="no space left"):
        export("bit_parity", tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["bit_parity"]
    assert (folder / "README.md").read_text() == before


def test_bad_requests_are_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'iid_32'"):
        export("bit_parity", tmp_path, ["iid_23"])
    with pytest.raises(ValueError, match="did you mean 'num_ones'"):
        export("bit_parity", tmp_path, {"a": {"num_one": 1}})
    with pytest.raises(ValueError, match="configs must be at least one name"):
        export("bit_parity", tmp_path, [])
    assert list(tmp_path.iterdir()) == []


def test_configuration_names_are_the_presets() -> None:
    assert config_names("mqar") == list(task_class("mqar").presets)


def test_a_script_pushes_its_edition(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = []

    def push(task: str, repo_id: str, requests: dict, **options: object) -> str:
        pushed.append((task, repo_id, list(requests), options))
        return "commit"

    monkeypatch.setattr("hf_memory.hub.editions.push_dataset", push)
    edition = runpy.run_path(str(SCRIPTS / "mqar.py"))["EDITION"]
    arguments = ["--push_to_hub", "me/mqar", "--configs", "kv4_len64", "--revision", "trial", "--limit", "9"]
    assert run_edition(edition, arguments) == "commit"
    assert pushed == [("mqar", "me/mqar", ["kv4_len64"], {"revision": "trial", "private": None, "num_proc": None})]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_an_edition_that_agrees_with_its_presets(task: str) -> None:
    edition = runpy.run_path(str(SCRIPTS / f"{task}.py"))["EDITION"]
    assert edition.task == task
    for name, keywords in edition.requests().items():
        # The tables write out lengths and sizes; they are the presets' own, so nothing is overridden.
        assert specify(task, **keywords) == specify(task, name)


def test_every_script_belongs_to_a_task() -> None:
    assert sorted(path.stem for path in SCRIPTS.glob("*.py")) == sorted(TASKS)


def test_an_edition_is_written_by_its_script(tmp_path: Path) -> None:
    edition = runpy.run_path(str(SCRIPTS / "interval_counting.py"))["EDITION"]
    arguments = ["--output_dir", str(tmp_path), "--configs", "isi10_len200", "--limit", "9"]
    assert run_edition(edition, arguments) == str(tmp_path / "interval_counting")
    rows = datasets.load_dataset(str(tmp_path / "interval_counting"), cache_dir=str(tmp_path / "cache"))
    assert rows["train"].features["labels"] == datasets.List(datasets.Value("float32"))
    assert {len(split) for split in rows.values()} == {9}


def test_an_edition_refuses_another_version_and_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"version of the edition of hf_memory/mqar is 0\.9\.0, installed: 1\.0\.0"):
        Edition("mqar", "0.9.0", {"kv4_len64": {}}).requests()
    with pytest.raises(ValueError, match="did you mean 'kv4_len64'"):
        Edition("mqar", "1.0.0", {"kv4_len64": {}}).requests(["kv4_len46"])
    with pytest.raises(ValueError, match="limit must be at least 1"):
        Edition("mqar", "1.0.0", {"kv4_len64": {}}).requests(limit=0)


KILLED = """
import os, sys
from hf_memory.data import folders, parquet

parquet.dataset_card = lambda *given: os._exit(9)
parquet.export("bit_parity", sys.argv[1], length=6, num_train=8, num_validation=4, num_test=4)
"""


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "out"], capture_output=True, check=False)
    assert killed.returncode == 9, killed.stderr
    left = list((tmp_path / "out").iterdir())
    assert [path.name[:12] for path in left] == [".bit_parity-"]
    with folders.working_folder(tmp_path / "out", "bit_parity") as other:  # of an export at work
        assert not left[0].exists()
        parquet.export("bit_parity", tmp_path / "out", length=6, num_train=8, num_validation=4, num_test=4)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [other.name, "bit_parity"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bit_parity"]
    assert not any(path.name.startswith(".") for path in (tmp_path / "out").rglob("*"))


def test_what_killed_builds_of_other_configurations_left_is_removed(tmp_path):
    specification = [specify("bit_parity", length=length, num_train=8) for length in (4, 6, 8)]
    first, second, third = (folders.cache_folder(own, "key", tmp_path) for own in specification)
    places = [folders._staging(folder) for folder in (first, second, third)]
    for place in places[:2]:
        (place / "half").mkdir(parents=True)
    with folders.build_lock(second), folders.build_lock(third), folders.replacing(third) as written:
        written.mkdir(parents=True)
        assert [place.exists() for place in places[:2]] == [False, True]
