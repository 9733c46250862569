"""The command line of a training run: the package's few arguments beside all of Trainer's."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser, TrainingArguments

from hf_memory.data.specification import KEYWORDS, specify
from hf_memory.experiments.grammar import repeat_flags, take_includes
from hf_memory.experiments.results import Row
from hf_memory.experiments.run import SMOKE_ROWS, Experiment, fields_for_length
from hf_memory.extensions import include_everywhere
from hf_memory.mixers.auto import model_keys
from hf_memory.models.configuration import MemoryConfig
from hf_memory.names import check_names, nearest
from hf_memory.tasks import TASKS

SMOKE = {"max_steps": 20, "per_device_train_batch_size": 16, "eval_strategy": "no"}
"""Trainer arguments of a run that only shows that everything is in place."""


class _NotGiven:
    """Default of an argument of Trainer on the command line; help texts show it."""

    def __repr__(self) -> str:
        return "the package's, else Trainer's"


_NOT_GIVEN = _NotGiven()

_DATA_WORDS = frozenset(KEYWORDS)
_MODEL_WORDS = frozenset(field.name for field in dataclasses.fields(MemoryConfig))

_PAIRS = {"action": "extend", "metavar": "NAME=VALUE"}

_USAGE = "%(prog)s --mixer MIXER --task TASK [--data NAME=VALUE ...] [--model NAME=VALUE ...] [argument of Trainer ...]"


@dataclasses.dataclass
class ExperimentArguments:
    """What is trained on what.

    Attributes:
        mixer: Key of the sequence mixer.
        task: Key of the task.
        config: Name of a configuration of the task's dataset.
        data: Keywords of the dataset and knobs of the task, as ``name=value``.
        model: Fields of the mixer's config, as ``name=value``.
        optim_groups: Groups of the optimiser.
        arm: Name of the curve in figures.
        results: Folder of the result rows.
        smoke: Train for a few steps only.
        overwrite: Train again where the rows of the run are there already.
    """

    mixer: str = dataclasses.field(default="lstm", metadata={"help": "sequence mixer; `hf-memory list` shows them"})
    task: str = dataclasses.field(default="bit_parity", metadata={"help": "memory task; `hf-memory list` shows them"})
    config: str | None = dataclasses.field(
        default=None, metadata={"help": "configuration of the task's dataset; its first one by default"}
    )
    data: list[str] = dataclasses.field(
        default_factory=list,
        metadata={**_PAIRS, "help": "dataset keywords and task knobs: length=64 num_train=20000 ..."},
    )
    model: list[str] = dataclasses.field(
        default_factory=list,
        metadata={**_PAIRS, "help": "fields of the mixer's config: hidden_size=64 num_hidden_layers=2 ..."},
    )
    optim_groups: str = dataclasses.field(
        default="documented",
        metadata={"help": "rates of slow parameters", "choices": ["documented", "uniform"]},
    )
    arm: str | None = dataclasses.field(default=None, metadata={"help": "name in figures; the mixer by default"})
    results: str = dataclasses.field(default="results", metadata={"help": "folder of the result rows"})
    smoke: bool = dataclasses.field(default=False, metadata={"help": "a few steps on a few rows"})
    overwrite: bool = dataclasses.field(
        default=False, metadata={"help": "train again where the rows of the run are there already"}
    )


def parse_fields(pairs: Sequence[str], kind: str) -> dict[str, Any]:
    """Read ``name=value`` pairs. A value is JSON where it can be read as such, and a string otherwise.

    >>> parse_fields(["hidden_size=64", "norm=layer", "length=[3, 40]"], "model")
    {'hidden_size': 64, 'norm': 'layer', 'length': [3, 40]}
    """
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.isidentifier():
            raise ValueError(f"{kind}: entries are name=value, got {pair!r}; write them without spaces")
        if name in fields:
            raise ValueError(f"{kind}: {name!r} is given twice")
        try:
            fields[name] = json.loads(text)
        except json.JSONDecodeError as error:
            if text.startswith(("[", "{")):
                raise ValueError(
                    f"{kind}: {name} is no JSON, got {text}; a shell takes double quotes away, so write "
                    f'\'{name}=["a", "b"]\' in single ones'
                ) from error
            fields[name] = {"True": True, "False": False, "None": None}.get(text, text)
    return fields


class _Parser(HfArgumentParser):
    """A parser whose errors are one line; the usage of all of Trainer's arguments would bury them."""

    def error(self, message: str) -> NoReturn:
        """Raise a ``ValueError``, which suggests what was meant where a word is not known."""
        _, _, unknown = message.partition("unrecognized arguments: ")
        hint = self._suggest(unknown.split()[0].partition("=")[0]) if unknown.strip() else ""
        raise ValueError(f"{message}; {hint or '--help lists the arguments'}")

    def _suggest(self, word: str) -> str:
        """What an unknown word may have meant; empty where nothing is near."""
        name = word.lstrip("-").replace("-", "_")
        if name in _DATA_WORDS or name in _MODEL_WORDS:
            return f"give it as --{'data' if name in _DATA_WORDS else 'model'} {name}=..."
        if not word.startswith("-"):
            found = [f"--{kind} {word}" for kind, known in (("mixer", model_keys()), ("task", TASKS)) if word in known]
            return f"did you mean {found[0]}?" if found else ""
        flags = [flag[2:] for flag in self._option_string_actions if flag.startswith("--") and "-" not in flag[2:]]
        near = next((flag for flag in flags if flag.endswith(f"_{name}")), None) or nearest(name, flags)
        return f"did you mean --{near}?" if near else ""


