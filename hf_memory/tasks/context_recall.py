"""Recall in context: keys that come again in their row, among noise, or as tuples of tokens."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int, check_real
from hf_memory.tasks._tuples import Side, draw_pairs, first_in_group, lay_out
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task
from hf_memory.tasks.heuristics import heuristic_levels

QUERIES = ("multi", "single")
LOSS_REGIONS = ("answers", "all")
WINDOWS = (1, 8)
_MAD = "Poli et al. (2024), mechanistic architecture design: {}"
_LENGTHS = (128, 256, 512, 1024)


def _mad(words: str, **knobs: object) -> Preset:
    # The pad that marks a single query is one more token.
    lengths, tests = tuple(length + (knobs.get("queries") == "single") for length in _LENGTHS), {}
    if knobs.get("key_length"):
        tests = {f"test_{length}_long_keys": (Segment(3_000, length, {"exact_keys": True}),) for length in lengths}
    return Preset(lengths[0], lengths, knobs, tests, source=_MAD.format(words))


def _presets() -> dict[str, Preset]:
    """Settings of the source: the baseline of each task, and one knob at a time at the ends of its range."""
    presets = {"plain_vocab16": _mad("in-context recall, 16 ids")}
    for size in (32, 128):
        presets[f"plain_vocab{size}"] = _mad(f"in-context recall, {size} ids", vocab_size=size)
    noisy = {"vocab_size": 32, "noise_vocab_size": 16}
    for share in (0.2, 0.4, 0.8):
        words = f"noisy in-context recall, {share:g} of the pairs noise"
        presets[f"noisy_{round(100 * share)}"] = _mad(words, **noisy, noise_share=share)
    presets["noisy_vocab144"] = _mad(
        "noisy in-context recall, 144 ids", vocab_size=144, noise_vocab_size=16, noise_share=0.2
    )
    for size in (16, 128):
        words = f"fuzzy in-context recall, {size} ids, keys and values of up to 3 tokens"
        presets[f"fuzzy_vocab{size}"] = _mad(words, vocab_size=size, key_length=3, value_length=3)
    presets["plain_vocab16_single"] = _mad("in-context recall, one marked query a row", queries="single")
    presets["plain_vocab16_all"] = _mad("in-context recall, trained on all tokens", loss_region="all")
    return presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextRecall(Task):
    """Pairs of keys and values fill a row; wherever a key comes again its value is due (Poli et al., 2024).

    Keys are independent and uniform, and each has one value in a row, drawn uniformly at its first use, so that keys
    may share a value. All pairs stand in the input, as text would; the value of a repeated key is what is scored, and
    the last key of a row is one that came before.

    >>> row = np.array([[1, 12, 0, 9, 1, 12, 3, 9, 0, 9]])
    >>> ContextRecall().solve(row).tolist()
    [[-100, -100, -100, -100, -100, 12, -100, -100, -100, 9]]

    Some of the pairs may be noise, two ids of their own. Keys and values may be ordered tuples of distinct tokens, as
    many as one to ``key_length`` and ``value_length``, each number as likely; rows then begin with as many pads as are
    needed, and one pair is placed for sure and asked for at the end:

    >>> fuzzy = ContextRecall(key_length=3, value_length=3)
    >>> fuzzy.solve(np.array([[15, 15, 3, 9, 3, 1, 8, 14, 3, 9, 3, 1, 8, 14]]))[0, 8:].tolist()
    [-100, 9, -100, -100, 8, 14]

    Of 20,000 such test rows of the published code 477 ask at the end for a key that never stood in them; here it always
    did. Its rows, one token longer, begin with two to seven pads, these with none to five.

    The value that came most often so far is right in .32 of the answers with eight values, and the last eight pairs
    hold the key in two of three. Expected to be solved by attention and by the delta rule, which also lead on tuples
    (Yang et al., 2024); plain decay (GLA, Mamba) solves the plain law and fails on tuples.

    Attributes:
        vocab_size: Number of ids V: keys, as many values, and noise; with tuples, or where queries are single, the last
            id is a pad.
        noise_share: Probability that a pair is noise; one before the last is none for sure. Not with tuples.
        noise_vocab_size: Number of ids of the noise, the last of all but the pad.
        key_length: Largest number of tokens of a key.
        value_length: Largest number of tokens of a value.
        exact_keys: Give every key ``key_length`` tokens.
        queries: ``"multi"``: every repeated key is asked for; ``"single"``: the last one alone, after a pad; not
            with tuples.
        loss_region: ``"answers"``: only those are supervised; ``"all"``: every token is.
    """

    key: ClassVar[str] = "context_recall"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "recall"
    levels_until: ClassVar[int | None] = 4_096
    presets: ClassVar[Mapping[str, Preset]] = _presets()

    vocab_size: int = 16
    noise_share: float = 0.0
    noise_vocab_size: int = 0
    key_length: int = 1
    value_length: int = 1
    exact_keys: bool = False
    queries: str = "multi"
    loss_region: str = "answers"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 4)
        check_real("noise_share", self.noise_share, 0.0, 0.95)
        least = 1 if self.noise_share else 0
        check_int("noise_vocab_size", self.noise_vocab_size, least, self.vocab_size - self._has_pad - 2)
        check_int(f"key_length with {self.num_keys} keys", self.key_length, 1, min(self.num_keys, 4))
        check_int(f"value_length with {self._num_values} values", self.value_length, 1, min(self._num_values, 4))
        check_choice("exact_keys", self.exact_keys, (False, True))
        check_choice("queries", self.queries, QUERIES[:1] if self._tuples else QUERIES)
        if self._tuples and self.noise_share:
            raise ValueError(f"noise_share must be 0 where keys or values are tuples, got {self.noise_share!r}")
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def _tuples(self) -> bool:
        return max(self.key_length, self.value_length) > 1

    @property
    def _has_pad(self) -> bool:
        return self._tuples or self.queries == "single"

    @property
    def num_keys(self) -> int:
        """Number of ids of which keys are made: the first of all."""
        return (self.vocab_size - self._has_pad - self.noise_vocab_size) // 2

    @property
    def _num_values(self) -> int:
        return self.vocab_size - self._has_pad - self.noise_vocab_size - self.num_keys

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` holds two of the longest pairs, and, of single tokens, is even without a marker."""
        marker = self.queries == "single"
        check_int("length", length, 2 * (self.key_length + self.value_length) + marker)
        if not self._tuples and (length - marker) % 2:
            raise ValueError(f"length must be {'odd' if marker else 'even'} with pairs of two tokens, got {length}")

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, values of repeated keys supervised, or all tokens."""
        self.validate_length(length)
        if self._tuples:
            keys = Side(0, self.num_keys, self.key_length, self.exact_keys)
            pairs = draw_pairs(
                rng, num_examples, length, keys, Side(self.num_keys, self._num_values, self.value_length)
            )
            ids, answers = lay_out(pairs, length, self.vocab_size - 1)
        else:
            ids, answers = self._draw_single(rng, length, num_examples)
        if self.loss_region == "all":
            return ids, ids.copy()
        return ids, np.where(answers, ids, IGNORE_INDEX).astype(np.int32)

    def _draw_single(self, rng: np.random.Generator, length: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n, L) of pairs of two tokens, and which of them answer a query."""
        count, pairs, row = self.num_keys, length // 2, np.arange(num_rows)
        keys = rng.integers(0, count, size=(num_rows, pairs), dtype=np.int32)
        noise = np.zeros((num_rows, pairs), dtype=bool)
        if self.noise_share:
            noise[:, :-1] = rng.random((num_rows, pairs - 1), dtype=np.float32) < self.noise_share
            noise[row, rng.integers(0, pairs - 1, size=num_rows)] = False
        # The last key is one of those that were seen: of them all the first in a random order.
        order = rng.random((num_rows, count), dtype=np.float32)
        seen = np.zeros((num_rows, count + 1), dtype=bool)
        np.put_along_axis(seen, np.where(noise, count, keys)[:, :-1], True, axis=1)
        keys[:, -1] = np.where(seen[:, :-1], order, -1.0).argmax(axis=1)
        values = rng.integers(count, count + self._num_values, size=(num_rows, count), dtype=np.int32)
        own = np.take_along_axis(values, keys, axis=1)
        again = first_in_group(np.where(noise, count + np.arange(pairs), keys)) < np.arange(pairs)
        if self.noise_share:
            low = self.vocab_size - self._has_pad - self.noise_vocab_size
            drawn = rng.integers(low, low + self.noise_vocab_size, size=(2, num_rows, pairs), dtype=np.int32)
            keys, own = np.where(noise, drawn[0], keys), np.where(noise, drawn[1], own)
        ids, answers = np.empty((num_rows, length), dtype=np.int32), np.zeros((num_rows, length), dtype=bool)
        ids[:, 0 : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2], answers[:, 1 : 2 * pairs : 2] = keys, own, again
        if self.queries == "single":
            ids[:, -2:], ids[:, -3], answers[:, :-1] = ids[:, -3:-1], self.vocab_size - 1, False
            answers[:, -1] = True
        return ids, answers

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Compare every key with those before it, tuple by tuple, and copy the value of the first that is the same."""
        answers, _ = self._look_up(input_ids)
        if self.loss_region == "all":
            return np.where(answers != IGNORE_INDEX, answers, input_ids).astype(np.int32)
        return answers

    def _look_up(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Answers (n, L), and for each of them the distance to where it stood last; both ignored elsewhere."""
        places = np.indices(ids.shape)
        row, column = places[0], places[1]
        is_key, is_value = ids < self.num_keys, (ids >= self.num_keys) & (ids < self.num_keys + self._num_values)
        begins = {"key": is_key.copy(), "value": is_value.copy()}
        begins["key"][:, 1:] &= ~is_key[:, :-1]
        begins["value"][:, 1:] &= ~is_value[:, :-1]
        pair = np.maximum(np.cumsum(begins["key"], axis=1) - 1, 0)
        start = np.maximum.accumulate(np.where(begins["key"], column, 0), axis=1)
        shape = (len(ids), int(pair.max(initial=0)) + 1)
        cell = row * shape[1] + pair
        weights = (ids + 1.0) * (self.num_keys + 1.0) ** np.where(is_key, column - start, 0)
        code = np.bincount(cell[is_key], weights[is_key], minlength=shape[0] * shape[1]).reshape(shape)
        value_at = np.zeros(shape, dtype=np.int64)
        value_at[row[begins["value"]], pair[begins["value"]]] = column[begins["value"]]
        first, last = np.full(shape, -1), np.full(shape, -1)
        for place in range(1, shape[1]):
            same = code[:, :place] == code[:, place, None]
            found = same.any(axis=1)
            first[found, place] = value_at[found, same[found].argmax(axis=1)]
            last[found, place] = value_at[found, place - 1 - same[found, ::-1].argmax(axis=1)]
        asked = is_value & (first[row, pair] >= 0)
        if self.queries == "single":
            marker = ids.shape[1] - 1 - np.argmax(ids[:, ::-1] == self.vocab_size - 1, axis=1)
            asked &= column == marker[:, None] + 2
        row, column, pair = row[asked], column[asked], pair[asked]
        inside = column - value_at[row, pair]
        answers, distance = np.full(ids.shape, IGNORE_INDEX, dtype=np.int32), np.full(ids.shape, -1, dtype=np.int32)
        answers[row, column] = ids[row, first[row, pair] + inside]
        distance[row, column] = value_at[row, pair] - last[row, pair]
        return answers, distance

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, the values of repeated keys, and ``distance``, the tokens since that value stood last, else -1."""
        answers, distance = self._look_up(input_ids)
        score = (answers != IGNORE_INDEX) & (labels != IGNORE_INDEX)
        return {"score": score, "distance": np.where(score, distance, -1).astype(np.int32)}

    def chance_level(self, metric: str, length: int) -> float:
        """Any value; of the later tokens of a tuple any but the one before, exact.

        ``recall`` and, where answers alone are supervised, ``loss`` (nats); NaN for other metrics.
        """
        later = (self.value_length - 1) / (self.value_length + 1)
        left = max(self._num_values - 1, 1)
        if metric in ("recall", "token_accuracy"):
            return (1 - later) / self._num_values + later / left
        if metric == "loss" and self.loss_region == "answers":
            return (1 - later) * math.log(self._num_values) + later * math.log(left)
        return math.nan

    def baselines(self, length: int) -> dict[str, float]:
        """Recall of any value, and, measured on fixed rows, of memories that do not solve the task.

        ``window_m`` finds a value that stood among the last m pairs of usual size; ``majority_so_far`` answers the id
        that came most often, the others are tables of the last tokens.
        """
        return {"any_value": 1.0 / self._num_values, **_measured(self, length)}

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows: exact for pairs of two tokens, else a lower bound, from the shortest pairs."""
        self.validate_length(length)
        size = self.key_length if self.exact_keys else 1
        keys, pairs = math.perm(self.num_keys, size), length // (size + 1)
        # Rows by the number of keys that were seen, pair after pair; the last key is one of them.
        seen = [1] + [0] * min(keys, pairs)
        noise = self.noise_vocab_size**2 if self.noise_share else 0
        for _ in range(pairs - 1):
            fresh = [0] + [count * (keys - number) * self._num_values for number, count in enumerate(seen[:-1])]
            seen = [new + old * (number + noise) for number, (new, old) in enumerate(zip(fresh, seen, strict=True))]
        return sum(number * count for number, count in enumerate(seen))


@functools.lru_cache(maxsize=256)
def _measured(task: ContextRecall, length: int) -> dict[str, float]:
    """Recall of windows and of fitted tables, on fixed rows."""
    rows = min(2_000, max(250, 200_000 // length))
    ids, labels = task.sample(np.random.default_rng(1), length, rows)
    notes = task.annotate(ids, labels)
    distance = notes["distance"][notes["score"]]
    usual = (task.key_length * (2 if task.exact_keys else 1) + task.value_length + 2 - task.exact_keys) // 2
    guess = 1.0 / task._num_values
    levels = {
        f"window_{m}": float(np.where(distance <= m * usual + (task.queries == "single"), 1.0, guess).mean())
        for m in WINDOWS
    }
    names = ("majority_so_far", "last_2_tokens", "last_3_tokens")
    fitted = heuristic_levels(task, length, np.random.default_rng(0), rows, names=names)
    return {**levels, **{name: value for name, (value, _) in fitted.items()}}
