"""Multi-query associative recall: the published law, fillers, an independent solver, chance levels."""

import doctest
import itertools
import math

import numpy as np
import pytest

from hf_memory.tasks import mqar
from hf_memory.tasks._slots import draw_law
from hf_memory.tasks.base import IGNORE_INDEX
from hf_memory.tasks.mqar import MQAR

SIZES = [(64, 4), (128, 8), (256, 16), (512, 64)]


def read_row(row, num_pairs, num_passes=1):
    """Solve a row in plain Python: a dictionary, then a walk over the slots."""
    pairs = dict(zip(row[0 : 2 * num_pairs : 2], row[1 : 2 * num_pairs : 2], strict=True))
    answers = {}
    for position in range(2 * num_pairs * num_passes, len(row), 2):
        if row[position] in pairs:
            answers[position + 1] = pairs[row[position]]
    return pairs, answers


def test_worked_example_of_the_docstring_holds():
    assert doctest.testmod(mqar).attempted == 7
    assert doctest.testmod(mqar).failed == 0


@pytest.mark.parametrize(("length", "pairs"), SIZES)
@pytest.mark.parametrize("knobs", [{}, {"filler": "random"}, {"shared_vocab": True}, {"num_passes": 2}])
def test_rows_are_solved_by_a_dictionary(length, pairs, knobs):
    task = MQAR(num_kv_pairs=pairs, **knobs)
    ids, labels = task.sample(np.random.default_rng(1), length, 40)
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        bindings, answers = read_row(row, pairs, task.num_passes)
        assert len(bindings) == pairs == len(set(bindings.values()))
        assert {position: value for position, value in enumerate(label) if value != IGNORE_INDEX} == answers
        assert sorted(answers.values()) == sorted(bindings.values())
    np.testing.assert_array_equal(task.solve(ids), labels)


def test_every_earlier_occurrence_of_a_queried_key_is_followed_by_its_value():
    for filler, shared in itertools.product(("zero", "random"), (False, True)):
        task = MQAR(num_kv_pairs=16, vocab_size=128, filler=filler, shared_vocab=shared, num_passes=2)
        ids, labels = task.sample(np.random.default_rng(0), 128, 200)
        for row, label in zip(ids, labels, strict=True):
            for position in np.flatnonzero(label != IGNORE_INDEX):
                earlier = np.flatnonzero(row[: position - 1] == row[position - 1])
                assert len(earlier) == 2
                assert (row[earlier + 1] == label[position]).all()


def test_keys_and_values_keep_to_their_halves():
    ids, labels = MQAR(num_kv_pairs=7, vocab_size=16).sample(np.random.default_rng(0), 64, 500)
    keys, values = ids[:, 0:14:2], ids[:, 1:14:2]
    np.testing.assert_array_equal(np.sort(keys, axis=1), np.broadcast_to(np.arange(1, 8), keys.shape))
    assert values.min() == 8 and values.max() == 15
    assert set(np.unique(labels)) == {IGNORE_INDEX, *range(8, 16)}


def test_shared_vocabulary_uses_every_id_in_both_roles_but_not_in_one_row():
    ids, _ = MQAR(num_kv_pairs=4, vocab_size=32, shared_vocab=True).sample(np.random.default_rng(0), 32, 2_000)
    context = ids[:, :8]
    assert (np.diff(np.sort(context, axis=1), axis=1) > 0).all()
    for role in (0, 1):
        np.testing.assert_array_equal(np.unique(context[:, role::2]), np.arange(1, 32))


def test_keys_are_uniform_over_ordered_choices():
    ids, _ = MQAR(num_kv_pairs=2, vocab_size=12).sample(np.random.default_rng(3), 8, 20_000)
    counts = np.unique(ids[:, 0] * 12 + ids[:, 2], return_counts=True)[1]
    assert len(counts) == 20
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8


