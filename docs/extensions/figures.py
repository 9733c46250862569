"""The figure of all mixers: what each holds, and how its state moves."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.extensions.measured import LAYERS, LONG, SHORT, WIDTH, MixerFacts
from docs.extensions.mixer_pages import facts_of
from hf_memory.mixers import MIXERS
from hf_memory.mixers.auto import HYBRID

_LINE = 0.24
"""Height of a mixer's line, in inches."""
_INK, _GREY, _FREE, _TIED = "#333333", "#bbbbbb", "#d95f02", "#1b6ca8"


def write_figure(path: Path) -> None:
    """Write the figure, where it differs from the file that is there."""
    text = figure({key: facts_of(key) for key in MIXERS if key != HYBRID})
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def figure(facts: dict[str, MixerFacts]) -> str:
    """Numbers held, and eigenvalues of a step, of each mixer in one line, as SVG."""
    keys = sorted(facts, key=lambda key: (facts[key].long > facts[key].short, facts[key].long), reverse=True)
    settings = {"svg.hashsalt": "mixers", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    with mpl.rc_context(settings):
        drawn = Figure(figsize=(9.6, 1.1 + _LINE * len(keys)), layout="constrained")
        left, right = drawn.subplots(1, 2, sharey=True, width_ratios=[1, 1.15])
        _numbers(left, [facts[key] for key in keys])
        _eigenvalues(right, [facts[key] for key in keys])
        left.set_yticks(range(len(keys)), keys)
        for axes in (left, right):
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(length=0)
            axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.set_ylim(len(keys) - 0.4, -0.6)
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    return "\n".join(line.rstrip() for line in buffer.getvalue().decode().splitlines()) + "\n"


def _numbers(axes: Axes, facts: Sequence[MixerFacts]) -> None:
    for line, own in enumerate(facts):
        axes.plot([own.short, own.long], [line, line], color=_GREY, linewidth=2, zorder=1)
        axes.plot(own.short, line, "o", color="white", markeredgecolor=_INK, markersize=5)
        axes.plot(own.long, line, "o", color=_INK, markersize=5)
    axes.set_xscale("log")
    axes.set_title(f"numbers held after {SHORT} (○) and {LONG:,} (●) tokens", fontsize=9, loc="left")
    axes.set_xlabel(f"width {WIDTH}, {LAYERS} layers")


def _eigenvalues(axes: Axes, facts: Sequence[MixerFacts]) -> None:
    axes.axvline(0, color=_INK, linewidth=0.8)
    for line, own in enumerate(facts):
        if own.spectrum is None:
            axes.text(0.02, line, "keeps its inputs", va="center", color="#777777", fontsize=8)
            continue
        # In thousandths, so that the rounding of another machine does not make another file.
        low, high = (round(value, 3) for value in own.spectrum)
        if own.switches:
            switched = round(min(own.switches.values()), 3)
            axes.plot([switched, low], [line, line], color=_TIED, linewidth=2, linestyle=":")
        color = _FREE if own.depends_on_state else _TIED
        axes.plot([low, max(high, low + 0.01)], [line, line], color=color, linewidth=5, solid_capstyle="butt")
    axes.set_title("eigenvalues of a step, real parts, fresh weights", fontsize=9, loc="left")
    axes.set_xlabel("orange: a step depends on the state; dotted: with a switch")
