"""Chance and baselines of every law against fitted and written rules on fresh rows."""

import doctest
import math

import numpy as np
import pytest

from hf_memory.tasks import TASKS, bags, heuristics, make_task, task_class
from hf_memory.tasks.associative_recall import AssociativeRecall
from hf_memory.tasks.bags import bag_codes, bag_levels
from hf_memory.tasks.base import Segment
from hf_memory.tasks.bit_parity import BitParity
from hf_memory.tasks.dyck import Dyck
from hf_memory.tasks.groups import commutator_order
from hf_memory.tasks.heuristics import MEMORYLESS, STACKS, heuristic_levels
from hf_memory.tasks.mqar import MQAR
from hf_memory.tasks.string_copy import StringCopy
from hf_memory.tasks.updating_mqar import UpdatingMQAR

VARIANTS = [
    ("associative_recall", 16, {"num_kv_pairs": 7, "roles": "disjoint_in_row"}),
    ("bit_parity", 16, {"modulus": 3}),
    ("associative_recall", 16, {"loss_region": "all"}),
    ("bit_parity", 17, {"score": "last", "num_ones": 6}),
    ("bit_parity", 17, {"score": "last", "num_ones": 6, "separator": True}),
    ("compositional_mqar", 60, {"num_kv_pairs": 9, "filler": "random", "loss_region": "all"}),
    ("context_recall", 40, {"value_length": 2, "vocab_size": 20}),
    ("copying", 10, {"pattern_length": 5, "markers": "many"}),
    ("copying", 10, {"pattern_length": 5, "loss_region": "pattern"}),
    ("cycle_navigation", 9, {"modulus": 3}),
    ("flip_flop", 64, {"num_registers": 3}),
    ("flip_flop", 64, {"min_writes": 4, "loss_region": "all"}),
    ("group_word_problem", 6, {"group": "S3", "generators": (1, 2, 3)}),
    ("group_word_problem", 6, {"group": "D5", "tokens_per_element": 2, "extra_tokens": "blank"}),
    ("induction", 24, {"num_triggers": 3, "answer_length": 2}),
    ("modular_arithmetic", 7, {"modulus": 3, "brackets": True}),
    ("modular_arithmetic", 4, {"modulus": 7, "separator": True}),
    ("mqar", 32, {"power_a": 1.0}),
    ("mqar", 40, {"num_updates": 2}),
    ("multi_stack", 20, {"num_stacks": 2, "alphabet_size": 3, "push_share": 0.7}),
    ("reverse", 9, {"alphabet_size": 3, "answer": "hidden"}),
    ("state_naming", 60, {"num_symbols": 4, "copies": 3, "min_gap": 1, "max_gap": 2}),
    ("state_recall", 4, {"num_cells": 6, "num_pointers": 3}),
    ("state_recall", 6, {"axis": "cells", "num_swaps": 2, "alphabet_size": 3}),
    ("mqar", 48, {"num_passes": 2}),
    ("mqar", 32, {"shared_vocab": True}),
    ("selective_copying", 10, {"pattern_length": 5, "markers": "many", "loss_region": "pattern"}),
    ("string_copy", 12, {"variant": "suffix_ngram", "answer_length": 3}),
    ("string_copy", 12, {"variant": "duplicate_ngram", "places": "published"}),
    ("updating_mqar", 48, {"query": "balanced", "rate_ratio": 16.0}),
    ("updating_mqar", 48, {"query": "balanced", "filler": "random", "num_kv_pairs": 6}),
    ("updating_mqar", 48, {"num_passes": 2, "shared_vocab": True}),
    ("updating_mqar", 48, {"loss_region": "all"}),
]
"""Knobs of laws that no preset has and that change what is scored or what rows tell: key, length, knobs."""


def segments_of(key, name):
    """Task and length of every segment of a preset, at the longest of its lengths."""
    preset = task_class(key).presets[name]
    blocks = list(preset.train or (Segment(1, preset.length),)) + [Segment(1, length) for length in preset.test_lengths]
    blocks += [segment for segments in preset.tests.values() for segment in segments]
    task = make_task(key, **preset.knobs)
    for block in blocks:
        yield task.replace(**block.knobs), block.length if isinstance(block.length, int) else block.length[1]


def law_of(task):
    """What tells one law of a task from another: its knobs, of numbers only whether they are given."""
    return task.key, *(
        value if isinstance(value, (str, bool, type(None))) else "number" for value in task.knobs().values()
    )


