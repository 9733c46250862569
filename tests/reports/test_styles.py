"""Colours can be told apart, and every mixer has a style of its own."""

import itertools

import numpy as np
import pytest

from hf_memory.mixers.auto import model_keys
from hf_memory.reports.styles import PALETTE, STYLES, arm_styles, style_of


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
    assert set(STYLES) == set(model_keys())
    assert len({(style.colour, str(style.dash)) for style in STYLES.values()}) == len(STYLES)
    assert {style.colour for style in STYLES.values()} == set(PALETTE)


@pytest.mark.parametrize("colour", PALETTE)
def test_mixers_of_one_colour_differ_in_dash_and_marker_and_so_do_their_variants(colour):
    own = {key: style for key, style in STYLES.items() if style.colour == colour}
    assert len({style.marker for style in own.values()}) == len(own)
    looks = [style_of(key, variant) for key in own for variant in range(3)]
    assert len({(style.marker, str(style.dash)) for style in looks}) == len(looks)
    stranger = next(name for name in map("mixer_{}".format, itertools.count()) if style_of(name).colour == colour)
    assert style_of(stranger).marker not in {style.marker for style in own.values()}


def test_arms_of_one_mixer_share_the_colour_and_differ_otherwise():
    styles = [style_of("attention", variant) for variant in range(4)]
    assert len({style.colour for style in styles}) == 1
    assert len({(style.marker, str(style.dash)) for style in styles}) == 4


def test_arms_take_variants_in_order_and_keep_the_first_style_they_got():
    arms = [("wide", "gru"), ("narrow", "gru"), ("wide", "gru"), ("other", "lstm"), ("new", "stranger")]
    assert arm_styles(arms) == {
        "wide": style_of("gru"),
        "narrow": style_of("gru", 1),
        "other": style_of("lstm"),
        "new": style_of("stranger"),
    }


def test_open_points_are_white_inside():
    assert (STYLES["lstm"].face, STYLES["nru"].face) == (STYLES["lstm"].colour, "white")
    assert STYLES["lstm"].colour == STYLES["nru"].colour == PALETTE[0]


def test_a_star_is_drawn_larger_than_other_marks():
    assert {style.size for style in STYLES.values() if style.marker == "*"} == {1.6}
    assert {style.size for style in STYLES.values() if style.marker != "*"} == {1.0}