@pytest.mark.parametrize("power_a", [0.01, 0.5, 1.0])
def test_slots_are_drawn_one_after_the_other_in_proportion_to_their_weight(power_a):
    rows, slots = 20_000, 6
    task = MQAR(num_kv_pairs=2, power_a=power_a)
    ids, _ = task.sample(np.random.default_rng(0), 4 + 2 * slots, rows)
    at = ids[:, 4::2]
    first = np.argmax(at == ids[:, 0, None], axis=1)
    second = np.argmax(at == ids[:, 2, None], axis=1)
    weight = np.arange(1, slots + 1) ** (power_a - 1)
    weight /= weight.sum()
    expected = {(i, j): weight[i] * weight[j] / (1 - weight[i]) for i in range(slots) for j in range(slots) if i != j}
    counts = np.array([((first == i) & (second == j)).sum() for i, j in expected])
    wanted = rows * np.array(list(expected.values()))
    # Chi-square with 29 degrees of freedom: 58.3 is exceeded once in a thousand draws.
    assert ((counts - wanted) ** 2 / wanted).sum() < 58.3


def test_the_first_slot_is_a_query_as_often_as_in_the_published_sizes():
    for (length, pairs), mean in zip(SIZES[:3], (7.2, 14, 28), strict=True):
        task = MQAR(num_kv_pairs=pairs)
        ids, labels = task.sample(np.random.default_rng(0), length, 4_000)
        slot = task.annotate(ids, labels)["slot"]
        assert slot[slot >= 0].mean() == pytest.approx(mean, rel=0.03)


def test_random_filler_avoids_the_rows_keys_and_values_and_is_uniform_otherwise():
    task = MQAR(num_kv_pairs=2, vocab_size=10, filler="random")
    ids, labels = task.sample(np.random.default_rng(0), 40, 4_000)
    query = np.roll(labels, -1, axis=1) != IGNORE_INDEX
    context = ids[:, :4]
    filler = np.where(query, -1, ids)[:, 4:]
    assert not (filler[:, :, None] == context[:, None, :]).any()
    # Given that 0 is never taken, it stands at one in six of the filler's places.
    assert (filler == 0).sum() / (filler >= 0).sum() == pytest.approx(1 / 6, rel=0.02)


def test_published_filler_covers_all_ids_and_its_ambiguity_is_marked():
    task = MQAR(num_kv_pairs=4, vocab_size=64, filler="random_published")
    ids, labels = task.sample(np.random.default_rng(0), 64, 2_000)
    solved, undecided = task.solve(ids), task.annotate(ids, labels)["undecided"]
    supervised = labels != IGNORE_INDEX
    np.testing.assert_array_equal(solved[supervised], labels[supervised])
    np.testing.assert_array_equal((solved != labels) & ~undecided, False)
    assert (solved != labels).any()
    np.testing.assert_array_equal(np.unique(ids), np.arange(64))


def test_accidental_keys_of_the_published_filler_are_as_frequent_as_computed():
    rates = {(64, 4): 0.025, (128, 8): 0.10, (256, 16): 0.41}
    for (length, pairs), rate in rates.items():
        task = MQAR(num_kv_pairs=pairs, filler="random_published")
        ids, _ = task.sample(np.random.default_rng(0), length, 4_000)
        keys = ids[:, 0 : 2 * pairs : 2]
        again = sum((ids[:, 2 * pairs :] == keys[:, i, None]).sum(axis=1) for i in range(pairs)) - pairs
        assert again.mean() == pytest.approx(rate, abs=0.012)


def test_annotations_locate_pair_slot_and_distance():
    row = np.array([[3, 12, 5, 9, 3, 12, 5, 9, 0, 0, 5, 0, 3, 0]])
    task = MQAR(vocab_size=16, num_kv_pairs=2, num_passes=2)
    labels = task.solve(row)
    notes = task.annotate(row, labels)
    assert np.flatnonzero(notes["score"][0]).tolist() == [11, 13]
    assert {name: notes[name][0, [11, 13]].tolist() for name in ("pair", "slot", "distance", "num_kv_pairs")} == {
        "pair": [1, 0],
        "slot": [1, 2],
        "distance": [4, 8],
        "num_kv_pairs": [2, 2],
    }
    assert (notes["distance"][~notes["score"]] == -1).all()


