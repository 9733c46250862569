"""String copy: rows as text, n-gram variants, a solver that does not read the answer, chance levels."""

import doctest

import numpy as np
import pytest

from hf_memory.experiments.metrics import evaluate_predictions
from hf_memory.tasks import string_copy
from hf_memory.tasks.base import IGNORE_INDEX
from hf_memory.tasks.string_copy import StringCopy

CASES = [
    ({}, 12),
    ({"answer_length": 4}, 12),
    ({"variant": "duplicate_ngram"}, 12),
    ({"variant": "duplicate_ngram", "ngram": 2}, 4),
    ({"variant": "prefix_ngram"}, 12),
    ({"variant": "suffix_ngram"}, 12),
    ({"variant": "prefix_ngram", "answer_length": 2, "ngram": 1}, 12),
    ({"variant": "suffix_ngram", "answer_length": 5, "ngram": 2}, 12),
    ({"variant": "prefix_ngram", "places": "published"}, 12),
    ({"variant": "suffix_ngram", "answer_length": 2, "places": "published"}, 12),
    ({"variant": "duplicate_ngram", "places": "published"}, 12),
]


def texts(task, length, num_examples, seed=0):
    ids, labels = task.sample(np.random.default_rng(seed), length, num_examples)
    lines = ["".join(task.symbols[symbol] for symbol in row) for row in ids]
    due = ["".join(task.symbols[label] if label != IGNORE_INDEX else " " for label in row) for row in labels]
    return ids, labels, lines, due


def count_places(text, gram):
    return sum(text.startswith(gram, start) for start in range(len(text)))


def test_worked_examples_of_the_docstring_hold():
    assert doctest.testmod(string_copy).attempted == 5
    assert doctest.testmod(string_copy).failed == 0


@pytest.mark.parametrize(("knobs", "length"), CASES)
def test_rows_read_as_text_hold_the_law(knobs, length):
    task = StringCopy(**knobs)
    ids, labels, lines, due = texts(task, length, 300)
    assert ids.shape[1] == task.row_length(length)
    for line, label in zip(lines, due, strict=True):
        assert line[0] == "$" and line.rstrip("*").endswith(".")
        body = line[1:].rstrip("*")[:-1]
        if task.variant == "prefix_ngram":
            gram, text, answer = body.split("|")
        else:
            text, answer = body.split("|")
        assert len(text) == length
        if task.variant == "suffix_ngram":
            gram, answer = answer[: task.ngram], answer[task.ngram :]
        if task.variant in ("prefix_ngram", "suffix_ngram"):
            assert len(gram) == task.ngram and count_places(text, gram) == 1
            following = text[text.index(gram) + task.ngram :]
            assert answer and answer == following[: task.answer_length]
        else:
            assert answer == text[: task.answer_length]
        if task.variant == "duplicate_ngram":
            grams = [text[i : i + task.ngram] for i in range(length - task.ngram + 1)]
            places = [(i, j) for i in range(len(grams)) for j in range(i + task.ngram, len(grams))]
            assert any(grams[i] == grams[j] for i, j in places)
        assert label.strip() == answer + "."
        assert label.index(answer + ".") == task.prompt_length(length)
    np.testing.assert_array_equal(task.solve(ids), labels)


@pytest.mark.parametrize(("knobs", "length"), CASES)
def test_the_solver_does_not_read_the_answer(knobs, length):
    task = StringCopy(**knobs)
    ids, labels = task.sample(np.random.default_rng(1), length, 50)
    ids[:, task.prompt_length(length) :] = 0
    np.testing.assert_array_equal(task.solve(ids), labels)


def test_ngrams_stand_everywhere_equally_often():
    task = StringCopy(variant="suffix_ngram", ngram=2)
    _, labels = task.sample(np.random.default_rng(0), 8, 12_000)
    sizes = (labels != IGNORE_INDEX).sum(axis=1) - 1
    counts = np.bincount(sizes, minlength=7)[1:]
    # Six lengths of the answer, five degrees of freedom: 20.5 is exceeded once in a thousand draws.
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 20.5


def test_duplicates_stand_at_all_pairs_of_places_equally_often():
    task = StringCopy(variant="duplicate_ngram", ngram=2)
    text = task.sample(np.random.default_rng(0), 6, 12_000)[0][:, 1:7]
    pairs = [(i, j) for i in range(5) for j in range(i + 2, 5)]
    hits = np.array([(text[:, i : i + 2] == text[:, j : j + 2]).all(axis=1).mean() for i, j in pairs])
    # One of the six pairs of places is copied, and any other is equal with probability 1/676 or so.
    np.testing.assert_allclose(hits, 1 / 6, atol=0.015)


@pytest.mark.parametrize(("answer_length", "least", "greatest"), [(None, 3, 10), (2, 4, 10)])
def test_the_published_places_leave_out_the_last_two(answer_length, least, greatest):
    task = StringCopy(variant="suffix_ngram", ngram=2, places="published", answer_length=answer_length)
    ids, _ = task.sample(np.random.default_rng(0), 12, 8_000)
    text, asked = ids[:, 1:13], ids[:, 14:16]
    place = np.array([(text[:, i : i + 2] == asked).all(axis=1) for i in range(11)]).argmax(axis=0)
    after = np.bincount(10 - place, minlength=greatest + 1)
    assert after[:least].sum() == 0
    expected = 8_000 / (greatest - least + 1)
    # Seven degrees of freedom at most: 24.3 is exceeded once in a thousand draws.
    assert ((after[least:] - expected) ** 2 / expected).sum() < 24.3


