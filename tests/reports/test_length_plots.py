"""Figures over test length show what rows hold."""

import pytest

from hf_memory.experiments.metrics import MetricValue
from hf_memory.reports.length_plots import figure_name, plot_length_curves, save_figures
from hf_memory.reports.plotting import png
from hf_memory.reports.styles import STYLES
from tests.reports.rows import make_row

LENGTHS = (32, 48, 64, 128, 256)


def test_lines_are_means_and_points_are_seeds():
    rows = [make_row("lstm", length, seed, 0.8 + 0.1 * seed) for length in LENGTHS for seed in (0, 1)]
    rows += [make_row("attention", length, 0, 0.5) for length in LENGTHS]
    axes = plot_length_curves(rows).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["lstm"].get_xdata()) == list(LENGTHS)
    assert lines["lstm"].get_ydata() == pytest.approx([0.85] * 5)
    assert lines["attention"].get_ydata() == pytest.approx([0.5] * 5)
    assert lines["lstm"].get_color() == STYLES["lstm"].colour
    (points,) = [found for found in axes.collections if hasattr(found, "get_sizes") and len(found.get_offsets()) == 10]
    assert sorted({round(float(y), 6) for _, y in points.get_offsets()}) == [0.8, 0.9]


def test_chance_is_dotted_and_follows_the_length():
    chance = {32: 0.6, 64: 0.55}
    rows = [
        make_row(length=length, metrics={"token_accuracy": MetricValue(1.0, 400, 400, level, {"zeros": 0.4})})
        for length, level in chance.items()
    ]
    axes = plot_length_curves(rows).axes[0]
    (line,) = [line for line in axes.get_lines() if line.get_label() == "chance"]
    assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == chance
    assert line.get_linestyle() == ":"
    assert "zeros" in [text.get_text().strip() for text in axes.texts]


@pytest.mark.parametrize(("train_length", "inside", "outside"), [((32, 32), (32,), (48,)), ((8, 64), (8, 64), (128,))])
def test_training_range_is_shaded(train_length, inside, outside):
    rows = [make_row(length=length, train_length=train_length) for length in LENGTHS]
    axes = plot_length_curves(rows).axes[0]
    low, high = axes.patches[0].get_x(), axes.patches[0].get_x() + axes.patches[0].get_width()
    assert all(low <= length <= high for length in inside)
    assert not any(low <= length <= high for length in outside)


def test_validation_rows_are_not_drawn():
    rows = [make_row(length=64, value=0.7), make_row(length=64, split="validation", value=1.0)]
    (line,) = [line for line in plot_length_curves(rows).axes[0].get_lines() if line.get_label() == "lstm"]
    assert list(line.get_ydata()) == [0.7]
    with pytest.raises(ValueError, match="no split test_"):
        plot_length_curves(rows[1:])


def test_rows_of_several_studies_are_refused():
    with pytest.raises(ValueError, match="one study at a time"):
        plot_length_curves([make_row(), make_row(task="mqar")])
    with pytest.raises(ValueError, match="data_version"):
        plot_length_curves([make_row(), make_row(data_version="2")])


def test_figures_are_png_files_and_equal_rows_give_equal_bytes(tmp_path):
    rows = [make_row(length=length) for length in LENGTHS] + [make_row(task="mqar", task_knobs={"num_kv_pairs": 4})]
    files = save_figures(rows, tmp_path)
    assert [file.name for file in files] == [
        "bit_parity_at_32_token_accuracy.png",
        "mqar_num_kv_pairs_4_at_32_token_accuracy.png",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG\r\n") for file in files)
    assert files[0].read_bytes() == png(plot_length_curves(rows[:5]))
    assert figure_name(rows[:5], "mse") == "bit_parity_at_32_mse"


def test_studies_without_test_lengths_have_no_figure(tmp_path):
    assert save_figures([make_row(split="validation")], tmp_path) == []
