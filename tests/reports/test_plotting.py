"""What figures share: curves over seeds, labels, and files without dates."""

import itertools
import math

import pytest

from hf_memory.reports.plotting import (
    MOST,
    Frames,
    canvas,
    draw_curve,
    finish,
    limit_share,
    name_level,
    name_panel,
    of_seed,
    png,
    scale_bytes,
    spread_out,
)
from hf_memory.reports.styles import style_of
from hf_memory.reports.vectors import svg


def seeds(*values):
    """Values by the names of their seeds."""
    return [(of_seed(seed), value) for seed, value in enumerate(values)]


def drawn():
    """A figure with a curve of two seeds at the second of two places, given out of order."""
    figure, axes = canvas()
    draw_curve(axes, "gru", {64: seeds(0.6, 0.8), 32: seeds(1.0)}, style_of("gru"))
    finish(axes, "bytes", "token_accuracy", "Parity")
    return figure


def test_a_curve_is_the_mean_with_the_range_and_the_points_of_several_seeds():
    axes = drawn().axes[0]
    (line,) = axes.get_lines()
    assert (list(line.get_xdata()), line.get_label(), line.get_color()) == ([32, 64], "gru", style_of("gru").colour)
    assert line.get_ydata() == pytest.approx([1.0, 0.7])
    bars, hidden, points = axes.collections
    assert bars.get_segments()[0].tolist() == [[64, 0.6], [64, 0.8]]
    assert points.get_offsets().tolist() == [[64, 0.6], [64, 0.8]]
    assert (hidden.get_offsets().tolist(), hidden.get_alpha()) == ([[32, 1.0]], 0)  # it is the point of the line


def test_no_line_goes_through_the_mean_of_seeds_of_two_kinds():
    _, axes = canvas()
    draw_curve(
        axes, "gru", {1: seeds(0.3, 0.31, 0.98), 2: seeds(0.9, 0.95, 1.0), 4: seeds(0.3, 0.5, 0.7)}, style_of("gru")
    )
    (line,) = axes.get_lines()
    found = [float(y) for y in line.get_ydata()]
    assert math.isnan(found[0])
    assert found[1:] == pytest.approx([0.95, 0.5])
    assert len(axes.collections[1].get_offsets()) == 9  # every seed is a point


def test_many_curves_have_a_panel_each_with_one_scale():
    few, many = Frames(map(str, range(MOST))), Frames(map(str, range(MOST + 1)))
    assert {few.of(str(n)) for n in range(MOST)} == {few.axes[0]}
    assert len(many.axes) == MOST + 1 == len({many.of(str(n)) for n in range(MOST + 1)})
    for number in range(MOST + 1):
        draw_curve(many.of(str(number)), str(number), {1: seeds(0.2 + number / 10)}, style_of("gru"))
    limit_share(many.axes, [0.2, 0.8], 0.5)
    figure = many.finish("steps", "token_accuracy", "Parity")
    assert {tuple(round(end, 6) for end in axes.get_ylim()) for axes in many.axes} == {(0.163, 1.037)}
    assert [axes.get_title(loc="left") for axes in many.axes] == [str(n) for n in range(MOST + 1)]
    assert figure.get_supxlabel() == "steps"
    assert [axes.get_legend() for axes in many.axes] == [None] * (MOST + 1)
    assert sum(not axes.get_visible() for axes in figure.axes) == 1


def test_shares_reach_from_chance_to_one_and_other_values_stay():
    _, axes = canvas()
    before = axes.get_ylim()
    limit_share([axes], [3.0, 0.5], 0.5)
    assert axes.get_ylim() == before
    limit_share([axes], [0.9], 0.5)
    assert axes.get_ylim() == (pytest.approx(0.475), pytest.approx(1.025))


def test_labels_are_words_and_lines_are_named_at_their_ends():
    axes = drawn().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("bytes", "token accuracy", "Parity")
    assert axes.get_legend() is None
    (name,) = axes.texts
    assert (name.get_text(), name.xy) == ("gru", (64, pytest.approx(0.7)))


