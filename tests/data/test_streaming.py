"""Streams: fresh rows without end, the same whoever reads them."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from hf_memory.data import memory_builder
from hf_memory.data.builder import load_dataset
from hf_memory.data.rows import BLOCK_ROWS, HEAD_ROWS

SMALL = {"num_train": 5000, "num_validation": 70, "num_test": 70, "test_lengths": [40]}
NAME = "hf_memory/bit_parity"


def _keys(rows: Iterator[dict[str, list[int]]]) -> list[tuple[int, ...]]:
    return [tuple(row["input_ids"]) for row in rows]


@pytest.fixture
def stream(tmp_path: Path) -> datasets.IterableDatasetDict:
    return load_dataset(NAME, streaming=True, cache_dir=tmp_path, **SMALL)


def test_a_stream_begins_with_the_stored_rows_and_goes_on(stream: datasets.IterableDatasetDict, tmp_path: Path) -> None:
    stored = load_dataset(NAME, cache_dir=tmp_path, **SMALL)
    rows = list(stream["train"].take(5200))
    assert rows[:5000] == stored["train"].to_list()
    assert len(set(_keys(rows))) == 5200
    for name in ("validation", "test_40"):
        assert list(stream[name]) == stored[name].to_list()


def test_a_stream_resumes_where_its_state_was_taken(stream: datasets.IterableDatasetDict) -> None:
    train = stream["train"]
    expected = _keys(islice(train, 4300))
    rows = iter(train)
    for _ in range(4200):
        next(rows)
    state = train.state_dict()
    train.load_state_dict(state)
    assert _keys(islice(train, 100)) == expected[4200:]


def test_workers_share_the_rows_out(stream: datasets.IterableDatasetDict) -> None:
    whole = _keys(stream["test_40"])
    loader = DataLoader(stream["test_40"], batch_size=None, num_workers=2)
    assert sorted(_keys(loader)) == sorted(whole)


def test_ranks_and_their_workers_read_every_row_once(tmp_path: Path) -> None:
    sizes = {**SMALL, "num_test": 4000}
    test = load_dataset(NAME, split="test_40", streaming=True, cache_dir=tmp_path, **sizes)
    seen = []
    for rank in (0, 1):
        seen += _keys(DataLoader(split_dataset_by_node(test, rank, 2), batch_size=None, num_workers=2))
    assert len(seen) == 4000
    assert sorted(seen) == sorted(_keys(test))


def test_ranks_read_different_blocks_that_together_are_the_stream(stream: datasets.IterableDatasetDict) -> None:
    first = HEAD_ROWS + BLOCK_ROWS["train"]
    whole = _keys(islice(stream["train"], first))
    zero, one = (_keys(islice(split_dataset_by_node(stream["train"], rank, 2), 70)) for rank in (0, 1))
    assert zero[:HEAD_ROWS] == whole[:HEAD_ROWS]
    assert one == whole[HEAD_ROWS : HEAD_ROWS + 70]
    assert not set(zero) & set(one)


def test_the_last_shards_go_on_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_builder, "STREAM_SHARDS", 4)
    monkeypatch.setattr(memory_builder, "ENDLESS_SHARDS", 2)
    train = load_dataset(NAME, split="train", streaming=True, cache_dir=tmp_path, **SMALL)
    assert train.num_shards == 4
    for rank in (0, 1):
        count = 5 * BLOCK_ROWS["train"]
        tables = split_dataset_by_node(train, rank, 2).with_format("numpy").iter(batch_size=1024)
        rows = [row.tobytes() for batch in islice(tables, count // 1024) for row in batch["input_ids"]]
        assert len(rows) == count
        # Blocks 0 and 2, then 4, 6, ... for rank 0; odd ones for rank 1.
        assert len(set(rows)) == count


def test_a_stream_of_every_seed_differs(tmp_path: Path) -> None:
    first, second = (
        load_dataset(NAME, split="train", streaming=True, cache_dir=tmp_path, seed=seed, **SMALL) for seed in (0, 1)
    )
    assert not set(_keys(islice(first, 200))) & set(_keys(islice(second, 200)))


def test_a_stream_stores_nothing(stream: datasets.IterableDatasetDict, tmp_path: Path) -> None:
    assert len(list(stream["train"].take(3))) == 3
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
