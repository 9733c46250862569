"""Updating MQAR: recall among values that change, some of them more often than others."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int, check_real
from hf_memory.tasks._draws import draw_balanced, draw_distinct, fill_avoiding, last_in_group
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

FILLERS = ("zero", "random")
QUERIES = ("uniform", "balanced")
LOSS_REGIONS = ("answers", "all")
UPDATE_SHARES = (0.0, 0.1, 0.25, 0.5)
_SOURCE = "a law of this package; values that change over time are named as future work by the poster"
_FILLER, _UPDATE, _QUERY = 0, 1, 2


def _preset(num_kv_pairs: int, length: int, update_share: float, rate_ratio: float, **knobs: str) -> Preset:
    """Test at 1, 2 and 4 times the length, and at the training length with other shares of updates."""
    tests = {
        f"test_update_u{round(100 * share)}": (Segment(3_000, length, {"update_share": share}),)
        for share in UPDATE_SHARES
    }
    law = {"num_kv_pairs": num_kv_pairs, "update_share": update_share, "rate_ratio": rate_ratio, **knobs}
    return Preset(length, (length, 2 * length, 4 * length), law, tests, source=_SOURCE)


def _presets() -> dict[str, Preset]:
    """By pairs, length, share of updates in percent and ratio of rates; the first is the default."""
    presets = {
        f"kv{pairs}_len{length}_u25_r{ratio}": _preset(pairs, length, 0.25, ratio)
        for pairs, length in ((4, 64), (8, 128), (16, 256))
        for ratio in (1, 16)
    }
    presets["kv4_len64_u0_r1"] = _preset(4, 64, 0.0, 1)
    presets["kv4_len64_u50_r1"] = _preset(4, 64, 0.5, 1)
    presets["kv4_len64_u50_r16"] = _preset(4, 64, 0.5, 16)
    presets["kv4_len64_u25_r1_balanced"] = _preset(4, 64, 0.25, 1, query="balanced")
    return presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdatingMQAR(Task):
    """Recall the value in force of each key, while keys get new values.

    A row begins with k bindings ``key value``. Events of two tokens follow, each by itself an update, a query or
    filler. An update writes ``key value`` with a value that is nowhere else in the row, so
    that a wrong answer names the binding from which it comes. A query is the key and a blank; its answer, the value in
    force, is not in the input, and by the convention of causal heads the label stands under the blank. The blank tells
    a query from an update, and has its place in each query whatever the filler. A row has at least one query.

    >>> import numpy as np
    >>> row = np.array([[3, 12, 5, 9, 3, 0, 3, 14, 0, 0, 5, 0, 3, 0]])
    >>> UpdatingMQAR(vocab_size=16, num_kv_pairs=2).solve(row).tolist()
    [[-100, -100, -100, -100, -100, 12, -100, -100, -100, -100, -100, 9, -100, 14]]

    Attributes:
        vocab_size: Number of ids V. Keys come from [1, V/2), values from [V/2, V), and 0 is the blank.
        num_kv_pairs: Number of keys k.
        update_share: Probability u that an event is an update.
        query_share: Probability q that an event is a query; ``update_share + query_share`` is at most 1.
        rate_ratio: Bound R of the keys' rates, which are log-uniform in [1, R] in each row; the key of an update is
            drawn in proportion to its rate. 1 makes all keys alike.
        query: ``"uniform"``: the key of a query is any of the keys; ``"balanced"``: with probability one half one that
            was updated before and else one that was not, or any key while there is no such key. Among few keys that
            were updated, or few that were not, each is then more likely than one in k.
        filler: ``"zero"``, or ``"random"``: uniform over the ids that are neither key nor value of the row. A filler
            that may repeat a key is not offered: it would look like an update and change the answers.
        num_passes: How often the first bindings are given, one pass after the other.
        shared_vocab: Draw keys and values from one vocabulary [1, V); in one row no id is both.
        loss_region: ``"answers"``: only those are supervised; ``"all"``: every token is, with the answers at theirs.
    """

    key: ClassVar[str] = "updating_mqar"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "associative"
    headline_metric: ClassVar[str] = "recall"
    levels_until: ClassVar[int | None] = 4_096
    presets: ClassVar[Mapping[str, Preset]] = _presets()

    vocab_size: int = 8192
    num_kv_pairs: int = 4
    update_share: float = 0.25
    query_share: float = 0.5
    rate_ratio: float = 1.0
    query: str = "uniform"
    filler: str = "zero"
    num_passes: int = 1
    shared_vocab: bool = False
    loss_region: str = "answers"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, 4)
        check_choice("shared_vocab", self.shared_vocab, (False, True))
        most = (self.vocab_size - 2) // 2 if self.shared_vocab else self.vocab_size // 2 - 1
        check_int(f"num_kv_pairs with vocab_size {self.vocab_size}", self.num_kv_pairs, 1, most)
        check_real("query_share", self.query_share, 0.0, 1.0, open_low=True)
        check_real("update_share", self.update_share, 0.0, 1.0)
        if self.update_share + self.query_share > 1.0:
            most_updates = 1.0 - self.query_share
            raise ValueError(
                f"update_share with query_share {self.query_share} must be in [0, {most_updates:g}], "
                f"got {self.update_share!r}"
            )
        check_real("rate_ratio", self.rate_ratio, 1.0, 1e6)
        check_choice("query", self.query, QUERIES)
        check_choice("filler", self.filler, FILLERS)
        check_int("num_passes", self.num_passes, 1)
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def context_length(self) -> int:
        """Number of tokens before the first event."""
        return 2 * self.num_kv_pairs * self.num_passes

    @property
    def _num_values(self) -> int:
        """Number of values that one row can use."""
        if self.shared_vocab:
            return self.vocab_size - 1 - self.num_kv_pairs
        return self.vocab_size - self.vocab_size // 2

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` is even and holds an event, and queries and values for the updates are to be had."""
        least = self.context_length + 2
        name = f"length with {self.num_kv_pairs} num_kv_pairs and {self.num_passes} num_passes"
        check_int(name, length, least)
        if length % 2:
            raise ValueError(f"length must be even and at least {least}, got {length}")
        events = (length - self.context_length) // 2
        if self.query_share * events < 0.1:
            # Rows without a query are drawn again; with hardly any query that would not end.
            raise ValueError(
                f"query_share at length {length} must be in [{0.1 / events:g}, 1], got {self.query_share!r}"
            )
        expected = self.update_share * events
        if self.num_kv_pairs + expected > self._num_values:
            raise ValueError(
                f"vocab_size {self.vocab_size} has {self._num_values} values for a row, and length {length} expects "
                f"{self.num_kv_pairs} num_kv_pairs and {expected:g} updates; length or update_share must be smaller"
            )

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, every query of a row supervised."""
        self.validate_length(length)
        n, k, context = num_examples, self.num_kv_pairs, self.context_length
        kinds = self._draw_kinds(rng, n, (length - context) // 2)
        num_updates = (kinds == _UPDATE).sum(axis=1)
        keys, values = self._draw_ids(rng, n, k + int(num_updates.max(initial=0)))
        input_ids = np.zeros((n, length), dtype=np.int32)
        labels = np.full((n, length), IGNORE_INDEX, dtype=np.int32)
        if self.filler == "random":
            unused = np.arange(values.shape[1]) >= (k + num_updates)[:, None]
            taken = np.concatenate([keys, np.where(unused, keys[:, :1], values)], axis=1)
            free = np.zeros((n, length), dtype=bool)
            free[:, context:] = np.repeat(kinds == _FILLER, 2, axis=1)
            fill_avoiding(rng, input_ids, free, taken, self.vocab_size)
        pairs = np.stack([keys, values[:, :k]], axis=2).reshape(n, 2 * k)
        input_ids[:, :context] = np.tile(pairs, (1, self.num_passes))
        which = self._choose_keys(rng, kinds == _UPDATE)
        labels[:, context + 1 :: 2] = self._write_events(kinds, which, keys, values, input_ids[:, context:])
        return input_ids, np.where(labels == IGNORE_INDEX, input_ids, labels) if self.loss_region == "all" else labels

    def _draw_kinds(self, rng: np.random.Generator, n: int, num_events: int) -> np.ndarray:
        """What each event is (n, G): rows without a query, or with more updates than values, are drawn again."""
        kinds = np.zeros((n, num_events), dtype=np.int8)
        pending = np.arange(n)
        while len(pending):
            draws = rng.random((len(pending), num_events), dtype=np.float32)
            is_update = draws < self.update_share
            is_query = (draws < self.update_share + self.query_share) & ~is_update
            kinds[pending] = _UPDATE * is_update.view(np.int8) + _QUERY * is_query.view(np.int8)
            fits = is_query.any(axis=1) & (is_update.sum(axis=1) <= self._num_values - self.num_kv_pairs)
            pending = pending[~fits]
        return kinds

    def _draw_ids(self, rng: np.random.Generator, n: int, num_values: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys (n, k) and distinct values (n, num_values) in the order in which they are bound."""
        k, half = self.num_kv_pairs, self.vocab_size // 2
        if self.shared_vocab:
            ids = draw_distinct(rng, n, k + num_values, self.vocab_size - 1).astype(np.int32) + 1
            return ids[:, :k].copy(), ids[:, k:].copy()
        keys = draw_distinct(rng, n, k, half - 1).astype(np.int32) + 1
        return keys, draw_distinct(rng, n, num_values, self._num_values).astype(np.int32) + half

    def _choose_keys(self, rng: np.random.Generator, is_update: np.ndarray) -> np.ndarray:
        """The place in the context (n, G) of the key that each event is about; filler gets one as well."""
        n, num_events = is_update.shape
        k = self.num_kv_pairs
        if self.rate_ratio == 1.0:
            updated = rng.integers(0, k, size=(n, num_events), dtype=np.int32)
        else:
            bounds = np.cumsum(np.float64(self.rate_ratio) ** rng.random((n, k)), axis=1)
            draws = rng.random((n, num_events)) * bounds[:, -1:]
            updated = np.zeros((n, num_events), dtype=np.int32)
            for key in range(k - 1):
                updated += draws >= bounds[:, key, None]
        if self.query == "uniform":
            return np.where(is_update, updated, rng.integers(0, k, size=(n, num_events), dtype=np.int32))
        return np.where(is_update, updated, draw_balanced(rng, np.where(is_update, updated, -1), k))

    def _write_events(
        self, kinds: np.ndarray, which: np.ndarray, keys: np.ndarray, values: np.ndarray, events: np.ndarray
    ) -> np.ndarray:
        """Write the events (n, 2G) and return the labels (n, G) under their second tokens."""
        k, row = keys.shape[1], np.arange(len(keys))[:, None]
        is_update = kinds == _UPDATE
        written = np.cumsum(is_update, axis=1, dtype=np.int32)
        last = last_in_group(which, np.where(is_update, written, 0))
        # The value in force after the event: for an update the one that it writes.
        in_force = values.ravel()[np.where(last > 0, k - 1 + last, which) + row * values.shape[1]]
        np.copyto(events[:, 0::2], keys.ravel()[which + row * k], where=kinds != _FILLER)
        np.copyto(events[:, 1::2], in_force, where=is_update)
        return np.where(kinds == _QUERY, in_force, IGNORE_INDEX)

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """For every key by itself, carry the place of its last binding along the row and read the value there."""
        labels = self._answers(input_ids)
        return np.where(labels == IGNORE_INDEX, input_ids, labels) if self.loss_region == "all" else labels

    def _of_queries(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Labels (n, L) of the queries alone."""
        if self.loss_region == "answers":
            return labels
        return np.where(self._answers(input_ids) == IGNORE_INDEX, IGNORE_INDEX, labels)

    def _answers(self, input_ids: np.ndarray) -> np.ndarray:
        """Answers (n, L), ignored where none is due."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        ids, blank = input_ids[:, 0:-1:2], input_ids[:, 1::2] == 0
        column = np.arange(ids.shape[1])
        for key in range(self.num_kv_pairs):
            same = ids == ids[:, key, None]
            last = np.maximum.accumulate(np.where(same & ~blank, column, 0), axis=1)
            row, slot = np.nonzero(same & blank)
            labels[row, 2 * slot + 1] = input_ids[row, 2 * last[row, slot] + 1]
        return labels

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and at each scored position (-1 elsewhere) what may make its recall hard.

        ``updates``: how often this key was bound anew before; ``age``: events between the binding in force and the
        query; ``load``: bindings written so far; ``rate``: updates of this key in the whole row, all that ids tell of
        its rate; ``pair``: place of the key in the context.
        """
        score = self._of_queries(input_ids, labels) != IGNORE_INDEX
        notes = {"score": score}
        columns = {
            name: np.full(labels.shape, -1, dtype=np.int32) for name in ("updates", "age", "load", "rate", "pair")
        }
        start = self.context_length // 2
        ids, second = input_ids[:, 0:-1:2], input_ids[:, 1::2]
        event = np.arange(ids.shape[1]) - start
        asked = score[:, 1::2]
        total = np.zeros(ids.shape, dtype=np.int32)
        for pair in range(self.num_kv_pairs):
            same = ids == ids[:, pair, None]
            update = same & (second != 0) & (event >= 0)
            count = np.cumsum(update, axis=1, dtype=np.int32)
            total += count
            last = np.maximum.accumulate(np.where(update, event, -1), axis=1)
            row, slot = np.nonzero(same & asked)
            found = (count[row, slot], event[slot] - 1 - last[row, slot], count[row, -1], np.full(len(row), pair))
            for name, numbers in zip(("updates", "age", "rate", "pair"), found, strict=True):
                columns[name][row, 2 * slot + 1] = numbers
        row, slot = np.nonzero(asked)
        columns["load"][row, 2 * slot + 1] = self.num_kv_pairs + total[row, slot]
        return {**notes, **columns}

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """Wrong answers by cause, as shares of all answers; predictions (n, L) stand at their labels' positions.

        ``stale``: an earlier value of the same key; ``swap``: the value in force of another key; ``other``: anything
        else, an earlier value of another key among it. Recall and the three sum to 1.
        """
        score = self._of_queries(input_ids, labels) != IGNORE_INDEX
        wrong = score & (predictions != labels)
        stale, swap = np.zeros_like(wrong), np.zeros_like(wrong)
        ids, second = input_ids[:, 0:-1:2], input_ids[:, 1::2]
        asked, answer = wrong[:, 1::2], predictions[:, 1::2]
        for pair in range(self.num_kv_pairs):
            same = ids == ids[:, pair, None]
            binding = same & (second != 0)
            last = np.maximum.accumulate(np.where(binding, np.arange(ids.shape[1]), 0), axis=1)
            in_force = np.take_along_axis(second, last, axis=1)
            swap[:, 1::2] |= asked & ~same & (answer == in_force)
            row, slot = np.nonzero(asked & same)
            earlier = (
                binding[row] & (np.arange(ids.shape[1]) < slot[:, None]) & (second[row] == answer[row, slot][:, None])
            )
            stale[row, 2 * slot + 1] = earlier.any(axis=1)
        total = int(score.sum())
        counts = {"stale": int(stale.sum()), "swap": int(swap.sum()), "other": int((wrong & ~stale & ~swap).sum())}
        return {name: (count, total) for name, count in counts.items()}

    def candidates(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The values of all bindings, those of the context and those that updates write."""
        mask = np.zeros(input_ids.shape, dtype=bool)
        keys = input_ids[:, 0 : 2 * self.num_kv_pairs : 2]
        ids, second = input_ids[:, 0:-1:2], mask[:, 1::2]
        for key in keys.T:
            second |= ids == key[:, None]
        second &= (input_ids[:, 1::2] != 0) & (self._of_queries(input_ids, labels)[:, 1::2] == IGNORE_INDEX)
        second[:, self.num_kv_pairs : self.context_length // 2] = False
        return mask

    def chance_level(self, metric: str, length: int) -> float:
        """The best guess of the key of a query from which keys were updated before; NaN for other metrics.

        ``recall`` and ``loss`` (nats): 1/k and ln k where queries are uniform. Where they are balanced and m of the
        keys were updated, 1/(2 m) or 1/(2 (k - m)), whichever is larger, over the law of m: exact where all keys have
        one rate, else by that law on fixed rows. Rows with more updates than values are left out of account.
        """
        if metric not in ("recall", "token_accuracy", "loss") or (metric == "loss" and self.loss_region == "all"):
            return math.nan
        k = self.num_kv_pairs
        if self.query == "uniform":
            return math.log(k) if metric == "loss" else 1.0 / k
        m = np.arange(k + 1)
        mixed = (m > 0) & (m < k)
        few, many = np.where(mixed, np.minimum(m, k - m), k), np.where(mixed, np.maximum(m, k - m), k)
        if metric == "loss":
            levels = np.where(mixed, np.log(2 * few) / 2 + np.log(2 * many) / 2, math.log(k))
        else:
            levels = np.where(mixed, 0.5 / few, 1.0 / k)
        return float(levels @ _updated_keys(self, length))

    def baselines(self, length: int) -> dict[str, float]:
        """Recall of guesses among values in force and among all values seen, and of memories of one kind of binding.

        ``most_recent_binding`` always answers the value bound last; it is known as the chance level is.
        ``value_seen`` and ``first_value``, a memory that takes no updates, are estimated on fixed rows.
        """
        seen, first = _estimates(self, length)
        k = self.num_kv_pairs
        recent = 1.0 / k
        if self.query == "balanced":
            m = np.arange(k + 1)
            last = np.where((m > 0) & (m < k), 0.5 / np.maximum(m, 1), 1.0 / k)
            recent = float(last @ _updated_keys(self, length))
        return {
            "value_in_force": 1.0 / k,
            "value_seen": seen,
            "first_value": first,
            "most_recent_binding": recent,
            "updated_or_not": self.chance_level("recall", length),
        }

    def num_distinct(self, length: int) -> int:
        """A lower bound on the number of distinct rows: those in which every event is a query."""
        self.validate_length(length)
        k, half = self.num_kv_pairs, self.vocab_size // 2
        if self.shared_vocab:
            contexts = math.perm(self.vocab_size - 1, 2 * k)
        else:
            contexts = math.perm(half - 1, k) * math.perm(self.vocab_size - half, k)
        return contexts * k ** ((length - self.context_length) // 2)


@functools.lru_cache(maxsize=64)
def _estimates(task: UpdatingMQAR, length: int) -> tuple[float, float]:
    """Mean of 1/load, and share of queries whose key was never updated, over 1,000 fixed rows."""
    ids, labels = task.sample(np.random.default_rng(0), length, 1_000)
    notes = task.annotate(ids, labels)
    score = notes["score"]
    return float((1.0 / notes["load"][score]).mean()), float((notes["updates"][score] == 0).mean())


@functools.lru_cache(maxsize=256)
def _updated_keys(task: UpdatingMQAR, length: int) -> np.ndarray:
    """Probability (k + 1,) that m of the keys were updated before a query, over the queries of all rows."""
    k = task.num_kv_pairs
    if task.rate_ratio != 1.0:
        return _updated_keys_of_rows(task, length)
    # Events are independent: before a query each of them updated, with probability u, any key.
    m = np.arange(k + 1)
    grows = task.update_share * (k - m) / k
    chance, total = (m == 0).astype(np.float64), np.zeros(k + 1)
    events = (length - task.context_length) // 2
    for _ in range(events):
        total += chance
        chance = chance * (1 - grows) + np.roll(chance * grows, 1)
    return total / events


def _updated_keys_of_rows(task: UpdatingMQAR, length: int) -> np.ndarray:
    """Shares (k + 1,) of the queries of 4,000 fixed rows before which m of the keys were updated."""
    task = dataclasses.replace(task, loss_region="answers")
    ids, labels = task.sample(np.random.default_rng(0), length, 4_000)
    updates = task.candidates(ids, labels)[:, task.context_length + 1 :: 2]
    keys = ids[:, task.context_length :: 2]
    updated = np.zeros(keys.shape, dtype=np.int32)
    for key in range(0, 2 * task.num_kv_pairs, 2):
        updated += np.logical_or.accumulate(updates & (keys == ids[:, key, None]), axis=1)
    asked = labels[:, task.context_length + 1 :: 2] != IGNORE_INDEX
    counts = np.bincount(updated[asked], minlength=task.num_kv_pairs + 1)
    return counts / counts.sum()
