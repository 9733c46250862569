"""The rule of a verdict: in how many seeds a claim holds, in looks, with its margin and without."""

import dataclasses

import numpy as np
import pandas
import scipy.stats

from tests.recomputed.curves import MissingError
from tests.recomputed.sweeps import NONE, Sweep, is_of_search

LOOKS = {5: 5, 10: 9, 20: 15}
"""Seeds of each look, and how many of them decide."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A word, its reason and tally, both sides by seed, and the seeds that had not learned."""

    word: str
    reason: str
    holds: int = 0
    planned: int = 0
    left: pandas.Series = dataclasses.field(default_factory=NONE.copy)
    right: pandas.Series = dataclasses.field(default_factory=NONE.copy)
    dropped: frozenset = frozenset()


def judge(sweep: Sweep, item: dict) -> Verdict:
    """The verdict of a claim."""
    try:
        _check_control(sweep)
        item = named(sweep, item)
        left, right, dropped = _sides(sweep, item)
    except MissingError as error:
        return Verdict("not decided", str(error))
    margin, out = item.get("margin", 0.0), left.index.isin(dropped)
    word, counted = _decide(_outcomes(item, left, right, margin).mask(out))
    holds, fails, planned = (counted == 1).sum(), (counted == 0).sum(), len(counted)
    lost = len(dropped & set(counted.index))
    low, high = clopper_pearson(holds, planned)
    reason = f"holds in {holds} of {planned} seeds ({low:.2f} to {high:.2f})"
    reason += f", {planned - holds - fails - lost} tied" if holds + fails + lost < planned else ""
    reason += f", {lost} had not learned" if lost else ""
    asks_for_more = margin > 0 if ">" in item["relation"] else margin < 0
    without = _decide(_outcomes(item, left, right, 0.0).mask(out))[0]
    if lost and planned - lost < min(LOOKS):
        word, reason = "not decided", f"{reason}; {min(LOOKS)} seeds are needed"
    elif asks_for_more and word in ("disagrees", "not decided") and without == "agrees":
        word, reason = "same direction, smaller", f"{reason}; without its margin it agrees"
    return Verdict(word, reason, holds, planned, left, right, frozenset(dropped))


def _check_control(sweep: Sweep) -> None:
    """Raise where what must work for anything else to count does not."""
    control = sweep.recipe.get("control")
    if control:
        runs = sweep.runs[sweep.runs.place.isin(sweep.places(control["arms"], control.get("at")))]
        split, metric = control.get("split", "validation"), control.get("metric") or sweep.metric
        best = sweep.ended(runs[runs.headline.notna()], split, metric).max()
        if not best >= control["at_least"]:
            raise MissingError(f"the positive control reaches {best:.3f}, not {control['at_least']:g}")


def named(sweep: Sweep, item: dict) -> dict:
    """A claim with the one arm of its left side that the seeds of the search name, where it leaves that open."""
    left = item["left"]
    if left.get("over") != "named":
        return item
    means = pandas.Series({arm: sweep.in_search({**left, "arms": arm}).mean() for arm in left["arms"]})
    arm = means.idxmax() if ">" in item["relation"] else means.idxmin()
    return {**item, "left": {**left, "arms": arm, "over": "mean"}}


def _sides(sweep: Sweep, item: dict) -> tuple[pandas.Series, pandas.Series, set[int]]:
    """Both sides by seed, and the seeds that do not count: on the plateau, or without what the claim presupposes."""
    left, dropped = sweep.by_seed(item["left"])
    if isinstance(item["right"], dict):
        right, more = sweep.by_seed(item["right"])
        dropped |= more
    else:
        right = pandas.Series(item["right"], left.index, float)
    if item.get("plateau_counts"):
        dropped = set()
    if item.get("given"):
        condition, _ = sweep.by_seed(item["given"])
        dropped |= set(condition.index[~(condition >= item["given_at_least"])])
    seeds = left.index.intersection(right.index)
    planned = _planned(sweep, item["left"], len(seeds))
    if len(seeds) < planned:
        raise MissingError(f"{planned - len(seeds)} of {planned} planned seeds are missing")
    return left[seeds], right[seeds], dropped & set(seeds)


def _planned(sweep: Sweep, measure: dict, found: int) -> int:
    """How many seeds there must be: all of the recipe, or those of the look to which the claim has come."""
    seeds, searched = sweep.recipe["seeds"], is_of_search(measure)
    looks = [] if searched else [look for look in seeds.get("looks") or [] if look >= found]
    after = [] if searched else seeds.get("fixed" if measure.get("rate") == "fixed" else "final")
    return looks[0] if looks else len(after or seeds["search"])


def _outcomes(item: dict, left: pandas.Series, right: pandas.Series, margin: float) -> pandas.Series:
    """By seed 1 where a relation holds and 0 where it fails; NaN where measured sides tie or one is no number."""
    bound = right + margin
    holds = {">=": left >= bound, ">": left > bound, "<=": left <= bound, "<": left < bound}[item["relation"]]
    tied = (left == bound) & isinstance(item["right"], dict) & (np.isinf(left) | ("=" not in item["relation"]))
    return holds.astype(float).mask(tied | left.isna() | bound.isna())


def _decide(found: pandas.Series) -> tuple[str, pandas.Series]:
    """The word of the first look that decides, else of the last one, and the outcomes on which it rests."""
    for look in [look for look in LOOKS if look <= len(found)] or [len(found)]:
        counted = found.iloc[:look]
        if look not in LOOKS:
            return "leans", counted
        for word, side in (("agrees", 1), ("disagrees", 0)):
            if (counted == side).sum() >= LOOKS[look]:
                return word, counted
    return "not decided", counted


def by_luck(sweep: Sweep, measure: dict) -> float:
    """How likely a claim agrees that is a coin in every seed, with the looks that its recipe has."""
    seeds = sweep.recipe["seeds"]
    looks = [] if is_of_search(measure) else seeds.get("looks") or []
    total, before, going = 0.0, 0, np.ones(1)
    for look in (look for look in LOOKS if look <= max(looks, default=len(seeds["search"]))):
        fresh = look - before
        going, before = np.convolve(going, scipy.stats.binom.pmf(range(fresh + 1), fresh, 0.5)), look
        total += going[LOOKS[look] :].sum()
        going[LOOKS[look] :] = going[: look - LOOKS[look] + 1] = 0.0
    return total


def clopper_pearson(k: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of k of n, by quantiles of beta distributions."""
    low = scipy.stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0
    high = scipy.stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    return low, high