def shortest_of_each_law():
    """The shortest segment of every law that presets have, and the variants."""
    found = {}
    for key in sorted(TASKS):
        for name in task_class(key).presets:
            for task, length in segments_of(key, name):
                law = law_of(task)
                if law not in found or task.row_length(length) < found[law][0].row_length(found[law][1]):
                    found[law] = task, length
    cases = [*found.values(), *((make_task(key, **knobs), length) for key, length, knobs in VARIANTS)]
    names = ["-".join([task.key, str(length), *map(str, law_of(task)[1:])]) for task, length in cases]
    return [pytest.param(task, length, id=name) for (task, length), name in zip(cases, names, strict=True)]


def hangs_on_order(task):
    """Whether the ids of a row without their order leave the answer open; where they do not, a bag is no shortcut."""
    free = {
        "bit_parity": True,  # a sum
        "cycle_navigation": True,  # a sum
        "interval_counting": True,  # on-intervals last alike: how often it was on tells how far the last of them is
    }
    if task.key == "group_word_problem":
        return commutator_order(task.group) > 1
    return not free.get(task.key, False)


def excesses(task, length, num_tokens, seed=0, with_bags=hangs_on_order):
    """Rules that beat the stated level of a task by more than four standard errors, with value, error and level.

    For rules that remember nothing the level is chance; for others it is the best of chance and the baselines.
    Stacks deeper than one are no shortcut, nor are bags where the law does not hang on order. Where whole rows are
    scored, single tokens are too.
    """
    num_rows = min(max(num_tokens // task.row_length(length), 250), 4_000)
    rng, chance = np.random.default_rng([seed, length]), task.chance_level(task.headline_metric, length)
    stated = max([chance, *task.baselines(length).values()])
    found = {
        name: (value, error, chance if name in MEMORYLESS else stated)
        for name, (value, error) in heuristic_levels(task, length, rng, num_rows).items()
        if name not in STACKS[1:]
    }
    if task.headline_metric == "sequence_accuracy":
        tokens = heuristic_levels(task, length, rng, num_rows, "token_accuracy", MEMORYLESS)
        level = task.chance_level("token_accuracy", length)
        found |= {f"{name} by token": (value, error, level) for name, (value, error) in tokens.items()}
    if with_bags(task):
        found |= {name: (*level, stated) for name, level in bag_levels(task, length, rng, num_rows).items()}
    return {name: case for name, case in found.items() if case[0] - case[2] > 4 * case[1] + 1e-9}


@pytest.mark.parametrize(("task", "length"), shortest_of_each_law())
def test_no_rule_beats_the_stated_level_of_a_law(task, length):
    assert excesses(task, length, 50_000) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("key", "name"), [(key, name) for key in sorted(TASKS) for name in task_class(key).presets])
def test_no_rule_beats_the_stated_level_of_a_preset(key, name):
    for task, length in segments_of(key, name):
        if task.row_length(length) <= 512:
            assert excesses(task, length, 400_000, seed=1) == {}, (task, length)


class StatedAtOneHalf(Dyck):
    """Brackets whose stated levels are those of a constant, whatever solves the law."""

    def chance_level(self, metric, length):
        return 0.5

    def baselines(self, length):
        return {"constant": 0.5}


def test_a_law_of_brackets_that_a_counter_with_a_flag_solves_is_caught():
    found = excesses(StatedAtOneHalf(law="type_swap"), 32, 50_000)
    assert found["per_type_counters"][0] == 1.0
    assert found["position"][0] > 0.65
    published = excesses(StatedAtOneHalf(law="published"), 32, 50_000)
    assert published["type_blind_counter"][0] > 0.88
    assert published["last_token"][0] > 0.7
    # The law that needs a stack is not: nothing but deeper stacks is better than one half.
    assert excesses(StatedAtOneHalf(law="crossed"), 32, 50_000) == {}


def test_chance_that_forgets_what_positions_tell_is_caught():
    class StatedAtOneInK(MQAR):
        def chance_level(self, metric, length):
            return 1 / self.num_kv_pairs

    assert set(excesses(StatedAtOneInK(), 64, 250_000)) >= {"position", "slot"}
    assert excesses(StatedAtOneInK(slot_assignment="shuffled"), 64, 250_000) == {}


@pytest.mark.parametrize(
    ("task", "length"),
    [
        (BitParity(), 16),
        (make_task("cycle_navigation"), 39),
        (make_task("group_word_problem", group="Z2"), 32),
        (make_task("interval_counting"), 200),
    ],
)
def test_a_bag_solves_the_laws_that_do_not_hang_on_order(task, length):
    assert not hangs_on_order(task)
    found = excesses(task, length, 50_000, with_bags=lambda *_: True)
    assert "bag_of_ids" in found
    assert set(found) <= {"bag", "bag_of_ids"}
    assert found["bag_of_ids"][0] > 0.85


def test_laws_that_differ_from_those_in_their_order_alone_are_held_to_a_bag():
    assert hangs_on_order(make_task("group_word_problem", group="S3"))


@pytest.mark.parametrize(
    ("length", "knobs", "least"),
    [
        (7, {"modulus": 3, "brackets": True}, 0.85),
        (4, {"modulus": 7}, 0.35),
        (2, {}, 0.8),
        (40, {"brackets": True}, 0.25),
    ],
)
def test_what_a_bag_reaches_on_short_expressions_is_a_stated_level(length, knobs, least):
    task = make_task("modular_arithmetic", **knobs)
    assert task.baselines(length)["bag_of_ids"] > least
    found, error = bag_levels(task, length, np.random.default_rng(5))["bag_of_ids"]
    assert found < task.baselines(length)["bag_of_ids"] + 4 * error


def test_a_bag_tells_how_often_ids_have_come_and_not_in_which_order():
    rows = np.array([[0, 1, 1, 2], [1, 0, 1, 2], [2, 1, 1, 0], [0, 1, 2, 2]])
    codes = bag_codes(rows)
    assert (codes[:, 3] == codes[0, 3]).tolist() == [True, True, True, False]
    assert (codes[:, 1] == codes[0, 1]).tolist() == [True, True, False, True]
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (2_000, 12))
    counts = np.stack([np.bincount(row, minlength=5) for row in rows])
    assert len(np.unique(bag_codes(rows)[:, -1])) == len(np.unique(counts, axis=0))


