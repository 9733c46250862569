"""Rows of one length as ids: which words, how much filler and where, each prompt held against its text."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from hf_memory.experiments.probing.formats import Layout, Prompt
from hf_memory.experiments.probing.laws import Law, ProbeRow, Query
from hf_memory.experiments.probing.words import Vocabulary


@dataclasses.dataclass(frozen=True)
class Case:
    """What a group of rows share; each of the three varies while the others stay.

    Attributes:
        length: Tokens that the model reads: the prompt, and the answer but for its last token.
        size: Size of the context, see :class:`hf_memory.experiments.probing.laws.Law`.
        gap: Tokens of filler between context and query, the rest of it standing before the context; None for all.
    """

    length: int
    size: int
    gap: int | None = None

    def split(self, base: int) -> str:
        """Name of the split of these rows, where ``base`` is the size of the curves over length."""
        size = f"_size{self.size}" if self.size != base else ""
        return f"test_{self.length}{size}{'' if self.gap is None else f'_gap{self.gap}'}"


@dataclasses.dataclass(frozen=True)
class Job:
    """A prefix and its queries, as ids.

    Attributes:
        cluster: Number of the draw of words.
        row: Number of the row within it.
        changed: Whether two values of the context are exchanged.
        prefix: Ids that all queries share.
        suffixes: Ids that follow, for each query: the query, and its answer but for the last token.
        answers: Ids of the answer of each query.
        candidates: Ids of the candidates of each query.
        queries: The queries.
        distances: Tokens from each answer in the context to the query.
    """

    cluster: int
    row: int
    changed: bool
    prefix: list[int]
    suffixes: list[list[int]]
    answers: list[list[int]]
    candidates: list[list[int]]
    queries: tuple[Query, ...]
    distances: list[int]


@dataclasses.dataclass(frozen=True)
class DrawnRow:
    """A row in words and as text.

    Attributes:
        cluster: Number of the draw of words.
        number: Number of the row within it.
        vocabulary: The draw.
        row: The row.
        prompt: Its context as text.
        changed: The same with two values exchanged; None where the law has none.
    """

    cluster: int
    number: int
    vocabulary: Vocabulary
    row: ProbeRow
    prompt: Prompt
    changed: Prompt | None


def make_jobs(
    layout: Layout, law: Law, vocabularies: Sequence[Vocabulary], case: Case, rows_per_vocabulary: int
) -> list[Job]:
    """Draw the rows of a case. Their words and bindings are the same at every length and gap.

    Raises:
        ValueError: The context does not fit the length, or the tokenizer reads a prompt as other ids than intended.
    """
    jobs: list[Job] = []
    texts: list[tuple[str, list[int]]] = []
    for drawn in draw_rows(layout, law, vocabularies, case, rows_per_vocabulary):
        words, ids = drawn.vocabulary.words, drawn.vocabulary.ids
        for prompt, queries in ((drawn.prompt, drawn.row.queries), (drawn.changed, drawn.row.changed_queries)):
            if prompt is not None:
                texts += [layout.whole(prompt, query.unit, words, ids) for query in queries]
                jobs.append(_job(layout, drawn, prompt, queries, prompt is drawn.changed))
    layout.check(texts)
    return jobs


def draw_rows(
    layout: Layout, law: Law, vocabularies: Sequence[Vocabulary], case: Case, rows_per_vocabulary: int
) -> Iterator[DrawnRow]:
    """The rows of a case, written in a format. Raises a ``ValueError`` where the context does not fit the length."""
    for cluster, vocabulary in enumerate(vocabularies):
        for number in range(rows_per_vocabulary):
            rng = np.random.default_rng([vocabulary.seed, number, case.size])
            row = law.draw(rng, vocabulary, case.size, number % 2 == 1)
            before, behind = _filler(layout, row, vocabulary, case, rng)
            plain, changed = (
                layout.prompt(context, before, behind, vocabulary.words, vocabulary.ids) if context else None
                for context in (row.context, row.changed)
            )
            if plain is not None:
                yield DrawnRow(cluster, number, vocabulary, row, plain, changed)


def _job(layout: Layout, drawn: DrawnRow, prompt: Prompt, queries: Sequence[Query], changed: bool) -> Job:
    """One prefix with its queries."""
    vocabulary = drawn.vocabulary
    suffixes, answers, candidates, distances = [], [], [], []
    for query in queries:
        answer = [vocabulary.ids[word] for word in query.unit.answer]
        suffixes.append([*layout.suffix(query.unit.given, vocabulary.ids), *answer[:-1]])
        answers.append(answer)
        candidates.append([vocabulary.ids[word] for word in query.candidates])
        last = len(prompt.prefix) + len(query.unit.given) - 1
        distances.append(last - prompt.places[query.place] if query.place >= 0 else -1)
    return Job(
        drawn.cluster, drawn.number, changed, prompt.prefix, suffixes, answers, candidates, tuple(queries), distances
    )


def _filler(
    layout: Layout, row: ProbeRow, vocabulary: Vocabulary, case: Case, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Filler before and behind the context, so that a prompt has its length to the token.

    Raises:
        ValueError: The context leaves less than no room for filler.
    """
    used = used_tokens(layout, row)
    room = case.length - used
    if room < 0:
        raise ValueError(f"length must be at least {used} for a context of size {case.size}, got {case.length}")
    behind = room if case.gap is None else min(case.gap, room)
    words = [layout.filler_words(tokens) for tokens in (room - behind, behind)]
    drawn = [[int(n) for n in rng.choice(vocabulary.fillers, size=count)] for count in words]
    return drawn[0], drawn[1]


def used_tokens(layout: Layout, row: ProbeRow) -> int:
    """Tokens that the model reads without filler."""
    context = sum(layout.unit_size(len(unit.given), len(unit.answer)) for unit in row.context)
    query = row.queries[0].unit
    return context + layout.fixed_size(len(query.given)) + len(query.answer) - 1
