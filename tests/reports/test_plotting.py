"""What figures share: curves over seeds, labels, and files without dates."""

import pytest

from hf_memory.reports.plotting import canvas, draw_curve, finish, png, svg
from hf_memory.reports.styles import style_of


def drawn():
    """A figure with a curve of two seeds at the second of two places, given out of order."""
    figure, axes = canvas()
    draw_curve(axes, "gru", {64: (0.5, 0.9), 32: (1.0,)}, style_of("gru"))
    finish(axes, "bytes", "token_accuracy", "Parity")
    return figure


def test_a_curve_is_the_mean_with_the_range_and_the_points_of_several_seeds():
    axes = drawn().axes[0]
    (line,) = axes.get_lines()
    assert (list(line.get_xdata()), line.get_label(), line.get_color()) == ([32, 64], "gru", style_of("gru").colour)
    assert line.get_ydata() == pytest.approx([1.0, 0.7])
    bars, points = axes.collections
    assert bars.get_segments()[0].tolist() == [[64, 0.5], [64, 0.9]]
    assert points.get_offsets().tolist() == [[64, 0.5], [64, 0.9]]


def test_labels_are_words_and_stand_with_a_legend():
    axes = drawn().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("bytes", "token accuracy", "Parity")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["gru"]


def test_files_hold_no_date():
    image, vectors = png(drawn()), svg(drawn())
    assert image.startswith(b"\x89PNG\r\n")
    assert image == png(drawn())
    assert b"<svg" in vectors
    assert b"<dc:date>" not in vectors
