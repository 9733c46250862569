"""Dyck: worked examples, the walk, the four laws, reference lines, causes, exact spaces."""

import doctest
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from hf_memory.tasks import _brackets as brackets
from hf_memory.tasks import dyck
from hf_memory.tasks.dyck import Dyck
from hf_memory.tasks.heuristics import heuristic_levels

LAWS = ("published", "balanced", "type_swap", "crossed")
LENGTHS = (32, 48, 64, 128, 256)


def stack_labels(row, num_types):
    """Labels by the plain definition, one bracket at a time."""
    labels, stack, failed = [], [], False
    for token in row:
        if token < num_types:
            stack.append(token)
        elif not failed and stack and stack[-1] == token - num_types:
            stack.pop()
        else:
            failed = True
        labels.append(int(not failed and not stack))
    return labels


def draw(length, num_examples, seed=0, **knobs):
    task = Dyck(**knobs)
    return task, *task.sample(np.random.default_rng(seed), length, num_examples)


def assert_law(rows, probabilities, num_sigmas=4.5):
    """Every word comes as often as its probability says, and no other word comes."""
    counts = Counter(map(tuple, rows.tolist()))
    assert set(counts) <= set(probabilities)
    assert math.isclose(sum(probabilities.values()), 1.0)
    for word, probability in probabilities.items():
        sigma = math.sqrt(len(rows) * probability * (1 - probability))
        assert abs(counts[word] - len(rows) * probability) <= num_sigmas * sigma + 1e-9, word


def test_worked_examples_of_the_docstring_hold():
    results = doctest.testmod(dyck)
    assert results.attempted == 4
    assert results.failed == 0


def test_solver_and_stack_machine_follow_the_definition_on_arbitrary_rows():
    rng = np.random.default_rng(0)
    positives = 0
    for num_types, length in itertools.product((1, 2, 3), (1, 2, 5, 8, 13)):
        rows = rng.integers(0, 2 * num_types, size=(400, length), dtype=np.int32)
        expected = np.array([stack_labels(row, num_types) for row in rows.tolist()])
        np.testing.assert_array_equal(Dyck(num_bracket_types=num_types, max_depth=1).solve(rows), expected)
        np.testing.assert_array_equal(brackets.stack_labels(np.ascontiguousarray(rows.T), num_types).T, expected)
        positives += expected.sum()
    assert positives > 500


@pytest.mark.parametrize("law", LAWS)
def test_sampled_labels_follow_the_definition(law):
    task, rows, labels = draw(32, 10_000, law=law)
    np.testing.assert_array_equal(labels, task.solve(rows))
    assert labels[:300].tolist() == [stack_labels(row, 3) for row in rows[:300].tolist()]
    for length in LENGTHS[1:]:
        task, rows, labels = draw(length, 500, law=law)
        np.testing.assert_array_equal(labels, task.solve(rows))


def test_walks_end_balanced_and_reach_but_never_exceed_the_depth():
    for depth in (1, 2, 6):
        task, rows, labels = draw(32, 2_000, law="balanced", max_depth=depth)
        assert labels[:, -1].all()
        assert task.annotate(rows, labels)["depth"].max() == depth


def test_walks_have_the_probabilities_of_the_law():
    def probability(word, max_depth):
        value, depth = 1.0, 0
        for t, token in enumerate(word):
            free = 0 < depth < max_depth and depth < len(word) - t
            value *= 0.5 if free else 1.0
            depth += 1 if token == 0 else -1
        return value

    words = [(0, 1) * 4, (0, 0, 1, 1, 0, 0, 1, 1), (0, 0, 1, 0, 1, 1, 0, 1), (0, 1, 0, 0, 1, 1, 0, 1)]
    words += [(0, 0, 1, 1, 0, 1, 0, 1), (0, 1, 0, 1, 0, 0, 1, 1), (0, 1, 0, 0, 1, 0, 1, 1), (0, 0, 1, 0, 1, 0, 1, 1)]
    _, rows, _ = draw(8, 40_000, law="balanced", num_bracket_types=1, max_depth=2)
    assert_law(rows, {word: probability(word, 2) for word in words})


def test_types_of_opening_brackets_are_uniform():
    _, rows, _ = draw(32, 5_000, law="balanced")
    counts = np.bincount(rows[rows < 3], minlength=3)
    assert np.abs(counts / counts.sum() - 1 / 3).max() < 0.006


def test_the_published_corruption_has_the_probabilities_of_the_law():
    # Both words are equally likely. Of ()() the last two brackets are shuffled, of (()) all four.
    word = {(0, 1, 0, 1): 10, (0, 0, 1, 1): 7, (0, 1, 1, 0): 4, (1, 0, 0, 1): 1, (1, 1, 0, 0): 1, (1, 0, 1, 0): 1}
    _, rows, _ = draw(4, 48_000, num_bracket_types=1, max_depth=2)
    assert_law(rows, {key: value / 24 for key, value in word.items()})