def test_chance_of_shuffled_pairs_is_a_guess_among_the_values_of_the_context():
    task = MQAR(num_kv_pairs=8, slot_assignment="shuffled")
    assert task.chance_level("recall", 128) == 1 / 8
    assert task.chance_level("sequence_accuracy", 128) == pytest.approx(1 / math.factorial(8))
    assert task.chance_level("loss", 128) == pytest.approx(math.log(8))
    assert task.baselines(128) == {"any_value": 1 / 4096, "value_in_context": 1 / 8, "position": 1 / 8}
    assert MQAR(num_kv_pairs=8, power_a=1.0).chance_level("recall", 128) == 1 / 8


def law_by_enumeration(num_slots, draws, power):
    """P(i-th draw = slot) over all orders of draws."""
    weights = np.arange(1, num_slots + 1) ** (power - 1.0)
    law = np.zeros((draws, num_slots))
    for order in itertools.permutations(range(num_slots), draws):
        left, probability = weights.sum(), 1.0
        for slot in order:
            probability *= weights[slot] / left
            left -= weights[slot]
        law[np.arange(draws), order] += probability
    return law


@pytest.mark.parametrize(
    ("slots", "draws", "power"), [(6, 3, 0.01), (5, 5, 0.5), (7, 2, 4.0), (6, 6, 0.01), (1, 1, 2.0)]
)
def test_the_law_of_the_draws_is_that_of_all_orders(slots, draws, power):
    np.testing.assert_allclose(draw_law(slots, draws, power), law_by_enumeration(slots, draws, power), atol=1e-12)


@pytest.mark.parametrize(("slots", "draws", "power"), [(28, 4, 0.01), (192, 64, 0.01), (60, 20, 8.0), (40, 40, 0.5)])
def test_in_the_law_of_the_draws_each_draw_is_one_slot_and_no_slot_is_drawn_twice(slots, draws, power):
    law = draw_law(slots, draws, power)
    np.testing.assert_allclose(law.sum(axis=1), 1.0, atol=1e-12)
    assert law.min() >= 0.0
    assert law.sum(axis=0).max() <= 1.0 + 1e-12
    weights = np.arange(1, slots + 1) ** (power - 1.0)
    np.testing.assert_allclose(law[0], weights / weights.sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("length", "pairs", "level"),
    [
        *((64, 4, 0.288), (32, 4, 0.307), (64, 8, 0.167), (128, 8, 0.155), (64, 16, 0.120)),
        *((256, 16, 0.083), (128, 32, 0.065), (256, 64, 0.035), (512, 64, 0.0249)),
    ],
)
def test_chance_is_the_best_guess_from_the_slot(length, pairs, level):
    task = MQAR(num_kv_pairs=pairs)
    assert task.chance_level("recall", length) == task.baselines(length)["position"] == pytest.approx(level, abs=6e-4)