def test_names_at_the_ends_keep_their_order_and_do_not_touch():
    _, axes = canvas()
    for number in range(5):
        draw_curve(axes, str(number), {1: seeds(0.2), 2: seeds(0.9 + number / 1000)}, style_of("gru"))
    axes.axhline(0.5, label="chance")
    finish(axes, "steps", "loss", "")
    heights = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert sorted(heights, key=heights.get) == ["chance", *map(str, range(5))]
    ordered = sorted(heights.values())
    assert min(high - low for low, high in itertools.pairwise(ordered)) >= 0.045 - 1e-6


def test_curves_of_one_point_have_a_legend():
    _, axes = canvas()
    draw_curve(axes, "gru", {1: seeds(0.2, 0.3)}, style_of("gru"))
    finish(axes, "steps", "loss", "")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["gru"]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("linear_transformer_published", "linear_transformer_\npublished"),
        ("attention, data.rate_ratio 16", "attention, data.rate_ratio\n16"),
        ("delta_net_reflections", "delta_net_reflections"),
    ],
)
def test_the_name_of_a_panel_breaks_between_words_and_at_an_underscore_of_a_longer_one(name, lines):
    _, axes = canvas()
    name_panel(axes, name)
    assert axes.get_title(loc="left") == lines


@pytest.mark.parametrize("heights", [(0.5,) * 4, (0.1, 0.12, 0.5, 0.51), (0.0, 0.3, 0.6, 0.9), (0.9, 0.1, 0.9, 0.1)])
def test_names_stay_as_near_to_their_heights_as_the_gap_allows(heights):
    named = dict(zip("abcd", heights, strict=True))
    found = spread_out(named, 0.1)
    order = sorted(named, key=named.get)
    assert sorted(found, key=found.get) == order
    assert all(found[high] - found[low] >= 0.1 - 1e-6 for low, high in itertools.pairwise(order))
    assert sum(found.values()) == pytest.approx(sum(heights), abs=1e-5)


def test_files_hold_no_date():
    image, vectors = png(drawn()), svg(drawn())
    assert image.startswith(b"\x89PNG\r\n")
    assert image == png(drawn())
    assert vectors == svg(drawn())
    assert b"<svg" in vectors
    assert b"<dc:date>" not in vectors


@pytest.mark.parametrize("sizes", [(300, 5000), (5000, 0, 300)], ids=["sizes", "and a model without a state"])
def test_an_axis_of_bytes_has_ticks_at_powers_of_two_on_both_sides_of_all_sizes(sizes):
    figure, axes = canvas()
    scale_bytes(axes, sizes)
    figure.canvas.draw()
    low, high = axes.get_xlim()
    texts = {tick: text.get_text() for tick, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)}
    shown = [texts[tick] for tick in sorted(texts) if low <= tick <= high]
    assert (shown[0], shown[-1]) == ("256 B", "8 KB")


def test_an_axis_of_bytes_stands_also_where_nothing_has_a_size():
    _, axes = canvas()
    scale_bytes(axes, [0])
    assert axes.get_xscale() == "log"


def test_levels_near_each_other_share_one_name_and_none_is_written_over_another():
    figure, axes = canvas()
    draw_curve(axes, "gru", {0: seeds(0.2), 1: seeds(0.2)}, style_of("gru"))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for name, level in {"low": 0.5, "high": 0.52, "alone": 0.9, "lowest": 0.1, "next": 0.11}.items():
        name_level(axes, name, (1, level), below=level < 0.2)
    finish(axes, "x", "y", "Levels")
    figure.canvas.draw()
    texts = [text for text in axes.texts if text.get_text() != "gru"]
    assert [(text.get_text(), text.xy[1], text.get_va()) for text in texts] == [
        ("high, low", 0.52, "bottom"),
        ("alone", 0.9, "bottom"),
        ("next, lowest", 0.1, "top"),
    ]
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_names_of_levels_that_have_just_room_do_not_touch():
    figure, axes = canvas()
    draw_curve(axes, "gru", {0: seeds(0.2), 1: seeds(0.2)}, style_of("gru"))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for level in (0.5, 0.537, 0.574):
        name_level(axes, f"level {level}", (1, level))
    finish(axes, "x", "y", "Levels")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("level")]
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
