"""Rows, looks and recipes as tables of pandas, read from their files without any code of the package."""

import json
import math
from pathlib import Path

import pandas
import yaml

FACTS = (
    *("length", "train_length", "headline", "parameters_per_block", "parameters_non_embedding", "state_bytes"),
    *("train_seconds", "eval_seconds"),
)


def key_of(place: dict) -> str:
    """A place of the grid as a text, whatever the order of its axes."""
    return json.dumps(place, sort_keys=True)


def read_cells(record: Path) -> pandas.DataFrame:
    """A line for each run that a sweep's record names, in the order of the plan."""
    sweep = json.loads(record.read_text())
    lines = [
        {
            "cell": cell["digest"],
            "path": record.parent / sweep.get("runs_in", ".") / cell["digest"],
            "place": key_of(cell["place"]),
            "arm": cell["place"]["arm"],
            "stage": cell["stage"],
            "rate": cell["learning_rate"],
            "seed": cell["seed"],
            "stop_at": cell["training"].get("stop_at") or math.nan,
            "crossing": cell["evaluate"].get("crossing") or math.nan,
        }
        for cell in sweep["cells"]
    ]
    return pandas.DataFrame(lines).set_index("cell")


def read_rows(cells: pandas.DataFrame) -> pandas.DataFrame:
    """Every number of every run: a line for each cell, split and metric.

    Where the loss on the split is no number, and everywhere for a run whose loss on ``validation`` is none, the value
    is that of chance.
    """
    lines = []
    for cell, own in cells[~cells.index.duplicated()].iterrows():
        path = own.path.with_suffix(".jsonl")
        for row in map(json.loads, path.read_text().splitlines()[1:] if path.is_file() else ()):
            told = {"cell": cell, "place": own.place, "split": row["split"], **{name: row[name] for name in FACTS}}
            told["lost"] = math.isnan(float(row["metrics"]["loss"]["value"]))
            lines += [{**told, "metric": metric, **measured} for metric, measured in row["metrics"].items()]
    rows = pandas.DataFrame(lines)
    rows["diverged"] = rows.cell.isin(rows.cell[rows.lost & (rows.split == "validation")])
    chance = rows.chance.astype(float).fillna(0.0)
    rows["value"] = rows.value.astype(float).mask(rows.lost | rows.diverged, chance)  # also of the text "NaN"
    return rows


def read_looks(path: Path) -> dict[tuple[str, str], dict[int, float]]:
    """What was seen of one run during training: values by step, for each split and metric."""
    history, found = path.with_suffix(".history.json"), {}
    for look in json.loads(history.read_text())["points"] if history.is_file() else ():
        for metric, value in look["values"].items():
            found.setdefault((look["split"], metric), {})[look["steps"]] = float(value)
    return found


def read_recipe(path: Path) -> dict:
    """A recipe in the largest profile that a laptop runs, with a claim for each arm of a ``for_each``.

    Claims that leave their steps open have those of all runs.
    """
    values = yaml.safe_load(path.read_text())
    profiles = values.pop("profiles")
    profile = "cpu_long" if "cpu_long" in profiles else "cpu"
    recipe = _laid_over(values, profiles[profile] or {})
    steps = f"{recipe['training']['steps']:,}"
    recipe["expectations"] = [
        json.loads(json.dumps(item).replace("{arm}", arm).replace("{steps}", steps))
        for item in recipe["expectations"]
        for arm in item.get("for_each", ["{arm}"])
    ]
    return {**recipe, "profile": profile}


def _laid_over(base: dict, own: dict) -> dict:
    """Keys over others, mapping by mapping; a list of names keeps these of a mapping, and a grid is replaced."""
    merged = {**base, **own}
    for key in base.keys() & own.keys():
        if isinstance(base[key], dict) and isinstance(own[key], list):
            merged[key] = {name: base[key][name] for name in own[key]}
        elif isinstance(base[key], dict) and isinstance(own[key], dict) and key != "grid":
            merged[key] = _laid_over(base[key], own[key])
    return merged
