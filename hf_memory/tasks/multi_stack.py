"""Many stacks: pushes and pops of named stacks; what a pop brings is due."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import LARGEST, check_choice, check_int, check_real
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Task

_PUSH, _POP, _OPERATION = 0, 1, 3
_KIMI = (
    "Kimi Team (2025), Kimi Linear: 64 stacks, rows of {} tokens; the symbols, the share of pushes and what an empty "
    "stack does are not stated there"
)
_REPAIRED = "a law of this package, in which the last pushed symbol tells few of the pops"
_SMALL = "the same law at a size that trains on a CPU"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiStack(Task):
    """Operations of three tokens push a symbol on a stack, or pop the one on top, which is due as soon as it is named.

    ``length`` is the number of operations. Each is ``push stack symbol`` or ``pop stack symbol``; the popped symbol
    stands in the input as well. An operation takes any stack, each as likely; on an empty one it is a push, otherwise
    with probability ``push_share``. The last but one is a push, and the last a pop of any stack that is not empty.

    >>> task = MultiStack(num_stacks=2, alphabet_size=3)
    >>> row = np.array([[task.symbols.index(sign) for sign in "+ 0 a + 1 b + 0 c - 0 c + 1 b - 0 a".split()]])
    >>> [task.symbols[label] for label in task.solve(row)[0] if label >= 0]
    ['c', 'a']

    The symbol that was pushed last on a stack is what a pop brings unless a pop came before it. With 64 stacks in short
    rows that is rare, and a memory of one symbol for each stack is right in .97 of the pops: ``pushes_first`` makes
    such pops common, and ``accuracy_after_pop`` counts them apart.

    Expected to need a state with room for all that lies on the stacks: KDA ahead of Gated DeltaNet, while Mamba-2 fails
    (Kimi Team, 2025). Attention finds a symbol by its stack but must count to skip what was popped.

    Attributes:
        num_stacks: Number of stacks S.
        alphabet_size: Number of symbols A.
        push_share: Probability that an operation on a stack that is not empty is a push.
        pushes_first: Whether instead the first half of the operations are pushes, and the others pops wherever the
            stack is not empty.
    """

    key: ClassVar[str] = "multi_stack"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stack"
    levels_until: ClassVar[int | None] = 8_192
    presets: ClassVar[Mapping[str, Preset]] = {
        "stacks64_ops85": Preset(85, (85, 170, 341), source=_KIMI.format(256)),
        "stacks64_ops170": Preset(170, (170, 341), source=_KIMI.format(512)),
        "stacks64_ops341": Preset(341, (341, 682), source=_KIMI.format(1024)),
        "stacks64_ops682": Preset(682, (682,), source=_KIMI.format(2048)),
        "stacks8_ops84_pushes_first": Preset(
            84, (84, 168, 336), {"num_stacks": 8, "pushes_first": True}, source=_REPAIRED
        ),
        "stacks4_ops20": Preset(20, (20, 40, 80), {"num_stacks": 4, "alphabet_size": 8}, source=_SMALL),
        "stacks1_ops20": Preset(20, (20, 40, 80), {"num_stacks": 1, "alphabet_size": 8}, source=f"one stack: {_SMALL}"),
    }

    num_stacks: int = 64
    alphabet_size: int = 26
    push_share: float = 0.5
    pushes_first: bool = False

    def __post_init__(self) -> None:
        check_int("num_stacks", self.num_stacks, 1, 1 << 16)
        check_int("alphabet_size", self.alphabet_size, 2, LARGEST - self.num_stacks - 2)
        check_real("push_share", self.push_share, 0.0, 1.0)
        check_choice("pushes_first", self.pushes_first, (False, True))

    @property
    def vocab_size(self) -> int:
        """Push and pop, the stacks and the symbols."""
        return 2 + self.num_stacks + self.alphabet_size

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        short = self.alphabet_size <= 26
        names = [chr(ord("a") + number) if short else f"s{number}" for number in range(self.alphabet_size)]
        return ("+", "-", *map(str, range(self.num_stacks)), *names)

    def row_length(self, length: int) -> int:
        """Tokens of ``length`` operations."""
        return _OPERATION * length

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` holds a push and a pop."""
        check_int("length", length, 2)

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, popped symbols supervised."""
        self.validate_length(length)
        n, row, first = num_examples, np.arange(num_examples), 2 + self.num_stacks
        stack = rng.integers(0, self.num_stacks, size=(length, n), dtype=np.int32)
        symbol = rng.integers(first, self.vocab_size, size=(length, n), dtype=np.int32)
        pushes = rng.random((length, n), dtype=np.float32) < self.push_share
        if self.pushes_first:
            pushes[:] = (np.arange(length) < length // 2)[:, None]
        else:
            pushes[-2:] = [[True], [False]]
        # Symbols of a stack lie in a chain: each push remembers the one that it covers.
        top, below = np.full((n, self.num_stacks), -1, dtype=np.int32), np.full((length, n), -1, dtype=np.int32)
        flat, start = top.reshape(-1), row * self.num_stacks
        for step in range(length):
            if step == length - 1:
                order = rng.random((n, self.num_stacks), dtype=np.float32)
                stack[step] = np.where(top >= 0, order, -1.0).argmax(axis=1)
            at = start + stack[step]
            held = flat[at]
            pushes[step] |= held < 0
            taken = np.maximum(held, 0)
            below[step] = held
            symbol[step] = np.where(pushes[step], symbol[step], symbol[taken, row])
            flat[at] = np.where(pushes[step], step, below[taken, row])
        ids = np.empty((n, length, _OPERATION), dtype=np.int32)
        ids[:, :, 0], ids[:, :, 1], ids[:, :, 2] = np.where(pushes, _PUSH, _POP).T, stack.T + 2, symbol.T
        labels = np.full((n, length, _OPERATION), IGNORE_INDEX, dtype=np.int32)
        labels[:, :, 2] = np.where(pushes, IGNORE_INDEX, symbol).T
        return ids.reshape(n, self.row_length(length)), labels.reshape(n, self.row_length(length))

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Match each pop with the last push on its stack at the same height; the symbols of pops are not read."""
        labels = np.full(input_ids.shape, IGNORE_INDEX, dtype=np.int32)
        place, _ = self._match(input_ids)
        row, step = np.nonzero(place >= 0)
        labels[row, _OPERATION * step + 2] = input_ids[row, _OPERATION * place[row, step] + 2]
        return labels

    def _match(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each operation (n, k) the push that a pop undoes, and the one on its stack before; -1 for none."""
        n, count = len(ids), ids.shape[1] // _OPERATION
        operations = ids[:, : _OPERATION * count].reshape(n, count, _OPERATION)
        stack, pops = operations[:, :, 1], operations[:, :, 0] == _POP
        # By stacks, and in order within each: heights are then running sums less those at the stack's beginning.
        order = np.argsort(stack, axis=1, kind="stable")
        ordered, is_pop = np.take_along_axis(stack, order, axis=1), np.take_along_axis(pops, order, axis=1)
        same = np.zeros((n, count), dtype=bool)
        same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        steps = np.where(is_pop, -1, 1)
        height = np.cumsum(steps, axis=1)
        base = np.maximum.accumulate(np.where(same, 0, np.arange(count)), axis=1)
        height -= np.take_along_axis(height - steps, base, axis=1)
        level = np.where(is_pop, height + 1, height)
        # Of one stack and level, pushes and pops take turns.
        turn = np.lexsort((np.broadcast_to(np.arange(count), order.shape), level, ordered), axis=1)
        partner = np.full((n, count), -1)
        np.put_along_axis(partner, turn[:, 1:], turn[:, :-1], axis=1)
        place, before = np.full((n, count), -1), np.full((n, count), -1)
        found = np.where(is_pop, np.take_along_axis(order, np.maximum(partner, 0), axis=1), -1)
        np.put_along_axis(place, order, found, axis=1)
        previous = np.where(same[:, 1:], order[:, :-1], -1)
        np.put_along_axis(before, order[:, 1:], previous, axis=1)
        return place, before

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and at each scored position what may make a pop hard.

        ``distance``: operations since the push, -1 elsewhere; ``after_pop``: whether the operation on the stack before
        was a pop.
        """
        score = labels != IGNORE_INDEX
        # Pads stand at the end, and are no operations.
        known = np.where(np.logical_or.accumulate(score[:, ::-1], axis=1)[:, ::-1], input_ids, 0)
        place, before = self._match(known)
        pops = known[:, : _OPERATION * place.shape[1] : _OPERATION] == _POP
        distance, after = np.full(labels.shape, -1, dtype=np.int32), np.zeros(labels.shape, dtype=bool)
        distance[:, 2::_OPERATION] = np.where(place >= 0, np.arange(place.shape[1]) - place, -1)
        after[:, 2::_OPERATION] = (before >= 0) & np.take_along_axis(pops, np.maximum(before, 0), axis=1)
        return {"score": score, "distance": np.where(score, distance, -1), "after_pop": after & score}

    def extra_metrics(
        self, input_ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, tuple[int, int]]:
        """Right answers of the pops that follow a pop of their stack, which the last pushed symbol does not tell."""
        after = self.annotate(input_ids, labels)["after_pop"]
        return {"accuracy_after_pop": (int((after & (predictions == labels)).sum()), int(after.sum()))}

    def chance_level(self, metric: str, length: int) -> float:
        """Any symbol. ``loss`` in nats; NaN for other metrics."""
        levels = dict.fromkeys(("token_accuracy", "accuracy_after_pop"), 1 / self.alphabet_size)
        return {**levels, "loss": math.log(self.alphabet_size)}.get(metric, math.nan)

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of any symbol and, on fixed rows, of memories without a stack.

        ``last_pushed_on_stack`` and ``last_seen_on_stack`` answer the symbol of the last push, or operation, on the
        stack; ``last_symbol`` that of the operation before.
        """
        return {"any_symbol": 1 / self.alphabet_size, **dict(_estimates(self, length))}

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows: exact to three operations, else a lower bound, from pushes and a last pop."""
        self.validate_length(length)
        stacks, letters = self.num_stacks, self.alphabet_size
        if self.pushes_first:
            return (stacks * letters) ** (length // 2)
        pushes = (stacks * letters) ** (length - 1)
        return pushes * (2 * stacks - 1) // stacks if length == 3 else pushes


@functools.lru_cache(maxsize=64)
def _estimates(task: MultiStack, length: int) -> tuple[tuple[str, float], ...]:
    """Accuracy of memories without a stack over fixed rows."""
    ids, labels = task.sample(np.random.default_rng(0), length, min(2_000, max(250, 100_000 // length)))
    operations = ids.reshape(len(ids), length, _OPERATION)
    row, step = np.nonzero(labels[:, 2::_OPERATION] >= 0)
    answer = operations[row, step, 2]
    _, before = task._match(ids)
    seen = operations[row, before[row, step], 2]
    column, pushed = np.arange(length), np.zeros(operations.shape[:2], dtype=np.int64)
    for stack in range(task.num_stacks):
        mine = operations[:, :, 1] == stack + 2
        last = np.maximum.accumulate(np.where(mine & (operations[:, :, 0] == _PUSH), column, 0), axis=1)
        pushed = np.where(mine, last, pushed)
    found = {
        "last_pushed_on_stack": operations[row, pushed[row, step], 2],
        "last_seen_on_stack": seen,
        "last_symbol": operations[row, step - 1, 2],
    }
    return tuple((name, float((symbol == answer).mean())) for name, symbol in found.items())
