"""Two of the same at once on one folder: both end well, and leave what one alone leaves."""

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults_common import DATA, Tally, contents, differences, run, said, short, start, timed, wait
from benchmarks.faults_kills import SWEEP, lay_out

PAIRS = {
    "two sweeps": SWEEP,
    "two stacked sweeps": [*SWEEP, "--stack", "4"],
    "two evaluations": ["evaluate", "given/run", "--task", "bit_parity", "--results", "out", *DATA],
    "two builds": ["data", "build", "bit_parity", *DATA],
    "two exports": ["data", "export", "bit_parity", "out", *DATA],
    "two reports": ["report", "given/rows", "--out", "out"],
}


def attack(root: Path, given: Path, rounds: int) -> Iterator[Callable[[], Tally]]:
    """A case for each pair."""
    for name in PAIRS:
        yield lambda name=name: _pair(root, given, name, rounds)


def _pair(root: Path, given: Path, name: str, rounds: int) -> Tally:
    place, words = root / "trial", PAIRS[name]
    with timed(Tally(name)) as tally:
        lay_out(place, given)
        for _ in range(2):  # the second fills what only a second run fills
            run(place, words)
        expected = contents(place)
        for _ in range(rounds):
            lay_out(place, given)
            processes = [start(place, words) for _ in range(2)]
            codes = [wait(process) for process in processes]
            # The log is that of both, since both write into it.
            faults = [] if codes == [0, 0] else [f"they ended with {codes}: {short(said(place))}"]
            faults += differences(contents(place), expected, 1e-3 if "--stack" in words else 0.0)
            tally.outcomes["as one alone" if not faults else "otherwise"] += 1
            tally.faults += ["; ".join(faults[:4])] if faults else []
    return tally
