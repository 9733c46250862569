"""Names from outside: suggestions, files that stay in their folder, and cells that are no formulas."""

import random
import re

import pytest

from hf_memory.names import LONGEST_NAME, check_names, file_name, table_text

HOSTILE = [
    "x/../../../p", "..", ".", "", "/etc/passwd", "a\\b", "c:d", ".hidden", "a" * 400, "é", "a\nb", "nul\0", "a b",
    "ends.", "-rf", "$HOME", "~", "a/b", "a_b",
]  # fmt: skip


@pytest.mark.parametrize("name", ["r1_bit_parity", "lstm", "0.5", "a-b.c", "x" * LONGEST_NAME, "0123456789abcdef"])
def test_a_word_keeps_its_name(name):
    assert file_name(name) == name


def test_every_name_is_one_word_in_its_folder_and_no_two_are_one(tmp_path):
    rng = random.Random(0)
    letters = "ab.-_/\\ \0\n:~$é=A0"
    drawn = {"".join(rng.choice(letters) for _ in range(rng.randrange(8))) for _ in range(2000)}
    names = drawn | set(HOSTILE) | {"a" * 399, file_name("a/b"), "a_b-1693b0cfc4da"}
    made = {name: file_name(name) for name in names}
    assert len(set(made.values())) == len(names)
    for name in made.values():
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name)
        assert len(name) <= LONGEST_NAME
        assert not name.endswith(".")
    for name in HOSTILE:
        path = tmp_path / f"{file_name(name)}.csv"
        path.write_text(name)
        assert path.resolve().parent == tmp_path.resolve()


def test_parts_do_not_run_into_each_other():
    assert file_name("r1", "cpu") == "r1-cpu"
    groups = [("a-b", "c"), ("a", "b-c"), ("a", "b", "c"), ("a", "", "b"), ("a", "b"), ("a-b",)]
    assert len({file_name(*parts) for parts in groups}) == len(groups) - 1
    assert file_name("a", "b") == file_name("a-b")  # a caller gives either one part or several


def test_formulas_become_text():
    assert [table_text(text) for text in ("=A1", "+1", "-1", "@x", "\t=1", "lstm", "", "a=b")] == [
        "'=A1", "'+1", "'-1", "'@x", "'\t=1", "lstm", "", "a=b",
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "meant"), [("LSTM", "lstm"), ("lstn", "lstm"), ("Delta-Net", "delta_net")])
def test_the_nearest_name_is_suggested_in_any_case(given, meant):
    with pytest.raises(ValueError, match=f"unknown mixer: '{given}'; did you mean '{meant}'"):
        check_names([given], ["lstm", "gru", "delta_net"], "mixer")
