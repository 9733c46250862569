"""Equations of docstrings become LaTeX, and MathML when the site is built."""

import doctest
import inspect

import pytest
from latex2mathml.converter import convert

from docs.extensions import notation
from docs.extensions.docstrings import blocks, rest
from docs.extensions.notation import NotationError, cells, equation, inline, is_equation
from hf_memory.mixers import MIXERS, mixer_module

READ = [
    ("h_t = a h_{t-1} + (1 - a) W x_t", r"h_{t} = a h_{t-1} + (1 - a) W x_{t}"),
    ("c_t = f * c_{t-1}", r"c_{t} = f \odot c_{t-1}"),
    ("y = C_t . h_t / sqrt(K + 1)", r"y = C_{t} \cdot h_{t} / \sqrt{K + 1}"),
    ("S <- S_{t-1}^T v_t^T", r"S \leftarrow S_{t-1}^{\mathsf{T}} v_{t}^{\mathsf{T}}"),
    ("a = exp(A_log) |beta_t|^2", r"a = \operatorname{exp}(A_{\text{log}}) \vert \beta_{t}\vert ^{2}"),
    ("A = -exp(log_A_real)", r"A = -\operatorname{exp}(\operatorname{log\_A\_real})"),
    ("o = sum_{s<=t} softmax_s(q . k_s) v_s", r"o = \sum_{s\le t} \operatorname{softmax}_{s}(q \cdot k_{s}) v_{s}"),
    ("g = 1 - 2^(-5 - h)", r"g = 1 - 2^{-5 - h}"),
    ("x = y for j = 1 ... n", r"x = y \ \text{for}\  j = 1 \dots n"),
    ("b'_g = k'_t", r"{b\prime}_{g} = {k\prime}_{t}"),
]  # fmt: skip


def test_the_examples_of_the_notation_hold():
    assert doctest.testmod(notation) == (0, 3)


@pytest.mark.parametrize(("text", "latex"), READ)
def test_an_equation_is_read(text, latex):
    assert equation(text) == latex


def test_an_asterisk_is_a_convolution_where_the_docstring_says_so():
    assert r"h \ast u" in equation("y = h * u", convolution=True)
    said = "A.\n\n    y = h * u\n\nSymbols: * is a causal convolution."
    assert r"h \ast u" in rest(said)
    assert r"h \odot u" in rest(said.replace("convolution", "product"))


def test_a_line_is_cut_into_cells_where_it_has_room():
    assert cells("a = b,    c  = d      per head") == ["a = b,", "c = d", r"\text{per head}"]


@pytest.mark.parametrize("text", ['layers = ["base_conv", {"window": 64}]', "a = b }", "a = (b_", "no relation here"])
def test_what_is_no_equation_is_shown_as_it_is(text):
    assert not is_equation(f"    {text}")
    assert f"::\n\n    {text}" in rest(f"A sentence.\n\n    {text}\n")


def test_brackets_that_do_not_close_are_named():
    with pytest.raises(NotationError, match="is missing"):
        equation("a = sqrt(b")


def test_symbols_of_sentences_are_mathematics_and_words_are_not():
    greek = frozenset({"beta"})
    assert inline("S_t and beta, by the delta rule", greek) == r":math:`S_{t}` and :math:`\beta`, by the delta rule"
    assert inline("the field max_phase of ``h_t``") == "the field max_phase of ``h_t``"
    assert rest("Here |x| * y_ and ``a|b``, `code`.") == "Here \\|x\\| \\* y\\_ and ``a|b``, ``code``.\n"


@pytest.mark.parametrize("key", MIXERS)
def test_the_equations_of_every_mixer_are_rendered(key):
    text = inspect.getdoc(mixer_module(key))
    found = [block for block in blocks(text) if block.startswith("    ") and is_equation(block)]
    assert found, f"{key}: the docstring has no block of equations"
    for line in "\n".join(found).splitlines():
        for cell in cells(line):
            assert convert(cell).startswith("<math")
