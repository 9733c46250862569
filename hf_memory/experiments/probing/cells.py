"""Probes of a model as cells on disk: one for each model, task, length and format, found again and not run twice."""

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from tqdm.auto import tqdm

from hf_memory.experiments.probing.formats import FORMATS, Layout
from hf_memory.experiments.probing.laws import Law
from hf_memory.experiments.probing.passes import CHUNK, Runner, make_runner
from hf_memory.experiments.probing.prompts import Case, Job, make_jobs
from hf_memory.experiments.probing.scores import Answer, Interval, metrics_of, read_answers, recalled_bits
from hf_memory.experiments.probing.subject import Subject
from hf_memory.experiments.probing.tables import LAWS
from hf_memory.experiments.probing.words import Pool, Vocabulary, draw_vocabulary, find_pool, needed_words
from hf_memory.experiments.provenance import backend_name, device_name, versions
from hf_memory.experiments.results import Row, cell_path, read_rows, write_cell
from hf_memory.names import check_names
from hf_memory.ops.backends.proof import noted
from hf_memory.storage import claim, digest

VERSION = "1.0.0"
"""Moves whenever the rows that are drawn, or what is made of answers, change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked of each model.

    Attributes:
        tasks: Keys of the tasks.
        lengths: Tokens of the prompts.
        formats: Names of the formats.
        sizes: Sizes of contexts in place of those of each task; the first is that of the curves over length.
        gaps: Tokens of filler between context and query, besides all of it.
        vocabularies: Draws of words.
        rows: Rows of each draw, an even number.
        batch_size: Rows of a pass to begin with; it is halved where memory ends.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    formats: tuple[str, ...] = ("pairs",)
    sizes: tuple[int, ...] = ()
    gaps: tuple[int, ...] = (0,)
    vocabularies: int = 8
    rows: int = 8
    batch_size: int = 16

    def __post_init__(self) -> None:
        check_names(self.tasks, LAWS, "task")
        check_names(self.formats, FORMATS, "format")
        for name in ("tasks", "lengths", "formats"):
            if not getattr(self, name):
                raise ValueError(f"{name}: at least one is needed")
        for name, least in (("lengths", 2), ("sizes", 2), ("gaps", 0)):
            wrong = [value for value in getattr(self, name) if value < least]
            if wrong:
                raise ValueError(f"{name} must be at least {least}, got {wrong[0]}")
        if self.vocabularies < 2 or self.rows < 2 or self.rows % 2 or self.batch_size < 1:
            raise ValueError(
                "vocabularies must be at least 2, rows an even number of at least 2, and batch_size at least 1, got "
                f"{self.vocabularies}, {self.rows} and {self.batch_size}"
            )


@dataclasses.dataclass
class _Session:
    """One model while it is probed: what is made once for all of its cells."""

    subject: Subject
    runner: Runner
    plan: Plan
    accelerator: Accelerator | None
    layouts: dict[tuple[str, int], tuple[Layout, Pool]] = dataclasses.field(default_factory=dict)
    batch_size: int = 0

    def layout(self, name: str, size: int) -> tuple[Layout, Pool]:
        """A format in the model's tokenizer, and enough of its words."""
        if (name, size) not in self.layouts:
            layout = Layout(name, self.subject.tokenizer)
            self.layouts[name, size] = layout, find_pool(layout, needed_words(size))
        return self.layouts[name, size]


def probe_model(
    subject: Subject,
    plan: Plan,
    results: str | os.PathLike[str],
    *,
    accelerator: Accelerator | None = None,
    chunk: int = CHUNK,
    progress: bool = True,
) -> list[Row]:
    """Probe a model, cell by cell; those that are in the folder already are read.

    Raises:
        ValueError: A length is beyond what the model can run, a context does not fit, or its tokenizer or its state
            does not allow a probe.
    """
    _check_lengths(subject, plan)
    session = _Session(subject, make_runner(subject.model, chunk), plan, accelerator, batch_size=plan.batch_size)
    cells = [(LAWS[task], form, length) for task in plan.tasks for form in plan.formats for length in plan.lengths]
    is_main = accelerator is None or accelerator.is_main_process
    found: list[Row] = []
    with tqdm(total=len(cells), desc=f"probe {subject.name}", unit="cell", disable=not (progress and is_main)) as bar:
        for law, form, length in cells:
            found += _finished_or_run(session, law, form, length, Path(results))
            bar.update()
    return found


