"""What is attacked, and the table of what came of it."""

import dataclasses
from typing import Any

KILLED = ("train", "sweep", "stacked sweep", "data build", "data export", "report", "push")
SHOWN = 20
"""Faults of one attack that the table lists; the JSON file holds all."""
SECTIONS = ("kills", "inputs", "files", "disk", "pairs")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is attacked: moments of each kill, random inputs, damaged files, the seed, and seconds for all."""

    moments: int
    inputs: int
    files: int
    seed: int
    budget: float
    sections: tuple[str, ...]


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a table, and below it every fault."""
    rows = [row for rows in report["sections"].values() for row in rows]
    lines = [f"# Faults, {report['environment']['date']}", "", _summary(report, rows), ""]
    lines += ["| attack | cases | faults | how they ended | seconds |", "|---|---|---|---|---|"]
    for section, own in report["sections"].items():
        for row in own:
            ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(row["outcomes"].items()))
            note = f" ({row['note']})" if row["note"] else ""
            what = f"{section}: {row['what']}"
            lines.append(f"| {what} | {row['cases']} | {len(row['faults'])} | {ended}{note} | {row['seconds']:.0f} |")
    faults = [f"- {row['what']}: {fault}" for row in rows for fault in row["faults"][:SHOWN]]
    return "\n".join([*lines, "", *(["## Faults", "", *faults] if faults else []), ""])


def _summary(report: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    cases, faults = sum(row["cases"] for row in rows), sum(len(row["faults"]) for row in rows)
    where, state = report["environment"], "complete" if report["complete"] else "still running, or stopped"
    return (
        f"{cases} cases, {faults} faults; seed {report['seed']}, {state}; {where['card']}, {where['cores']} cores, "
        f"torch {where['versions']['torch']}, transformers {where['versions']['transformers']}."
    )


def stem(report: dict[str, Any]) -> str:
    """Name of the table's files, by the day on which the attacks began."""
    return f"faults-{report['environment']['date']}"
