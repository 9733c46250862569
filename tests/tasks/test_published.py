"""Our rows and those of published generators are of one law: 20,000 of theirs were counted, and ours are counted here.

``published_counts.json`` holds the counts with repository, file, commit and settings. When they were taken, our solvers
gave their labels in all rows, and where a row of theirs has another answer the task's documentation says so.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from hf_memory.tasks import make_task
from hf_memory.tasks.base import IGNORE_INDEX
from tests.tasks._published import LEVEL, ROWS, marginals, probability

ENTRIES = json.loads(Path(__file__).with_name("published_counts.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_twenty_thousand_rows_count_as_those_of_the_published_code(name):
    entry = ENTRIES[name]
    task = make_task(entry["task"], **entry["knobs"])
    ids, labels = task.sample(np.random.default_rng(1), entry["length"], ROWS)
    due = labels != IGNORE_INDEX
    assert (task.solve(ids)[due] == labels[due]).all()
    ours = marginals(ids, labels)
    assert set(ours) == set(entry["counts"])
    apart = {}
    for what, theirs in entry["counts"].items():
        assert sum(theirs.values()) == ROWS
        found = probability(ours[what], theirs)
        if found < LEVEL:
            apart[what] = found
    assert apart == {}


def test_every_entry_says_where_its_counts_come_from():
    for entry in ENTRIES.values():
        assert set(entry) == {"repository", "file", "commit", "settings", "task", "knobs", "length", "counts"}
        assert len(entry["commit"]) == 40
        assert entry["repository"].count("/") == 1


def test_another_law_is_told_apart():
    rng = np.random.default_rng(0)
    entry = ENTRIES["zoology_zero"]
    task = make_task("mqar", **entry["knobs"])
    counts = {
        knob: marginals(*task.replace(**{knob: value}).sample(rng, entry["length"], ROWS))
        for knob, value in (("power_a", 0.1), ("slot_assignment", "shuffled"), ("num_kv_pairs", 5))
    }
    for knob, ours in counts.items():
        assert min(probability(ours[what], theirs) for what, theirs in entry["counts"].items()) < LEVEL, knob


def test_equal_counts_are_of_one_law_and_rare_values_are_counted_together():
    even = {"0": 100, "1": 100, "7": 1}
    assert probability(even, even) == 1.0
    assert probability(even, {"0": 150, "1": 50, "9": 1}) < LEVEL
    assert probability({"0": 5}, {"1": 5}) == 1.0
