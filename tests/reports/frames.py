"""Result rows as a table of pandas, read from their files without any code of the package."""

import json
from pathlib import Path

import pandas


def read_rows(record: Path) -> pandas.DataFrame:
    """Every number of every run that a sweep's record names: a line for each cell, split and metric.

    Where the loss is no number the value is that of chance.
    """
    sweep, lines = json.loads(record.read_text()), []
    folder = record.parent / sweep.get("runs_in", ".")
    for cell in sweep["cells"]:
        path = folder / f"{cell['digest']}.jsonl"
        if not path.is_file():
            continue
        for row in map(json.loads, path.read_text().splitlines()[1:]):
            diverged = row["metrics"]["loss"]["value"] == "NaN"
            lines += [
                {
                    "place": json.dumps(cell["place"], sort_keys=True),
                    "arm": cell["place"]["arm"],
                    "stage": cell["stage"],
                    "rate": cell["learning_rate"],
                    "seed": cell["seed"],
                    "split": row["split"],
                    "metric": metric,
                    "value": measured["chance"] if diverged else measured["value"],
                    "diverged": diverged,
                }
                for metric, measured in row["metrics"].items()
            ]
    return pandas.DataFrame(lines)


def fresh_values(rows: pandas.DataFrame, place: dict, split: str, metric: str) -> pandas.Series:
    """Values of the fresh seeds of one place, by seed; of all its seeds where there are no fresh ones.

    Their rate is that of the final runs: which rate that is was decided when they ran.
    """
    found = rows[(rows.place == json.dumps(place, sort_keys=True)) & (rows.split == split) & (rows.metric == metric)]
    final = found[found.stage == "final"]
    return final.set_index("seed").value.sort_index()
