"""A small sweep with claims, and its results made up from numbers."""

import dataclasses

from hf_memory.experiments.results import write_cell
from hf_memory.storage import digest
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


def recipe_of(**changes):
    values = {"seeds": {"search": [0]}, "expectations": CLAIMS, "grid": {"width": [8, 16]}, "title": "Tiny <parity>"}
    return tiny_recipe(**{**values, **changes})


def stored(folder, recipe, values=VALUES):
    """A sweep on disk, with rows under made-up digests."""
    write_record(folder, recipe, make_settings(recipe), planned(recipe), complete=True)
    text = find_records(folder)[0].read_text()
    for cell in planned(recipe):
        value = values[cell.place["arm"], cell.learning_rate, cell.seed]
        definition = {"cell": cell.digest}
        text = text.replace(cell.digest, digest(definition))
        if value is not None:
            rows = [made_up_row(recipe, cell, split, value) for split in ("validation", "test_8", "test_12")]
            write_cell(folder, definition, [dataclasses.replace(row, cell=digest(definition)) for row in rows])
    find_records(folder)[0].write_text(text)
