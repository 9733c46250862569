"""Tasks whose rows are streams or few-shot examples: copying, brackets, registers, parity and groups.

Where the rule of a task is not a matter of course for a language model, it is to be inferred from examples in the row.
Such laws are marked ``in_context``: a failure says nothing about what training could reach. Their examples are balanced
over the answers as far as their number allows.
"""

from collections.abc import Callable, Sequence

import numpy as np

from hf_memory.experiments.probing.formats import Unit
from hf_memory.experiments.probing.laws import ProbeRow, Query
from hf_memory.experiments.probing.words import Vocabulary
from hf_memory.tasks.groups import multiplication_table

SHOTS = 6
"""Examples of words of brackets."""

BRACKETS = 6
"""Brackets of a word."""

BITS = 4
"""Bits of an example of parity."""

ELEMENTS = 3
"""Elements of an example of a word problem, in the group S3."""

DEPTH = 3
"""Brackets that are open at most."""

_GROUP = "S3"


def draw_induction(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Distinct tokens in a row; one of them comes again, and what followed it is due."""
    words = [int(word) for word in rng.permutation(2 * vocabulary.size)[: 2 * size]]
    place = int(rng.integers(len(words) - 1))
    units = tuple(Unit((word,)) for word in words)
    credits = {
        "one_over_k": 1 / len(words),
        "last_pair": float(place == len(words) - 2),
        "first_pair": float(place == 0),
    }
    query = Query(Unit((words[place],), (words[place + 1],)), place + 1, tuple(sorted(words)), credits)
    return ProbeRow(units, (query,))


def draw_string_copy(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Two strings of ``size`` words with their copies as examples, then a string whose copy is due."""
    words = _symbols(vocabulary, rotated)[:size]
    strings = [tuple(int(word) for word in rng.permutation(words)) for _ in range(3)]
    return _copy_row(strings, strings, words)


def draw_selective_copying(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """As ``string_copy``, with as many words of filler strewn into what is shown, which are not to be copied."""
    words = _symbols(vocabulary, rotated)[:size]
    strings = [tuple(int(word) for word in rng.permutation(words)) for _ in range(3)]
    return _copy_row([_strew(rng, string, vocabulary.fillers) for string in strings], strings, words)


def _copy_row(shown: Sequence[tuple[int, ...]], strings: Sequence[tuple[int, ...]], words: np.ndarray) -> ProbeRow:
    """All but the last string as examples, and the last as the query."""
    candidates = tuple(sorted(int(word) for word in words))
    examples = tuple(Unit(given, string) for given, string in zip(shown[:-1], strings[:-1], strict=True))
    credits = {
        "one_over_k": float(len(candidates)) ** -len(strings[-1]),
        "last_shot": float(strings[-2] == strings[-1]),
    }
    return ProbeRow(examples, (Query(Unit(shown[-1], strings[-1]), -1, candidates, credits),))


def _strew(rng: np.random.Generator, string: Sequence[int], fillers: np.ndarray) -> tuple[int, ...]:
    """A string with as many words of filler at random places."""
    given = np.empty(2 * len(string), dtype=np.int64)
    kept = np.sort(rng.permutation(len(given))[: len(string)])
    given[:] = rng.choice(fillers, size=len(given))
    given[kept] = string
    return tuple(int(word) for word in given)


def draw_dyck(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Beginnings of words of brackets, each with the one bracket that may close next; then one whose bracket is due.

    Keys are brackets that open and values those that close them; ``size`` is the number of types.
    """
    opening, closing = _sides(vocabulary, size, rotated)
    shots = [_dyck_word(rng, opening, closing) for _ in range(SHOTS)]
    word, right = _dyck_word(rng, opening, closing)
    pairs = dict(zip(opening, closing, strict=True))
    opened = [pairs[bracket] for bracket in word if bracket in pairs]
    credits = {
        **_shot_credits([answer for _, answer in shots], right, closing),
        "closes_last_opened": float(opened[-1] == right),
        "closes_first_opened": float(opened[0] == right),
    }
    units = tuple(Unit(shot, (answer,)) for shot, answer in shots)
    return ProbeRow(units, (Query(Unit(word, (right,)), -1, tuple(sorted(closing)), credits),))


def _dyck_word(rng: np.random.Generator, opening: Sequence[int], closing: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The beginning of a word that ends with a closing bracket and some open, and the bracket that may close next."""
    while True:
        word, stack = list[int](), list[int]()
        for _ in range(BRACKETS):
            if stack and (len(stack) == DEPTH or rng.random() < 0.5):
                word.append(closing[stack.pop()])
            else:
                stack.append(int(rng.integers(len(opening))))
                word.append(opening[stack[-1]])
        if stack and word[-1] in closing:
            return tuple(word), closing[stack[-1]]


def draw_flip_flop(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Instructions with a bit each: write, read or ignore; the bit written last is due at the last read.

    ``size`` is the number of instructions before it, some of them reads that show the rule.
    """
    keys, values = _sides(vocabulary, 3, rotated)
    write, read, ignore = keys[:3]
    bits = values[:2]
    units, held, place, written = [], 0, 0, []
    for number in range(size):
        kind = write if number == 0 else (write, read, ignore)[int(rng.choice(3, p=(0.2, 0.2, 0.6)))]
        if kind == write:
            held, place = int(rng.integers(2)), number
            written.append(held)
        bit = int(rng.integers(2)) if kind == ignore else held
        units.append(Unit((kind,), (bits[bit],)))
    last = next((unit for unit in reversed(units)), units[0])
    counts = [written.count(0), written.count(1)]
    credits = {
        "one_over_k": 0.5,
        "last_pair": float(last.answer[0] == bits[held]),
        "first_pair": float(units[0].answer[0] == bits[held]),
        "most_written": 0.5 if counts[0] == counts[1] else float(counts[held] == max(counts)),
    }
    query = Query(Unit((read,), (bits[held],)), place, tuple(sorted(bits)), credits)
    return ProbeRow(tuple(units), (query,))


def draw_bit_parity(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Examples of bits with the parity of their ones, half of each, then bits whose parity is due."""
    keys, values = _sides(vocabulary, 2, rotated)
    wanted = [number % 2 for number in range(size)]

    def make(parity: int | None) -> tuple[tuple[int, ...], int]:
        while True:
            bits = rng.integers(2, size=BITS)
            if parity is None or int(bits.sum()) % 2 == parity:
                return tuple(keys[int(bit)] for bit in bits), values[int(bits.sum()) % 2]

    return _few_shot(rng, make, wanted, values[:2])


def draw_group_word_problem(rng: np.random.Generator, vocabulary: Vocabulary, size: int, rotated: bool) -> ProbeRow:
    """Examples of elements of S3 with their product, each product in turn, then elements whose product is due."""
    table = np.asarray(multiplication_table(_GROUP))
    order = len(table)
    keys, values = _sides(vocabulary, order, rotated)
    wanted = [number % order for number in range(size)]

    def make(product: int | None) -> tuple[tuple[int, ...], int]:
        while True:
            elements = rng.integers(order, size=ELEMENTS)
            found = int(elements[0])
            for element in elements[1:]:
                found = int(table[found, element])
            if product is None or found == product:
                return tuple(keys[int(element)] for element in elements), values[found]

    return _few_shot(rng, make, wanted, values[:order])


def _few_shot(
    rng: np.random.Generator,
    make: Callable[[int | None], tuple[tuple[int, ...], int]],
    wanted: Sequence[int],
    labels: Sequence[int],
) -> ProbeRow:
    """Examples with the wanted answers in random order, and a query that is none of them."""
    shots = [make(int(answer)) for answer in rng.permutation(wanted)]
    given, right = make(None)
    while given in {shot for shot, _ in shots}:
        given, right = make(None)
    credits = _shot_credits([answer for _, answer in shots], right, labels)
    units = tuple(Unit(shot, (answer,)) for shot, answer in shots)
    return ProbeRow(units, (Query(Unit(given, (right,)), -1, tuple(sorted(labels)), credits),))


def _shot_credits(answers: Sequence[int], right: int, labels: Sequence[int]) -> dict[str, float]:
    """What rules that look at the answers of the examples alone make of a query."""
    counts = {label: answers.count(label) for label in labels}
    most = [label for label, count in counts.items() if count == max(counts.values())]
    return {
        "one_over_k": 1 / len(labels),
        "majority_label": (right in most) / len(most),
        "last_shot": float(answers[-1] == right),
        "first_shot": float(answers[0] == right),
    }


def _symbols(vocabulary: Vocabulary, rotated: bool) -> np.ndarray:
    return vocabulary.role(int(rotated))


def _sides(vocabulary: Vocabulary, count: int, rotated: bool) -> tuple[list[int], list[int]]:
    """The first ``count`` keys and values, exchanged where ``rotated``."""
    return tuple([int(n) for n in vocabulary.role(which)[:count]] for which in (int(rotated), 1 - int(rotated)))  # type: ignore[return-value]