def test_published_duplicates_end_short_of_the_last_two_letters():
    task = StringCopy(variant="duplicate_ngram", ngram=2, places="published", alphabet_size=26)
    text = task.sample(np.random.default_rng(0), 8, 20_000)[0][:, 1:9]
    shares = {
        (i, j): (text[:, i : i + 2] == text[:, j : j + 2]).all(axis=1).mean() for i in range(7) for j in range(i + 2, 7)
    }
    for (_, late), share in shares.items():
        # Of the pairs of places in the first six letters six are equally likely; others agree by accident.
        assert abs(share - (1 / 6 if late <= 4 else 0.0)) < 0.02


def test_chance_of_the_published_places_knows_the_shortest_answer():
    task = StringCopy(variant="suffix_ngram", ngram=1, alphabet_size=4, places="published")
    # Answers of 3 to 5 letters; ends are likelier than letters once three letters have come.
    assert task.chance_level("sequence_accuracy", 6) == pytest.approx(1 / 64 / 3)
    assert task.chance_level("token_accuracy", 6) == pytest.approx((3 * 3 / 4 + 1 + 1 + 1) / (4 + 5 + 6))


def test_chance_of_guessed_letters_is_exact_for_the_copy():
    task = StringCopy(alphabet_size=3)
    assert task.chance_level("sequence_accuracy", 4) == 3.0**-4
    assert task.chance_level("token_accuracy", 4) == (4 / 3 + 1) / 5
    ids, labels = task.sample(np.random.default_rng(0), 4, 20_000)
    guess = np.zeros_like(labels)
    guess[:, -2] = task.alphabet_size + 2
    values = evaluate_predictions(task, 4, ids, labels, guess)
    for name in ("sequence_accuracy", "token_accuracy"):
        assert values[name].value == pytest.approx(values[name].chance, abs=0.006)


def test_chance_of_the_look_up_is_that_of_one_letter_and_the_end():
    task = StringCopy(variant="suffix_ngram", ngram=1)
    ids, labels = task.sample(np.random.default_rng(0), 5, 60_000)
    end, prompt = task.alphabet_size + 2, task.prompt_length(5)
    guess = np.zeros_like(labels)
    guess[:, prompt:] = end
    exact = evaluate_predictions(task, 5, ids, labels, guess)["sequence_accuracy"]
    assert exact.chance == pytest.approx(1 / (26 * 4))
    assert exact.value == pytest.approx(exact.chance, abs=0.002)
    # Answers of 1, 2, 3 and 4 letters: at each step after the first the end is likelier than any letter.
    tokens = evaluate_predictions(task, 5, ids, labels, guess)["token_accuracy"]
    assert tokens.chance == pytest.approx((4 / 26 + 4) / 14)
    assert tokens.value == pytest.approx((4 / 26 + 4) / 14, abs=0.006)


def test_the_ngram_look_up_fails_on_duplicates_only():
    assert StringCopy().baselines(20)["ngram_lookup"] > 0.98
    assert StringCopy(variant="duplicate_ngram").baselines(20)["ngram_lookup"] == 0.0
    assert "ngram_lookup" not in StringCopy(variant="suffix_ngram").baselines(20)


def test_annotations_number_the_answer():
    task = StringCopy(variant="suffix_ngram", ngram=1)
    ids = np.array([[task.symbols.index(symbol) for symbol in "$abcd|bcd.*"]])
    notes = task.annotate(ids, task.solve(ids))
    assert notes["answer_index"][0].tolist() == [-1] * 7 + [0, 1, 2, -1]
    assert np.flatnonzero(notes["is_end"][0]).tolist() == [9]


@pytest.mark.parametrize("length", [1, 2])
def test_num_distinct_of_the_copy_is_exact(length):
    task = StringCopy(alphabet_size=5)
    assert len(np.unique(task.enumerate(length), axis=0)) == task.num_distinct(length) == 5**length


@pytest.mark.parametrize("variant", ["duplicate_ngram", "prefix_ngram", "suffix_ngram"])
def test_num_distinct_of_the_variants_is_a_lower_bound(variant):
    task = StringCopy(alphabet_size=3, variant=variant, ngram=2)
    ids, _ = task.sample(np.random.default_rng(0), 5, 20_000)
    assert len(np.unique(ids, axis=0)) >= task.num_distinct(5)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"alphabet_size": 27}, "alphabet_size must be an integer between 2 and 26, got 27"),
        ({"variant": "reverse"}, "variant must be one of 'copy'"),
        ({"places": "first"}, "places must be one of 'all', 'published', got 'first'"),
        ({"ngram": 0}, "ngram must be an integer between 1 and 12, got 0"),
        ({"answer_length": 0}, "answer_length must be None or an integer at least 1, got 0"),
    ],
)
def test_impossible_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        StringCopy(**knobs)


@pytest.mark.parametrize(
    ("knobs", "length", "message"),
    [
        ({"variant": "duplicate_ngram"}, 5, "at least 6, got 5"),
        ({"variant": "suffix_ngram"}, 3, "between 4 and 70304, got 3"),
        ({"variant": "prefix_ngram", "alphabet_size": 2, "ngram": 2}, 17, "between 3 and 16, got 17"),
        ({"answer_length": 9}, 8, "at least 9, got 8"),
    ],
)
def test_impossible_lengths_are_named(knobs, length, message):
    with pytest.raises(ValueError, match=message):
        StringCopy(**knobs).sample(np.random.default_rng(0), length, 1)