@pytest.mark.parametrize("power_a", [0.01, 0.5, 4.0])
@pytest.mark.parametrize("passes", [1, 2])
def test_the_likeliest_pair_of_a_slot_scores_the_chance_level(power_a, passes):
    task = MQAR(num_kv_pairs=4, power_a=power_a, num_passes=passes)
    ids, labels = task.sample(np.random.default_rng(0), 64, 40_000)
    notes = task.annotate(ids, labels)
    slot, pair = notes["slot"][notes["score"]], notes["pair"][notes["score"]]
    law = draw_law((64 - task.context_length) // 2, 4, power_a)
    hit = law.argmax(axis=0)[slot] == pair
    level = task.chance_level("recall", 64)
    assert abs(hit.mean() - level) < 4 * math.sqrt(level * (1 - level) / len(hit))
    assert level > 0.258
    # The loss of one who states the odds of each pair given the slot.
    odds = law / np.maximum(law.sum(axis=0), 1e-300)
    surprise = -np.log(odds[pair, slot])
    assert abs(surprise.mean() - task.chance_level("loss", 64)) < 4 * surprise.std() / math.sqrt(len(surprise))


def test_shuffled_pairs_stand_in_the_same_slots_and_each_slot_asks_for_each_pair_equally_often():
    task = MQAR(num_kv_pairs=4, slot_assignment="shuffled")
    ids, labels = task.sample(np.random.default_rng(0), 64, 20_000)
    notes = task.annotate(ids, labels)
    slot, pair = notes["slot"][notes["score"]], notes["pair"][notes["score"]]
    share = np.bincount(slot, minlength=28) / len(ids)
    expected = draw_law(28, 4, 0.01).sum(axis=0)
    assert np.abs(share - expected).max() < 4 * math.sqrt(0.25 / len(ids))
    for one in (0, 1, 5):
        counts = np.bincount(pair[slot == one], minlength=4)
        # Chi-square with 3 degrees of freedom: 16.3 is exceeded once in a thousand draws.
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 16.3


def test_the_whole_row_has_a_known_level_only_where_slots_tell_nothing():
    assert math.isnan(MQAR().chance_level("sequence_accuracy", 64))
    assert MQAR(power_a=1.0).chance_level("sequence_accuracy", 64) == pytest.approx(1 / 24)


def test_num_distinct_counts_all_rows_of_a_small_space():
    task = MQAR(num_kv_pairs=2, vocab_size=8)
    # Keys 3 * 2, values 4 * 3, slots 3 * 2.
    assert task.num_distinct(10) == 432
    assert len(np.unique(task.enumerate(10), axis=0)) == 432
    filled = MQAR(num_kv_pairs=1, vocab_size=6, filler="random")
    # Two keys, three values, one slot, and one place for filler of the four other ids.
    assert filled.num_distinct(4) == 24
    assert len(np.unique(filled.enumerate(4), axis=0)) == 24
    shared = MQAR(num_kv_pairs=2, vocab_size=6, shared_vocab=True)
    assert shared.num_distinct(8) == 240
    assert len(np.unique(shared.enumerate(8), axis=0)) == 240


def test_presets_keep_or_scale_the_pairs():
    preset = MQAR.presets["kv16_len256"]
    assert next(iter(MQAR.presets)) == "kv4_len64"
    assert preset.test_lengths == (256, 512, 1024)
    scaled = {name: (s[0].length, s[0].knobs["num_kv_pairs"]) for name, s in preset.tests.items()}
    assert scaled == {"test_512_kv32": (512, 32), "test_1024_kv64": (1024, 64)}
    mixture = MQAR.presets["based_mixture"]
    assert sum(segment.num_examples for segment in mixture.train) == 180_000
    assert sum(segment.num_examples for segment in mixture.tests["test_mixture"]) == 7_000


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_kv_pairs": 0}, "num_kv_pairs with vocab_size 8192 must be an integer between 1 and 4095, got 0"),
        ({"num_kv_pairs": 8, "vocab_size": 16}, "between 1 and 7, got 8"),
        ({"filler": "zeros"}, "filler must be one of 'zero', 'random', 'random_published', got 'zeros'"),
        ({"power_a": 0.0}, "power_a must be a finite number"),
        ({"power_a": float("nan")}, "power_a must be a finite number"),
        ({"slot_assignment": "random"}, "slot_assignment must be one of 'published', 'shuffled', got 'random'"),
        ({"num_passes": 0}, "num_passes must be an integer at least 1"),
        ({"shared_vocab": "yes"}, "shared_vocab must be one of False, True"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        MQAR(**knobs)


@pytest.mark.parametrize(("length", "message"), [(14, "at least 16, got 14"), (65, "length must be even")])
def test_impossible_lengths_are_named(length, message):
    with pytest.raises(ValueError, match=message):
        MQAR(num_kv_pairs=4).sample(np.random.default_rng(0), length, 1)


@pytest.mark.parametrize(
    "knobs",
    [
        {"num_updates": 2},
        {"num_updates": 4, "num_passes": 2},
        {"num_updates": 3, "filler": "random", "shared_vocab": True},
        {"num_updates": 1, "slot_assignment": "shuffled"},
    ],
)
def test_keys_that_are_bound_again_have_their_later_value(knobs):
    task = MQAR(vocab_size=64, **knobs)
    ids, labels = task.sample(np.random.default_rng(0), 48, 400)
    np.testing.assert_array_equal(task.solve(ids), labels)
    notes = task.annotate(ids, labels)
    start = task.context_length - 2 * task.num_updates
    for row, label, distance, updated in zip(
        ids.tolist(), labels.tolist(), notes["distance"], notes["updated"], strict=True
    ):
        value, place = {}, {}
        for column in range(0, task.context_length, 2):
            value[row[column]], place[row[column]] = row[column + 1], column
        again = [row[column] for column in range(start, task.context_length, 2)]
        assert len(set(again)) == task.num_updates and set(again) <= set(row[:8:2])
        # Old and new values are all different.
        bound = {row[column + 1] for column in (*range(0, 8, 2), *range(start, task.context_length, 2))}
        assert len(bound) == 4 + task.num_updates
        asked = [column for column in range(48) if label[column] >= 0]
        assert len(asked) == 4
        for column in asked:
            key = row[column - 1]
            assert label[column] == value[key]
            assert distance[column] == column - 1 - place[key]
            assert updated[column] == (key in again)


def test_updates_fall_on_every_key_alike():
    task = MQAR(num_updates=1)
    ids, _ = task.sample(np.random.default_rng(0), 64, 20_000)
    counts = (ids[:, :8:2] == ids[:, 8, None]).sum(axis=0)
    assert ((counts - 5_000) ** 2 / 5_000).sum() < 16.3  # chi-square, 3 degrees: once in a thousand draws


def test_where_all_keys_are_bound_again_the_second_half_tells_all():
    for name, solved in (("forgetting", 1.0), ("forgetting_half", 0.5)):
        preset = MQAR.presets[name]
        task = MQAR(**preset.knobs)
        ids, labels = task.sample(np.random.default_rng(0), 64, 2_000)
        again = slice(task.context_length - 2 * task.num_updates, task.context_length, 2)
        row, column = np.nonzero(labels >= 0)
        found = (ids[row, again] == ids[row, column - 1][:, None]).any(axis=1)
        assert found.mean() == pytest.approx(solved, abs=0.03)
        assert [segment.length for segment in preset.train] == [64, 128, 256, 256, 256]


@pytest.mark.parametrize(
    "knobs", [{}, {"num_updates": 2, "slot_assignment": "shuffled"}, {"filler": "random_published"}]
)
def test_all_tokens_may_be_supervised_and_the_answers_alone_are_scored(knobs):
    task, whole = MQAR(vocab_size=64, **knobs), MQAR(vocab_size=64, **knobs, loss_region="all")
    ids, labels = task.sample(np.random.default_rng(5), 48, 100)
    again, everything = whole.sample(np.random.default_rng(5), 48, 100)
    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(everything, np.where(labels >= 0, labels, ids))
    scored = whole.annotate(ids, everything)["score"]
    assert (scored >= (labels >= 0)).all()
    if not knobs.get("filler"):
        np.testing.assert_array_equal(scored, labels >= 0)
        np.testing.assert_array_equal(whole.solve(ids), everything)
    assert math.isnan(whole.chance_level("loss", 48))
    assert whole.chance_level("recall", 48) == task.chance_level("recall", 48)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_updates": 5}, "num_updates must be an integer between 0 and 4"),
        ({"vocab_size": 12, "num_updates": 4}, "num_updates must be an integer between 0 and 2"),
        ({"vocab_size": 10, "shared_vocab": True, "num_updates": 2}, "num_updates must be an integer between 0 and 1"),
        ({"loss_region": "slots"}, "loss_region must be one of 'answers', 'all'"),
    ],
)
def test_impossible_updates_and_regions_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        MQAR(**knobs)


def test_all_rows_with_an_update_are_counted():
    task = MQAR(vocab_size=8, num_kv_pairs=2, num_updates=1)
    # Keys from 1 to 3, values from 4 to 7: 6 * 24 bindings, 2 keys to bind again, 2 orders of the queries.
    assert task.num_distinct(10) == 6 * 24 * 2 * 2 == len(task.enumerate(10))
