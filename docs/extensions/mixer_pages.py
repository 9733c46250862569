"""The page of each mixer, and the page that compares all of them."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache

from docs.extensions.docstrings import BOLD, blocks, escape, heading, list_table, rest
from docs.extensions.measured import BELOW, LAYERS, LONG, SHORT, WIDTH, MixerFacts, Outcome, mixer_facts
from hf_memory.cli.describe import default_text, meanings_of
from hf_memory.cli.facts import operations_of_mixer
from hf_memory.data.cards import docstring_of
from hf_memory.mixers import MIXERS, mixer_module
from hf_memory.mixers.auto import HYBRID, config_class, mixer_class, model_keys
from hf_memory.models.configuration import MemoryConfig
from hf_memory.ops.backends.dispatch import KERNELS
from hf_memory.reports.formats import count, rate, share, words

FIGURE = "mixers.svg"
"""File of the figure of all mixers, among the static files of the site."""

_LABEL = re.compile(
    r"(?:(?<=^)|(?<=[.)] ))(Symbols|Sources?|Official code|Reference code|State|Initial values?|Deviations?|Horizon"
    r"|Beyond the paper|Expected)(?=[:,( ])([^:.]{0,45}):(?= )",
    re.MULTILINE,
)
_SIZE = f"width {WIDTH} and {LAYERS} layers"
_LIMITS = "Where its law keeps it so, it cannot solve parity at every length (Grazzi et al., 2025)."


@cache
def facts_of(key: str) -> MixerFacts:
    """The facts of a mixer, measured once a build."""
    return mixer_facts(key)


def mixer_page(key: str, outcomes: Sequence[Outcome]) -> str:
    """The page of a mixer: equations, state, spectrum, when to use it, what it solved, its fields."""
    module = importlib.import_module(config_class(key).__module__)
    stem = MIXERS.get(key, "Hybrid")
    names = [f"Memory{stem}{suffix}" for suffix in ("Config", "Model", "ForCausalLM", "ForTokenClassification")]
    own = [outcome for outcome in outcomes if outcome.row.mixer == key]
    parts = [
        f".. _mixer-{key}:",
        heading(key, "="),
        rest(labelled(inspect.getdoc(module) or ""), symbols=True),
        heading("State and spectrum", "-"),
        list_table(("fact", "value"), fact_rows(key)),
        f"Counted and measured with fresh weights at {_SIZE}, on random inputs.",
        heading("When to use it", "-"),
        "\n\n".join(advice(facts_of(key))),
        heading("What it solved here", "-"),
        solved(own),
        heading("Use it", "-"),
        ".. code-block:: python\n\n   from hf_memory import (\n"
        + "".join(f"       {name},\n" for name in names)
        + "   )",
        f".. code-block:: bash\n\n   hf-memory train --mixer {key} --task bit_parity --smoke",
        heading("Fields", "-"),
        fields_table(key),
        f"All other fields are those of every mixer: :class:`~hf_memory.models.configuration.{MemoryConfig.__name__}`.",
    ]
    if key != HYBRID:
        parts += [heading("In code", "-"), f".. autoclass:: {module.__name__}.{stem}Mixer\n   :members:"]
    return "\n\n".join(parts) + "\n"


def labelled(text: str) -> str:
    """A docstring whose labelled sentences, such as those on the state, are paragraphs of their own in bold words."""
    parts = []
    for block in blocks(text):
        if block.startswith((" ", "``", ">>>", "* ", "- ")) or "\n " in block:
            parts.append(block)
        else:
            joined = " ".join(block.split())
            parts.append(_LABEL.sub(lambda found: f"\n\n{BOLD.format(found[1] + found[2] + ':')}", joined).strip())
    return "\n\n".join(parts)


def fact_rows(key: str) -> list[tuple[str, str]]:
    """Sizes, spectrum and fast forms of a mixer."""
    facts = facts_of(key)
    operations = [] if key == HYBRID else operations_of_mixer(mixer_class(key))  # a stack has those of its layers
    fast = sorted({backend for op, backend in KERNELS if op in operations})
    rows = [
        (f"numbers held per sequence after {SHORT} tokens", count(facts.short)),
        (f"after {LONG:,}", count(facts.long)),
        ("parameters of a block", count(facts.per_block)),
        ("eigenvalues of a step, real parts", _span(facts)),
        ("a step depends on", _motion(facts)),
        ("operations", ", ".join(f":mod:`~hf_memory.ops.{op}`" for op in operations) or "those of torch"),
        ("backends beside torch", ", ".join(fast) or "none"),
    ]
    rows += [(f"eigenvalues with ``{switch}``", f"down to {low:.2f}") for switch, low in facts.switches.items()]
    return rows


def _span(facts: MixerFacts) -> str:
    return "there is no such step" if facts.spectrum is None else "{:.2f} to {:.2f}".format(*facts.spectrum)


def _motion(facts: MixerFacts) -> str:
    if facts.spectrum is None:
        return "all inputs so far, which are kept"
    return "inputs and state" if facts.depends_on_state else "inputs or weights alone"


def advice(facts: MixerFacts) -> list[str]:
    """What size and motion of the state allow and forbid, in sentences that hold for every mixer of the same facts."""
    found = []
    if facts.long > facts.short:
        found.append(
            f"**Memory.** It keeps what it has seen: {count(facts.short)} numbers after {SHORT} tokens, "
            f"{count(facts.long)} after {LONG:,}. Take it where exact recall counts and rows are not too long; each "
            "further token costs memory, and time where it is compared with all of those before."
        )
    else:
        found.append(
            f"**Memory.** Its state has {count(facts.long)} numbers at any length. A token costs the same after ten "
            "and after a million others, and what can be recalled is bounded by that number: widen it for more pairs."
        )
    if facts.spectrum is None:
        text = (
            "No state is handed from step to step, so that counting and flipping must come from depth or positions: a "
            "constant number of such layers does not solve parity at every length (Hahn, 2020)."
        )
    elif facts.depends_on_state:
        text = (
            "A step depends on the state itself: it can flip and count at any length, where training finds how. It is "
            "computed token by token, so that long rows cost time."
        )
    elif facts.spectrum[0] < BELOW:
        text = (
            f"A step is linear in the state, and some eigenvalues lie below zero ({_span(facts)}): it can turn signs."
        )
        text += f" With {_turned(facts)} they reach further." if facts.switches else ""
    elif facts.switches:
        text = (
            f"A step is linear in the state, with no eigenvalue below zero at the defaults ({_span(facts)}). {_LIMITS} "
            f"For tasks that track a state, take {_turned(facts)}."
        )
    else:
        text = f"A step is linear in the state; fresh, it has no eigenvalue below zero ({_span(facts)}). {_LIMITS}"
    return [*found, f"**Tracking.** {text}"]


def _turned(facts: MixerFacts) -> str:
    return " or ".join(f"``{switch}`` ({low:.2f} with fresh weights)" for switch, low in facts.switches.items())


def solved(outcomes: Sequence[Outcome]) -> str:
    """The arms of committed studies that use a mixer."""
    if not outcomes:
        return "No committed study has rows of it yet."
    return "\n\n".join([outcome_table(outcomes, "arm", lambda outcome: outcome.row.arm), RESULTS_NOTE])


RESULTS_NOTE = (
    "Means over seeds of the task's headline metric, from the rows under ``examples/results``, at the learning rate "
    "that was best on ``validation``. A verdict on a claim needs a study that has come to its end: REPRODUCTION.md "
    "holds those, with intervals and seeds."
)


def outcome_table(outcomes: Sequence[Outcome], title: str, name: object) -> str:
    """A line for each arm: where it was trained, what it got on each split, and what chance would give."""
    lines = []
    for outcome in outcomes:
        row = outcome.row
        values = ", ".join(f"{_place(split)}: {share(value)}" for split, value in outcome.values.items())
        lines.append(
            (
                name(outcome),  # type: ignore[operator]
                f":ref:`{row.task} <task-{row.task}>`",
                f"{words(row.headline)}: {values}",
                "" if outcome.chance is None else share(outcome.chance),
                str(outcome.seeds),
                rate(row.learning_rate),
                count(row.parameters),
                f"{outcome.recipe} ({outcome.profile})",
            )
        )
    head = (title, "task", "values", "chance at the last", "seeds", "learning rate", "parameters", "study")
    return list_table(head, lines, "wide")


def _place(split: str) -> str:
    return split.removeprefix("test_") if split != "validation" else "as trained"


def fields_table(key: str) -> str:
    """The fields of a mixer's own config."""
    config = config_class(key)
    meanings: Mapping[str, str] = meanings_of(config, MemoryConfig)
    common = docstring_of(MemoryConfig)[1]
    fields = {field.name: field for field in dataclasses.fields(config)}
    rows = [
        (f"``{name}``", f"``{default_text(fields[name])}``", escape(text))
        for name, text in meanings.items()
        if name not in common
    ]
    return list_table(("field", "default", "meaning"), rows) if rows else "It has no fields of its own."


