"""Laws of streams and of examples, held against the tasks of their names."""

import numpy as np
import pytest

from hf_memory.experiments.probing.cells import Plan, probe_model
from hf_memory.experiments.probing.formats import Layout
from hf_memory.experiments.probing.subject import Subject
from hf_memory.experiments.probing.tables import LAWS, suite_tasks
from hf_memory.experiments.probing.words import draw_vocabulary, find_pool
from hf_memory.tasks import TASKS, make_task
from tests.experiments.probing.pieces import induction_head, tiny, word_tokenizer


@pytest.fixture(scope="module")
def vocabulary():
    return draw_vocabulary(find_pool(Layout("pairs", word_tokenizer()), 40), 16, 0)


def rows_of(key, vocabulary, size, count=40):
    law = LAWS[key]
    return [law.draw(np.random.default_rng(n), vocabulary, size, n % 2 == 1) for n in range(count)]


@pytest.mark.parametrize("key", LAWS)
def test_a_law_has_a_task_and_every_answer_is_a_candidate(key, vocabulary):
    assert key in TASKS
    for row in rows_of(key, vocabulary, LAWS[key].sizes[0]):
        for query in (*row.queries, *row.changed_queries):
            assert set(query.unit.answer) <= set(query.candidates)
            assert len(set(query.candidates)) == len(query.candidates) >= 2
            assert 0 < query.credits["one_over_k"] <= 0.5
            assert all(0 <= credit <= 1 for credit in query.credits.values())


def test_suites_hold_every_task_once():
    assert suite_tasks("recall") + suite_tasks("tracking") == suite_tasks("all") == tuple(LAWS)
    with pytest.raises(ValueError, match="did you mean 'recall'"):
        suite_tasks("recal")


@pytest.mark.parametrize("key", ["mqar", "updating_mqar"])
def test_pairs_answer_as_the_law_of_the_task(key, vocabulary):
    for row in rows_of(key, vocabulary, 8):
        for context, queries in ((row.context, row.queries), (row.changed, row.changed_queries)):
            held = {unit.given[0]: unit.answer[0] for unit in context}
            assert len(held) == 8
            for query in queries:
                assert query.unit.answer[0] == held[query.unit.given[0]]
                assert context[query.place] == query.unit
        moved = [place for place, pair in enumerate(zip(row.context, row.changed, strict=True)) if pair[0] != pair[1]]
        assert moved == sorted(query.place for query in row.queries[:2])
        assert [query.unit.given for query in row.queries[:2]] == [query.unit.given for query in row.changed_queries]


def test_values_of_associative_recall_come_again_and_one_key_is_asked_for(vocabulary):
    rows = rows_of("associative_recall", vocabulary, 8)
    assert any(len({unit.answer for unit in row.context}) < 8 for row in rows)
    for row in rows:
        assert len(row.queries) == len(row.changed_queries) == 1
        assert row.changed_queries[0].unit.answer != row.queries[0].unit.answer


def test_parity_examples_are_right_and_balanced(vocabulary):
    task = make_task("bit_parity")
    for number, row in enumerate(rows_of("bit_parity", vocabulary, 8)):
        zero, one = (int(n) for n in vocabulary.role(number % 2)[:2])
        even, odd = (int(n) for n in vocabulary.role(1 - number % 2)[:2])
        units = (*row.context, row.queries[0].unit)
        bits = np.array([[{zero: 0, one: 1}[word] for word in unit.given] for unit in units])
        parity = task.solve(bits)[:, -1]
        assert [unit.answer[0] for unit in units] == [(even, odd)[value] for value in parity]
        assert parity[:-1].sum() == 4
        assert units[-1].given not in {unit.given for unit in row.context}


def test_products_of_the_group_are_those_of_the_task(vocabulary):
    task = make_task("group_word_problem", group="S3")
    for number, row in enumerate(rows_of("group_word_problem", vocabulary, 6)):
        keys, values = ([int(n) for n in vocabulary.role(which)[:6]] for which in (number % 2, 1 - number % 2))
        units = (*row.context, row.queries[0].unit)
        ids = np.array([[keys.index(word) for word in unit.given] for unit in units])
        assert [values.index(unit.answer[0]) for unit in units] == task.solve(ids)[:, -1].tolist()
        assert {unit.answer[0] for unit in row.context} == set(values)


def test_the_next_bracket_makes_a_longer_prefix_of_a_word(vocabulary):
    task = make_task("dyck", num_bracket_types=3)
    for number, row in enumerate(rows_of("dyck", vocabulary, 3)):
        opening, closing = ([int(n) for n in vocabulary.role(w)[:3]] for w in (number % 2, 1 - number % 2))
        signs = [*opening, *closing]
        for unit in (*row.context, row.queries[0].unit):
            word = [signs.index(bracket) for bracket in unit.given]
            # Closed in the one way that there is, the word is balanced; with another bracket first it is not.
            stack = []
            for sign in word:
                stack = [*stack, sign + 3] if sign < 3 else stack[:-1]
            for first in closing:
                whole = [*word, signs.index(first), *reversed(stack[:-1])]
                balanced = task.solve(np.array([whole]))[0, -1] == 1
                assert balanced == (first == unit.answer[0])


def test_the_bit_written_last_is_due(vocabulary):
    task = make_task("flip_flop")
    for number, row in enumerate(rows_of("flip_flop", vocabulary, 16)):
        write, read, ignore = (int(n) for n in vocabulary.role(number % 2)[:3])
        bits = [int(n) for n in vocabulary.role(1 - number % 2)[:2]]
        ids = {write: 3, read: 4, ignore: 2, bits[0]: 0, bits[1]: 1}
        units = (*row.context, row.queries[0].unit)
        flat = np.array([[ids[word] for unit in units for word in (*unit.given, *unit.answer)]])
        labels = task.solve(flat)[0]
        assert (labels[labels >= 0] == flat[0][labels >= 0]).all()
        assert labels[-1] == flat[0, -1]
        assert row.context[row.queries[0].place].given == (write,)


def test_an_induction_head_copies_strings_and_streams(tmp_path):
    plan = Plan(tasks=("induction",), lengths=(64,), sizes=(8,), gaps=(0,), rows=2, vocabularies=2)
    for row in probe_model(Subject("head", induction_head(64), word_tokenizer()), plan, tmp_path, progress=False):
        assert row.value("recall") == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["mamba", "recurrent_gemma"])
def test_models_that_go_on_by_steps_score_what_whole_passes_score(name, tmp_path):
    plan = Plan(tasks=("string_copy", "mqar"), lengths=(48,), sizes=(4,), gaps=(), rows=2, vocabularies=2)
    subject = Subject(name, tiny(name), word_tokenizer())
    rows = probe_model(subject, plan, tmp_path / "steps", progress=False)
    assert {row.probe["continues_by"] for row in rows} == {"steps"}
    whole = probe_whole(subject, plan, tmp_path / "whole")
    for row, other in zip(rows, whole, strict=True):
        assert other.probe["continues_by"] == "whole"
        for metric in ("probability_among_candidates", "probability_among_all"):
            assert row.value(metric) == pytest.approx(other.value(metric), rel=1e-4)


def probe_whole(subject, plan, folder):
    from hf_memory.experiments.probing import cells

    original = cells.make_runner

    def whole(model, chunk):
        runner = original(model, chunk)
        runner.way = "whole"
        return runner

    cells.make_runner = whole
    try:
        return probe_model(subject, plan, folder, progress=False)
    finally:
        cells.make_runner = original
