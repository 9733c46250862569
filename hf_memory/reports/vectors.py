"""Figures as SVG: each point says what it is when it is pointed at, and curves and their names can be found.

matplotlib writes the id of an artist and the links of points into its SVG. What drawings put there becomes a title,
which every browser shows, and ``data-curve`` and ``data-name``, by which the script of a page shows one curve alone. A
second library that draws would need a second form of every figure, and its bundle beside each page.
"""

import io
import json
import re
from collections.abc import Sequence
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.collections import Collection
from matplotlib.figure import Figure

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_CURVE, _NAME, _SAYS = "curve ", "name ", "says "
"""What ids of artists begin with: parts of a curve, its name, and what says one thing."""


def mark_curve(artist: Artist, label: str, text: str | None = None) -> None:
    """Make an artist a part of a curve; it says a text, by default the label, when it is pointed at."""
    artist.set_gid(_CURVE + json.dumps([label, label if text is None else text]))


def mark_name(artist: Artist, label: str) -> None:
    """Make an artist the name of a curve, which a click shows alone."""
    artist.set_gid(f"{_NAME}{label}")


def mark_text(artist: Artist, text: str) -> None:
    """Let an artist say a text when it is pointed at."""
    artist.set_gid(f"{_SAYS}{text}")


def mark_points(points: Collection, label: str, texts: Sequence[str]) -> None:
    """Make points a part of a curve; each says a text when it is pointed at."""
    if len(texts) == 1:  # a single point is drawn as a marker, which has no link of its own
        mark_curve(points, label, texts[0])
        return
    mark_curve(points, label)
    points.set_urls([f"#{text}" for text in texts])


def curve_of(artist: Artist) -> str | None:
    """The label of the curve of which an artist is a part."""
    gid = artist.get_gid() or ""
    return json.loads(gid.removeprefix(_CURVE))[0] if gid.startswith(_CURVE) else None


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date or random names in it, so that equal rows give equal bytes."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "hf_memory"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        _name(element)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def inline(vectors: bytes) -> str:
    """An SVG as HTML takes it: without the declaration and the names of its vocabularies, which HTML knows."""
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", vectors.decode().partition("?>")[2], count=2).strip()


def _name(element: ElementTree.Element) -> None:
    """Turn the ids and links of drawings into titles and data."""
    gid, link = element.get("id", ""), element.get(f"{{{_LINK}}}href", "")
    if element.tag == f"{{{_SVG}}}a" and link.startswith("#"):
        element.tag = f"{{{_SVG}}}g"
        del element.attrib[f"{{{_LINK}}}href"]
        _add_title(element, link.removeprefix("#"))
    if gid.startswith((_CURVE, _NAME, _SAYS)):
        del element.attrib["id"]
    if gid.startswith(_CURVE):
        label, text = json.loads(gid.removeprefix(_CURVE))
        element.set("data-curve", label)
        _add_title(element, text)
    elif gid.startswith(_NAME):
        element.set("data-name", gid.removeprefix(_NAME))
    elif gid.startswith(_SAYS):
        _add_title(element, gid.removeprefix(_SAYS))


def _add_title(element: ElementTree.Element, text: str) -> None:
    title = ElementTree.Element(f"{{{_SVG}}}title")
    title.text = text
    element.insert(0, title)
