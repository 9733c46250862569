"""The builder, ``load_dataset`` and the standard cache."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

from hf_memory.data.builder import build, load_dataset
from hf_memory.data.folders import DamagedCacheError
from hf_memory.data.memory_builder import MemoryBuilder
from hf_memory.data.rows import RowSource
from hf_memory.data.specification import data_version

SMALL = {"num_train": 150, "num_validation": 70, "num_test": 70, "test_lengths": [32, 48]}
NAME = "hf_memory/bit_parity"
ROOT = Path(__file__).parents[2]


def _lists(dataset: datasets.Dataset) -> list[dict[str, list[int]]]:
    return dataset.to_list()


def test_splits_features_and_sizes_are_those_of_the_specification(tmp_path: Path) -> None:
    loaded = load_dataset(NAME, cache_dir=tmp_path, **SMALL)
    assert {name: len(split) for name, split in loaded.items()} == {
        "train": 150,
        "validation": 70,
        "test_32": 70,
        "test_48": 70,
    }
    assert loaded["train"].features == datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int32")), "labels": datasets.List(datasets.Value("int32"))}
    )
    ids = np.array(loaded["test_48"]["input_ids"])
    assert ids.shape == (70, 48)
    assert np.array_equal(np.array(loaded["test_48"]["labels"]), np.cumsum(ids, axis=1) % 2)


@pytest.mark.parametrize("num_proc", [2, 4])
def test_rows_do_not_depend_on_the_number_of_processes(tmp_path: Path, num_proc: int) -> None:
    sizes = {"num_train": 9000, "num_validation": 70, "num_test": 1200, "test_lengths": [40]}
    one = load_dataset(NAME, cache_dir=tmp_path / "one", **sizes)
    many = load_dataset(NAME, cache_dir=tmp_path / "many", num_proc=num_proc, **sizes)
    for name in one:
        assert _lists(one[name]) == _lists(many[name])


def test_a_split_and_a_slice_can_be_asked_for(tmp_path: Path) -> None:
    whole = load_dataset(NAME, split="train", cache_dir=tmp_path, **SMALL)
    part = load_dataset(NAME, split="train[10:14]", cache_dir=tmp_path, **SMALL)
    assert _lists(part) == _lists(whole)[10:14]
    with pytest.raises(ValueError, match="test_99"):
        load_dataset(NAME, split="test_99", cache_dir=tmp_path, **SMALL)


def test_a_stored_configuration_is_not_generated_again(tmp_path: Path) -> None:
    load_dataset(NAME, cache_dir=tmp_path, **SMALL)
    (info,) = tmp_path.glob("hf_memory___bit_parity/*/*/*/dataset_info.json")
    before = info.stat().st_mtime_ns
    load_dataset(NAME, cache_dir=tmp_path, **SMALL)
    assert info.stat().st_mtime_ns == before
    load_dataset(NAME, cache_dir=tmp_path, download_mode="force_redownload", **SMALL)
    assert info.stat().st_mtime_ns != before


def test_the_version_is_the_only_revision(tmp_path: Path) -> None:
    assert len(load_dataset(NAME, split="train", revision="1.0.0", cache_dir=tmp_path, **SMALL)) == 150
    with pytest.raises(ValueError, match=r"revision must be None or '1\.0\.0'"):
        load_dataset(NAME, revision="main", cache_dir=tmp_path, **SMALL)


def test_unknown_names_suggest_the_nearest_and_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'bit_parity'"):
        load_dataset("hf_memory/bitparity", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="did you mean 'iid_32'"):
        load_dataset(NAME, "iid_33", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="did you mean 'num_ones'"):
        load_dataset(NAME, cache_dir=tmp_path, num_one=3)
    assert list(tmp_path.iterdir()) == []


def test_other_names_are_handed_to_datasets(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"a": 1}))
    loaded = load_dataset("json", split="train", data_files=str(tmp_path / "rows.json"), cache_dir=str(tmp_path))
    assert _lists(loaded) == [{"a": 1}]


def test_a_changed_generator_leads_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build("bit_parity", cache_dir=tmp_path, **SMALL)
    assert build("bit_parity", cache_dir=tmp_path, **SMALL) == folder
    monkeypatch.setattr("hf_memory.data.rows._BLOCK_STREAM", 7)
    other = build("bit_parity", cache_dir=tmp_path, **SMALL)
    assert other.parent == folder.parent
    assert other != folder
    # `datasets` takes the youngest folder, so the older one is gone.
    assert not folder.exists()


def test_other_configurations_are_kept_when_one_is_built(tmp_path: Path) -> None:
    first = build("bit_parity", cache_dir=tmp_path, **SMALL)
    second = build("bit_parity", cache_dir=tmp_path, seed=1, **SMALL)
    assert first.is_dir()
    assert second.is_dir()


def _damage_info(folder: Path) -> None:
    (folder / "dataset_info.json").write_text("{")


def _damage_missing_info(folder: Path) -> None:
    (folder / "dataset_info.json").unlink()


def _damage_missing_rows(folder: Path) -> None:
    (folder / "bit_parity-test_48.arrow").unlink()


def _damage_truncated_rows(folder: Path) -> None:
    path = folder / "bit_parity-train.arrow"
    path.write_bytes(path.read_bytes()[:-900])


def _damage_altered_rows(folder: Path) -> None:
    path = folder / "bit_parity-train.arrow"
    shutil.copy(folder / "bit_parity-validation.arrow", path)


@pytest.mark.parametrize(
    "damage",
    [_damage_info, _damage_missing_info, _damage_missing_rows, _damage_truncated_rows, _damage_altered_rows],
)
def test_a_damaged_folder_is_named_and_can_be_rebuilt(tmp_path: Path, damage: object) -> None:
    folder = build("bit_parity", cache_dir=tmp_path, **SMALL)
    before = _lists(load_dataset(NAME, split="train", cache_dir=tmp_path, **SMALL))
    damage(folder)
    with pytest.raises(DamagedCacheError, match=rf"{folder}.*force_redownload"):
        load_dataset(NAME, cache_dir=tmp_path, **SMALL)
    assert build("bit_parity", cache_dir=tmp_path, **SMALL) == folder
    assert _lists(load_dataset(NAME, split="train", cache_dir=tmp_path, **SMALL)) == before
    damage(folder)
    forced = load_dataset(NAME, split="train", cache_dir=tmp_path, download_mode="force_redownload", **SMALL)
    assert _lists(forced) == before


def test_a_damaged_preset_names_the_command_that_rebuilds_it(tmp_path: Path) -> None:
    folder = build("bit_parity", "ones12_len16", cache_dir=tmp_path)
    _damage_info(folder)
    with pytest.raises(DamagedCacheError, match="hf-memory data build bit_parity --config ones12_len16"):
        load_dataset(NAME, "ones12_len16", cache_dir=tmp_path)


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = RowSource.block

    def fail(self: RowSource, name: str, index: int, *, endless: bool = False) -> object:
        if name == "test_48" and index == 1:
            raise OSError("no space left")
        return drawn(self, name, index, endless=endless)

    monkeypatch.setattr(RowSource, "block", fail)
    with pytest.raises(datasets.exceptions.DatasetGenerationError):
        build("bit_parity", cache_dir=tmp_path, **SMALL)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_what_a_killed_build_left_is_not_taken_over(tmp_path: Path) -> None:
    folder = MemoryBuilder("bit_parity", cache_dir=str(tmp_path), **SMALL).folder
    left = folder.parents[2] / ".building" / folder.parents[1].name / "abc.incomplete"
    left.mkdir(parents=True)
    (left / "bit_parity-train.arrow").write_bytes(b"half")
    assert build("bit_parity", cache_dir=tmp_path, **SMALL) == folder
    assert not left.exists()
    assert not list(folder.glob("*half*"))


def test_data_version_names_the_law_and_numpy() -> None:
    assert data_version("mqar") == f"1.0.0+numpy{np.__version__}"


PLAIN = """
import json, sys
import datasets
knobs = json.loads(sys.argv[1])
loaded = datasets.load_dataset("hf_memory/bit_parity", "iid_32", **knobs)
print(json.dumps({name: split[:3] for name, split in loaded.items()}))
"""


@pytest.mark.parametrize("directory", [ROOT, Path("/")])
def test_plain_datasets_finds_what_was_built(tmp_path: Path, directory: Path) -> None:
    knobs = {"num_train": 90, "num_validation": 70, "num_test": 70}
    build("bit_parity", cache_dir=tmp_path, num_train=80)
    build("bit_parity", cache_dir=tmp_path, **knobs)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", PLAIN, json.dumps(knobs)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    loaded = load_dataset(NAME, "iid_32", cache_dir=tmp_path, **knobs)
    assert json.loads(done.stdout) == {name: split[:3] for name, split in loaded.items()}
