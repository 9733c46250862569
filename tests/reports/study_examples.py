"""A small sweep with claims, and its results made up from numbers."""

import dataclasses
import json

from hf_memory.experiments.results import write_cell
from hf_memory.storage import digest, sealed
from hf_memory.studies.outcomes import find_records, write_record
from hf_memory.studies.plans import make_settings
from tests.studies.sweep_examples import made_up_row, planned, tiny_recipe

CLAIMS = [
    {
        "claim": "LSTM <keeps> it.",
        "published": "LSTM is best",
        "left": {"arms": "lstm", "split": "test_12"},
        "relation": ">=",
        "right": 0.7,
    },
    {"claim": "GRU keeps it.", "left": {"arms": "gru", "split": "test_12"}, "relation": ">=", "right": 0.7},
]
VALUES = {("lstm", 1e-3, 0): 0.9, ("lstm", 1e-2, 0): 0.95, ("gru", 1e-3, 0): 0.6, ("gru", 1e-2, 0): None}
HISTORY = {"lstm": [(1, 0.5), (2, 0.7), (3, 0.9)], "gru": [(1, 0.5), (3, 0.6)]}


SEEDS = range(100, 105)
WORDS = [
    {"claim": "LSTM keeps it.", "left": {"arms": "lstm", "split": "test_12"}, "relation": ">=", "right": 0.7},
    {"claim": "GRU keeps it.", "left": {"arms": "gru", "split": "test_12"}, "relation": ">=", "right": 0.7},
    {
        "claim": "LSTM is far better.",
        "left": {"arms": "lstm", "split": "test_12"},
        "relation": ">=",
        "right": {"arms": "gru", "split": "test_12"},
        "margin": 0.5,
    },
    {
        "claim": "LSTM at its best rates keeps it.",
        "left": {"arms": "lstm", "rate": "best", "split": "test_12"},
        "relation": ">=",
        "right": 0.7,
    },
    {"claim": "GRU learns a little.", "left": {"arms": "gru", "split": "test_12"}, "relation": ">", "right": 0.6},
]
"""Claims of which each gets another one of the five words from :data:`FINAL`."""
FINAL = {
    **{(arm, rate, seed): 0.9 if rate == 1e-3 else 0.5 for arm in ("lstm", "gru") for rate in (1e-3, 1e-2)
       for seed in (0, 1)},
    **{("lstm", 1e-3, seed): 0.95 for seed in SEEDS},
    **dict(zip([("gru", 1e-3, seed) for seed in SEEDS], (0.65, 0.55, 0.65, 0.55, 0.65), strict=True)),
}  # fmt: skip
CHANGED = ({"claim": "LSTM <always> kept it.", "date": "2026-11-28", "why": "The length was not named."},)


def words_recipe(**changes):
    """A recipe whose five claims get the five words."""
    seeds = {"search": [0, 1], "looks": [5], "rows": "own"}
    return recipe_of(**{"seeds": seeds, "expectations": WORDS, "grid": {}, "changed": CHANGED, **changes})


def recipe_of(**changes):
    values = {"seeds": {"search": [0]}, "expectations": CLAIMS, "grid": {"width": [8, 16]}, "title": "Tiny <parity>"}
    return tiny_recipe(**{**values, **changes})


def stored(folder, recipe, values=VALUES):
    """A sweep on disk, with rows under made-up digests; without a value there is no file."""
    write_record(folder, recipe, make_settings(recipe), planned(recipe), complete=True)
    text = find_records(folder)[0].read_text()
    for cell in planned(recipe):
        value = values[cell.place["arm"], cell.learning_rate, cell.seed]
        definition = {"cell": cell.digest}
        text = text.replace(cell.digest, digest(definition))
        if value is not None:
            rows = [made_up_row(recipe, cell, split, value) for split in ("validation", "test_8", "test_12")]
            write_cell(folder, definition, [dataclasses.replace(row, cell=digest(definition)) for row in rows])
    values = {key: value for key, value in json.loads(text).items() if key != "sha256"}
    find_records(folder)[0].write_text(json.dumps(sealed(values), indent=1) + "\n")
