"""The subcommands ``hf-memory probe`` and ``hf-memory export-harness``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_memory.cli.options import RemoteCode, launched_processes, numbers

if TYPE_CHECKING:
    from hf_memory.experiments.probing.cells import Plan
    from hf_memory.experiments.results import Row

Models = Annotated[list[str], typer.Argument(help="Checkpoints of causal models: folders, or repositories on the Hub.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Task; may be given several times.")]
Suite = Annotated[str | None, typer.Option(help="recall, tracking or all, in place of --task.")]
Lengths = Annotated[str, typer.Option(help="Tokens that are read: 64..4096 doubles from 64 to 4096, 64,100 are these.")]
Formats = Annotated[
    list[str] | None, typer.Option("--format", help="pairs, lines or chat; may be given several times.")
]
Sizes = Annotated[
    str | None, typer.Option("--sizes", "--pairs", help="Pairs of a context; the first for curves over length.")
]
Gaps = Annotated[str, typer.Option(help="Tokens between pairs and query, besides all there are; '' for none.")]
Vocabularies = Annotated[int, typer.Option(min=2, help="Draws of words.")]
Rows = Annotated[int, typer.Option(min=2, help="Rows of each draw; an even number.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows of a pass; halved where memory ends.")]
Chunk = Annotated[
    int, typer.Option(min=1, help="Tokens of a piece in which long prompts are read, where that is exact.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 or float64.")]
DeviceMap = Annotated[str | None, typer.Option(help="auto spreads a model over devices.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")]
Results = Annotated[Path, typer.Option(help="Folder to which the rows are written.")]


def probe(
    models: Models,
    task: Tasks = None,
    suite: Suite = None,
    lengths: Lengths = "64..1024",
    format: Formats = None,
    sizes: Sizes = None,
    gaps: Gaps = "0",
    vocabularies: Vocabularies = 8,
    rows: Rows = 8,
    batch_size: BatchSize = 16,
    chunk: Chunk = 8_192,
    dtype: Dtype = "auto",
    device_map: DeviceMap = None,
    revision: Revision = None,
    results: Results = Path("results/probe"),
    trust_remote_code: RemoteCode = False,
) -> None:
    """Measure what causal models recall, in words of their own vocabulary; a probe that was stopped goes on.

    Example: `hf-memory probe state-spaces/mamba-130m-hf --task mqar --lengths 64..4096`
    """
    from hf_memory.experiments.probing.cells import Plan
    from hf_memory.experiments.probing.tables import suite_tasks

    if (suite is None) == (not task):
        raise ValueError("task or suite: give one of them")
    plan = Plan(
        tasks=tuple(task or suite_tasks(str(suite))),
        lengths=numbers(lengths, "lengths"),
        formats=tuple(format or ["pairs"]),
        sizes=numbers(sizes or "", "sizes"),
        gaps=numbers(gaps, "gaps"),
        vocabularies=vocabularies,
        rows=rows,
        batch_size=batch_size,
    )
    loading = {"dtype": dtype, "device_map": device_map, "trust_remote_code": trust_remote_code}
    run_probes(models, plan, results, revision, chunk, loading)


def run_probes(
    models: Sequence[str], plan: "Plan", results: Path, revision: str | None, chunk: int, loading: dict[str, Any]
) -> None:
    """Probe one model after the other, and print what was found of each."""
    from hf_memory.experiments.probing.cells import probe_model
    from hf_memory.experiments.probing.subject import load_subject
    from hf_memory.hub.client import local_checkpoint
    from hf_memory.storage import check_writable

    accelerator = launched_processes()
    if accelerator.is_main_process:
        check_writable(results)
    for name in models:
        with accelerator.main_process_first():
            folder = local_checkpoint(name, revision, code=loading["trust_remote_code"], tokenizer=True)
        subject = load_subject(folder, name, device=accelerator.device, **loading)
        found = probe_model(subject, plan, results, accelerator=accelerator, chunk=chunk)
        if accelerator.is_main_process:
            show(found)
    if accelerator.is_main_process:
        typer.echo(f"rows: {results}; `hf-memory report {results} --out report/` writes the page")


def show(rows: "list[Row]") -> None:
    """Print the rows of the curves over length."""
    from hf_memory.cli.list import wide_console
    from hf_memory.reports.terminal import length_tables

    for table in length_tables(rows):
        wide_console().print(table)


def export_harness(
    out: Annotated[Path, typer.Argument(help="Folder of the task files.")],
    model: Annotated[str, typer.Option(help="Checkpoint whose tokenizer writes the words.")],
    task: Tasks = None,
    lengths: Lengths = "64..1024",
    format: Annotated[str, typer.Option(help="pairs or lines.")] = "pairs",
    sizes: Sizes = None,
    vocabularies: Vocabularies = 8,
    rows: Rows = 8,
) -> None:
    """Write task files for lm-evaluation-harness, whose recall is that of `hf-memory probe`.

    Example: `hf-memory export-harness out/ --model state-spaces/mamba-130m-hf --task mqar`
    """
    from hf_memory.experiments.probing.cells import Plan
    from hf_memory.experiments.probing.formats import leading_ids
    from hf_memory.experiments.probing.harness import write_harness
    from hf_memory.experiments.probing.subject import load_tokenizer
    from hf_memory.hub.client import local_checkpoint

    tokenizer = load_tokenizer(local_checkpoint(model, tokenizer=True), model)
    plan = Plan(
        tasks=tuple(task or ["mqar"]),
        lengths=numbers(lengths, "lengths"),
        formats=(format,),
        sizes=numbers(sizes or "", "sizes"),
        vocabularies=vocabularies,
        rows=rows,
    )
    files = write_harness(out, tokenizer, plan)
    bos = bool(leading_ids(tokenizer))
    names = ",".join(path.stem for path in files if path.suffix == ".yaml")
    given = f"pretrained={model},add_bos_token={bos}"
    typer.echo(f"lm-eval run --model hf --model_args {given} --include_path {out} --tasks {names}")
