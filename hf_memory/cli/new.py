"""The subcommands ``hf-memory new``: a mixer or a task in a file, with its test, from which one's own is made."""

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

new_app = typer.Typer(
    help="Write a mixer or a task that keeps its contracts, with its test, to be changed into one's own.",
    no_args_is_help=True,
)

LONGEST = 24
"""Letters of a name, with which no line of a written file is too long."""

_WORDS = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

Name = Annotated[str, typer.Argument(help="Key of what is written: words in small letters, with _ between them.")]
Out = Annotated[Path, typer.Option(help="Folder of both files.")]


@new_app.command()
def mixer(name: Name, out: Out = Path()) -> None:
    """Write NAME.py, a leaky integrator, and test_NAME.py, which runs the contracts of mixers on it.

    Example: `hf-memory new mixer slow_echo`
    """
    written = write_leaf("mixer", name, out)
    _show_next(written, f"--mixer {name} --task bit_parity")


@new_app.command()
def task(name: Name, out: Out = Path()) -> None:
    """Write NAME.py, which asks for the last mark over blanks, and test_NAME.py, which runs the contracts of tasks.

    Example: `hf-memory new task last_mark`
    """
    written = write_leaf("task", name, out)
    _show_next(written, f"--mixer gru --task {name}")


def write_leaf(kind: str, name: str, out: Path) -> tuple[Path, Path]:
    """Write the file of a mixer or task and that of its test.

    Args:
        kind: ``mixer`` or ``task``.
        name: Its key.
        out: Folder of both files.

    Returns:
        The file and its test.

    Raises:
        ValueError: The name is no key, or taken, or one of the files is there; nothing is written then.
    """
    from hf_memory.storage import write_bytes

    paths = out / f"{name}.py", out / f"test_{name}.py"
    for path in paths:
        if _WORDS.fullmatch(name) and path.exists():
            raise ValueError(f"{path} is there already, and is left as it is; give another name, or another --out")
    check_name(kind, name)
    for path, template in zip(paths, (f"{kind}.py.jinja", f"test_{kind}.py.jinja"), strict=True):
        write_bytes(path, render(template, name).encode())
    return paths


def render(template: str, name: str) -> str:
    """A template filled in with a key and the stem of its class names."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_memory.cli"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template(template).render(name=name, stem=class_stem(name))


def class_stem(name: str) -> str:
    """The stem of the class names of a key.

    >>> class_stem("slow_echo")
    'SlowEcho'
    """
    return "".join(word.capitalize() for word in name.split("_"))


def check_name(kind: str, name: str) -> None:
    """Raise a ``ValueError`` unless a name can be the key of a new mixer or task, and the name of its module."""
    from hf_memory.mixers.auto import model_keys
    from hf_memory.tasks import TASKS

    if not _WORDS.fullmatch(name) or len(name) > LONGEST:
        raise ValueError(
            "name must be words in small letters and digits with _ between them, as in slow_echo, of at most "
            f"{LONGEST} letters; got {name!r}"
        )
    if name in (*model_keys(), *TASKS):
        raise ValueError(f"name: {name!r} is taken by a {'task' if name in TASKS else 'mixer'} of hf_memory")
    # A file of such a name would hide the module from all that runs beside it.
    if keyword.iskeyword(name) or name == "conftest" or importlib.util.find_spec(name) is not None:
        raise ValueError(f"name: {name!r} is a word of Python or a module that it finds; take another")
    if class_stem(name) in ("Task", "Preset") and kind == "task":
        raise ValueError(f"name: {class_stem(name)} is a class that every task uses; take another name")


def _show_next(written: tuple[Path, Path], flags: str) -> None:
    """Say what was written, and what to do with it."""
    file, test = written
    typer.echo(f"wrote {file} and {test}")
    typer.echo(f"contracts: python -m pytest {test}")
    typer.echo(f"training: hf-memory train --include {file} {flags} --smoke")
