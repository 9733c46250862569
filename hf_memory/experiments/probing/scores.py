"""From logits to shares: what was answered, beside what rules without memory would have answered."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.probing.intervals import clustered_interval
from hf_memory.experiments.probing.laws import Query

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a model made of a query.

    Attributes:
        cluster: Number of the draw of words.
        row: Number of the row within it.
        number: Number of the query within the row.
        changed: Whether two values of the context were exchanged.
        query: The query.
        distance: Tokens from the answer in the context to the query; -1 where it stands nowhere.
        scores: Log-probability (A, C) of each candidate among all ids, for each token of the answer.
        best: The likeliest of all ids is the right one (A,).
    """

    cluster: int
    row: int
    number: int
    changed: bool
    query: Query
    distance: int
    scores: np.ndarray
    best: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """Place of the right word among the candidates (A,)."""
        return np.array([self.query.candidates.index(word) for word in self.query.unit.answer])

    def is_right(self, scores: np.ndarray | None = None) -> float:
        """Whether the likeliest candidate is the right one, at each token of the answer; equals share the win."""
        own = self.scores if scores is None else scores
        chosen = own[np.arange(len(self.right)), self.right][:, None]
        return float(np.prod(np.where((own > chosen).any(axis=1), 0.0, 1.0 / (own == chosen).sum(axis=1))))

    def probabilities(self) -> tuple[float, float]:
        """Probability of the whole right answer among the candidates, and among all ids."""
        chosen = self.scores[np.arange(len(self.right)), self.right]
        among = chosen - np.logaddexp.reduce(self.scores, axis=1)
        return float(np.exp(among.sum())), float(np.exp(chosen.sum()))


