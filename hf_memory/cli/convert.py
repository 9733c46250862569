"""``hf-memory convert``: released weights of transformers as a checkpoint of this package."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[str, typer.Argument(help="Causal model of transformers, a folder or a repository on the Hub.")],
    output: Annotated[Path, typer.Argument(help="New folder of the checkpoint.")],
    layer: Annotated[
        list[int] | None, typer.Option(min=0, help="Layer to keep, from 0 on; may be given several times.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
) -> None:
    """Make a checkpoint here of a Mamba, Mamba-2, RWKV-4, xLSTM, or of recurrent layers of a hybrid, with equal scores.

    Example: `hf-memory convert state-spaces/mamba-130m-hf runs/mamba-130m`
    """
    from hf_memory.hub.convert import convert as convert_model

    found = convert_model(source, output, layer, revision)
    kept = "" if layer is None else f", layers {', '.join(map(str, found.layers))} of the source"
    typer.echo(f"{found.folder}: {found.model}, {len(found.layers)} layers{kept}")
    typer.echo(f"scores differ from those of the source by {found.difference:.0e} of the largest")
    if found.cap is not None:
        typer.echo(f"scores are those before the source's bound of {found.cap:g}, which leaves their order as it is")
    typer.echo(f"probe it: hf-memory probe {found.folder} --task mqar")
