"""Slots drawn one after the other without replacement: where the i-th draw falls, and what a slot tells of it."""

import functools

import numpy as np

_NODES_PER_PASS = 16


@functools.lru_cache(maxsize=256)
def draw_law(num_slots: int, draws: int, power: float) -> np.ndarray:
    """Probability (draws, num_slots) that the i-th draw is slot g, with weights ``(g + 1)^(power - 1)``.

    A slot rings after an exponential time with its weight as rate, and the order in which slots ring is that of the
    draws. The i-th ring is slot g at time t where g rings then and exactly i - 1 of the others rang before; the
    integral over log t is summed by the trapezoidal rule, which converges faster than any power of the step here.
    """
    weights = np.arange(1, num_slots + 1, dtype=np.float64) ** (power - 1.0)
    weights /= weights.max()
    # From the first ring, which may come early by any factor, to the time at which the laziest slot has rung.
    low, high = np.log(1e-9 / weights.sum()), np.log(40.0 / weights.min())
    step = min(0.2, 0.9 / np.sqrt(draws))
    nodes = np.exp(np.arange(low, high + step, step))
    law = np.zeros((draws, num_slots))
    for start in range(0, len(nodes), _NODES_PER_PASS):
        times = nodes[start : start + _NODES_PER_PASS, None]
        early = -np.expm1(-weights * times)
        rung, spread = early.sum(axis=1), 12 * np.sqrt((early * (1 - early)).sum(axis=1)) + 30
        if (rung - spread).min() > draws:
            break
        most = min(num_slots, int((rung + spread).max()) + 1)
        density = step * times * weights * np.exp(-weights * times)
        law += np.einsum("nig,ng->ig", _counts_without(early, draws, most), density)
    law /= law.sum(axis=1, keepdims=True)
    law.setflags(write=False)
    return law


def _counts_without(early: np.ndarray, draws: int, most: int) -> np.ndarray:
    """Probability (N, draws, G) that exactly i of the slots but g rang, each with its probability ``early`` (N, G).

    Counts above ``most`` have no weight.
    """
    nodes, slots = early.shape
    counts = np.zeros((nodes, most + 1))
    counts[:, 0] = 1.0
    for slot in range(slots):
        share, top = early[:, slot, None], min(slot + 1, most)
        counts[:, 1 : top + 1] = counts[:, 1 : top + 1] * (1 - share) + counts[:, :top] * share
        counts[:, 0] *= 1 - share[:, 0]
    # One slot is divided out of the product: from below where it rang rarely, from above where it rang often, so that
    # no error grows.
    rare = early <= 0.5
    without = np.zeros((nodes, draws, slots))
    late = np.where(rare, 1 - early, 1.0)
    last = np.zeros_like(early)
    for i in range(min(draws, most + 1)):
        last = (counts[:, i, None] - early * last) / late
        without[:, i] = last
    often = np.where(rare, 1.0, early)
    last = np.zeros_like(early)
    for i in range(most - 1, -1, -1):
        last = np.where(rare, 0.0, (counts[:, i + 1, None] - (1 - early) * last) / often)
        if i < draws:
            without[:, i] = np.where(rare, without[:, i], last)
    return np.maximum(without, 0.0)


@functools.lru_cache(maxsize=256)
def slot_levels(num_slots: int, draws: int, power: float) -> tuple[float, float]:
    """Share of queries whose draw the likeliest guess from the slot names, and the entropy in nats of what is left."""
    law = draw_law(num_slots, draws, power)
    share = law / np.maximum(law.sum(axis=0), 1e-300)
    entropy = -float((law * np.log(np.where(share > 0, share, 1.0))).sum()) / draws
    return float(law.max(axis=0).sum()) / draws, entropy
