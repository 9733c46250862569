"""What the pages say of a mixer beyond its docstring, measured on fresh weights and read from committed rows."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_memory.experiments.results import Row, read_rows
from hf_memory.experiments.summary import arms, best_learning_rate, counted_value, studies
from hf_memory.mixers.auto import config_class, mixer_config, mixer_model
from hf_memory.models.configuration import MemoryConfig

WIDTH, LAYERS, SHORT, LONG = 64, 2, 64, 1024
"""Width and number of layers of the model that is measured, and the lengths at which its state is counted."""
_FIELDS = {"vocab_size": 16, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
BELOW = -0.02
"""An eigenvalue below this is one below zero, and none that was rounded."""


@dataclasses.dataclass(frozen=True)
class MixerFacts:
    """Size of the state and motion of a mixer with fresh weights.

    Attributes:
        short: Numbers held per sequence after ``SHORT`` tokens.
        long: The same after ``LONG`` tokens.
        per_block: Parameters of a block.
        spectrum: Smallest and largest real part of the eigenvalues of a step on random inputs; None without a step.
        depends_on_state: Whether the step depends on the state, as in nonlinear recurrences.
        switches: Fields, and their values, with which a linear step gets smaller eigenvalues below zero, and the
            smallest of these.
    """

    short: int
    long: int
    per_block: int
    spectrum: tuple[float, float] | None
    depends_on_state: bool
    switches: dict[str, float]


def mixer_facts(key: str) -> MixerFacts:
    """Measure a mixer at its defaults, and with each of its switches turned."""
    model = _model(key)
    spectrum = _spectrum(model)
    blocks = [sum(weight.numel() for weight in layer.parameters()) for layer in model.layers]
    switches, depends = {}, _depends_on_state(model)
    for field, value in _switches(config_class(key)) if spectrum and not depends else ():
        turned = _spectrum(_model(key, **{field: value}))
        if turned is not None and turned[0] < min(BELOW, spectrum[0] + BELOW):
            switches[f"{field}={value!r}"] = turned[0]
    sizes = model.state_size(SHORT), model.state_size(LONG)
    return MixerFacts(*sizes, round(statistics.fmean(blocks)), spectrum, depends, switches)


def _model(key: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    return mixer_model(mixer_config(key, **_FIELDS, **fields)).eval()


def _spectrum(model: Any) -> tuple[float, float] | None:
    """Smallest and largest real part over layers, rows and steps of random inputs."""
    torch.manual_seed(0)
    found = [layer.mixer.transition_spectrum(torch.randn(1, 16, WIDTH)) for layer in model.layers]
    known = [spectrum for spectrum in found if spectrum is not None]
    if not known:
        return None
    return min(s.min().item() for s in known), max(s.max().item() for s in known)


def _depends_on_state(model: Any) -> bool:
    """Whether the last step's eigenvalues depend on an input that lies beyond every short convolution."""
    torch.manual_seed(0)
    inputs = torch.randn(1, 16, WIDTH, dtype=torch.float64)
    other = inputs.clone()
    other[:, 0] += 1
    for layer in model.double().layers:
        pair = [layer.mixer.transition_spectrum(given) for given in (inputs, other)]
        if pair[0] is not None and not torch.allclose(pair[0][:, -1], pair[1][:, -1], rtol=0, atol=1e-12):
            return True
    return False


def _switches(config: type[MemoryConfig]) -> Iterator[tuple[str, Any]]:
    """Each field of a mixer's own that is False by default, turned."""
    common = {field.name for field in dataclasses.fields(MemoryConfig)}
    for field in dataclasses.fields(config):
        if field.name not in common and field.default is False:
            yield field.name, True


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One arm of a recipe: the mean of its seeds at the learning rate that was best on ``validation``.

    Attributes:
        recipe: Name of the recipe, or of the suite.
        profile: Its profile.
        row: One of the rows behind it, for what all of them share.
        seeds: Number of seeds.
        values: Mean of the headline metric by split, ``validation`` first.
        chance: Chance level at the longest length.
    """

    recipe: str
    profile: str
    row: Row
    seeds: int
    values: dict[str, float]
    chance: float | None


def outcomes(results: Path) -> list[Outcome]:
    """What rows say, arm by arm: of recipes in ``<recipe>/<profile>``, of suites two folders further down."""
    found = []
    below = (path for pattern in ("*/*", "*/*/*/*") for path in results.glob(pattern))
    for folder in sorted(path for path in below if any(path.glob("*.jsonl"))):
        recipe, profile = folder.relative_to(results).parts[:2]
        for study in studies(read_rows(folder)):
            for arm in arms(study):
                found.append(_outcome(recipe, profile, [row for row in study if row.arm == arm]))
    return found


def _outcome(recipe: str, profile: str, rows: Sequence[Row]) -> Outcome:
    rate = best_learning_rate(rows).learning_rate if len({row.learning_rate for row in rows}) > 1 else None
    kept = [row for row in rows if rate is None or row.learning_rate == rate]
    kept.sort(key=lambda row: (row.split != "validation", row.length))
    by_split: dict[str, list[Row]] = {}
    for row in kept:
        by_split.setdefault(row.split, []).append(row)
    means = {split: statistics.fmean(map(counted_value, own)) for split, own in by_split.items()}
    seeds = len({row.seed for row in kept})
    last = kept[-1]
    return Outcome(recipe, profile, last, seeds, means, last.measured().chance)
