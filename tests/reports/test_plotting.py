"""Figures show what rows hold, and their colours can be told apart."""

import itertools

import numpy as np
import pytest

from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import Row
from hf_memory.reports.plotting import PALETTE, STYLES, figure_name, plot_length_curves, png, save_figures, style_of

LENGTHS = (32, 48, 64, 128, 256)


def make_row(mixer="lstm", length=32, seed=0, value=0.75, **changes) -> Row:
    """A row of bit parity."""
    values = {
        "cell": f"{mixer}{seed}", "arm": mixer, "mixer": mixer, "config_digest": "c0", "task": "bit_parity",
        "task_knobs": {}, "data_version": "1.0.0+numpy2.3", "split": f"test_{length}", "length": length,
        "train_length": (32, 32), "seed": seed, "data_seed": 0, "learning_rate": 1e-3, "learning_rate_grid": (1e-3,),
        "schedule": "cosine", "optim_groups": "documented", "stop_rule": "200 steps", "steps": 200, "tokens": 409600,
        "parameters": 1000, "parameters_non_embedding": 900, "parameters_per_block": 450, "state_numbers": 128,
        "state_bytes": 512, "headline": "token_accuracy",
        "metrics": {"token_accuracy": MetricValue(value, value * 400, 400, 0.5, {"zeros": 0.45})},
        "train_seconds": 2.5, "eval_seconds": 0.5, "device": "cpu", "backend": "torch", "versions": {"torch": "2.13"},
        "weights_sha256": "ab" * 32,
    }  # fmt: skip
    return Row(**(values | changes))


def _linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    """CIE Lab of linear sRGB under D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_far_apart_for_colour_blind_readers(vision):
    seen = [_lab(VISIONS[vision] @ _linear(colour)) for colour in PALETTE]
    distances = [np.linalg.norm(first - second) for first, second in itertools.combinations(seen, 2)]
    assert min(distances) > 30
    contrast = [1.05 / (0.05 + np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour)) for colour in PALETTE]
    assert min(contrast) > 1.9


def test_every_mixer_has_a_style_of_its_own():
    mixers = "rnn lstm gru nru qlstm lru linear_transformer delta_net attention based h3 hyena rwkv mamba s4d ids4"
    assert set(STYLES) == {*mixers.split(), "base_conv", "hybrid"}
    assert len({(style.colour, str(style.dash)) for style in STYLES.values()}) == 18
    for colour in PALETTE:
        first, second = (style for style in STYLES.values() if style.colour == colour)
        assert (first.filled, second.filled) == (True, False)
        assert first.marker != second.marker


def test_arms_of_one_mixer_share_the_colour_and_differ_otherwise():
    styles = [style_of("attention", variant) for variant in range(4)]
    assert len({style.colour for style in styles}) == 1
    assert len({(style.marker, str(style.dash)) for style in styles}) == 4


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