EXACT = [
    *(
        (BitParity(**knobs), length, {name: name for name in (*MEMORYLESS[1:2], "position_and_token", *more)})
        for knobs, length, more in [
            ({}, 16, ("last_3_tokens", "majority_so_far")),
            ({"num_ones": 12}, 32, ("last_3_tokens",)),
            ({"num_ones": 12, "distinct_pool": 1_820}, 32, ("last_3_tokens", "majority_so_far")),
            ({"score": "last"}, 17, ("majority_so_far",)),
            ({"modulus": 3}, 16, ("last_3_tokens",)),
        ]
    ),
    (make_task("copying", pattern_length=5), 10, {"majority_so_far": "most_frequent_symbol"}),
    (make_task("selective_copying"), 10, {"majority_so_far": "most_frequent_symbol"}),
    (AssociativeRecall(num_kv_pairs=15), 32, {"majority_so_far": "most_frequent_value"}),
    (MQAR(num_kv_pairs=8), 64, {"position": "position"}),
    (UpdatingMQAR(query="balanced"), 64, {"last_candidate": "most_recent_binding"}),
    (UpdatingMQAR(), 64, {"last_candidate": "most_recent_binding"}),
    (Dyck(law="type_swap"), 32, {"position": "position_and_token", "position_and_token": "position_and_token"}),
]


@pytest.mark.parametrize(("task", "length", "names"), EXACT)
def test_levels_that_are_exact_are_reached_by_their_rules(task, length, names):
    found = heuristic_levels(task, length, np.random.default_rng(5), 6_000)
    stated = task.baselines(length)
    for rule, baseline in names.items():
        value, error = found[rule]
        # A fitted table is a little worse than the best one.
        assert abs(value - stated[baseline]) < 4 * error + 0.004, rule


@pytest.mark.parametrize(("length", "level"), [(32, 0.540584063), (48, 0.539327248)])
def test_chance_of_controlled_parity(length, level):
    assert BitParity(num_ones=12).chance_level("token_accuracy", length) == pytest.approx(level, abs=1e-9)


