"""The rule of a verdict: how many of the planned seeds decide, and what is said where they do not.

A claim is a relation that is looked at once in every planned seed, where it *holds*, *fails*, or tells nothing (a tie).
Seeds come in looks of 5, 10 and 20, cumulative and for all arms of a claim together, and the next look is taken only
where the last one decided nothing:

    look      5    10    20
    needed    5     9    15     of them hold: agrees; of them fail: disagrees

Where the truth is a coin, each of the two words is said with probability .05 over all three looks; where a relation
holds in .7, .8 and .9 of all seeds, it is found with probability .47, .83 and .99. What tells nothing stays among the
planned seeds and counts for neither side, so that missing runs and ties can never help a claim. With fewer than five
seeds nothing is decided, and a claim only *leans*.

Tallies of a replication are compared with what the first ones predict: with k of n and a flat prior on the share of
seeds, the number of fresh seeds in which the relation holds is beta-binomial.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

LOOKS: Mapping[int, int] = {5: 5, 10: 9, 20: 15}
"""Seeds of each look, and the number of them that decides."""

Verdict = Literal["agrees", "disagrees", "same direction, smaller", "leans", "not decided"]


@dataclasses.dataclass(frozen=True)
class Tally:
    """Seeds of a claim.

    Attributes:
        holds: In how many the relation holds.
        fails: In how many it does not.
        planned: How many there were to be; those that tell nothing are the rest.
    """

    holds: int
    fails: int
    planned: int

    def __post_init__(self) -> None:
        if min(self.holds, self.fails) < 0 or self.holds + self.fails > self.planned:
            raise ValueError(f"tally: holds and fails must be at least 0 and at most planned in all, got {self}")

    @property
    def interval(self) -> tuple[float, float]:
        """Interval (95 %) of the share of seeds in which the relation holds (Clopper and Pearson, 1934)."""
        return exact_interval(self.holds, self.planned)


def decide(tally: Tally) -> Verdict:
    """The verdict of one look.

    Raises:
        ValueError: The number of seeds is neither that of a look nor below the first one.
    """
    if tally.planned < min(LOOKS):
        return "leans" if tally.planned else "not decided"
    if tally.planned not in LOOKS:
        raise ValueError(f"planned seeds must be fewer than {min(LOOKS)}, or one of {list(LOOKS)}, got {tally.planned}")
    needed = LOOKS[tally.planned]
    return "agrees" if tally.holds >= needed else "disagrees" if tally.fails >= needed else "not decided"


def decide_in_looks(outcomes: Sequence[bool | None]) -> tuple[Verdict, Tally]:
    """The verdict of the first look that decides, else that of the last one.

    Args:
        outcomes: For each seed, in the order in which they were planned, whether the relation holds; None for a tie.

    Returns:
        The verdict and the seeds on which it rests.
    """
    looks = [look for look in LOOKS if look <= len(outcomes)] or [len(outcomes)]
    for look in looks:
        verdict, tally = decide(count(outcomes[:look])), count(outcomes[:look])
        if verdict in ("agrees", "disagrees"):
            break
    return verdict, tally


def count(outcomes: Sequence[bool | None]) -> Tally:
    """The tally of some seeds."""
    return Tally(sum(x is True for x in outcomes), sum(x is False for x in outcomes), len(outcomes))


def exact_interval(successes: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share from counts (Clopper and Pearson, 1934).

    Raises:
        ValueError: Unless ``0 <= successes <= total``, ``total >= 1`` and ``0 < level < 1``.
    """
    from scipy.stats import binomtest

    if not 0 <= successes <= total or total < 1 or not 0 < level < 1:
        raise ValueError(f"successes must be in [0, total] and level in (0, 1), got {successes} of {total} at {level}")
    interval = binomtest(successes, total).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)


def chance_of_verdicts(share: float, looks: Sequence[int] = tuple(LOOKS)) -> dict[str, float]:
    """Probability of each word where a relation holds in a ``share`` of all seeds, one after the other.

    >>> {word: round(chance, 2) for word, chance in chance_of_verdicts(0.5).items()}
    {'agrees': 0.05, 'disagrees': 0.05, 'not decided': 0.9}
    """
    found = {"agrees": 0.0, "disagrees": 0.0, "not decided": 0.0}
    going, before = {0: 1.0}, 0
    for look in looks:
        fresh = look - before
        reached: dict[int, float] = {}
        for held, more in itertools.product(going, range(fresh + 1)):
            chance = going[held] * math.comb(fresh, more) * share**more * (1 - share) ** (fresh - more)
            reached[held + more] = reached.get(held + more, 0.0) + chance
        going, before = {}, look
        for held, chance in reached.items():
            verdict = decide(Tally(held, look - held, look))
            if verdict == "not decided":
                going[held] = chance
            else:
                found[verdict] += chance
    found["not decided"] = sum(going.values())
    return found


def chance_to_hold_again(tally: Tally, seeds: int) -> float:
    """Probability that a claim agrees in so many fresh seeds, by what its first ones say (beta-binomial, flat prior).

    >>> round(chance_to_hold_again(Tally(5, 0, 5), 5), 3)
    0.545
    """
    from scipy.stats import betabinom

    needed = LOOKS.get(seeds, math.floor(seeds / 2) + 1)
    held, not_held = tally.holds, tally.planned - tally.holds
    return float(betabinom.sf(needed - 1, seeds, held + 1, not_held + 1))


def fewest_that_hold(chances: Sequence[float], share: float = 0.05) -> int:
    """The ``share`` quantile of the number of independent lines that hold again, each with its own chance."""
    counts = [1.0]
    for chance in chances:
        counts = [
            (counts[held] * (1 - chance) if held < len(counts) else 0.0) + (counts[held - 1] * chance if held else 0.0)
            for held in range(len(counts) + 1)
        ]
    total = 0.0
    for held, chance in enumerate(counts):
        total += chance
        if total >= share:
            return held
    return len(chances)