@pytest.mark.parametrize(("length", "rate"), [(32, 0.112), (48, 0.097), (64, 0.086), (128, 0.074), (256, 0.067)])
def test_positive_rate_of_the_published_law(length, rate):
    _, _, labels = draw(length, 6_000, seed=1)
    assert abs(labels.mean() - rate) < 0.004
    assert abs(labels[:, -1].mean() - 0.5) < 0.03


@pytest.mark.parametrize(
    ("length", "even", "without_failure", "type_blind"),
    [(32, 0.782, 0.963, 0.993), (64, 0.773, 0.973, 0.997), (256, 0.768, 0.987, 0.999)],
)
def test_a_counter_that_ignores_types_scores_almost_perfectly_under_the_published_law(
    length, even, without_failure, type_blind
):
    values = Dyck().baselines(length, "macro_recall")
    assert values["constant"] == 0.5
    assert abs(values["even_position"] - even) < 0.006
    assert abs(values["counter_without_failure"] - without_failure) < 0.006
    assert abs(values["type_blind_counter"] - type_blind) < 0.003


@pytest.mark.parametrize(("length", "value"), [(32, 0.91), (256, 0.96)])
def test_under_the_published_law_the_type_blind_counter_is_good_even_at_depth_zero(length, value):
    values = Dyck().baselines(length)
    assert abs(values["type_blind_counter"] - value) < 0.02
    assert values["even_position"] == values["counter_without_failure"] == 0.5


@pytest.mark.parametrize("length", LENGTHS)
def test_type_swap_leaves_one_half_to_everything_that_ignores_types_at_depth_zero(length):
    task, rows, labels = draw(length, 2_000, law="type_swap")
    values = task.baselines(length)
    assert {values[name] for name in ("constant", "even_position", "type_blind_counter")} == {0.5}
    assert values["per_type_counters"] == values["all_counters"] == 1.0
    notes = task.annotate(rows, labels)
    at_zero = notes["depth"] == 0
    assert abs((labels[at_zero] == 0).mean() - 0.26) < 0.025
    for constant in (0, 1):
        assert brackets.macro_recall(labels, np.full_like(labels, constant), at_zero) == 0.5
    assert brackets.macro_recall(labels, labels, at_zero) == 1.0


def test_type_swap_changes_one_uniformly_chosen_closing_bracket_in_half_of_the_rows():
    task, rows, labels = draw(8, 40_000, law="type_swap", max_depth=4)
    notes = task.annotate(rows, labels)
    assert notes["depth"].min() == 0
    assert notes["depth"].max() == 4
    assert (notes["depth"][:, -1] == 0).all()
    swapped = rows[labels[:, -1] == 0]
    assert abs(len(swapped) - 20_000) < 450
    chosen = []
    for row in swapped.tolist():
        stack, wrong = [], []
        for token in row:
            if token < 3:
                stack.append(token)
            else:
                wrong.append(stack.pop() != token - 3)
        assert sum(wrong) == 1
        chosen.append(wrong.index(True))
    assert np.abs(np.bincount(chosen, minlength=4) / len(chosen) - 0.25).max() < 0.015


def test_the_other_type_is_uniform():
    _, rows, labels = draw(2, 30_000, law="type_swap", max_depth=1)
    pairs = Counter(map(tuple, rows[labels[:, 1] == 0].tolist()))
    assert len(pairs) == 6
    assert max(abs(count / pairs.total() - 1 / 6) for count in pairs.values()) < 0.015


def test_causes_and_depth_of_each_position():
    task = Dyck()
    ids = np.array([[task.symbols.index(bracket) for bracket in word] for word in ("([)]()", "())(()", "[]{()}")])
    notes = task.annotate(ids, task.solve(ids))
    assert notes["cause"].tolist() == [[1, 1, 2, 2, 2, 2], [1, 0, 3, 3, 3, 3], [1, 0, 1, 1, 1, 0]]
    assert notes["depth"].tolist() == [[1, 2, 1, 0, 1, 0], [1, 0, -1, 0, 1, 0], [1, 0, 1, 2, 1, 0]]
    assert notes["score"].all()


