"""Knobs that would overflow a column, and rows that are no arrays."""

import dataclasses

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_memory.tasks import TASKS, make_task, task_class
from hf_memory.tasks._rows import read_rows
from hf_memory.tasks.bit_parity import BitParity
from hf_memory.tasks.group_word_problem import GroupWordProblem

KEYS = sorted(TASKS)


def integer_knobs():
    """Each knob of each task that takes whole numbers."""
    for key in KEYS:
        for field in dataclasses.fields(task_class(key)):
            if field.type in (int, int | None) and field.name != "gap":
                yield key, field.name


@pytest.mark.parametrize(("key", "knob"), list(integer_knobs()))
@pytest.mark.parametrize("value", [2**31, 2**33, 2**70])
def test_a_knob_that_does_not_fit_a_column_is_refused_with_the_range(key, knob, value):
    with pytest.raises(ValueError, match=rf"{knob}.* must be (None or )?an integer between \d+ and \d+, got {value}"):
        make_task(key, **{knob: value})


def test_blank_and_marker_count_among_the_ids_of_a_column():
    for key in ("copying", "selective_copying"):
        with pytest.raises(ValueError, match="alphabet_size must be an integer between 2 and 2147483645"):
            make_task(key, alphabet_size=2**31 - 2)
        assert make_task(key, alphabet_size=2**31 - 3).vocab_size == 2**31 - 1
    ids, _ = make_task("copying", alphabet_size=2**31 - 3).sample(np.random.default_rng(0), 5, 50)
    assert ids.min() >= 0 and ids.max() == 2**31 - 2


def drawn(key, count=4, seed=0):
    """A task, and rows of one of its lengths."""
    task = make_task(key)
    lengths = task_class(key).presets[next(iter(task_class(key).presets))].length
    length = lengths if isinstance(lengths, int) else lengths[0]
    return task, *task.sample(np.random.default_rng(seed), length, count)


def same(left, right):
    """Whether two results hold the same arrays."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return (left is None and right is None) or (left.shape == right.shape and bool((left == right).all()))


@pytest.mark.parametrize("key", KEYS)
def test_lists_tensors_and_columns_of_a_dataset_are_solved_like_arrays(key):
    task, ids, labels = drawn(key)
    dataset = Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})
    forms = {
        "lists": (ids.tolist(), labels.tolist()),
        "lists of arrays": (list(ids), list(labels)),
        "tensors": (torch.from_numpy(ids), torch.from_numpy(labels)),
        "columns": (dataset["input_ids"], dataset["labels"]),
        "columns of arrays": tuple(dataset.with_format("numpy")[name] for name in ("input_ids", "labels")),
        "columns of tensors": tuple(dataset.with_format("torch")[name] for name in ("input_ids", "labels")),
    }
    for rows, answers in forms.values():
        assert same(task.solve(rows), task.solve(ids))
        assert same(task.annotate(rows, answers), task.annotate(ids, labels))
        assert same(task.annotate(rows, labels=answers), task.annotate(ids, labels))
        assert same(task.candidates(rows, answers), task.candidates(ids, labels))


def test_rows_of_unlike_lengths_are_solved_one_length_after_the_other():
    task = make_task("bit_parity")
    rows = [[1, 0, 1], [1], [0, 1, 1, 1], [1, 1, 1]]
    solved = task.solve(Dataset.from_dict({"input_ids": rows})["input_ids"])
    assert solved.tolist() == [[1, 1, 0, -100], [1, -100, -100, -100], [0, 1, 0, 1], [1, 0, 1, -100]]
    answers = [row[row >= 0].tolist() for row in solved]
    notes = task.annotate(rows, answers)
    assert notes["score"].tolist() == [[True] * len(row) + [False] * (4 - len(row)) for row in rows]
    assert notes["ones_so_far"].tolist()[0] == [1, 1, 2, -100]
    with pytest.raises(ValueError, match="labels must be as long as input_ids in every row"):
        task.annotate(rows, [[0], *answers[1:]])


@pytest.mark.parametrize("rows", [[1, 0, 1], [], [[[1]]], np.zeros(3), np.zeros((1, 2, 3))])
def test_what_is_no_rows_is_refused(rows):
    with pytest.raises(ValueError, match=r"input_ids must be rows \(n, L\)"):
        make_task("bit_parity").solve(rows)
    with pytest.raises(ValueError, match="labels must be rows"):
        read_rows("labels", rows)


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        (BitParity(), [[0, 1, 0], [1, 1, 2]], "task 'bit_parity', from 0 to 1, got 2 in row 1 at position 2"),
        (BitParity(), [[0, -1], [1, 1]], "from 0 to 1, got -1 in row 0 at position 1"),
        (GroupWordProblem(group="S3"), [[0, 6]], "task 'group_word_problem', from 0 to 5, got 6 in row 0 at"),
    ],
)
def test_solving_refuses_an_id_that_the_task_does_not_have(task, rows, message):
    with pytest.raises(ValueError, match=message):
        task.solve(np.array(rows))