def mixers_page() -> str:
    """All mixers beside each other."""
    rows = []
    for key in model_keys():
        facts = facts_of(key)
        first = (inspect.getdoc(mixer_module(key) if key != HYBRID else _hybrid()) or "").partition("\n\n")[0]
        rows.append(
            (
                f":ref:`{key} <mixer-{key}>`",
                escape(" ".join(first.split())),
                count(facts.long) if facts.long == facts.short else f"{count(facts.short)}, {count(facts.long)}",
                _span(facts) if facts.spectrum else "none",
                "state" if facts.depends_on_state else "inputs",
            )
        )
    head = ("mixer", "what it is", "numbers held", "eigenvalues", "depends on")
    intro = (
        f"Numbers held per sequence, after {SHORT} and {LONG:,} tokens where they grow, and eigenvalues of a step "
        f"(real parts) are those of fresh weights at {_SIZE}. "
        "Every mixer obeys the same laws: a sequence may be cut and padded anywhere, and generated with its cache."
    )
    toctree = "\n".join([".. toctree::", "   :hidden:", "", *(f"   {key}" for key in model_keys())])
    figure = f".. image:: /_static/{FIGURE}\n   :alt: Numbers held and eigenvalues of each mixer"
    return "\n\n".join([heading("Mixers", "="), intro, figure, list_table(head, rows, "wide"), toctree]) + "\n"


def _hybrid() -> object:
    return importlib.import_module(config_class(HYBRID).__module__)