def test_recalls_by_cause_count_every_position_once():
    task, rows, labels = draw(32, 500)
    labels[0, -1] = -100
    blind = (task.annotate(rows, labels)["depth"] == 0).astype(np.int32)
    counts = task.extra_metrics(rows, labels, blind)
    negatives = sum(counts[f"recall_{cause}"][1] for cause in ("open", "wrong_type", "underflow"))
    assert negatives == (labels == 0).sum()
    assert counts["recall_balanced_at_depth0"] == ((labels == 1).sum(), (labels == 1).sum())
    assert counts["recall_open"][0] == counts["recall_open"][1] > 0
    assert counts["recall_unbalanced_at_depth0"][0] == 0
    assert 0 < counts["recall_underflow"][0] < counts["recall_underflow"][1]
    oracle = task.extra_metrics(rows, labels, labels)
    assert all(right == total > 0 for right, total in oracle.values())


def best_threshold(task, rows, labels):
    """Macro recall at depth zero of the best rule that says "balanced" up to some position."""
    at_zero, columns = task.annotate(rows, labels)["depth"] == 0, np.arange(rows.shape[1])
    rules = (np.broadcast_to(columns < end, labels.shape).astype(np.int32) for end in range(0, rows.shape[1], 2))
    return max(brackets.macro_recall(labels, rule, at_zero) for rule in rules)


@pytest.mark.parametrize(("length", "level"), [(32, 0.696), (64, 0.697), (256, 0.680)])
def test_position_alone_tells_a_swapped_type_from_the_exact_law(length, level):
    task, rows, labels = draw(length, 6_000, law="type_swap")
    assert task.chance_level("macro_recall_at_depth0", length) == pytest.approx(level, abs=1e-3)
    # The best table is a threshold: "no fault yet" while that is likelier, in its class, than a fault.
    assert abs(best_threshold(task, rows, labels) - level) < 0.012


@pytest.mark.parametrize("law", ["balanced", "type_swap"])
@pytest.mark.parametrize("metric", ["macro_recall", "token_accuracy"])
def test_exact_levels_are_those_of_the_fitted_table(law, metric):
    task = Dyck(law=law)
    levels = heuristic_levels(task, 32, np.random.default_rng(2), 8_000, metric, ("position_and_token",))
    value, error = levels["position_and_token"]
    assert abs(value - task.chance_level(metric, 32)) < 4 * error


def test_the_walk_has_the_law_of_its_depths_and_brackets():
    for length, depth in ((32, 6), (12, 3), (8, 1)):
        _, rows, labels = draw(length, 20_000, law="balanced", max_depth=depth)
        zero, closing = brackets.walk_law(length, depth)
        assert np.abs(labels.mean(axis=0) - zero).max() < 4 * math.sqrt(0.25 / 20_000)
        assert np.abs((rows >= 3).mean(axis=0) - closing).max() < 4 * math.sqrt(0.25 / 20_000)


@pytest.mark.parametrize(("length", "table", "top_2", "top_3"), [(32, 0.76, 0.82, 0.93), (64, 0.75, 0.80, 0.92)])
def test_crossed_words_need_more_than_the_top_of_a_stack(length, table, top_2, top_3):
    task, rows, labels = draw(length, 6_000, law="crossed")
    values = task.baselines(length)
    counters = ("constant", "even_position", "type_blind_counter", "per_type_counters", "all_counters", "stack_of_1")
    assert {values[name] for name in counters} == {0.5}
    assert values["position_and_token"] == task.chance_level("macro_recall_at_depth0", length) == 0.5
    assert abs(values["last_3_tokens"] - 0.5) < 0.04
    assert abs(values["stack_of_2"] - top_2) < 0.03
    assert abs(values["stack_of_3"] - top_3) < 0.03
    assert abs(labels[:, -1].mean() - 0.5) < 0.03
    # Where every return to depth zero is counted, the position alone tells much: only the last one is scored.
    assert abs(best_threshold(task, rows, labels) - table) < 0.02


def test_a_crossing_exchanges_two_closing_brackets_of_nested_pairs_and_all_are_equally_likely():
    task, rows, labels = draw(10, 60_000, law="crossed", num_bracket_types=2, max_depth=4)
    np.testing.assert_array_equal(np.unique(rows, axis=0), np.unique(task.enumerate(10), axis=0))
    chosen = Counter()
    for row in rows[labels[:, -1] == 0].tolist():
        stack, wrong = [], []
        for position, token in enumerate(row):
            if token < 2:
                stack.append(token)
            elif stack.pop() != token - 2:
                wrong.append(position)
        inner, outer = wrong
        assert row[inner - 1] >= 2 and row[outer - 1] >= 2
        word = list(row)
        word[inner], word[outer] = word[outer], word[inner]
        assert stack_labels(word, 2)[-1] == 1
        chosen[tuple(word), inner, outer] += 1
    # ([[()]]): the innermost pair that holds one has two around it, of which one has another type; so has the next.
    counts = [count for (word, *_), count in chosen.items() if word == (0, 1, 1, 0, 2, 3, 3, 2, 0, 2)]
    assert len(counts) == 2
    assert abs(counts[0] - counts[1]) < 4 * math.sqrt(sum(counts)) < sum(counts)


