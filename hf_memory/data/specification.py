"""What a dataset consists of: a task, a preset and overrides, resolved to the segments of each split.

A specification is a value. Everything that is drawn, stored or written on a card is a function of it.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_memory.data.splits import Role
from hf_memory.data.values import apportion, from_json, to_json
from hf_memory.names import check_names
from hf_memory.tasks import task_class
from hf_memory.tasks.base import SPLIT_NAME, Length, Preset, Segment, Task

SIZES = {"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000}
"""Rows of the training split, of the validation split and of each ``test_<length>`` split."""

KEYWORDS = ("length", "test_lengths", *SIZES, "seed")
"""Keywords of every dataset. The others are the knobs of its task."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A segment of a split together with the law that draws it.

    Attributes:
        num_examples: Number of rows.
        length: One length, or an inclusive range from which each row draws its own.
        task: The law.
        covered: Whether the segment takes every row of its space rather than those of a class. Only in a training
            mixture: a segment that asks for all rows of a space is there to teach them all, so none is held out.
    """

    num_examples: int
    length: Length
    task: Task
    covered: bool = False

    @property
    def num_distinct(self) -> int:
        """Number of distinct rows, at the shortest length of a range."""
        return self.task.num_distinct(length_bounds(self.length)[0])

    @property
    def law(self) -> dict[str, Any]:
        """Length and knobs that differ from the task's defaults, as JSON values."""
        return {"length": to_json(self.length), "knobs": changed_knobs(self.task)}


@dataclasses.dataclass(frozen=True)
class Split:
    """The parts of one split, in the role that decides which rows it may hold."""

    name: str
    role: Role
    parts: tuple[Part, ...]

    @property
    def num_examples(self) -> int:
        """Number of rows asked for; a small space may hold fewer."""
        return sum(part.num_examples for part in self.parts)


@dataclasses.dataclass(frozen=True)
class Specification:
    """A configuration of a task's dataset.

    Attributes:
        task: The law, with the knobs of the configuration.
        preset: Name of the preset it starts from.
        overrides: What differs from the preset, as JSON values; empty for the preset itself.
        seed: Data seed.
        splits: The splits by name: ``train``, ``validation``, then the tests.
    """

    task: Task
    preset: str
    overrides: Mapping[str, Any]
    seed: int
    splits: Mapping[str, Split]

    @property
    def train_length(self) -> Length:
        """Training length, or the inclusive range that all training segments together cover."""
        ends = [length_bounds(part.length) for part in self.splits["train"].parts]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        return low if low == high else (low, high)

    @property
    def longest_row(self) -> int:
        """Columns of the longest row of any split."""
        parts = [part for split in self.splits.values() for part in split.parts]
        return max(part.task.row_length(length_bounds(part.length)[1]) for part in parts)


def specify(task: str, preset: str | None = None, **overrides: Any) -> Specification:
    """Resolve a configuration.

    Args:
        task: Key of the task.
        preset: Name of a preset; the task's first one by default.
        **overrides: Keywords of every dataset (:data:`KEYWORDS`) and knobs of the task. Where ``length`` is given
            without ``test_lengths``, the test lengths keep their ratio to the training length. Test splits that a
            preset names itself hold for its own setting only: they are left out where either is given, or a knob
            that they set themselves.

    Raises:
        ValueError: For unknown names (the nearest is suggested) and impossible values.
    """
    cls = task_class(task)
    name = next(iter(cls.presets)) if preset is None else preset
    check_names([name], cls.presets, f"configuration of hf_memory/{task}")
    check_names(overrides, (*KEYWORDS, *cls.knob_names()), f"keyword of hf_memory/{task}")
    chosen = cls.presets[name]
    changed = _changed(cls, chosen, overrides)
    knobs = {key: value for key, value in changed.items() if key not in KEYWORDS}
    law = cls(**{**chosen.knobs, **{key: from_json(value) for key, value in knobs.items()}})
    splits = _splits(law, chosen, changed)
    return Specification(law, name, changed, changed.get("seed", 0), splits)


def data_version(task: str) -> str:
    """Version of a task's rows: that of its law and that of numpy, whose generators draw them."""
    return f"{task_class(task).version}+numpy{np.__version__}"


def length_bounds(length: Length) -> tuple[int, int]:
    """Shortest and longest of a length or range."""
    return (length, length) if isinstance(length, int) else (length[0], length[1])


def changed_knobs(task: Task) -> dict[str, Any]:
    """Knobs of a task that differ from its defaults, as JSON values, in the order of their names."""
    defaults = type(task)().knobs()
    return {key: to_json(value) for key, value in sorted(task.knobs().items()) if value != defaults[key]}


