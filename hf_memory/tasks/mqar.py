"""Multi-query associative recall: key-value pairs, then each key once more, whose value is due."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int, check_real
from hf_memory.tasks._draws import draw_distinct, draw_weighted_distinct, fill_avoiding
from hf_memory.tasks._slots import slot_levels
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

FILLERS = ("zero", "random", "random_published")
ASSIGNMENTS = ("published", "shuffled")
LOSS_REGIONS = ("answers", "all")
_ZOOLOGY = "Arora et al. (2024), Zoology, figure 2"
_SEED3 = "Okpekpe and Orvieto (2025), Revisiting associative recall in modern recurrent models"
_BASED = "Arora et al. (2024), Based: mixture of lengths and numbers of pairs"
_SHUFFLED = "Arora et al. (2024), Zoology, figure 2, with the pairs shuffled over the slots: repaired by this package"
_FORGETTING = (
    "the published code of Zoology (2026), forgetting: {} of the keys are bound again before the queries; the mixture "
    "of its sizes"
)
_FORGETTING_ALL = _FORGETTING.format("four") + "; of four pairs all are, so that the second half tells all"
_FORGETTING_HALF = _FORGETTING.format("half") + "; half of the keys, and shuffled slots, repaired by this package"
_SMALL = "small widths and small budgets: many pairs for the width, or few tokens"
_LOADS = "one law for a curve of capacity: as many rows with each number of pairs, shuffled over the slots"


def _pairs(num_kv_pairs: int, length: int, source: str, **knobs: str) -> Preset:
    """Train at one size; test at 1, 2 and 4 times the length, the pairs kept (``test_<L>``) or scaled with it."""
    tests = {}
    for factor in (2, 4):
        pairs = factor * num_kv_pairs
        segment = Segment(3_000, factor * length, {"num_kv_pairs": pairs})
        tests[f"test_{factor * length}_kv{pairs}"] = (segment,)
    knobs_of_all = {"num_kv_pairs": num_kv_pairs, **knobs}
    return Preset(length, (length, 2 * length, 4 * length), knobs_of_all, tests, source=source)


def _based_mixture() -> Preset:
    """The mixture of the Based paper; its test split averages over sizes that training does not hold."""
    train = ((100_000, 64, 4), (20_000, 128, 8), (20_000, 256, 16), (20_000, 256, 32), (20_000, 256, 64))
    test = ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
    segments = tuple(Segment(1_000, length, {"num_kv_pairs": pairs}) for length, pairs in test)
    return Preset(
        length=64,
        test_lengths=(64,),
        knobs={"num_kv_pairs": 4, "filler": "random_published"},
        tests={
            "test_mixture": segments,
            **{f"test_{s.length}_kv{s.knobs['num_kv_pairs']}": (s,) for s in segments},
        },
        train=tuple(Segment(count, length, {"num_kv_pairs": pairs}) for count, length, pairs in train),
        source=_BASED,
    )


def _loads(length: int, counts: tuple[int, ...]) -> Preset:
    """As many rows of one length with each number of pairs, and a test for each; ``test_<L>`` has the fewest."""
    sizes = {count: {"num_kv_pairs": count} for count in counts}
    return Preset(
        length=length,
        test_lengths=(length,),
        knobs={"slot_assignment": "shuffled", **sizes[counts[0]]},
        tests={f"test_{length}_kv{count}": (Segment(3_000, length, sizes[count]),) for count in counts[1:]},
        train=tuple(Segment(25_000, length, knobs) for knobs in sizes.values()),
        source=_LOADS,
    )


def _forgetting(half: bool) -> Preset:
    """The published mixture with updates: of four keys in all sizes, or of half of them."""
    train = ((100_000, 64, 4), (20_000, 128, 9), (20_000, 256, 16), (20_000, 256, 25), (20_000, 256, 36))
    test = ((64, 4), (64, 9), (128, 16), (256, 36), (512, 64), (1024, 144), (2048, 256))
    sizes = {count: {"num_kv_pairs": count, "num_updates": count // 2 if half else 4} for count in range(4, 257)}
    return Preset(
        length=64,
        test_lengths=(64,),
        knobs={
            "filler": "random_published",
            "slot_assignment": "shuffled" if half else "published",
            **sizes[4],
        },
        tests={f"test_{length}_kv{pairs}": (Segment(1_000, length, sizes[pairs]),) for length, pairs in test},
        train=tuple(Segment(count, length, sizes[pairs]) for count, length, pairs in train),
        source=_FORGETTING_HALF if half else _FORGETTING_ALL,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQAR(Task):
    """Recall the value of each key when the key comes again (Arora et al., 2024, Zoology).

    A row is a context ``key value key value ...`` of distinct keys and distinct values, then slots of two tokens. Each
    key is queried once, in one slot: slot ``g`` is drawn without replacement with weight ``(g + 1)^(power_a - 1)``, and
    the i-th key gets the i-th slot drawn, so that the slot alone tells something of the pair. All other tokens are
    filler. The model sees the key and must output its value at once; the value itself is not in the input. By the
    convention of causal heads the label stands one position after its query.

    >>> import numpy as np
    >>> row = np.array([[3, 12, 5, 9, 0, 0, 5, 0, 3, 0]])
    >>> MQAR(vocab_size=16, num_kv_pairs=2).solve(row).tolist()
    [[-100, -100, -100, -100, -100, -100, -100, 9, -100, 12]]

    With 4 pairs in rows of 64, the best guess from the slot is right more often than one in four; not if shuffled:

    >>> round(MQAR().chance_level("recall", 64), 3)
    0.288
    >>> MQAR(slot_assignment="shuffled").chance_level("recall", 64)
    0.25

    Between context and slots some of the keys may be bound again, to new values, and the later value is due:

    >>> row = np.array([[3, 12, 5, 9, 3, 14, 0, 0, 5, 0, 3, 0]])
    >>> MQAR(vocab_size=16, num_kv_pairs=2, num_updates=1).solve(row)[0, 8:].tolist()
    [-100, 9, -100, 14]

    Expected to be solved by attention of two layers, or of one with a short convolution, at any number of pairs; by
    linear recurrences up to a number that grows with their state, the delta rule ahead of plain decay (Arora et al.,
    2024; Yang et al., 2024); LSTM and other cells of a vector state hold few pairs.

    Attributes:
        vocab_size: Number of ids V. Keys come from [1, V/2), values from [V/2, V), and 0 is the blank.
        num_kv_pairs: Number of pairs k.
        power_a: Exponent of the slots' law: near 0 most queries come early, 1 is uniform.
        filler: ``"zero"``; ``"random"``, uniform over the ids that are neither key nor value of the row;
            ``"random_published"``, uniform over all ids as in the published code, where a key may come again by
            accident, without a label.
        num_passes: How often the context is given, one pass after the other.
        shared_vocab: Draw keys and values from one vocabulary [1, V), so that no id has a role of its own. In one row
            no id is both key and value.
        slot_assignment: ``"published"``: the i-th key gets the i-th slot drawn; ``"shuffled"``: the drawn slots are
            given to the keys in uniformly random order, so that a slot tells nothing of its pair.
        num_updates: Number of distinct keys that are bound again, in uniformly random order, after the context.
        loss_region: ``"answers"``: only those are supervised; ``"all"``: every token is, with the answers at theirs.
    """

    key: ClassVar[str] = "mqar"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "recall"
    levels_until: ClassVar[int | None] = 16_384
    presets: ClassVar[Mapping[str, Preset]] = {
        "kv4_len64": _pairs(4, 64, _ZOOLOGY),
        "kv8_len128": _pairs(8, 128, _ZOOLOGY),
        "kv16_len256": _pairs(16, 256, _ZOOLOGY),
        "kv64_len512": _pairs(64, 512, _ZOOLOGY),
        "kv64_len256": _pairs(64, 256, _SEED3),
        "kv8_len64": _pairs(8, 64, _SMALL),
        "kv16_len64": _pairs(16, 64, _SMALL),
        "kv4_len32": _pairs(4, 32, _SMALL),
        "kv4_len64_random": _pairs(4, 64, _SMALL, filler="random"),
        "kv8_len64_random": _pairs(8, 64, _SMALL, filler="random"),
        "based_mixture": _based_mixture(),
        "forgetting": _forgetting(half=False),
        "forgetting_half": _forgetting(half=True),
        "kv4_len64_all": _pairs(4, 64, f"the loss on all tokens: {_SMALL}", filler="random", loss_region="all"),
        "kv4_len64_shuffled": _pairs(4, 64, _SHUFFLED, slot_assignment="shuffled"),
        "kv8_len128_shuffled": _pairs(8, 128, _SHUFFLED, slot_assignment="shuffled"),
        "kv16_len256_shuffled": _pairs(16, 256, _SHUFFLED, slot_assignment="shuffled"),
        "kv4_to_32_len128": _loads(128, (4, 8, 16, 32)),
    }

    vocab_size: int = 8192
    num_kv_pairs: int = 4
    power_a: float = 0.01
    filler: str = "zero"
    num_passes: int = 1
    shared_vocab: bool = False
    slot_assignment: str = "published"
    num_updates: int = 0
    loss_region: str = "answers"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 4)
        check_choice("shared_vocab", self.shared_vocab, (False, True))
        most = (self.vocab_size - 2) // 2 if self.shared_vocab else self.vocab_size // 2 - 1
        check_int(f"num_kv_pairs with vocab_size {self.vocab_size}", self.num_kv_pairs, 1, most)
        check_real("power_a", self.power_a, 0.0, 8.0, open_low=True)
        check_choice("filler", self.filler, FILLERS)
        check_int("num_passes", self.num_passes, 1)
        check_choice("slot_assignment", self.slot_assignment, ASSIGNMENTS)
        shared = self.vocab_size - 1 - self.num_kv_pairs
        values = (shared if self.shared_vocab else self.vocab_size - self.vocab_size // 2) - self.num_kv_pairs
        check_int("num_updates", self.num_updates, 0, min(self.num_kv_pairs, values))
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def context_length(self) -> int:
        """Number of tokens before the first slot."""
        return 2 * (self.num_kv_pairs * self.num_passes + self.num_updates)

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` is even and holds the context and a slot for each query."""
        least = self.context_length + 2 * self.num_kv_pairs
        check_int(f"length with {self.num_kv_pairs} num_kv_pairs and {self.num_passes} num_passes", length, least)
        if length % 2:
            raise ValueError(f"length must be even and at least {least}, got {length}")

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, k positions of each row supervised."""
        self.validate_length(length)
        n, k, context = num_examples, self.num_kv_pairs, self.context_length
        keys, bound = self._draw_pairs(rng, n)
        values, new = bound[:, :k].copy(), bound[:, k:]
        weights = np.arange(1, (length - context) // 2 + 1, dtype=np.float64) ** (self.power_a - 1.0)
        slots = draw_weighted_distinct(rng, n, k, weights)
        if self.slot_assignment == "shuffled":
            slots = rng.permuted(slots, axis=1)
        query_at = context + 2 * slots
        row = np.arange(n)[:, None]
        pairs = np.stack([keys, values], axis=2).reshape(n, 2 * k)
        updated = draw_distinct(rng, n, self.num_updates, k)

        input_ids = np.zeros((n, length), dtype=np.int32)
        labels = np.full((n, length), IGNORE_INDEX, dtype=np.int32)
        if self.filler == "random_published":
            input_ids[:, context:] = rng.integers(0, self.vocab_size, size=(n, length - context), dtype=np.int32)
        elif self.filler == "random":
            free = np.broadcast_to(np.arange(length) >= context, input_ids.shape)
            fill_avoiding(rng, input_ids, free, np.concatenate([keys, bound], axis=1), self.vocab_size)
        input_ids[:, : context - 2 * self.num_updates] = np.tile(pairs, (1, self.num_passes))
        input_ids[:, context - 2 * self.num_updates : context : 2] = keys[row, updated]
        input_ids[:, context - 2 * self.num_updates + 1 : context : 2] = new
        values[row, updated] = new
        input_ids[row, query_at] = keys
        labels[row, query_at + 1] = values
        return input_ids, self._supervised(input_ids, labels)

    def _supervised(self, input_ids: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Labels (n, L) of answers (n, L), with all other tokens where they are supervised too."""
        if self.loss_region == "all":
            return np.where(answers == IGNORE_INDEX, input_ids, answers).astype(np.int32)
        return answers

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Compare the first token of every slot with every key of the context.

        Under the filler ``"random_published"`` an accidental key cannot be told from a query and is labelled as well.
        """
        return self._supervised(input_ids, self._answers(input_ids))

    def _answers(self, input_ids: np.ndarray) -> np.ndarray:
        """Answers (n, L), ignored where none is due."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        first_pass = input_ids[:, : 2 * self.num_kv_pairs]
        keys, values = first_pass[:, 0::2], first_pass[:, 1::2].copy()
        for again in range(self.context_length - 2 * self.num_updates, self.context_length, 2):
            values = np.where(keys == input_ids[:, again, None], input_ids[:, again + 1, None], values)
        for query_at in range(self.context_length, input_ids.shape[1] - 1, 2):
            matches = input_ids[:, query_at, None] == keys
            answer = np.where(matches, values, 0).sum(axis=1)
            labels[:, query_at + 1] = np.where(matches.any(axis=1), answer, IGNORE_INDEX)
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and at each scored position (-1 elsewhere) what may make its recall hard.

        ``distance``: tokens from the key's last place in the context to the query; ``pair``: place of the pair in the
        context; ``slot``: place of the query; ``num_kv_pairs``. Where ids alone do not decide which of several equal
        keys is the query, ``undecided`` marks all of them.
        """
        score = labels != IGNORE_INDEX
        if self.loss_region == "all":
            score &= self._answers(input_ids) != IGNORE_INDEX
        row, column = np.nonzero(score)
        query_at = column - 1
        keys = input_ids[:, 0 : 2 * self.num_kv_pairs : 2]
        pair = np.argmax(keys[row] == input_ids[row, query_at][:, None], axis=1)
        again = self.context_length - 2 * self.num_updates
        last_seen = again - 2 * self.num_kv_pairs + 2 * pair
        bound_at = self._bound_again(input_ids, row, query_at)
        columns = {
            "distance": query_at - np.where(bound_at >= 0, bound_at, last_seen),
            "pair": pair,
            "slot": (query_at - self.context_length) // 2,
            "num_kv_pairs": np.full(len(row), self.num_kv_pairs),
            **({"updated": bound_at >= 0} if self.num_updates else {}),
        }
        notes = {"score": score, "undecided": self._undecided(input_ids)}
        for name, numbers in columns.items():
            notes[name] = np.full(labels.shape, -1, dtype=np.int32)
            notes[name][row, column] = numbers
        return notes

    def _bound_again(self, ids: np.ndarray, row: np.ndarray, query_at: np.ndarray) -> np.ndarray:
        """Column (m,) of the update of the key of each query, -1 where it has none."""
        found, query = np.full(len(row), -1), ids[row, query_at]
        for column in range(self.context_length - 2 * self.num_updates, self.context_length, 2):
            found[ids[row, column] == query] = column
        return found

    def chance_level(self, metric: str, length: int) -> float:
        """The best guess of the pair from the position of its query, exact from the law of the slots.

        ``recall`` and ``loss`` (nats): 1/k and ln k where a slot tells nothing of its pair. ``sequence_accuracy``, that
        of a random order of the values, 1/k!, is known there only. NaN otherwise and for other metrics.
        """
        pairs = self.num_kv_pairs
        tells = self.slot_assignment == "published" and self.power_a != 1.0
        if metric == "sequence_accuracy" and not tells:
            return math.exp(-math.lgamma(pairs + 1))
        if metric not in ("recall", "token_accuracy", "loss") or (metric == "loss" and self.loss_region == "all"):
            return math.nan
        if not tells:
            return math.log(pairs) if metric == "loss" else 1.0 / pairs
        self.validate_length(length)
        recall, loss = slot_levels((length - self.context_length) // 2, pairs, float(self.power_a))
        return loss if metric == "loss" else recall

    def baselines(self, length: int) -> dict[str, float]:
        """Recall of a uniform guess among all values and among those of the context, and of the likeliest pair."""
        all_values = self.vocab_size - 1 if self.shared_vocab else self.vocab_size - self.vocab_size // 2
        return {
            "any_value": 1.0 / all_values,
            "value_in_context": 1.0 / self.num_kv_pairs,
            "position": self.chance_level("recall", length),
        }

    def candidates(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The values of the first pass and of the updates."""
        mask = np.zeros(input_ids.shape, dtype=bool)
        mask[:, 1 : 2 * self.num_kv_pairs : 2] = True
        mask[:, self.context_length - 2 * self.num_updates + 1 : self.context_length : 2] = True
        return mask

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows: exact, but a lower bound for ``"random_published"``."""
        self.validate_length(length)
        k, half, more = self.num_kv_pairs, self.vocab_size // 2, self.num_updates
        if self.shared_vocab:
            contexts = math.perm(self.vocab_size - 1, 2 * k + more)
        else:
            contexts = math.perm(half - 1, k) * math.perm(self.vocab_size - half, k + more)
        rows = contexts * math.perm(k, more) * math.perm((length - self.context_length) // 2, k)
        if self.filler == "zero":
            return rows
        return rows * (self.vocab_size - 2 * k - more) ** (length - self.context_length - k)

    def _draw_pairs(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys (n, k), and values (n, k + u) in the order in which they are bound."""
        k, half, values = self.num_kv_pairs, self.vocab_size // 2, self.num_kv_pairs + self.num_updates
        if self.shared_vocab:
            ids = draw_distinct(rng, n, k + values, self.vocab_size - 1) + 1
            return ids[:, :k], ids[:, k:]
        return draw_distinct(rng, n, k, half - 1) + 1, draw_distinct(rng, n, values, self.vocab_size - half) + half

    def _undecided(self, input_ids: np.ndarray) -> np.ndarray:
        """Label positions (n, L) bool of slots whose key stands in several slots."""
        undecided = np.zeros(input_ids.shape, dtype=bool)
        if self.filler != "random_published":
            return undecided
        slots = input_ids[:, self.context_length : -1 : 2]
        for key in range(0, 2 * self.num_kv_pairs, 2):
            same = slots == input_ids[:, key, None]
            undecided[:, self.context_length + 1 :: 2] |= same & (same.sum(axis=1, keepdims=True) > 1)
        return undecided
