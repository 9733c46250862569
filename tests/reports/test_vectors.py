"""Figures as SVG say what their points are, and name their curves."""

from xml.etree import ElementTree

import pytest

from hf_memory.reports.plotting import canvas, draw_curve, finish
from hf_memory.reports.styles import style_of
from hf_memory.reports.vectors import curve_of, mark_curve, mark_name, mark_text, svg

SVG = "{http://www.w3.org/2000/svg}"
STRANGE = 'a <b> & "c"'


def drawn(label="gru"):
    figure, axes = canvas()
    draw_curve(axes, label, {32: [("seed 0", 1.0)], 64: [("seed 0", 0.25), ("seed 7", 0.75)]}, style_of("gru"))
    finish(axes, "steps", "loss", "")
    return ElementTree.fromstring(svg(figure))


@pytest.mark.parametrize("label", ["gru", STRANGE])
def test_every_point_says_its_curve_its_seed_and_its_value(label):
    curves = [element for element in drawn(label).iter() if element.get("data-curve") == label]
    # The line, the bars, a point that is alone at its place, and those of two seeds.
    assert [element.find(f"{SVG}title").text for element in curves] == [label, label, f"{label}, seed 0: 1.0000", label]
    points = [
        title.text for curve in curves for group in curve.iter() if (title := group.find(f"{SVG}title")) is not None
    ]
    assert sorted({text for text in points if text != label}) == [
        f"{label}, seed 0: 0.2500",
        f"{label}, seed 0: 1.0000",
        f"{label}, seed 7: 0.7500",
    ]


def test_the_name_of_a_curve_can_be_found_and_nothing_is_a_link():
    root = drawn(STRANGE)
    assert [element.get("data-name") for element in root.iter() if element.get("data-name")] == [STRANGE]
    assert not list(root.iter(f"{SVG}a"))
    assert not [element.get("id") for element in root.iter() if element.get("id", "").startswith(("curve", "name"))]


def test_artists_know_their_curve():
    figure, axes = canvas()
    (line,) = axes.plot([1, 2], [0, 1])
    assert curve_of(line) is None
    mark_name(line, "gru")
    assert curve_of(line) is None
    mark_curve(line, "gru", "gru, seed 3")
    assert curve_of(line) == "gru"
    texts = [title.text for title in ElementTree.fromstring(svg(figure)).iter(f"{SVG}title")]
    assert texts == ["gru, seed 3"]


def test_a_mark_says_its_text():
    figure, axes = canvas()
    (mark,) = axes.plot([1], [0], "o")
    mark_text(mark, "seed 0, left: 0.5000")
    assert [title.text for title in ElementTree.fromstring(svg(figure)).iter(f"{SVG}title")] == ["seed 0, left: 0.5000"]