def _changed(cls: type[Task], preset: Preset, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as JSON values, in the order of their names, without those that say what holds anyway."""
    base = {**_sizes(preset), "seed": 0, "test_lengths": preset.test_lengths, **cls(**preset.knobs).knobs()}
    if preset.train is None:
        # A length that is given replaces a mixture, even where it is the preset's own.
        base["length"] = preset.length
    given = {key: to_json(value) for key, value in sorted(overrides.items())}
    for key in ("seed", *SIZES):
        low = 1 if key == "num_train" else 0
        value = given.get(key, low)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ValueError(f"{key} must be an integer of at least {low}, got {value!r}")
    if "length" in given:
        given["length"] = _checked_length(given["length"])
    if "test_lengths" in given:
        given["test_lengths"] = _checked_lengths(given["test_lengths"])
    changed = {key: value for key, value in given.items() if key not in base or value != to_json(base[key])}
    if "length" in changed and "test_lengths" in given:
        # Without them, test lengths would follow the length.
        changed["test_lengths"] = given["test_lengths"]
    return dict(sorted(changed.items()))


def _sizes(preset: Preset) -> dict[str, int]:
    """Numbers of rows where none are given."""
    mixture = preset.train or ()
    return {**SIZES, "num_train": sum(segment.num_examples for segment in mixture) or SIZES["num_train"]}


def _splits(law: Task, preset: Preset, changed: Mapping[str, Any]) -> dict[str, Split]:
    """The splits of a configuration, each part checked against its law."""
    sizes = {key: changed.get(key, value) for key, value in _sizes(preset).items()}
    length = from_json(changed.get("length", preset.length))
    if preset.train is None or "length" in changed:
        train = [_part(law, Segment(sizes["num_train"], length))]
    else:
        train = _mixture(law, preset.train, sizes["num_train"])
    held_out = [dataclasses.replace(part, covered=False) for part in train if not part.covered]
    splits = [
        Split("train", "train", tuple(train)),
        Split("validation", "validation", _resized(held_out, sizes["num_validation"])),
    ]
    for test in _test_lengths(law, preset, length, changed):
        parts = [_part(law, Segment(1, test))]
        splits.append(Split(f"test_{test}", "test", _resized(parts, sizes["num_test"])))
    if "length" not in changed and "test_lengths" not in changed:
        for name, segments in preset.tests.items():
            if not any(knob in changed for segment in segments for knob in segment.knobs):
                parts = [_part(law, segment) for segment in segments]
                total = sum(part.num_examples for part in parts)
                splits.append(Split(name, "test", _resized(parts, changed.get("num_test", total))))
    names = [split.name for split in splits]
    for name in names:
        if re.fullmatch(SPLIT_NAME, name) is None or names.count(name) > 1:
            raise ValueError(f"names of test splits must be distinct words that begin with 'test', got {name!r}")
    return {split.name: split for split in splits if split.parts}


def _part(law: Task, segment: Segment) -> Part:
    task = law.replace(**segment.knobs) if segment.knobs else law
    for length in length_bounds(segment.length):
        task.validate_length(length)
    return Part(segment.num_examples, segment.length, task)


def _mixture(law: Task, segments: tuple[Segment, ...], num_examples: int) -> list[Part]:
    """The parts of a training mixture, brought to a size, and whether they cover their spaces at the preset's size."""
    parts = [_part(law, segment) for segment in segments]
    if len(parts) > 1:
        whole = [isinstance(part.length, int) and part.num_distinct <= part.num_examples for part in parts]
        parts = [dataclasses.replace(part, covered=covered) for part, covered in zip(parts, whole, strict=True)]
    return list(_resized(parts, num_examples))


def _resized(parts: list[Part], num_examples: int) -> tuple[Part, ...]:
    """Parts that share ``num_examples`` rows out in their own proportions; those without a row are left out."""
    counts = apportion(num_examples, [part.num_examples for part in parts])
    pairs = zip(parts, counts, strict=True)
    return tuple(dataclasses.replace(part, num_examples=count) for part, count in pairs if count)


def _test_lengths(law: Task, preset: Preset, length: Length, changed: Mapping[str, Any]) -> list[int]:
    """The lengths of the test splits: those given, or the preset's in their ratio to the training length."""
    if "test_lengths" in changed:
        return list(changed["test_lengths"])
    if "length" not in changed:
        return list(preset.test_lengths)
    old, new = length_bounds(preset.length)[1], length_bounds(length)[1]
    scaled = (math.floor(test * new / old + 0.5) for test in preset.test_lengths)
    return list(dict.fromkeys(_next_valid(law, max(1, test)) for test in scaled))


def _next_valid(law: Task, length: int) -> int:
    """``length``, or the next one where a law has no rows of it because it is odd."""
    for candidate in (length, length + 1):
        with contextlib.suppress(ValueError):
            law.validate_length(candidate)
            return candidate
    return length


def _checked_length(value: Any) -> int | list[int]:
    """A length, or a pair as a list."""
    ends = value if isinstance(value, list) else [value]
    if len(ends) not in (1, 2) or not all(map(_is_length, ends)) or ends[0] > ends[-1]:
        raise ValueError(f"length must be an integer of at least 1, or a pair (low, high), got {value!r}")
    return ends[0] if ends[0] == ends[-1] else ends


def _checked_lengths(value: Any) -> list[int]:
    """Distinct lengths as a list."""
    lengths = value if isinstance(value, list) else [value]
    if not all(map(_is_length, lengths)) or len(set(lengths)) != len(lengths):
        raise ValueError(f"test_lengths must be distinct integers of at least 1, got {value!r}")
    return lengths


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
