"""Batches: padding, masks, and rows held in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hf_memory.data.builder import load_dataset
from hf_memory.data.collator import MemoryCollator
from hf_memory.data.tensors import TensorRows

ROWS = [
    {"input_ids": [5, 6, 7], "labels": [-100, 1, 2]},
    {"input_ids": [8], "labels": [3]},
    {"input_ids": [9, 9], "labels": [4, -100]},
]


def test_equally_long_rows_have_no_mask() -> None:
    batch = MemoryCollator()([ROWS[0], ROWS[0]])
    assert sorted(batch) == ["input_ids", "labels"]
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["labels"].tolist() == [[-100, 1, 2]] * 2


def test_unlike_rows_are_padded_on_the_right_and_masked() -> None:
    batch = MemoryCollator(pad_id=1)(ROWS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1], [9, 9, 1]]
    assert batch["labels"].tolist() == [[-100, 1, 2], [3, -100, -100], [4, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize(("high", "kept"), [(127, torch.int8), (128, torch.int16), (40_000, torch.int32)])
def test_rows_in_memory_are_as_narrow_as_their_values_allow(high: int, kept: torch.dtype) -> None:
    rows = TensorRows({"input_ids": [[0, high], [3, 4]], "labels": [[-100, high], [1, -100]]})
    assert rows._ids.dtype == rows._labels.dtype == kept
    batch = rows.__getitems__([1, 0])
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["input_ids"].tolist() == [[3, 4], [0, high]]
    assert batch["labels"].tolist() == [[1, -100], [-100, high]]


def test_real_labels_stay_real() -> None:
    batch = MemoryCollator()([{"input_ids": [0, 1], "labels": [0.5, 1.0]}, {"input_ids": [0], "labels": [0.25]}])
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [[0.5, 1.0], [0.25, -100.0]]


def test_masks_of_rows_are_kept_and_rows_without_labels_are_collated() -> None:
    batch = MemoryCollator()(
        [{"input_ids": [0, 4], "attention_mask": [0, 1]}, {"input_ids": [3], "attention_mask": [1]}]
    )
    assert sorted(batch) == ["attention_mask", "input_ids"]
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 0]]


def test_rows_may_hold_tensors_or_arrays() -> None:
    expected = MemoryCollator()(ROWS)
    for convert in (torch.tensor, np.array):
        batch = MemoryCollator()([{name: convert(column) for name, column in row.items()} for row in ROWS])
        assert all(torch.equal(batch[name], expected[name]) for name in expected)


def test_a_batch_passes_through() -> None:
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    assert MemoryCollator()(batch)["input_ids"] is batch["input_ids"]


def test_bad_rows_are_named() -> None:
    with pytest.raises(ValueError, match="rows must hold at least one row"):
        MemoryCollator()([])
    with pytest.raises(ValueError, match="labels must be as long as input_ids"):
        MemoryCollator()([{"input_ids": [1, 2], "labels": [1]}])


def _assert_same(batch: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert sorted(batch) == sorted(expected)
    for name, column in expected.items():
        assert batch[name].dtype == column.dtype
        assert torch.equal(batch[name], column)


@pytest.mark.parametrize("overrides", [{}, {"length": (3, 9), "test_lengths": [9]}])
def test_batches_from_memory_equal_collated_rows(tmp_path: Path, overrides: dict[str, object]) -> None:
    stored = load_dataset("hf_memory/bit_parity", split="train", num_train=130, cache_dir=tmp_path, **overrides)
    rows = TensorRows(stored)
    assert len(rows) == 130
    for indices in ([0, 1, 2], [129, 7, 7], list(range(50, 90))):
        _assert_same(rows.__getitems__(indices), MemoryCollator()([stored[index] for index in indices]))
    assert rows[5]["input_ids"].tolist() == stored[5]["input_ids"]
    assert rows[-1]["labels"].tolist() == stored[129]["labels"]


def test_batches_from_arrays_equal_collated_rows() -> None:
    columns = {name: [row[name] for row in ROWS] for name in ("input_ids", "labels")}
    _assert_same(TensorRows(columns).__getitems__([0, 1, 2]), MemoryCollator()(ROWS))
    _assert_same(TensorRows(columns).__getitems__([2, 2]), MemoryCollator()([ROWS[2]] * 2))
    reals = {"input_ids": np.zeros((4, 2), dtype=np.int32), "labels": np.full((4, 2), 0.5)}
    assert TensorRows(reals).__getitems__([3])["labels"].dtype == torch.float32


def test_a_loader_fetches_whole_batches() -> None:
    ids = np.arange(30, dtype=np.int32).reshape(10, 3)
    loader = DataLoader(TensorRows({"input_ids": ids, "labels": ids}), batch_size=4, collate_fn=MemoryCollator())
    batches = list(loader)
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch["labels"] for batch in batches]).tolist() == ids.tolist()


def test_a_slice_of_a_dataset_holds_its_own_rows_only(tmp_path: Path) -> None:
    stored = load_dataset("hf_memory/bit_parity", split="train", num_train=130, cache_dir=tmp_path)
    chosen = stored.select([3, 100, 4]).add_column("extra", [1, 2, 3])
    rows = TensorRows(chosen)
    assert rows.__getitems__([0, 1, 2])["input_ids"].tolist() == chosen["input_ids"][:]


def test_bad_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="columns 'input_ids' and 'labels', got"):
        TensorRows({"input_ids": [[1]]})
    with pytest.raises(ValueError, match="labels must have the shape of input_ids"):
        TensorRows({"input_ids": [[1, 2]], "labels": [[1]]})
    with pytest.raises(IndexError, match=r"index must be in \[-1, 1\)"):
        TensorRows({"input_ids": [[1]], "labels": [[1]]})[1]
