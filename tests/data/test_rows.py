"""Rows as a function of (configuration, seed, split, block): disjoint splits, small spaces, mixtures."""

import numpy as np
import pytest

from hf_memory.data.drawing import Rows
from hf_memory.data.rows import BLOCK_ROWS, HEAD_ROWS, RowSource
from hf_memory.data.specification import specify
from hf_memory.data.splits import in_class, row_hashes
from hf_memory.tasks import TASKS
from hf_memory.tasks.base import Preset, Segment
from hf_memory.tasks.bit_parity import BitParity
from tests.golden import GOLDEN


def _source(task: str, preset: str | None = None, **overrides: object) -> RowSource:
    return RowSource(specify(task, preset, **overrides))


def _rows(source: RowSource, name: str) -> list[tuple[list[int], list[int]]]:
    """All rows of a stored split as pairs of lists."""
    pairs = []
    for index in range(source.num_blocks(name)):
        block = source.block(name, index)
        for low, high in zip(block.offsets[:-1], block.offsets[1:], strict=True):
            pairs.append((block.input_ids[low:high].tolist(), block.labels[low:high].tolist()))
    return pairs


def _ids(source: RowSource, name: str) -> list[tuple[int, ...]]:
    return [tuple(ids) for ids, _ in _rows(source, name)]


SMALL = {"num_train": 500, "num_validation": 90, "num_test": 90}
CONFIGURATIONS = [
    ("bit_parity", "iid_32", {}),
    ("bit_parity", "iid_16", {}),
    ("bit_parity", "iid_3_40", {}),
    ("bit_parity", "ones12_len16", {}),
    ("bit_parity", "ones12_len32_pool1820", {}),
    ("bit_parity", "iid_32", {"length": (1, 6), "test_lengths": [5, 12]}),
    ("mqar", "kv4_len64", {}),
    ("mqar", "based_mixture", {"test_lengths": [64], "filler": "random"}),
    ("group_word_problem", "a5_k8", {"num_train": 5000, "group": "S3"}),
    ("interval_counting", "isi10_len200", {}),
]


@pytest.mark.parametrize(("task", "preset", "overrides"), CONFIGURATIONS)
def test_splits_have_their_sizes_and_share_no_row(task: str, preset: str, overrides: dict[str, object]) -> None:
    source = _source(task, preset, **{**SMALL, **overrides})
    rows = {name: set(_ids(source, name)) for name in source.specification.splits}
    for name in rows:
        assert len(_ids(source, name)) == source.num_rows(name) > 0
        if name.startswith("test"):
            assert not rows[name] & (rows["train"] | rows["validation"])
    assert not rows["train"] & rows["validation"]


@pytest.mark.parametrize(("task", "preset", "overrides"), CONFIGURATIONS)
def test_labels_are_those_of_the_solver(task: str, preset: str, overrides: dict[str, object]) -> None:
    source = _source(task, preset, **{**SMALL, **overrides})
    for name, split in source.specification.splits.items():
        laws = {part.task for part in split.parts}
        for ids, labels in _rows(source, name)[:40]:
            assert labels in [law.solve(np.array([ids], dtype=np.int32))[0].tolist() for law in laws]


@pytest.mark.parametrize("task", TASKS)
def test_first_rows_of_a_version_never_change(task: str) -> None:
    # Where a law, the splits or the tests of a default preset change on purpose, the version of the task moves too.
    source = _source(task)
    version, _, dataset = GOLDEN.get(task, ("", "", ""))
    assert (source.specification.task.version, source.digest()) == (version, dataset)


def test_rows_do_not_depend_on_the_order_in_which_blocks_are_drawn() -> None:
    forwards, backwards = _source("mqar", **SMALL), _source("mqar", **SMALL)
    names = list(forwards.specification.splits)
    drawn = {name: forwards.block(name, 1).input_ids for name in names}
    for name in reversed(names):
        assert np.array_equal(backwards.block(name, 1).input_ids, drawn[name])


def test_rows_do_not_depend_on_global_random_states() -> None:
    np.random.seed(1)  # noqa: NPY002
    before = _rows(_source("mqar", num_train=70, num_test=0), "train")
    np.random.seed(2)  # noqa: NPY002
    assert _rows(_source("mqar", num_train=70, num_test=0), "train") == before


def test_seeds_give_other_rows_in_every_split() -> None:
    first, second = _source("bit_parity", **SMALL), _source("bit_parity", seed=1, **SMALL)
    for name in first.specification.splits:
        assert not set(_ids(first, name)) & set(_ids(second, name))


def test_a_smaller_training_split_is_the_beginning_of_a_larger_one() -> None:
    small, large = (_rows(_source("bit_parity", num_train=count), "train") for count in (100, 5000))
    assert small == large[:100]


def test_endless_blocks_begin_with_the_stored_ones_and_repeat_no_row() -> None:
    source = _source("bit_parity", num_train=300)
    stored = _ids(source, "train")
    blocks = [source.block("train", index, endless=True) for index in (0, 1, 2, 700)]
    assert [len(block) for block in blocks] == [HEAD_ROWS] + 3 * [BLOCK_ROWS["train"]]
    streamed = [tuple(row) for block in blocks for row in block.input_ids.reshape(len(block), -1).tolist()]
    assert streamed[:300] == stored
    assert len(set(streamed)) == len(streamed)


def test_a_small_space_is_dealt_completely() -> None:
    source = _source("bit_parity", length=10, test_lengths=[10], num_test=5000)
    rows = {name: _ids(source, name) for name in source.specification.splits}
    assert {name: len(split) for name, split in rows.items()} == {"train": 819, "validation": 102, "test_10": 103}
    assert len({row for split in rows.values() for row in split}) == 1024