def _finished_or_run(session: _Session, law: Law, form: str, length: int, results: Path) -> list[Row]:
    """Rows of a cell: from the folder where it is finished, else measured and written by the main process."""
    definition = define(session.subject, session.plan, law, form, length)
    path = cell_path(results, digest(definition))
    accelerator = session.accelerator
    is_done = [path.exists()]
    if accelerator is not None:
        broadcast_object_list(is_done)
    if is_done[0]:
        return read_rows(path)
    if accelerator is not None and accelerator.num_processes > 1:
        rows = _measure_cell(session, law, form, length, digest(definition))
        if accelerator.is_main_process:
            write_cell(results, definition, rows)
        accelerator.wait_for_everyone()
        return rows
    with claim(path) as mine:
        rows = read_rows(path) if path.exists() else _measure_cell(session, law, form, length, digest(definition))
        if mine:
            write_cell(results, definition, rows)
    return rows


def define(subject: Subject, plan: Plan, law: Law, form: str, length: int) -> dict[str, Any]:
    """What defines a cell."""
    return {
        "probe": VERSION,
        "arm": subject.name,
        "mixer": subject.kind,
        "task": law.key,
        "weights": subject.weights,
        "config": subject.config_digest,
        "dtype": str(subject.model.dtype).removeprefix("torch."),
        "format": f"{form} {FORMATS[form].version}",
        "length": length,
        "sizes": list(plan.sizes or law.sizes),
        "gaps": list(plan.gaps),
        "vocabularies": plan.vocabularies,
        "rows_per_vocabulary": plan.rows,
    }


def _check_lengths(subject: Subject, plan: Plan) -> None:
    longest = subject.longest
    if longest is not None and max(plan.lengths) > longest:
        raise ValueError(
            f"lengths: {subject.name!r} has positions for {longest} tokens and cannot run at {max(plan.lengths)}"
        )


def _measure_cell(session: _Session, law: Law, form: str, length: int, cell: str) -> list[Row]:
    """Measure all sizes and gaps of one length; the first size must fit, others are left out where they do not."""
    sizes = session.plan.sizes or law.sizes
    layout, pool = session.layout(form, law.role_size(max(sizes)))
    vocabularies = [draw_vocabulary(pool, law.role_size(max(sizes)), seed) for seed in range(session.plan.vocabularies)]
    state = session.runner.live_state(length)
    size_of_state = state.numbers(), state.nbytes()
    del state
    rows = []
    cases = [Case(length, size) for size in sizes] + [Case(length, sizes[0], gap) for gap in session.plan.gaps]
    for case in cases:
        started = time.perf_counter()
        try:
            jobs = make_jobs(layout, law, vocabularies, case, session.plan.rows)
        except ValueError as error:
            if case.size == sizes[0] or not str(error).startswith("length"):
                raise
            continue
        with noted() as kernels:
            answers = _answer(session, jobs)
        about = _about(session, law, layout, pool, vocabularies, case)
        seconds = time.perf_counter() - started
        row = _row(session, law, case, sizes[0], answers, about, cell, size_of_state, seconds)
        rows.append(dataclasses.replace(row, kernels=kernels or None))
    if session.accelerator is not None:
        return broadcast_object_list(rows)
    return rows


def _answer(session: _Session, jobs: Sequence[Job]) -> list[Answer]:
    """Run the jobs, shared among the processes, with the largest batch that memory holds."""
    accelerator = session.accelerator
    world, rank = (1, 0) if accelerator is None else (accelerator.num_processes, accelerator.process_index)

    own: list[Answer] = []
    for group in _alike(jobs[rank::world]):
        while group:
            try:
                own += answer_jobs(session.runner, group[: session.batch_size])
                group = group[session.batch_size :]
            except RuntimeError as error:
                if not should_reduce_batch_size(error) or session.batch_size == 1:
                    raise
                session.batch_size //= 2
                clear_device_cache(garbage_collection=True)
    return own if world == 1 else gather_object(own)