def test_only_the_last_position_of_crossed_words_is_scored_also_where_rows_are_padded():
    task, rows, labels = draw(12, 50, law="crossed")
    labels[0, 8:] = -100
    score = task.annotate(rows, labels)["score"]
    assert np.flatnonzero(score[0]).tolist() == [7]
    assert (score[1:].sum(axis=1) == 1).all() and score[1:, -1].all()
    # Recalls by cause count all supervised positions.
    assert task.extra_metrics(rows, labels, labels)["recall_open"][1] > 100


def test_chance_levels_of_the_published_law_know_position_and_bracket():
    task, _, labels = draw(32, 10_000, seed=3)
    assert task.chance_level("macro_recall", 32) == pytest.approx(0.907, abs=0.006)
    assert task.chance_level("macro_recall_at_depth0", 32) == pytest.approx(0.775, abs=0.015)
    assert task.chance_level("token_accuracy", 32) > (labels == 0).mean()
    assert abs(task.chance_level("sequence_accuracy", 32) - (labels == 0).all(axis=1).mean()) < 0.02
    assert math.isnan(task.chance_level("mse", 32))
    # Under the balanced law there is one class at depth zero, so that a constant is perfect there.
    assert Dyck(law="balanced").chance_level("macro_recall_at_depth0", 32) == 1.0


def reachable(law, num_types, max_depth, length):
    """Words of a law by brute force over all words and all shuffles."""
    words = {
        word
        for word in itertools.product(range(2 * num_types), repeat=length)
        if stack_labels(word, num_types)[-1]
        and max(itertools.accumulate(1 if token < num_types else -1 for token in word)) <= max_depth
    }
    corrupted = set()
    for word in words if law != "balanced" else ():
        labels = stack_labels(word, num_types)
        starts = [t + 1 for t in range(length - 1) if labels[t]] or [0]
        if law == "crossed":
            corrupted |= crossings(word, num_types)
        elif law == "published":
            corrupted |= {word[:t] + rest for t in starts for rest in itertools.permutations(word[t:])}
        else:
            closers = [t for t in range(length) if word[t] >= num_types]
            corrupted |= {
                (*word[:t], kind, *word[t + 1 :]) for t in closers for kind in range(num_types, 2 * num_types)
            }
    if law == "crossed":
        words = {word for word in words if crossings(word, num_types)}
    return words | corrupted


def crossings(word, num_types):
    """Words with two closing brackets of nested pairs of unlike types exchanged, each after another closing bracket."""
    stack, pairs = [], []
    for position, token in enumerate(word):
        if token < num_types:
            stack.append(position)
        else:
            pairs.append((stack.pop(), position))
    found = set()
    for (first, inner), (around, outer) in itertools.product(pairs, pairs):
        if around < first and inner < outer and word[inner] != word[outer] and word[inner - 1] >= num_types:
            changed = list(word)
            changed[inner], changed[outer] = word[outer], word[inner]
            found.add(tuple(changed))
    return found


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("num_types", "max_depth", "length"), [(2, 1, 2), (2, 1, 4), (2, 2, 4), (3, 2, 4), (2, 1, 6), (2, 3, 6), (2, 4, 8)]
)
def test_small_spaces_are_those_found_by_brute_force(law, num_types, max_depth, length):
    if law == "crossed" and max_depth < 3:
        with pytest.raises(ValueError, match="max_depth must be an integer at least 3"):
            Dyck(law=law, num_bracket_types=num_types, max_depth=max_depth)
        return
    task = Dyck(law=law, num_bracket_types=num_types, max_depth=max_depth)
    expected = reachable(law, num_types, max_depth, length)
    rows = task.enumerate(length)
    assert task.num_distinct(length) == len(rows) == len(expected)
    assert set(map(tuple, rows.tolist())) == expected


def test_impossible_knobs_and_lengths_are_named():
    with pytest.raises(ValueError, match="law must be one of 'published', 'balanced', 'type_swap', 'crossed'"):
        Dyck(law="swapped")
    with pytest.raises(ValueError, match="num_bracket_types must be an integer between 2"):
        Dyck(law="type_swap", num_bracket_types=1)
    with pytest.raises(ValueError, match="length must be even, got 33"):
        Dyck().validate_length(33)
    with pytest.raises(ValueError, match="max_depth at length 10 must be an integer between 1 and 5, got 6"):
        Dyck().sample(np.random.default_rng(0), 10, 1)
    with pytest.raises(ValueError, match="at most 16777216 can be enumerated"):
        Dyck().enumerate(32)
    with pytest.raises(ValueError, match="metric must be one of"):
        Dyck().baselines(32, "token_accuracy")