def test_the_commoner_bit_tells_something_of_the_parity_of_an_odd_number_of_bits():
    for length in (17, 39):
        level = BitParity(score="last").baselines(length)["majority_so_far"]
        # Of rows with more ones than zeros, those with one more are the commonest: signs alternate from there.
        excess = abs(sum((-1) ** ones * math.comb(length, ones) for ones in range(length // 2 + 1, length + 1)))
        assert level == pytest.approx(0.5 + excess / 2**length)
    assert BitParity(score="last").baselines(40)["majority_so_far"] == pytest.approx(0.5627, abs=1e-4)


@pytest.mark.parametrize("knobs", [{}, {"num_kv_pairs": 6}, {"rate_ratio": 16.0}])
def test_the_level_of_balanced_queries_is_reached_by_naming_a_key_of_the_smaller_group(knobs):
    task = UpdatingMQAR(query="balanced", **knobs)
    ids, labels = task.sample(np.random.default_rng(3), 64, 6_000)
    hits, total = [], 0
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        keys, updated = row[0 : 2 * task.num_kv_pairs : 2], []
        for at in range(task.context_length, 64, 2):
            if label[at + 1] >= 0:
                rest = [key for key in keys if key not in updated]
                group = min((g for g in (updated, rest) if g), key=len)
                hits.append(row[at] == group[-1])
                total += 1
            elif row[at] in keys and row[at] not in updated:
                updated.append(row[at])
    level = task.chance_level("recall", 64)
    assert abs(np.mean(hits) - level) < 4 * math.sqrt(level / total) + 0.003 * bool("rate_ratio" in knobs)
    assert level > 1.4 / task.num_kv_pairs


@pytest.mark.parametrize("knobs", [{"variant": "prefix_ngram"}, {"variant": "suffix_ngram", "places": "published"}])
def test_the_last_letters_answer_a_look_up_at_one_place(knobs):
    task = StringCopy(**knobs)
    _, labels = task.sample(np.random.default_rng(0), 20, 20_000)
    sizes = (labels >= 0).sum(axis=1) - 1
    level = task.baselines(20)["last_letters"]
    least = 3 if "places" in knobs else 1
    assert level == pytest.approx(1 / (18 - least))
    assert sizes.min() == least and sizes.max() == 17
    assert abs((sizes == least).mean() - level) < 4 * math.sqrt(level / 20_000)


def test_standard_errors_are_those_of_repeated_draws():
    task = Dyck(law="type_swap")
    found = [
        heuristic_levels(task, 16, np.random.default_rng(seed), 300, names=("sticky_bigram",))["sticky_bigram"]
        for seed in range(60)
    ]
    values, errors = np.array(found).T
    assert values.std() == pytest.approx(errors.mean(), rel=0.3)


def test_rules_are_known_by_name_and_metrics_are_checked():
    assert doctest.testmod(heuristics).attempted == 5
    assert doctest.testmod(heuristics).failed == 0
    assert doctest.testmod(bags) == (0, 4)
    rng = np.random.default_rng(0)
    assert set(heuristic_levels(BitParity(), 8, rng, 50, names=("position", "slot"))) == {"position", "slot"}
    assert "all_counters" in heuristic_levels(Dyck(), 12, rng, 50)
    assert "last_candidate" in heuristic_levels(MQAR(), 32, rng, 50)
    with pytest.raises(ValueError, match="metric of task 'mqar' must be an accuracy, a recall or a count of its own"):
        heuristic_levels(MQAR(), 32, rng, 50, "no_such_metric")


def test_candidates_are_the_values_that_a_row_has_bound():
    bound = UpdatingMQAR(vocab_size=16, num_kv_pairs=2)
    row = np.array([[3, 12, 5, 9, 3, 0, 3, 14, 0, 0, 5, 0, 3, 0]])
    assert row[bound.candidates(row, bound.solve(row))].tolist() == [12, 9, 14]
    twice = UpdatingMQAR(vocab_size=16, num_kv_pairs=2, num_passes=2)
    row = np.array([[3, 12, 5, 9, 3, 12, 5, 9, 5, 10, 5, 0]])
    assert row[twice.candidates(row, twice.solve(row))].tolist() == [12, 9, 10]
    # A filler's second token is no value, though it is no blank: its first is no key of the row.
    filled = UpdatingMQAR(vocab_size=16, num_kv_pairs=2, filler="random")
    row = np.array([[3, 12, 5, 9, 4, 15, 5, 10, 3, 0]])
    assert row[filled.candidates(row, filled.solve(row))].tolist() == [12, 9, 10]
    row = np.array([[3, 12, 5, 9, 0, 0, 5, 0, 3, 0]])
    assert row[MQAR(num_kv_pairs=2).candidates(row, row)].tolist() == [12, 9]
    assert row[AssociativeRecall(num_kv_pairs=2).candidates(row, row)].tolist() == [12, 9]
    assert BitParity().candidates(row, row) is None