def read_answers(
    logits: torch.Tensor, candidates: torch.Tensor, answers: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Read what is scored off logits.

    Args:
        logits: Logits (B, A, V) where each token of the answer is due.
        candidates: Ids of the candidates (B, C).
        answers: Right ids (B, A).

    Returns:
        Log-probabilities (B, A, C) of the candidates, and whether the likeliest id is the right one (B, A).
    """
    logits = logits.float()
    among = logits.gather(-1, candidates[:, None].expand(-1, logits.shape[1], -1).to(logits.device))
    scores = among - logits.logsumexp(-1, keepdim=True)
    return scores.cpu().numpy(), (logits.argmax(-1) == answers.to(logits.device)).cpu().numpy()


def metrics_of(answers: Sequence[Answer]) -> tuple[dict[str, MetricValue], dict[str, Interval]]:
    """All metrics of the rows of one length, size and gap, with intervals that cluster by draw of words."""
    plain = [answer for answer in answers if not answer.changed]
    whole = _Shares()
    levels = _levels(plain)
    whole.add("recall", plain, [answer.is_right() for answer in plain], levels)
    whole.add("greedy_accuracy", plain, [bool(answer.best.all()) for answer in plain], {})
    among, open_ = zip(*(answer.probabilities() for answer in plain), strict=True)
    whole.add("probability_among_candidates", plain, among, {"one_over_k": levels["one_over_k"]})
    whole.add("probability_among_all", plain, open_, {})
    if all(len(answer.best) == 1 for answer in plain):
        centred, prior = calibrate(plain)
        whole.add("recall_calibrated", plain, centred, {**levels, "prior": prior})
        whole.metrics["recall"].baselines["prior"] = float(np.mean(prior))  # type: ignore[index]
    pairs = exchanges(answers)
    if pairs:
        whole.add("counterfactual_recall", [first for first, _ in pairs], *_exchange_shares(pairs))
    for low, own in by_distance(plain).items():
        whole.add(f"recall_at_distance_{low}", own, [answer.is_right() for answer in own], _levels(own))
    return whole.metrics, whole.intervals


class _Shares:
    """Metrics and intervals as they are added."""

    def __init__(self) -> None:
        self.metrics: dict[str, MetricValue] = {}
        self.intervals: dict[str, Interval] = {}

    def add(self, name: str, own: Sequence[Answer], hits: Sequence[float], levels: dict[str, Sequence[float]]) -> None:
        """Add a share of answers, and the shares of the rules."""
        total, count = float(sum(hits)), len(hits)
        means = {rule: float(np.mean(values)) for rule, values in levels.items()}
        chance = means.pop("one_over_k", None)
        self.metrics[name] = MetricValue(total / count, total, count, chance, means)
        clusters = sorted({answer.cluster for answer in own})
        if len(clusters) > 1:
            sums = [sum(hit for answer, hit in zip(own, hits, strict=True) if answer.cluster == c) for c in clusters]
            counts = [sum(answer.cluster == c for answer in own) for c in clusters]
            self.intervals[name] = clustered_interval(sums, counts)


def _levels(answers: Sequence[Answer]) -> dict[str, Sequence[float]]:
    """What each rule gets right of each answer."""
    rules = dict.fromkeys(rule for answer in answers for rule in answer.query.credits)
    return {rule: [answer.query.credits.get(rule, 0.0) for answer in answers] for rule in rules}


def calibrate(answers: Sequence[Answer]) -> tuple[list[float], list[float]]:
    """Take the model's preference among the words of a draw off its scores, and ask that preference alone.

    The preference for a word is its mean log-probability in all other rows of the draw in which it is a candidate.

    Returns:
        Whether the candidate is right whose score is most above its preference, and whether the preferred one is.
    """
    sums: dict[tuple[int, int], float] = {}
    counts: dict[tuple[int, int], int] = {}
    per_row: dict[tuple[int, int, int], tuple[float, int]] = {}
    for answer in answers:
        for word, score in zip(answer.query.candidates, answer.scores[0], strict=True):
            place = (answer.cluster, word)
            sums[place], counts[place] = sums.get(place, 0.0) + float(score), counts.get(place, 0) + 1
            own = (*place, answer.row)
            before = per_row.get(own, (0.0, 0))
            per_row[own] = before[0] + float(score), before[1] + 1
    centred, preferred = [], []
    for answer in answers:
        prior = []
        for word in answer.query.candidates:
            place = (answer.cluster, word)
            own_sum, own_count = per_row[*place, answer.row]
            others = counts[place] - own_count
            prior.append((sums[place] - own_sum) / others if others else 0.0)
        level = np.array([prior])
        centred.append(answer.is_right(answer.scores - level))
        preferred.append(answer.is_right(level))
    return centred, preferred


def exchanges(answers: Sequence[Answer]) -> list[tuple[Answer, Answer]]:
    """The answers to the same query before and after its value was exchanged."""
    before = {(a.cluster, a.row, a.number): a for a in answers if not a.changed}
    return [(before[a.cluster, a.row, a.number], a) for a in answers if a.changed]


def _exchange_shares(pairs: Sequence[tuple[Answer, Answer]]) -> tuple[list[float], dict[str, Sequence[float]]]:
    """Whether the answer followed each exchange, and what rules make of them.

    A rule that knows places follows where it names the queried pair, in both contexts alike; a blind guess must be
    right twice.
    """
    follows = [first.is_right() * second.is_right() for first, second in pairs]
    joint: dict[str, Callable[[float, float], float]] = dict.fromkeys(("first_pair", "last_pair"), min)
    rules = dict.fromkeys(rule for first, _ in pairs for rule in first.query.credits)
    levels: dict[str, Sequence[float]] = {
        rule: [
            joint.get(rule, lambda a, b: a * b)(first.query.credits[rule], second.query.credits[rule])
            for first, second in pairs
        ]
        for rule in rules
    }
    return follows, levels


def by_distance(answers: Sequence[Answer]) -> dict[int, list[Answer]]:
    """Answers by the power of two at or below the distance of what they recall, nearest first."""
    found: dict[int, list[Answer]] = {}
    for answer in answers:
        if answer.distance > 0:
            found.setdefault(1 << int(math.log2(answer.distance)), []).append(answer)
    return dict(sorted(found.items()))


def recalled_bits(answers: Sequence[Answer], bindings: int) -> float:
    """Bits that a row's bindings are recalled with: log2 of the candidates for each, less what a guess would reach."""
    plain = [answer for answer in answers if not answer.changed]
    recall = float(np.mean([answer.is_right() for answer in plain]))
    chance = float(np.mean([1 / len(answer.query.candidates) for answer in plain]))
    bits = float(np.mean([math.log2(len(answer.query.candidates)) for answer in plain]))
    return bindings * bits * max(0.0, recall - chance) / (1 - chance) if chance < 1 else 0.0
