"""What each key of a recipe accepts; :class:`hf_memory.studies.recipes.Recipe` documents them.

A task checks its knobs and a mixer its fields; what is wrong between keys is found when a recipe is made of them.
"""

from collections.abc import Mapping
from typing import Any

from transformers import SchedulerType

from hf_memory.experiments.schema import Either, Fields, Flag, Kind, ListOf, MapOf, Maybe, Number, Pair, Plain, Text
from hf_memory.studies.expectations import OVER, QUANTITIES, RATES, RELATIONS, WHEN

PROFILES = ("smoke", "cpu", "cpu_long", "long", "full")
"""Names of profiles: seconds; half an hour on two cores; up to four hours on them; what they have no time for; the
setting of the paper.
"""

SIZINGS = ("hidden", "params_per_layer", "params", "state")
"""What all arms have alike: the width, or a number of parameters (of a block, of all blocks), or of state numbers."""

_WIDTH, _SEED, _RATE = (
    Number(1, 1 << 20, whole=True),
    Number(0, (1 << 32) - 1, whole=True),
    Number(0, 10, above=True),
)
_VALUES = MapOf(Plain())
TRAINING_KEYS: dict[str, Kind] = {
    "steps": Number(1, 10**9, whole=True),
    "batch_size": Number(1, 1 << 20, whole=True),
    "schedule": Text(tuple(kind.value for kind in SchedulerType)),
    "warmup": Number(0, 10**9),
    "clip": Number(0),
    "weight_decay": Number(0, 100),
    "adam_beta2": Number(0, 1 - 1e-9),
    "optim_groups": Text(("documented", "uniform")),
    "stop_at": Maybe(Number()),
    "give_up": Maybe(Pair(Number(), Number(0, 1))),
}
_ARM: dict[str, Kind] = {
    "mixer": Text(),
    "model": Maybe(_VALUES),
    "training": Maybe(Fields(TRAINING_KEYS)),
    "size_field": Maybe(Text()),
    "mlp_ratio": Maybe(Number(0, 1000)),
    "width": Maybe(_WIDTH),
    "learning_rate": Maybe(_RATE),
    "at": Maybe(_VALUES),
}
AXES: dict[str, Kind] = {
    "config": Text(),
    "length": Either((Number(1, 1 << 24, whole=True), Pair(*[Number(1, 1 << 24, whole=True)] * 2))),
    "width": _WIDTH,
    "size": Number(1, 10**12, whole=True),
    "depth": Number(1, 1000, whole=True),
}
_CONTROL: dict[str, Kind] = {
    "arms": ListOf(Text(), least=1),
    "at": Maybe(_VALUES),
    "split": Text(),
    "metric": Maybe(Text()),
    "at_least": Number(),
}
_MEASURE = Fields(
    {
        "arms": Either((Text(), ListOf(Text(), least=1))),
        "quantity": Text(QUANTITIES),
        "over": Text(OVER),
        "at": _VALUES,
        "split": Text(),
        "minus": Maybe(Text()),
        "metric": Maybe(Text()),
        "rate": Text(RATES),
        "theta": Number(),
        "of_best": Flag(),
        "when": Text(WHEN),
        "below": Maybe(Number()),
    },
    needed=("arms",),
)
_EXPECTATION = Fields(
    {
        "claim": Text(),
        "left": _MEASURE,
        "relation": Text(RELATIONS),
        "right": Either((_MEASURE, Number())),
        "margin": Number(),
        "plateau_counts": Flag(),
        "given": Maybe(_MEASURE),
        "given_at_least": Number(),
        "published": Text(),
        "because": Text(),
        "for_each": ListOf(Text(), least=1),
    }
)

SCHEMA: dict[str, Kind] = {
    "name": Text(pattern="[A-Za-z0-9_-]{1,100}", form="a word of letters, digits, - and _"),
    **dict.fromkeys(("title", "source", "claim", "paper"), Text()),
    "profile": Text(PROFILES),
    "task": Text(),
    "config": Maybe(Text()),
    "data": _VALUES,
    "model": _VALUES,
    "training": Fields(TRAINING_KEYS),
    "sizing": Fields(
        {"by": Text(SIZINGS), "value": Maybe(Number(1, 10**12, whole=True)), "mlp_ratio": Maybe(Number(0, 1000))}
    ),
    "arms": MapOf(Maybe(Fields(_ARM)), least=1),
    "grid": MapOf(ListOf(Plain(), least=1, distinct=True)),
    "learning_rates": ListOf(_RATE, least=1),
    "fixed_learning_rate": Maybe(_RATE),
    "extend": Maybe(Fields({"up": _RATE, "down": _RATE, "tolerance": Number(0)})),
    "seeds": Fields(
        {
            "search": ListOf(_SEED, least=1, distinct=True),
            "final": ListOf(_SEED, distinct=True),
            "fixed": ListOf(_SEED, distinct=True),
            "looks": ListOf(Number(1, 1000, whole=True)),
            "rows": Text(("shared", "own")),
        }
    ),
    "search_on": _VALUES,
    "evaluate": Fields(
        {
            "points": Number(0, 10_000, whole=True),
            "every": Number(1, 10**9, whole=True),
            "splits": ListOf(Text(), distinct=True),
            "rows": Number(1, 10**9, whole=True),
            "crossing": Maybe(Number()),
            "slices": MapOf(ListOf(Text(), least=1, distinct=True)),
            **dict.fromkeys(("mechanisms", "generate", "decays"), Flag()),
        }
    ),
    "metric": Maybe(Text()),
    "plateau": Maybe(Number()),
    "first_depth": Maybe(Number()),
    "checkpoints": Maybe(Flag()),
    "runs_of": Maybe(Text()),
    "control": Maybe(Fields(_CONTROL, needed=("arms", "at_least"))),
    "expectations": Maybe(ListOf(_EXPECTATION)),
    "changed": Maybe(ListOf(MapOf(Text()))),
}
"""Kinds by key."""


def check_values(values: Mapping[str, Any]) -> None:
    """Check the values of one profile, or of a file before its profiles are laid over it.

    Raises:
        ValueError: For the first key that is unknown and the first value that is not of its kind; the key is named.
    """
    Fields(SCHEMA, name="a recipe").check(values, "")


def check_overrides(values: Any, profile: str) -> None:
    """Check the values of a profile: those of a recipe, and lists of names in place of mappings.

    Raises:
        ValueError: As :func:`check_values` does.
    """
    names = ListOf(Text())
    kinds = {key: Either((kind, names)) if isinstance(kind, MapOf) else kind for key, kind in SCHEMA.items()}
    Maybe(Fields(kinds)).check(values, f"profiles.{profile}")
