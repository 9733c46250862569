"""How figures look: a colour, marker and dash for every mixer, and the lines of what is not a mixer.

The laws are fixed, so that figures can be compared. Names in capitals are arguments of matplotlib.
"""

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any

PALETTE = ("#191980", "#ebac2f", "#59121e", "#7acc88", "#5e8deb", "#805e19", "#6d2feb", "#7abecc", "#335980")
"""Nine colours, at least 30 units of CIE Lab apart from each other in normal, protan and deutan vision."""

TRAINED: dict[str, Any] = {"color": "#d9d9d9", "linewidth": 0}
"""The band of lengths seen in training, and inputs behind outputs."""
CHANCE: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.4, "label": "chance", "zorder": 2}
BASELINE: dict[str, Any] = {"color": "#9a9a9a", "linestyle": "-", "linewidth": 0.8, "zorder": 1}
BASELINE_NAME: dict[str, Any] = {"color": "#6b6b6b", "fontsize": 7, "ha": "right", "zorder": 5}
FRONTIER: dict[str, Any] = {"color": "#777777", "linewidth": 1, "label": "frontier", "zorder": 1}
GUIDE: dict[str, Any] = {"color": "#b0b0b0", "linewidth": 0.8, "linestyle": (0, (2, 3)), "zorder": 0}
PLATEAU: dict[str, Any] = {"color": "#b3261e", "linewidth": 0.9, "linestyle": (0, (4, 2)), "label": "plateau"}
LEFT: dict[str, Any] = {"color": PALETTE[0], "marker": "o", "markersize": 4.5, "zorder": 5}
RIGHT: dict[str, Any] = {"color": PALETTE[1], "marker": "D", "markersize": 6.5, "zorder": 4}
"""Both sides of a relation, a point for each seed; where they meet, both can be seen."""
NEVER = ">"
"""The mark of a run that never got to a level, at the right edge."""
THRESHOLD: dict[str, Any] = {
    "color": "#b3261e",
    "linestyle": "",
    "marker": "|",
    "markersize": 9,
    "markeredgewidth": 1.6,
    "zorder": 3,
}
PAIR: dict[str, Any] = {"color": "#8a8a8a", "linewidth": 0.7, "zorder": 2}
HOLDS: dict[str, Any] = {"color": "#e4efe6", "linewidth": 0, "zorder": 0}
"""The side of a threshold on which a relation holds."""
INK = "#333333"
"""Names of curves."""
GRID: dict[str, Any] = {"color": "#e6e6e6", "linewidth": 0.7, "zorder": 0}
TITLE: dict[str, Any] = {"fontsize": 10, "loc": "left", "wrap": True}
NAME: dict[str, Any] = {"fontsize": 8, "loc": "left"}
"""The name of a curve above its panel."""
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5}

_MARKERS = "osD^vP*Xp"
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))

# One mixer for each colour; a further line takes the next dash, and every second one has open markers. Mixers join at
# the end, so that none changes its looks; relatives share a colour.
_LINES = (
    ("lstm", "attention", "delta_net", "lru", "mamba", "rnn", "linear_transformer", "gru", "hyena"),
    ("nru", "based", "qlstm", "s4d", "h3", "base_conv", "hybrid", "rwkv", "ids4"),
    ("mlstm", "forgetting_attention", "gated_delta_net", "rg_lru", "mamba2", "hgrn2", "kda", "rwkv7", "gla"),
    ("slstm", "gated_delta_product", "min_gru", "retnet", "mamba3", "rwkv6"),
)


@dataclasses.dataclass(frozen=True)
class Style:
    """How the curve of a mixer looks, wherever it is drawn.

    Attributes:
        colour: Colour of line and points.
        marker: Shape of the points.
        filled: Whether the points are filled. Mixers that share a colour differ in this and in the dash.
        dash: Dash pattern of the line.
    """

    colour: str
    marker: str
    filled: bool
    dash: Any

    @property
    def face(self) -> str:
        """Colour inside the points."""
        return self.colour if self.filled else "white"

    @property
    def size(self) -> float:
        """Width of the points, of the usual one: a star is mostly air."""
        return 1.6 if self.marker == "*" else 1.0


STYLES: dict[str, Style] = {
    key: Style(PALETTE[place], _MARKERS[(place + 4 * line) % 9], line % 2 == 0, _DASHES[line])
    for line, keys in enumerate(_LINES)
    for place, key in enumerate(keys)
}
"""Style by mixer."""


def style_of(mixer: str, variant: int = 0) -> Style:
    """Style of a mixer; later arms of one mixer keep its colour and change the dash and the marker."""
    base = STYLES.get(mixer) or _style_of_stranger(mixer)
    if variant == 0:
        return base
    marker = _MARKERS[(_MARKERS.index(base.marker) + 2 * variant) % len(_MARKERS)]
    dash = _DASHES[(_DASHES.index(base.dash) + variant) % len(_DASHES)]
    return dataclasses.replace(base, marker=marker, dash=dash, filled=base.filled != (variant % 2 == 1))


def _style_of_stranger(mixer: str) -> Style:
    """Style of a mixer of another package, by its name alone, so that it is the same in all figures."""
    place = zlib.crc32(mixer.encode()) % len(PALETTE)
    return Style(PALETTE[place], _MARKERS[(place + 1) % 9], False, _DASHES[3])


def arm_styles(arms: Iterable[tuple[str, str]]) -> dict[str, Style]:
    """Style by arm, from the name and the mixer of each arm in order; an arm may be named several times."""
    styles: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for arm, mixer in arms:
        if arm not in styles:
            styles[arm] = style_of(mixer, seen.get(mixer, 0))
            seen[mixer] = seen.get(mixer, 0) + 1
    return styles