def _alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs by the shapes of their ids, since nothing is padded."""
    groups: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        shape = (len(job.prefix), *map(len, job.suffixes), -1, *map(len, job.candidates), -1, *map(len, job.answers))
        groups.setdefault(shape, []).append(job)
    return list(groups.values())


@torch.inference_mode()
def answer_jobs(runner: Runner, jobs: Sequence[Job]) -> list[Answer]:
    """Answers to the queries of jobs of one shape, in one pass over their prefixes."""
    device = runner.device
    prefix = torch.tensor([job.prefix for job in jobs], device=device)
    count = len(jobs[0].queries)
    suffixes = [torch.tensor([job.suffixes[number] for job in jobs], device=device) for number in range(count)]
    logits = runner.branches(prefix, suffixes, len(jobs[0].answers[0]))
    found = []
    for number in range(count):
        candidates = torch.tensor([job.candidates[number] for job in jobs])
        scores, best = read_answers(logits[number], candidates, torch.tensor([job.answers[number] for job in jobs]))
        for job, own, likeliest in zip(jobs, scores, best, strict=True):
            query, distance = job.queries[number], job.distances[number]
            found.append(Answer(job.cluster, job.row, number, job.changed, query, distance, own, likeliest))
    return found


def _about(
    session: _Session, law: Law, layout: Layout, pool: Pool, vocabularies: Sequence[Vocabulary], case: Case
) -> dict[str, Any]:
    """What a row says of its probe."""
    subject, context = session.subject, session.subject.trained_context
    return {
        "version": VERSION,
        "format": layout.format.name,
        "format_version": layout.format.version,
        "size": case.size,
        "size_counts": law.size,
        "gap": case.gap,
        "in_context": law.in_context,
        "rows_per_vocabulary": session.plan.rows,
        "words": pool.rule,
        "vocabularies": [vocabulary.describe() for vocabulary in vocabularies],
        "roles": "exchanged in every other row",
        "bos": list(layout.bos),
        "dtype": str(subject.model.dtype).removeprefix("torch."),
        "trained_context": context,
        "beyond_context": context is not None and case.length > context,
        "continues_by": session.runner.way,
        "why": session.runner.reason,
    }


def _row(
    session: _Session,
    law: Law,
    case: Case,
    base: int,
    answers: Sequence[Answer],
    about: dict[str, Any],
    cell: str,
    size_of_state: tuple[int, int],
    seconds: float,
) -> Row:
    """The row of a case."""
    subject = session.subject
    metrics, intervals = metrics_of(answers)
    parameters = subject.parameters()
    return Row(
        cell=cell,
        arm=subject.name,
        mixer=subject.kind,
        config_digest=subject.config_digest,
        task=law.key,
        task_knobs={"probe": about["format"]},
        data_version=f"probe {VERSION}, {about['format']} {about['format_version']}, numpy {np.__version__}",
        split=case.split(base),
        length=case.length,
        train_length=None,
        seed=None,
        data_seed=None,
        learning_rate=None,
        learning_rate_grid=(),
        schedule=None,
        optim_groups=None,
        stop_rule=None,
        steps=None,
        tokens=None,
        parameters=parameters["parameters"],
        parameters_non_embedding=parameters["parameters_non_embedding"],
        parameters_per_block=parameters["parameters_per_block"],
        state_numbers=size_of_state[0],
        state_bytes=size_of_state[1],
        headline=law.headline if law.headline in metrics else "recall",
        metrics=metrics,
        train_seconds=None,
        eval_seconds=seconds,
        device=device_name(subject.model),
        backend=backend_name() if subject.kind != subject.model.config.model_type else "transformers",
        versions=versions(),
        weights_sha256=subject.weights,
        probe={**about, **_measured(law, answers, intervals, case)},
    )


def _measured(law: Law, answers: Sequence[Answer], intervals: dict[str, Interval], case: Case) -> dict[str, Any]:
    """What a row's probe holds beside what was asked: intervals, and the bits of its bindings."""
    candidates = [len(answer.query.candidates) for answer in answers if not answer.changed]
    return {
        "intervals": {name: list(interval) for name, interval in intervals.items()},
        "candidates": float(np.mean(candidates)),
        "recalled_bits": None if law.bindings is None else recalled_bits(answers, law.bindings(case.size)),
    }