def make_parser(prog: str | None = None) -> HfArgumentParser:
    """The parser of a training run. What is not given has the default ``_NOT_GIVEN``, so that the package's hold."""
    epilog = "Flags may be written with _ or -; --include FILE adds the mixers and tasks of a Python file."
    parser = _Parser(
        [ExperimentArguments, TrainingArguments], prog=prog, usage=_USAGE, epilog=epilog, allow_abbrev=False
    )
    parser.add_argument("--lr", dest="learning_rate", type=float, help="short for --learning_rate")
    trainer_names = [field.name for field in dataclasses.fields(TrainingArguments) if field.init]
    parser.set_defaults(**dict.fromkeys(trainer_names, _NOT_GIVEN))
    return parser


def parse_arguments(argv: Sequence[str] | None = None, prog: str | None = None) -> tuple[Experiment, str, str, bool]:
    """Read a command line: the arguments of :class:`ExperimentArguments` and all of Trainer's.

    Returns:
        The experiment, the folder of the result rows, that of the checkpoint, and whether a finished run runs again.

    Raises:
        ValueError: For an unknown argument, mixer, task, preset, keyword or field; the message suggests the nearest
            name where there is one.
    """
    files, words = take_includes(sys.argv[1:] if argv is None else argv)
    include_everywhere(files)
    given = make_parser(prog).parse_args(repeat_flags(words))
    values = {name: value for name, value in vars(given).items() if value is not _NOT_GIVEN}
    own = {field.name: values.pop(field.name) for field in dataclasses.fields(ExperimentArguments)}
    arguments = ExperimentArguments(**own)
    data = parse_fields(arguments.data, "data")
    if arguments.smoke:
        data, values = {**SMOKE_ROWS, **data}, {**SMOKE, **values}
    if "data_seed" in values:
        if data.get("seed", values["data_seed"]) != values["data_seed"]:
            raise ValueError(
                f"data_seed: {values['data_seed']} differs from data seed={data['seed']}; give one of them"
            )
        data["seed"] = values.pop("data_seed")
    output_dir = values.pop("output_dir", None)
    specification, fields = specify(arguments.task, arguments.config, **data), parse_fields(arguments.model, "model")
    check_names([arguments.mixer], model_keys(), "mixer")
    experiment = Experiment(
        specification=specification,
        mixer=arguments.mixer,
        fields=fields_for_length(arguments.mixer, fields, specification),
        training=values,
        optim_groups=arguments.optim_groups,
        arm=arguments.arm or arguments.mixer,
    )
    default = Path("runs") / f"{arguments.task}-{experiment.arm}-seed{values.get('seed', 0)}"
    return experiment, arguments.results, str(output_dir or default), arguments.overwrite


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> list[Row]:
    """Train and evaluate as a command line says, on any number of processes."""
    experiment, results, output_dir, overwrite = parse_arguments(argv, prog)
    return experiment.run(results, output_dir, overwrite=overwrite)