def test_a_dealt_stream_goes_through_its_rows_again_in_another_order() -> None:
    source = _source("bit_parity", length=10, test_lengths=[10])
    stream = np.concatenate([source.block("train", i, endless=True).input_ids.reshape(-1, 10) for i in (0, 1)])
    rounds = [list(map(tuple, stream[start : start + 819].tolist())) for start in (0, 819, 1638)]
    assert rounds[0] == _ids(source, "train")
    assert set(rounds[0]) == set(rounds[1]) == set(rounds[2])
    assert rounds[0] != rounds[1] != rounds[2]


def test_held_out_rows_of_a_dealt_space_are_the_same_for_every_seed() -> None:
    first, second = (_source("bit_parity", length=10, test_lengths=[10], seed=seed) for seed in (0, 1))
    assert _ids(first, "test_10") != _ids(second, "test_10")
    assert set(_ids(first, "test_10")) == set(_ids(second, "test_10"))


def test_a_small_test_space_holds_each_row_of_its_class_once() -> None:
    source = _source("bit_parity", "iid_3_40", test_lengths=[7], num_train=50)
    rows = np.array(_ids(source, "test_7"), dtype=np.int32)
    numbers = np.arange(128)
    space = ((numbers[:, None] >> np.arange(7)) & 1).astype(np.int32)
    expected = space[in_class(row_hashes(space), "test")]
    assert 0 < len(rows) < 20
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, expected.tolist()))


def test_lengths_of_a_range_are_uniform() -> None:
    source = _source("bit_parity", length=(9, 12), test_lengths=[12], num_train=4160)
    lengths = np.array([len(row) for row in _ids(source, "train")])
    counts = np.bincount(lengths)[9:]
    assert len(counts) == 4
    # Chi-square with 3 degrees of freedom: 16.27 is its 0.999 quantile.
    assert ((counts - 1040) ** 2 / 1040).sum() < 16.27


def test_a_mixture_holds_exactly_its_counts_in_mixed_order() -> None:
    source = _source("mqar", "based_mixture", num_train=900, num_test=0)
    lengths = [len(ids) for ids in _ids(source, "train")]
    queries = [sum(label >= 0 for label in labels) for _, labels in _rows(source, "train")]
    assert [queries.count(pairs) for pairs in (4, 8, 16, 32, 64)] == [500, 100, 100, 100, 100]
    assert lengths.count(64) == 500
    assert len(set(lengths[:HEAD_ROWS])) == 3


def test_a_covered_part_holds_every_row_once() -> None:
    source = _source("group_word_problem", "s3_k8", num_test=0)
    pairs = [row for row in _ids(source, "train") if len(row) == 2]
    assert sorted(pairs) == [(first, second) for first in range(6) for second in range(6)]


def test_a_test_of_covered_rows_cannot_be_kept_apart() -> None:
    with pytest.raises(ValueError, match=r"'test_2' of hf_memory/group_word_problem would be empty.*36 distinct rows"):
        _source("group_word_problem", "s3_k8", test_lengths=[2]).num_rows("test_2")


def test_a_test_with_a_law_of_its_own_takes_its_whole_space() -> None:
    source = _source("interval_counting")
    for name in ("test_two_isi_50", "test_double_isi_0"):
        rows = _ids(source, name)
        assert len(rows) == len(set(rows)) == 21
        assert source.spaces.reserved


def test_training_draws_avoid_the_rows_of_tests_with_laws_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"test_ones": (Segment(6, 5, {"num_ones": 2}),)}
    monkeypatch.setattr(BitParity, "presets", {"short": Preset((4, 6), (), tests=own)})
    source = _source("bit_parity", num_train=3000, num_validation=200)
    tests, train = set(_ids(source, "test_ones")), set(_ids(source, "train"))
    assert len(tests) == 6
    # Rows of length 5 with two ones that are not in the test do occur in training.
    assert len({row for row in train if len(row) == 5 and sum(row) == 2}) > 0
    assert not tests & (train | set(_ids(source, "validation")))


def test_an_empty_split_names_its_size_and_the_rows_there_are() -> None:
    with pytest.raises(ValueError, match=r"'validation'.*length 2 has 4 distinct rows, 3000 were asked for"):
        _source("bit_parity", length=2, test_lengths=[2]).digest()


def test_a_range_without_a_row_of_the_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'validation'.*cannot be kept apart.*2 distinct rows at 1"):
        _source("bit_parity", length=(1, 2), test_lengths=[40]).block("validation", 0)


def test_head_of_rows_ends_where_its_last_row_ends() -> None:
    rows = Rows(np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32), np.array([0, 1, 3, 6], dtype=np.int32))
    head = rows.head(2)
    assert (len(head), head.input_ids.tolist(), head.offsets.tolist()) == (2, [0, 1, 2], [0, 1, 3])


def test_a_small_space_says_how_many_rows_it_holds_where_more_are_asked_for(caplog):
    source = RowSource(specify("bit_parity", "iid_16", num_train=10**9, num_validation=10, num_test=10))
    said = (
        "num_train=1000000000 is more than there are: of the 65536 distinct rows of hf_memory/bit_parity at length 16, "
        "split 'train' holds 52428"
    )
    assert source.num_rows("train") == 52_428
    assert source.shortfalls() == [said]
    with caplog.at_level("WARNING", logger="hf_memory.data.rows"):
        source.warn_of_shortfalls()
        source.warn_of_shortfalls()
    assert caplog.messages == [said]


def test_nothing_is_said_of_rows_that_nobody_asked_for():
    assert RowSource(specify("bit_parity", "iid_16")).shortfalls() == []
    assert RowSource(specify("bit_parity", "iid_16", num_train=100)).shortfalls() == []
