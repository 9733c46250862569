"""Group word problems: numbering, product side, tables against plain permutations, chance levels, presets."""

import doctest
import itertools
import math

import numpy as np
import pytest

from hf_memory.tasks import group_word_problem, groups
from hf_memory.tasks.base import Segment
from hf_memory.tasks.group_word_problem import GroupWordProblem

NAMES = ("Z60", "A4xZ5", "A5", "Z12", "A4", "S3", "S5", "Z2xS3xZ2", "S1xZ3", "A3xA2xS2", "D5", "D4xA3")
NAMED_BY_CYCLES = "(0 1 2 3 4),(1 2 4 3)"


def elements(name):
    """Elements of a group in the published order, each a tuple of permutations and integers."""
    parts = []
    for factor in name.split("x"):
        degree = int(factor[1:])
        if factor[0] == "Z":
            parts.append(list(range(degree)))
            continue
        if factor[0] == "D":
            turns = [tuple((turn + i) % degree for i in range(degree)) for turn in range(degree)]
            parts.append(turns + [tuple((turn - i) % degree for i in range(degree)) for turn in range(degree)])
            continue
        lines = list(itertools.permutations(range(degree)))
        if factor[0] == "A":
            lines = [p for p in lines if sum(p[i] > p[j] for i in range(degree) for j in range(i + 1, degree)) % 2 == 0]
        parts.append(lines)
    return list(itertools.product(*parts))


def product(p, q, name):
    """The element that acts as ``q`` first and ``p`` after it, part by part."""
    return tuple(
        (a + b) % int(factor[1:]) if factor[0] == "Z" else tuple(a[i] for i in b)
        for a, b, factor in zip(p, q, name.split("x"), strict=True)
    )


def test_worked_examples_of_the_docstrings_hold():
    for module, examples in ((group_word_problem, 5), (groups, 1)):
        results = doctest.testmod(module)
        assert results.attempted == examples
        assert results.failed == 0


def test_published_vector_of_a5_and_its_product_side():
    row = np.array([[1, 2, 3, 17, 59]])
    assert GroupWordProblem(group="A5").solve(row).tolist() == [[1, 0, 3, 28, 50]]
    table = groups.multiplication_table("A5")
    assert list(itertools.accumulate(row[0], lambda acc, x: int(table[acc, x]))) == [1, 0, 3, 28, 50]
    # The other side, which these data do not use.
    assert list(itertools.accumulate(row[0], lambda acc, x: int(table[x, acc]))) == [1, 0, 3, 22, 37]


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_the_products_of_plain_permutations_and_integers(name):
    table = groups.multiplication_table(name)
    members = elements(name)
    number = {member: index for index, member in enumerate(members)}
    assert table.shape == (len(members),) * 2 == (groups.group_order(name),) * 2
    rng = np.random.default_rng(0)
    for p, q in rng.integers(0, len(members), size=(400, 2)).tolist():
        assert table[p, q] == number[product(members[p], members[q], name)]


