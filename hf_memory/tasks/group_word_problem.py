"""The word problem of a finite group: the running product of a stream of elements."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task
from hf_memory.tasks.groups import (
    commutator_order,
    element_names,
    generated_order,
    group_order,
    multiplication_table,
    num_moved,
    parse_group,
    prefix_products,
)

NAMED_GENERATORS = {"all": None, "swaps": 2, "moves_3": 3}
"""Names of sets of generators, and how many points their elements move at most."""

EXTRA_TOKENS = ("copies", "blank")
_EXTRAPOLATION = (8, 16, 24, 32, 40, 64, 128, 256, 512)
_MERRILL = "Merrill, Petty and Sabharwal (2024), word problems of groups of order 60, with all pairs in training"
_MAX_ENUMERATED = 1 << 26
_LONG = "one layer trained at long lengths, without pairs"
_NEGATIVE = "Grazzi et al. (2025), negative eigenvalues: S5 {}, trained at 32"
_PRODUCT = "Siems et al. (2025), DeltaProduct: trained at 128, tested at 512"
_TRACKING = "classes of transition matrices and what they track: {}, trained at 32"
_DICTIONARY = (
    "the law of the PD-SSM paper (2025): {} of {}, two of which generate it; which others is not stated there, so they "
    "are drawn once; its lengths from 40 to 256 are one split"
)


def _with_pairs(group: str, source: str = _MERRILL, pairs: int | None = None) -> Preset:
    """Training at length 8 together with pairs: every pair once, or ``pairs`` of 100,000 rows."""
    if pairs is None:
        train = (Segment(100_000, 8), Segment(group_order(group) ** 2, 2))
    else:
        train = (Segment(100_000 - pairs, 8), Segment(pairs, 2))
    return Preset(length=8, test_lengths=_EXTRAPOLATION, knobs={"group": group}, train=train, source=source)


def _presets() -> dict[str, Preset]:
    order_60 = {"z60": "Z60", "a4xz5": "A4xZ5", "a5": "A5"}
    presets = {f"{name}_k8": _with_pairs(group) for name, group in reversed(order_60.items())}
    for name, group in order_60.items():
        presets[f"{name}_k8_pairs10"] = _with_pairs(group, "a tenth of the training rows are pairs", pairs=10_000)
        for length in (16, 32, 64, 128, 256, 512):
            presets[f"{name}_k{length}"] = Preset(length, (length,), knobs={"group": group}, source=_LONG)
    for name, group in {"z12": "Z12", "a4": "A4", "s3": "S3", "s5": "S5"}.items():
        presets[f"{name}_k8"] = _with_pairs(group, "small or unsolvable companions of the groups of order 60")
    presets["s3_k128"] = Preset(128, (128, 256, 512), knobs={"group": "S3"}, source="DeltaProduct (2025), k 128 to 512")
    return presets | _generator_presets() | _tracking_presets()


def _tracking_presets() -> dict[str, Preset]:
    """The group of parity, the smallest that does not commute, and a solvable one by two of its elements."""
    laws: dict[str, tuple[str, dict[str, str | tuple[int, ...]]]] = {
        "z2_k32": ("parity", {"group": "Z2"}),
        "s3_k32": ("S3 with all elements", {"group": "S3"}),
        "s4_2_generators_k32": ("S4 from a swap and a cycle of four", {"group": "S4", "generators": (6, 9)}),
        "a5_all_k32": ("A5 with all elements", {"group": "A5"}),
    }
    tests = (32, 64, 128, 256)
    return {name: Preset(32, tests, knobs, source=_TRACKING.format(words)) for name, (words, knobs) in laws.items()}


def _generator_presets() -> dict[str, Preset]:
    """Presets of the papers that restrict the elements of a row, or spend several tokens on each."""
    presets = {
        f"{group.lower()}_k128": Preset(128, (128, 256, 512), {"group": group}, source=_PRODUCT)
        for group in ("S4", "S5")
    }
    laws = {
        "s5_k32": ("with all elements", {}),
        "s5_swaps_k32": ("with the identity and the ten swaps", {"generators": "swaps"}),
        "s5_moves_3_k32": ("with elements that move three points at most", {"generators": "moves_3"}),
    }
    for name, (words, knobs) in laws.items():
        tests = (32, 64, 128, 256)
        presets[name] = Preset(32, tests, {"group": "S5", **knobs}, source=_NEGATIVE.format(words))
    for extra in EXTRA_TOKENS:
        law = {"group": "S5", "tokens_per_element": 4, "extra_tokens": extra}
        words = f"with four tokens to an element, three of them {extra}"
        presets[f"s5_4_tokens_{extra}_k16"] = Preset(
            16, (16, 32, 64), law, source=_NEGATIVE.format(words).replace("at 32", "at 64 tokens")
        )
    for group, count in (("A5", 2), ("A5", 6), ("A5", 8), ("A5", 12), ("S5", 4), ("S5", 8), ("S5", 32)):
        presets[f"{group.lower()}_{count}_generators_k40"] = Preset(
            (3, 40),
            (40, 64, 128, 256),
            {"group": group, "generators": count},
            {"test_40_to_256": (Segment(3_000, (40, 256)),)},
            source=_DICTIONARY.format(f"{count} elements", group),
        )
    return presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupWordProblem(Task):
    """The label at each step is the product of all group elements seen so far.

    With the right factor of a product acting first, ``y_t = x_1 x_2 ... x_t``; the first label repeats its token. In
    the alternating group A5, elements numbered by their one-line notation:

    >>> GroupWordProblem(group="A5").solve(np.array([[1, 2, 3, 17, 59]])).tolist()
    [[1, 0, 3, 28, 50]]
    >>> GroupWordProblem(group="Z60").solve(np.array([[59, 2, 30, 30]])).tolist()
    [[59, 1, 31, 1]]

    Rows are uniform and independent. Of 100,000 rows of 8 elements of a group of order 60 no two are alike but with
    probability 3e-5, so that the training sets of the presets are min(N, 60^k) distinct rows, with every pair once; of
    six elements some 3,000 rows come again. There are no marker tokens: only the first position scores for free.

    The elements of a row may be restricted to some that generate the group, while products roam all of it. Of swaps
    alone every product has a known side, odd or even: the identity among them leaves it open.

    >>> swaps = GroupWordProblem(group="S3", generators="swaps")
    >>> swaps.symbols
    ('012', '021', '102', '210')
    >>> [swaps.label_symbols[label] for label in swaps.solve(np.array([[2, 1, 0, 1]]))[0]]
    ['102', '120', '120', '102']

    Expected to be solved at any length by nonlinear recurrences. Of linear ones a product of n Householder steps needs
    eigenvalues in [-1, 1]: one step for swaps of any group, two for S3, four for S5 (Grazzi et al., 2025; Siems et al.,
    2025); diagonal ones (S4D, Mamba) and attention hold commutative groups or a fixed length at best.

    Attributes:
        group: A product of cyclic, symmetric, alternating and dihedral groups, such as ``"A5"``, ``"A4xZ5"``,
            ``"D7"``, or any group of permutations by its generators in cycles, such as ``"(0 1 2 3 4),(1 2 4 3)"``; at
            most 5,040 elements.
        generators: Elements of which rows consist, each as likely: ``"all"``; ``"swaps"``, those that move at most two
            points, with the identity; ``"moves_3"``, at most three points; a number of elements, two of which generate
            the group, drawn once for each group and number; or a tuple of ids.
        tokens_per_element: Number of tokens of each element; its label stands at the last of them.
        extra_tokens: What stands in the further tokens of an element: ``"copies"`` of it, or a ``"blank"``, one more
            id.
    """

    group: str = "A5"
    generators: str | int | tuple[int, ...] = "all"
    tokens_per_element: int = 1
    extra_tokens: str = "copies"

    key: ClassVar[str] = "group_word_problem"
    head: ClassVar[Literal["causal", "token_classification"]] = "token_classification"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stateful"
    headline_metric: ClassVar[str] = "sequence_accuracy"
    presets: ClassVar[Mapping[str, Preset]] = _presets()

    def __post_init__(self) -> None:
        parse_group(self.group)
        if isinstance(self.generators, list):  # as JSON and YAML have it
            object.__setattr__(self, "generators", tuple(self.generators))
        if isinstance(self.generators, str):
            check_choice("generators", self.generators, tuple(NAMED_GENERATORS))
        elif isinstance(self.generators, tuple):
            for element in self.generators:
                check_int("generators", element, 0, group_order(self.group) - 1)
            if not 1 <= len(set(self.generators)) == len(self.generators):
                raise ValueError(f"generators must be distinct ids of elements, got {self.generators!r}")
        else:
            check_int("generators", self.generators, 2, group_order(self.group))
        check_int("tokens_per_element", self.tokens_per_element, 1)
        check_choice("extra_tokens", self.extra_tokens, EXTRA_TOKENS)
        if self.generators not in ("all",):
            _elements(self)

    @property
    def _num_elements(self) -> int:
        """Number of elements of which rows consist."""
        return group_order(self.group) if self.generators == "all" else len(_elements(self))

    @property
    def _has_blank(self) -> bool:
        return self.tokens_per_element > 1 and self.extra_tokens == "blank"

    @property
    def vocab_size(self) -> int:
        """The elements of which rows consist, and a blank where there is one."""
        return self._num_elements + self._has_blank

    @property
    def num_labels(self) -> int:
        """Order of the group."""
        return group_order(self.group)

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id; ``_`` is the blank."""
        names = element_names(self.group)
        return (*(names[element] for element in _elements(self)), *("_" * self._has_blank))

    @property
    def label_symbols(self) -> tuple[str, ...]:
        """A readable name of each element of the group."""
        return element_names(self.group)

    def row_length(self, length: int) -> int:
        """Tokens of ``length`` elements."""
        return length * self.tokens_per_element

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows of uniform elements and fold them through the multiplication table."""
        self.validate_length(length)
        table = multiplication_table(self.group)
        steps = rng.integers(0, self._num_elements, size=(length, num_examples), dtype=np.int32)
        elements = steps
        if self.generators != "all":
            table, elements = np.ascontiguousarray(table[:, _elements(self)]), _elements(self)[steps]
        flat, width = table.reshape(-1), table.shape[1]
        products = np.empty((length, num_examples), dtype=np.int32)
        products[0] = elements[0]
        for t in range(1, length):
            np.take(flat, products[t - 1] * width + steps[t], out=products[t], mode="clip")
        if self.tokens_per_element == 1:
            return np.ascontiguousarray(steps.T), np.ascontiguousarray(products.T)
        labels = np.full((num_examples, self.row_length(length)), IGNORE_INDEX, dtype=np.int32)
        labels[:, self.tokens_per_element - 1 :: self.tokens_per_element] = products.T
        return self._spread(np.ascontiguousarray(steps.T)), labels

    def _spread(self, steps: np.ndarray) -> np.ndarray:
        """Rows of elements (n, k) with all tokens of each element."""
        ids = np.repeat(steps, self.tokens_per_element, axis=1)
        if self._has_blank:
            ids.reshape(*steps.shape, -1)[:, :, 1:] = self._num_elements
        return ids

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Compose the elements themselves: sums modulo n and permutations in one-line notation."""
        ids = np.asarray(input_ids)
        elements = ids[:, :: self.tokens_per_element]
        if self.generators != "all":
            elements = _elements(self)[elements]
        labels = np.full(ids.shape, IGNORE_INDEX, dtype=np.int32)
        labels[:, self.tokens_per_element - 1 :: self.tokens_per_element] = prefix_products(self.group, elements)
        return labels

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """Counts without the first position, whose label is its own token, and at the last position of each row."""
        score = self.annotate(input_ids, labels)["score"]
        correct = (predictions == labels) & score
        later = score & (np.cumsum(score, axis=1) > 1)
        last = score & (np.cumsum(score[:, ::-1], axis=1)[:, ::-1] == 1)
        return {
            "token_accuracy_after_first": (int((correct & later).sum()), int(later.sum())),
            "last_token_accuracy": (int((correct & last).sum()), int(last.sum())),
        }

    def chance_level(self, metric: str, length: int) -> float:
        """Value for an output that knows the position and the current token only: the first label, then a guess.

        Before step t the product is as likely to be any element as t - 1 random steps make it, and the current token
        turns a guess of it into a guess of the label; exact by powers of the walk. Of whole rows at most one in
        ``n^(L // 2)`` is right, n elements to choose from: what two steps lead to can be guessed only once. ``loss`` is
        the mean cross-entropy in nats. NaN for metrics that have no such level.
        """
        best, entropy = _walk(self, length)
        levels = {
            "sequence_accuracy": float(self._num_elements) ** -(length // 2),
            "token_accuracy": float(best.mean()),
            "token_accuracy_after_first": float(best[1:].mean()) if length > 1 else math.nan,
            "last_token_accuracy": float(best[-1]),
            "loss": float(entropy.mean()),
        }
        return levels.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Sequence accuracy of a uniform guess, of the last tokens, and of tracking the commutative quotient.

        The last one knows the first token and, everywhere, the image of the product in the largest commutative
        quotient, which needs counters but no order of the factors. It is left out where it solves the task, and where
        rows are restricted to some elements. Tables of the last three elements are right for one row in
        ``n^(L // 4)`` at the most.
        """
        order, count = self.num_labels, self._num_elements
        values = {
            "uniform": float(order) ** -length,
            "current_token": float(count) ** -(length - 1),
            "last_3_tokens": float(count) ** -(length // 4),
        }
        hidden = commutator_order(self.group)
        if hidden > 1 and self.generators == "all":
            values["commutative_quotient"] = float(hidden) ** -(length - 1)
        return values

    def num_distinct(self, length: int) -> int:
        """Every sequence of the elements can be drawn."""
        return self._num_elements**length

    def enumerate(self, length: int) -> np.ndarray:
        """All sequences in lexicographic order."""
        count = self.num_distinct(length)
        if count > _MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
        numbers = np.arange(count)
        steps = np.stack(np.unravel_index(numbers, (self._num_elements,) * length), axis=1)
        return self._spread(steps.astype(np.int32))


@functools.lru_cache(maxsize=64)
def _elements(task: GroupWordProblem) -> np.ndarray:
    """Ids (n,) of the elements of which rows consist."""
    order, generators = group_order(task.group), task.generators
    if isinstance(generators, tuple):
        return np.array(generators, dtype=np.int32)
    if isinstance(generators, int):
        rng = np.random.default_rng([order, generators])
        for _ in range(1000):
            chosen = rng.permutation(order)[:generators]
            if generated_order(task.group, chosen[:2].tolist()) == order:
                return np.sort(chosen).astype(np.int32)
        raise ValueError(f"generators must be a tuple of ids where no two elements generate {task.group!r}")
    most = NAMED_GENERATORS[generators]
    ids = np.arange(order, dtype=np.int32)
    return ids if most is None else ids[num_moved(task.group) <= most]


@functools.lru_cache(maxsize=256)
def _walk(task: GroupWordProblem, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Probability (L,) of the likeliest product before each step, and the entropy (L,) in nats of that product."""
    best, entropy = np.ones(length), np.zeros(length)
    if task.generators == "all":
        best[1:], entropy[1:] = 1 / task.num_labels, math.log(task.num_labels)
        return best, entropy
    table = multiplication_table(task.group)[:, _elements(task)]
    chance: np.ndarray = (np.arange(task.num_labels) == 0).astype(np.float64)
    for t in range(1, length):
        spread = np.broadcast_to(chance[:, None] / table.shape[1], table.shape)
        chance = np.bincount(table.ravel(), spread.ravel(), minlength=task.num_labels)
        held = chance[chance > 0]
        best[t], entropy[t] = chance.max(), -(held * np.log(held)).sum()
    return best, entropy
