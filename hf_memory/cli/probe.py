"""The subcommands ``hf-memory probe`` and ``hf-memory export-harness``."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hf_memory.experiments.results import Row

Models = Annotated[list[str], typer.Argument(help="Checkpoints of causal models: folders, or repositories on the Hub.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Task; may be given several times.")]
Formats = Annotated[
    list[str] | None, typer.Option("--format", help="pairs, lines or chat; may be given several times.")
]


def probe(
    models: Models,
    task: Tasks = None,
    suite: Annotated[str | None, typer.Option(help="recall, tracking or all, in place of --task.")] = None,
    lengths: Annotated[
        str, typer.Option(help="Tokens of a prompt: 64..4096 doubles from 64 to 4096, 64,100 are these.")
    ] = "64..1024",
    format: Formats = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", "--pairs", help="Pairs of a context; the first for curves over length.")
    ] = None,
    gaps: Annotated[
        str, typer.Option(help="Tokens between pairs and query, besides all there are; '' for none.")
    ] = "0",
    vocabularies: Annotated[int, typer.Option(min=2, help="Draws of words.")] = 8,
    rows: Annotated[int, typer.Option(min=2, help="Rows of each draw; an even number.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a pass; halved where memory ends.")] = 16,
    chunk: Annotated[
        int, typer.Option(min=0, help="Read prompts in pieces of so many tokens, where that is exact; 0 for one.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 or float64.")] = "auto",
    device_map: Annotated[str | None, typer.Option(help="auto spreads a model over devices.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
    results: Annotated[Path, typer.Option(help="Folder to which the rows are written.")] = Path("results/probe"),
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that lies beside the weights.")
    ] = False,
) -> None:
    """Measure what causal models recall, in words of their own vocabulary; a probe that was stopped goes on.

    Example: `hf-memory probe state-spaces/mamba-130m-hf --task mqar --lengths 64..4096`
    """
    from accelerate import Accelerator

    from hf_memory.experiments.probing.cells import Plan, probe_model
    from hf_memory.experiments.probing.passes import CHUNK
    from hf_memory.experiments.probing.subject import load_subject
    from hf_memory.experiments.probing.tables import suite_tasks
    from hf_memory.hub.client import local_checkpoint
    from hf_memory.storage import check_writable

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
    accelerator = Accelerator()
    if accelerator.is_main_process:
        check_writable(results)
    for name in models:
        with accelerator.main_process_first():
            folder = local_checkpoint(name, revision, code=trust_remote_code, tokenizer=True)
        subject = load_subject(
            folder,
            name,
            dtype=dtype,
            device_map=device_map,
            device=accelerator.device,
            trust_remote_code=trust_remote_code,
        )
        found = probe_model(subject, plan, results, accelerator=accelerator, chunk=chunk or CHUNK)
        if accelerator.is_main_process:
            show(found)
    if accelerator.is_main_process:
        typer.echo(f"rows: {results}; `hf-memory report {results} --out report/` writes the page")


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers of a list: ``64,100``, or ``64..4096``, which doubles.

    >>> numbers("64..300", "lengths"), numbers("2,8", "sizes"), numbers("", "gaps")
    ((64, 128, 256), (2, 8), ())

    Raises:
        ValueError: The text is no such list.
    """
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        span = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if span is None or (span[2] and not 0 < int(span[1]) <= int(span[2])):
            raise ValueError(f"{name} must be numbers such as 64,128 or a range such as 64..4096, got {part!r}")
        value, last = int(span[1]), int(span[2] or span[1])
        found.append(value)
        while span[2] and (value := 2 * value) <= last:
            found.append(value)
    return tuple(dict.fromkeys(found))


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
    lengths: Annotated[str, typer.Option(help="Tokens of a prompt, as for `hf-memory probe`.")] = "64..1024",
    format: Annotated[str, typer.Option(help="pairs or lines.")] = "pairs",
    sizes: Annotated[str | None, typer.Option("--sizes", "--pairs", help="As for `hf-memory probe`.")] = None,
    vocabularies: Annotated[int, typer.Option(min=2, help="Draws of words.")] = 8,
    rows: Annotated[int, typer.Option(min=2, help="Rows of each draw; an even number.")] = 8,
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