@pytest.mark.parametrize("name", [*NAMES, NAMED_BY_CYCLES, "S6", "A7", "S7"])
def test_tables_are_groups_with_identity_zero(name):
    table = groups.multiplication_table(name)
    order = len(table)
    np.testing.assert_array_equal(table[0], np.arange(order))
    np.testing.assert_array_equal(table[:, 0], np.arange(order))
    np.testing.assert_array_equal(np.sort(table[order // 2]), np.arange(order))
    a, b, c = np.random.default_rng(0).integers(0, order, size=(3, 2_000))
    np.testing.assert_array_equal(table[table[a, b], c], table[a, table[b, c]])
    assert not table.flags.writeable
    assert groups.multiplication_table(name) is table


def test_products_are_numbered_row_major():
    a4, z5, both = (groups.multiplication_table(name) for name in ("A4", "Z5", "A4xZ5"))
    for p, q in itertools.product(range(60), repeat=2):
        assert both[p, q] == 5 * a4[p // 5, q // 5] + z5[p % 5, q % 5]


def test_element_names_are_distinct_words():
    assert GroupWordProblem(group="A5").symbols[:3] == ("01234", "01342", "01423")
    assert GroupWordProblem(group="Z60").symbols[59] == "59"
    for name in NAMES:
        words = groups.element_names(name)
        assert len(set(words)) == len(words) == groups.group_order(name)
        assert not any(" " in word for word in words)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_labels_are_the_products_composed_without_the_table(name):
    task = GroupWordProblem(group=name)
    ids, labels = task.sample(np.random.default_rng(0), 8, 10_000)
    np.testing.assert_array_equal(labels, task.solve(ids))
    members = elements(name)
    for row, answer in zip(ids[:5].tolist(), labels[:5].tolist(), strict=True):
        assert [members[y] for y in answer] == list(
            itertools.accumulate((members[x] for x in row), lambda p, q: product(p, q, name))
        )


def test_long_rows_are_solved():
    for name in ("A5", "A4xZ5", "Z60"):
        task = GroupWordProblem(group=name)
        ids, labels = task.sample(np.random.default_rng(0), 512, 100)
        np.testing.assert_array_equal(labels, task.solve(ids))


def test_elements_are_uniform_and_independent():
    ids, labels = GroupWordProblem(group="S3").sample(np.random.default_rng(0), 3, 60_000)
    for pairs in (ids[:, :2], ids[:, 1:], np.stack([ids[:, 2], labels[:, 2]], axis=1)):
        counts = np.bincount(pairs[:, 0] * 6 + pairs[:, 1], minlength=36)
        statistic = ((counts - 60_000 / 36) ** 2 / (60_000 / 36)).sum()
        assert statistic < 75  # chi-square with 35 degrees of freedom: exceeded once in 10,000 draws


@pytest.mark.parametrize("name", ["S3", "Z4", "A4"])
def test_chance_levels_are_those_of_the_best_table_from_position_and_token(name):
    task = GroupWordProblem(group=name)
    order, length = task.vocab_size, 3
    ids = task.enumerate(length)
    labels = task.solve(ids)
    right = np.zeros(length)
    for position in range(length):
        joint = np.zeros((order, order))
        np.add.at(joint, (ids[:, position], labels[:, position]), 1)
        right[position] = joint.max(axis=1).sum() / len(ids)
    assert math.isclose(task.chance_level("token_accuracy", length), right.mean())
    assert math.isclose(task.baselines(length)["current_token"], order**-2)
    # The first token, the identity, the third token: right wherever the second is the inverse of the first.
    assert math.isclose(task.chance_level("sequence_accuracy", length), order**-1)
    answers = np.stack([ids[:, 0], np.zeros_like(ids[:, 1]), ids[:, 2]], axis=1)
    assert math.isclose((answers == labels).all(axis=1).mean(), order**-1)
    # Repeating the token is one of these tables, so it is right in all of its rows at once.
    token = ids == labels
    assert math.isclose(token.all(axis=1).mean(), order**-2)
    assert math.isclose(task.chance_level("loss", length), 2 / 3 * math.log(order))
    assert math.isclose(task.chance_level("token_accuracy_after_first", length), right[1:].mean())
    assert math.isclose(task.chance_level("last_token_accuracy", length), right[-1])


COSETS = [("S3", 3), ("A4", 4), ("A4xZ5", 4), ("A5", 60), ("S5", 60), ("A6", 360), ("D8", 4), ("D5", 5), ("S7", 2520)]


@pytest.mark.parametrize(("name", "hidden"), [*COSETS, (NAMED_BY_CYCLES, 5)])
def test_the_commutative_quotient_leaves_a_coset_to_guess(name, hidden):
    assert groups.commutator_order(name) == hidden
    assert math.isclose(GroupWordProblem(group=name).baselines(8)["commutative_quotient"], hidden**-7)


@pytest.mark.parametrize("name", ["Z60", "Z2xZ2", "A3"])
def test_commutative_groups_have_no_such_baseline(name):
    assert groups.commutator_order(name) == 1
    assert set(GroupWordProblem(group=name).baselines(8)) == {"uniform", "current_token", "last_3_tokens"}


def test_counts_leave_out_the_free_position_and_padding():
    task = GroupWordProblem(group="Z60")
    ids = np.array([[5, 7, 1, 0], [3, 3, 0, 0]])
    labels = np.array([[5, 12, 13, -100], [3, 6, 6, 6]])
    counts = task.extra_metrics(ids, labels, ids)
    assert counts == {"token_accuracy_after_first": (0, 5), "last_token_accuracy": (0, 2)}
    counts = task.extra_metrics(ids, labels, np.array([[5, 12, 0, 0], [3, 6, 0, 6]]))
    assert counts == {"token_accuracy_after_first": (3, 5), "last_token_accuracy": (1, 2)}


def test_every_sequence_is_enumerated_once():
    rows = GroupWordProblem(group="S3").enumerate(3)
    assert rows.tolist() == [list(row) for row in itertools.product(range(6), repeat=3)]
    assert GroupWordProblem(group="A5").num_distinct(2) == 3600
    with pytest.raises(ValueError, match="length 8 has 167961600000000 distinct rows"):
        GroupWordProblem(group="A5").enumerate(8)


def test_presets_carry_the_published_lengths_and_all_pairs():
    presets = GroupWordProblem.presets
    assert next(iter(presets)) == "a5_k8"
    for name, group in {"z60": "Z60", "a4xz5": "A4xZ5", "a5": "A5"}.items():
        preset = presets[f"{name}_k8"]
        assert preset.knobs == {"group": group}
        assert preset.test_lengths == (8, 16, 24, 32, 40, 64, 128, 256, 512)
        assert preset.train == (Segment(100_000, 8), Segment(3_600, 2))
        share = presets[f"{name}_k8_pairs10"].train
        assert share[1].num_examples / sum(segment.num_examples for segment in share) == 0.1
        assert [presets[f"{name}_k{length}"].length for length in (128, 256, 512)] == [128, 256, 512]


@pytest.mark.parametrize("name", ["B5", "A5 x Z5", "Z0", "A5x", "", "Z-3", "S05", "(0 1", "()", "(0,1)"])
def test_names_that_are_no_group_are_refused(name):
    with pytest.raises(ValueError, match="group must be a product of"):
        GroupWordProblem(group=name)


TOO_SMALL_OR_LARGE = [
    "S8",
    "A8",
    "Z5041",
    "S7xZ2",
    "D2521",
    "(0 1 2 3 4 5 6 7 8),(0 1)",
    "Z1",
    "A2xS1",
    "Z999999xZ999999",
]


@pytest.mark.parametrize("name", TOO_SMALL_OR_LARGE)
def test_groups_of_other_sizes_are_refused(name):
    with pytest.raises(ValueError, match="group must have between 2 and 5040 elements"):
        GroupWordProblem(group=name)


def test_training_rows_of_the_groups_of_order_60_are_distinct():
    for group in ("A5", "Z60"):
        rows, _ = GroupWordProblem(group=group).sample(np.random.default_rng(0), 8, 100_000)
        assert len(np.unique(rows @ 60 ** np.arange(8, dtype=np.int64))) == 100_000
    rows, _ = GroupWordProblem(group="S3").sample(np.random.default_rng(0), 8, 100_000)
    repeats = 100_000 - len(np.unique(rows @ 6 ** np.arange(8)))
    expected = 100_000 - 6**8 * (1 - (1 - 6.0**-8) ** 100_000)
    assert abs(repeats - expected) < 4 * math.sqrt(expected)
    assert round(expected, -3) == 3_000


@pytest.mark.parametrize("name", ["D2", "D1xZ3"])
def test_dihedral_groups_of_fewer_than_three_points_are_refused(name):
    with pytest.raises(ValueError, match="group must have dihedral factors D<n> with n of at least 3"):
        GroupWordProblem(group=name)


@pytest.mark.parametrize("name", ["(0 1 0)", "(0 1)(1 2)", "(0 64)"])
def test_cycles_that_are_no_permutation_are_refused(name):
    with pytest.raises(ValueError, match="group must have disjoint cycles of points from 0 to 63"):
        GroupWordProblem(group=name)


def test_a_group_that_its_generators_name_is_the_group_that_has_a_name():
    # A rotation and a reflection of a square; the four-cycle and a swap of S4; A4 by two three-cycles.
    for cycles, name in (("(0 1 2 3),(0 1)", "S4"), ("(0 1 2),(1 2 3)", "A4"), ("(0 1)", "Z2")):
        np.testing.assert_array_equal(groups.multiplication_table(cycles), groups.multiplication_table(name))
    assert groups.group_order("(0 1 2 3),(0 2)") == 8
    # The simple group of order 168 on seven points.
    klein = "(0 1 2 3 4 5 6),(1 2)(3 6)"
    assert groups.group_order(klein) == groups.commutator_order(klein) == 168


def test_frobenius_group_of_order_20_is_that_of_affine_maps_modulo_five():
    lines = groups.permutations(groups.parse_group(NAMED_BY_CYCLES)[0]).tolist()
    maps = sorted([(a * i + b) % 5 for i in range(5)] for a in range(1, 5) for b in range(5))
    assert lines == maps


@pytest.mark.parametrize(
    ("knobs", "count"),
    [
        ({"group": "S5", "generators": "swaps"}, 11),
        ({"group": "S5", "generators": "moves_3"}, 31),
        ({"group": "A5", "generators": 6}, 6),
        ({"group": "A5", "generators": (3, 17, 59)}, 3),
        ({"group": "D7", "generators": 2}, 2),
        ({"group": NAMED_BY_CYCLES, "generators": "moves_3"}, 1),
    ],
)
def test_rows_hold_the_generators_alone_and_labels_are_their_products(knobs, count):
    task = GroupWordProblem(**knobs)
    ids, labels = task.sample(np.random.default_rng(0), 12, 500)
    assert task.vocab_size == len(task.symbols) == count
    assert sorted(np.unique(ids)) == list(range(count))
    np.testing.assert_array_equal(task.solve(ids), labels)
    assert len(task.label_symbols) == task.num_labels
    name, words = knobs["group"], {word: place for place, word in enumerate(task.label_symbols)}
    table = groups.multiplication_table(name)
    for row, answers in zip(ids[:20].tolist(), labels[:20].tolist(), strict=True):
        steps = [words[task.symbols[token]] for token in row]
        assert answers == list(itertools.accumulate(steps, lambda p, q: int(table[p, q])))


@pytest.mark.parametrize(("group", "count"), [("A5", 2), ("A5", 12), ("S5", 4), ("S5", 32)])
def test_a_number_of_generators_generates_the_group(group, count):
    task = GroupWordProblem(group=group, generators=count)
    ids = group_word_problem._elements(task).tolist()
    assert len(set(ids)) == count
    assert groups.generated_order(group, ids) == groups.group_order(group)
    assert groups.generated_order("S5", [1]) == 2


@pytest.mark.parametrize("knobs", [{"generators": "swaps"}, {"generators": (0, 4)}, {"generators": (1, 2, 3)}])
def test_chance_of_generators_is_that_of_the_best_table_over_all_rows(knobs):
    task, length = GroupWordProblem(group="S3", **knobs), 5
    ids = task.enumerate(length)
    labels = task.solve(ids)
    right = np.zeros(length)
    for position in range(length):
        joint = np.zeros((task.vocab_size, 6))
        np.add.at(joint, (ids[:, position], labels[:, position]), 1)
        right[position] = joint.max(axis=1).sum() / len(ids)
    assert task.chance_level("token_accuracy", length) == pytest.approx(right.mean())
    assert task.chance_level("token_accuracy_after_first", length) == pytest.approx(right[1:].mean())
    assert task.chance_level("last_token_accuracy", length) == pytest.approx(right[-1])


@pytest.mark.parametrize(
    ("knobs", "length", "level"),
    [
        ({"group": "S3"}, 128, 0.173),
        ({"group": "S4"}, 128, 0.049),
        ({"group": "S5"}, 32, 0.039),
        ({"group": "S5", "generators": "swaps"}, 32, 0.047),
        ({"group": "S5", "generators": "moves_3"}, 32, 0.041),
    ],
)
def test_chance_levels_are_those_that_were_computed_elsewhere(knobs, length, level):
    assert GroupWordProblem(**knobs).chance_level("token_accuracy", length) == pytest.approx(level, abs=6e-4)


def test_swaps_are_not_mixed_early():
    best, entropy = group_word_problem._walk(GroupWordProblem(group="S5", generators="swaps"), 6)
    assert best == pytest.approx([1, 0.0909, 0.0909, 0.0278, 0.0274, 0.0151], abs=1e-4)
    assert entropy[1] == pytest.approx(math.log(11))


@pytest.mark.parametrize("extra", ["copies", "blank"])
def test_further_tokens_of_an_element_delay_its_label(extra):
    one = GroupWordProblem(group="S5", generators="swaps")
    task = one.replace(tokens_per_element=4, extra_tokens=extra)
    steps, products = one.sample(np.random.default_rng(2), 6, 50)
    ids, labels = task.sample(np.random.default_rng(2), 6, 50)
    assert ids.shape == (50, 24)
    np.testing.assert_array_equal(ids[:, ::4], steps)
    np.testing.assert_array_equal(ids[:, 2::4], steps if extra == "copies" else np.full_like(steps, 11))
    assert task.vocab_size == (11 if extra == "copies" else 12)
    np.testing.assert_array_equal(labels[:, 3::4], products)
    assert (labels.reshape(50, 6, 4)[:, :, :3] == -100).all()
    np.testing.assert_array_equal(task.solve(ids), labels)
    counts = task.extra_metrics(ids, labels, labels)
    assert counts == {"token_accuracy_after_first": (250, 250), "last_token_accuracy": (50, 50)}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"generators": "pairs"}, "generators must be one of 'all', 'swaps', 'moves_3'"),
        ({"generators": (1, 60)}, "generators must be an integer between 0 and 59, got 60"),
        ({"generators": (1, 1)}, "generators must be distinct ids"),
        ({"generators": ()}, "generators must be distinct ids"),
        ({"generators": 1}, "generators must be an integer between 2 and 60"),
        ({"group": "A4xZ5", "generators": "swaps"}, "group must be one group of permutations"),
        ({"group": "Z2xZ2xZ2", "generators": 4}, "no two elements generate 'Z2xZ2xZ2'"),
        ({"tokens_per_element": 0}, "tokens_per_element must be an integer at least 1"),
        ({"extra_tokens": "pads"}, "extra_tokens must be one of 'copies', 'blank'"),
    ],
)
def test_impossible_generators_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        GroupWordProblem(**knobs)
