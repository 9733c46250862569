"""The flip-flop language: read the bit that was written last, whatever was to be ignored since."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from hf_memory.tasks._checks import check_choice, check_int, check_real
from hf_memory.tasks.base import IGNORE_INDEX, Preset, Segment, Task

LOSS_REGIONS = ("reads", "all")
WINDOWS = (1, 4, 16, 64)
_IGNORE = 2
_MAX_ENUMERATED = 1 << 20
_LIU = "Liu et al. (2023), exposing attention glitches with flip-flop language modeling: {}"
_SMALL = "the same law at a size that trains on a CPU"
_REPAIRED = "as {}, with eight writes in each row, repaired by this package: counting the written bits helps less"


def _tests(length: int) -> dict[str, tuple[Segment, ...]]:
    """The sparse and the dense test, and the sparse one with enough writes."""
    return {
        f"test_{length}_sparse": (Segment(10_000, length, {"p_ignore": 0.98}),),
        f"test_{length}_dense": (Segment(3_000, length, {"p_ignore": 0.1}),),
        f"test_{length}_sparse_8_writes": (Segment(10_000, length, {"p_ignore": 0.98, "min_writes": 8}),),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlipFlop(Task):
    """Instructions write a bit, read it or are to be ignored; a read is followed by the bit written last.

    A row is ``instruction bit instruction bit ...``. It begins with a write and ends with a read; between, each
    instruction is by itself ignored, a write or a read. Bits are uniform after a write and where they are ignored. The
    bits that were read stand in the input, so that a read refreshes what was written (Liu et al., 2023).

    >>> task = FlipFlop()
    >>> row = np.array([[task.symbols.index(sign) for sign in "w1i0r1w0i1i1r0"]])
    >>> [task.symbols[label] if label >= 0 else "." for label in task.solve(row)[0]]
    ['.', '.', '.', '.', '.', '1', '.', '.', '.', '.', '.', '.', '.', '0']

    Where nearly all is ignored, rows hold few writes, and the commoner of the written bits is right in .81 of the reads
    of the sparse test, and in .68 where each row has eight writes at least (``min_writes``).

    Expected to be solved by gated recurrences, LSTM and Mamba among them, without an error; softmax attention errs now
    and then far from the last write (Liu et al., 2023), PaTH attention does not (Yang et al., 2025).

    Attributes:
        p_ignore: Probability that an instruction is to be ignored.
        p_write: Probability that it is a write; ``None`` for half of the rest.
        num_registers: Number of bits that are held; each has a write and a read of its own, and rows begin with one
            write to each.
        min_writes: Number of writes that each row has at least: so many instructions, at uniform places, are writes
            for sure. ``None`` for those at the start alone.
        loss_region: ``"reads"``: only bits after a read are supervised; ``"all"``: every token is.
    """

    key: ClassVar[str] = "flip_flop"
    head: ClassVar[Literal["causal", "token_classification"]] = "causal"
    category: ClassVar[Literal["stateful", "stable", "counting", "associative", "stack"]] = "stateful"
    levels_until: ClassVar[int | None] = 65_536
    presets: ClassVar[Mapping[str, Preset]] = {
        "ignore80_len512": Preset(512, (512,), {}, _tests(512), source=_LIU.format("FFL(0.8) with both its tests")),
        "ignore80_len512_all": Preset(
            512, (512,), {"loss_region": "all"}, _tests(512), source=_LIU.format("FFL(0.8) with the loss on all tokens")
        ),
        "mixed_len512": Preset(
            512,
            (512,),
            {},
            _tests(512),
            tuple(Segment(count, 512, {"p_ignore": p}) for count, p in ((33_333, 0.1), (33_334, 0.9), (33_333, 0.98))),
            source=_LIU.format("the mixture of three densities that mends attention"),
        ),
        "ignore80_len64": Preset(64, (64, 128, 256), {}, _tests(256), source=_SMALL),
        "ignore98_len512_8_writes": Preset(
            512, (512, 1024), {"p_ignore": 0.98, "min_writes": 8}, source=_REPAIRED.format("FFL(0.98)")
        ),
    }

    p_ignore: float = 0.8
    p_write: float | None = None
    num_registers: int = 1
    min_writes: int | None = None
    loss_region: str = "reads"

    def __post_init__(self) -> None:
        check_real("p_ignore", self.p_ignore, 0.0, 1.0)
        if self.p_write is not None:
            check_real(f"p_write with p_ignore {self.p_ignore}", self.p_write, 0.0, 1.0 - self.p_ignore)
        check_int("num_registers", self.num_registers, 1, 1 << 10)
        check_int("min_writes", self.min_writes, self.num_registers, optional=True)
        check_choice("loss_region", self.loss_region, LOSS_REGIONS)

    @property
    def vocab_size(self) -> int:
        """Two bits, the instruction to be ignored, and a write and a read for each register."""
        return _IGNORE + 1 + 2 * self.num_registers

    @property
    def num_labels(self) -> int:
        """The vocabulary: the head is causal."""
        return self.vocab_size

    @property
    def symbols(self) -> tuple[str, ...]:
        """A readable name of each id."""
        numbers = [str(number) if self.num_registers > 1 else "" for number in range(self.num_registers)]
        return ("0", "1", "i", *(f"w{number}" for number in numbers), *(f"r{number}" for number in numbers))

    @property
    def _writes(self) -> float:
        return (1.0 - self.p_ignore) / 2 if self.p_write is None else self.p_write

    @property
    def _extra_writes(self) -> int:
        """Writes for sure beyond those at the start."""
        return 0 if self.min_writes is None else self.min_writes - self.num_registers

    def validate_length(self, length: int) -> None:
        """Raise unless ``length`` is even and holds the writes for sure and a read."""
        least = 2 * (self.num_registers + self._extra_writes + 1)
        check_int(f"length with {self.num_registers} num_registers and min_writes {self.min_writes}", length, least)
        if length % 2:
            raise ValueError(f"length must be even and at least {least}, got {length}")

    def sample(self, rng: np.random.Generator, length: int, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: ``input_ids`` and ``labels`` (n, L) int32, the bits after reads supervised, or all tokens."""
        self.validate_length(length)
        n, count, registers = num_examples, length // 2, self.num_registers
        inner = count - registers - 1
        draws = rng.random((n, inner), dtype=np.float32)
        kind = (draws < self._writes).astype(np.int8)
        kind[draws >= np.float32(self._writes) + np.float32(1.0 - self.p_ignore - self._writes)] = -1
        if self._extra_writes:
            ring = rng.random((n, inner), dtype=np.float32)
            places = np.argpartition(ring, self._extra_writes - 1, axis=1)[:, : self._extra_writes]
            np.put_along_axis(kind, places, 1, axis=1)
        register = np.zeros((n, count), dtype=np.int32)
        if registers > 1:
            register[:, :registers] = np.arange(registers)
            register[:, registers:] = rng.integers(0, registers, size=(n, count - registers), dtype=np.int32)
        write, ignored = np.zeros((n, count), dtype=bool), np.zeros((n, count), dtype=bool)
        write[:, :registers] = True
        write[:, registers:-1], ignored[:, registers:-1] = kind == 1, kind == -1
        bits = rng.integers(0, 2, size=(n, count), dtype=np.int32)
        bits = np.where(write | ignored, bits, np.take_along_axis(bits, _last_write(write, register, registers), 1))

        ids = np.empty((n, length), dtype=np.int32)
        ids[:, 0::2] = np.where(ignored, _IGNORE, _IGNORE + 1 + register + registers * ~write)
        ids[:, 1::2] = bits
        if self.loss_region == "all":
            return ids, ids.copy()
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, 1::2] = np.where(write | ignored, IGNORE_INDEX, bits)
        return ids, labels

    def solve(self, input_ids: np.ndarray) -> np.ndarray:
        """Carry the registers along the row, one instruction after the other; the bits of reads are not read."""
        labels = input_ids.copy() if self.loss_region == "all" else np.full_like(input_ids, IGNORE_INDEX)
        held, row = np.zeros((len(input_ids), self.num_registers), dtype=np.int32), np.arange(len(input_ids))
        for column in range(0, input_ids.shape[1] - 1, 2):
            side, register = np.divmod(input_ids[:, column] - _IGNORE - 1, self.num_registers)
            writes, reads = side == 0, side == 1
            held[row[writes], register[writes]] = input_ids[writes, column + 1]
            labels[reads, column + 1] = held[row[reads], register[reads]]
        return labels.astype(np.int32)

    def annotate(self, input_ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """``score``, and at each scored position (-1 elsewhere) what may make the read hard.

        ``distance``: instructions since the write in force; ``refreshed``: instructions since the bit last stood in the
        row, after a write or a read of the register; ``writes``: writes before, of any register.
        """
        code = input_ids[:, 0 : labels.shape[1] - 1 : 2] - _IGNORE - 1
        # Pads stand at the end, and their labels are ignored.
        kept = labels[:, 1::2] != IGNORE_INDEX
        register, column = code % self.num_registers, np.arange(code.shape[1])
        write, read = (code >= 0) & (code < self.num_registers), (code >= self.num_registers) & kept
        since = column - _last_write(write, register, self.num_registers)
        refreshed = np.full_like(since, -1)
        for one in range(self.num_registers):
            last = np.maximum.accumulate(np.where((register == one) & (write | read), column, -1), axis=1)
            before = np.concatenate([np.full_like(last[:, :1], -1), last[:, :-1]], axis=1)
            refreshed = np.where(read & (register == one), column - before, refreshed)
        found = {"distance": since, "refreshed": refreshed, "writes": np.cumsum(write, axis=1)}
        notes = {"score": np.zeros(labels.shape, dtype=bool)}
        notes["score"][:, 1::2] = read
        for name, numbers in found.items():
            notes[name] = np.full(labels.shape, -1, dtype=np.int32)
            notes[name][:, 1::2] = np.where(read, numbers, -1)
        return notes

    def chance_level(self, metric: str, length: int) -> float:
        """A coin. ``loss`` in nats is known where reads alone are supervised; NaN for other metrics."""
        if metric == "loss":
            return math.log(2) if self.loss_region == "reads" else math.nan
        return 0.5 if metric == "token_accuracy" else math.nan

    def baselines(self, length: int) -> dict[str, float]:
        """Accuracy of short windows and of counters, on fixed rows.

        ``window_m`` finds the bit where a write or a read of the register is among the last m instructions, and else
        tosses a coin; ``majority_of_writes`` answers the bit that was written more often, ``first_write`` the first.
        """
        return dict(_estimates(self, length))

    def num_distinct(self, length: int) -> int:
        """Number of distinct rows, exact."""
        self.validate_length(length)
        registers, inner = self.num_registers, length // 2 - self.num_registers - 1
        others = 2 * (self.p_ignore > 0) + registers * (1.0 - self.p_ignore - self._writes > 0)
        writes = 2 * registers if self._writes > 0 else 0
        most = inner if writes else self._extra_writes
        inside = sum(
            math.comb(inner, count) * (2 * registers) ** count * others ** (inner - count)
            for count in range(self._extra_writes, most + 1)
        )
        return 2**registers * registers * inside

    def enumerate(self, length: int) -> np.ndarray:
        """All rows: every choice of instructions and of bits that are not read."""
        count, registers = self.num_distinct(length), self.num_registers
        if count > _MAX_ENUMERATED:
            raise ValueError(f"length {length} has {count} distinct rows; at most {_MAX_ENUMERATED} can be enumerated")
        write, read = _IGNORE + 1 + np.arange(registers), _IGNORE + 1 + registers + np.arange(registers)
        reads = read[: registers * (1.0 - self.p_ignore - self._writes > 0)]
        writes = write if self._writes > 0 or self._extra_writes else write[:0]
        free = np.repeat(np.append(writes, [_IGNORE] * (self.p_ignore > 0)), 2).astype(np.int32)
        signs = np.concatenate([free, reads])
        bits = np.concatenate([np.arange(len(free)) % 2, np.zeros_like(reads)])
        inner = length // 2 - registers - 1
        sizes = (*[2] * registers, *[len(signs)] * inner, registers)
        choice = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
        ids = np.empty((len(choice), length), dtype=np.int32)
        ids[:, 0 : 2 * registers : 2], ids[:, 1 : 2 * registers : 2] = write, choice[:, :registers]
        middle = choice[:, registers:-1]
        ids[:, 2 * registers : -2 : 2], ids[:, 2 * registers + 1 : -2 : 2] = signs[middle], bits[middle]
        ids[:, -2], ids[:, -1] = read[choice[:, -1]], 0
        answers = self.replace(loss_region="reads").solve(ids)
        ids = np.where(answers != IGNORE_INDEX, answers, ids)
        return ids[np.isin(ids[:, 0::2], write).sum(axis=1) >= registers + self._extra_writes]


def _last_write(write: np.ndarray, register: np.ndarray, registers: int) -> np.ndarray:
    """For each instruction (n, N) the place of the last write to its register, up to itself."""
    column, found = np.arange(write.shape[1]), np.zeros(write.shape, dtype=np.int64)
    for one in range(registers):
        mine = register == one if registers > 1 else True
        last = np.maximum.accumulate(np.where(write & mine, column, 0), axis=1)
        found = np.where(mine, last, found) if registers > 1 else last
    return found


@functools.lru_cache(maxsize=64)
def _estimates(task: FlipFlop, length: int) -> tuple[tuple[str, float], ...]:
    """Accuracy of windows and counters over fixed rows."""
    ids, labels = task.sample(np.random.default_rng(0), length, min(4_000, max(500, 1_000_000 // length)))
    notes = task.annotate(ids, labels)
    score = notes["score"]
    refreshed, answer = notes["refreshed"][score], ids[score]
    levels = {f"window_{m}": float(np.where(refreshed <= m, 1.0, 0.5).mean()) for m in WINDOWS}
    code = ids[:, 0::2] - _IGNORE - 1
    row, column = np.nonzero(score)
    one, first = np.zeros(len(row)), np.zeros(len(row))
    asked = code[row, column // 2] % task.num_registers
    for register in range(task.num_registers):
        mine, write = asked == register, code == register
        lead = np.cumsum(np.where(write, 2 * ids[:, 1::2] - 1, 0), axis=1)[row, column // 2]
        one[mine] = (0.5 + 0.5 * np.sign(lead))[mine]
        first[mine] = ids[row, 2 * np.argmax(write, axis=1)[row] + 1][mine]
    levels["majority_of_writes"] = float(np.where(answer == 1, one, 1 - one).mean())
    levels["first_write"] = float((first == answer).mean())
    return tuple(levels.items())
