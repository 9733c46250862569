"""Rows as text: the preview and the tokenizers."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from hf_memory.data.preview import label_text, show, symbols
from hf_memory.data.rows import RowSource
from hf_memory.data.specification import specify
from hf_memory.data.tokenizers import task_tokenizer
from hf_memory.tasks import TASKS, make_task, task_class
from hf_memory.tasks.bit_parity import BitParity


def test_a_row_stands_above_its_labels_and_scores() -> None:
    text = show("bit_parity", length=12, test_lengths=[12], num_rows=1)
    header, ids, labels, score = text.splitlines()
    assert header == "hf_memory/bit_parity iid_32 train, row 0"
    bits = [int(bit) for bit in ids.split()[1:]]
    assert [int(label) for label in labels.split()[1:]] == [sum(bits[: place + 1]) % 2 for place in range(12)]
    assert score.split()[1:] == ["^"] * 12


def test_preview_shows_the_rows_that_are_stored() -> None:
    source = RowSource(specify("bit_parity", "iid_3_40"))
    block = source.block("test_64", 1)
    rows = show("bit_parity", "iid_3_40", "test_64", num_rows=66, width=300).split("\n\n")
    assert len(rows) == 66
    assert [int(bit) for bit in rows[65].splitlines()[1].split()[1:]] == block.input_ids[64:128].tolist()


def test_labels_without_a_target_are_dots_and_long_rows_are_wrapped() -> None:
    lines = show("mqar", num_rows=1, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    labels = [word for line in lines if line.startswith("label") for word in line.split()[1:]]
    carets = sum(line.count("^") for line in lines if line.startswith("score"))
    assert len(labels) == 64
    assert len(labels) - labels.count(".") == carets == 4


def test_rows_of_a_mixture_are_scored_by_their_own_law() -> None:
    rows = show("mqar", "based_mixture", num_rows=40, width=3000).split("\n\n")
    pairs = {rows[i].count("^") for i in range(40)}
    assert pairs == {4, 8, 16, 32, 64}


def test_bad_requests_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'test_64'"):
        show("mqar", split="test_46")
    with pytest.raises(ValueError, match="num_rows must be at least 1"):
        show("mqar", num_rows=0)


def test_labels_are_symbols_where_classes_are_ids() -> None:
    assert label_text(make_task("group_word_problem", group="Z5"), 3) == "3"
    assert (
        label_text(make_task("group_word_problem", group="S3"), 1)
        == symbols(make_task("group_word_problem", group="S3"))[1]
    )
    assert label_text(make_task("dyck"), 1) == "1"
    assert [label_text(make_task("copying"), label) for label in (0, 1, 8, -100)] == ["_", "a", "h", "."]
    assert label_text(make_task("interval_counting"), 0.25) == "0.25"
    assert label_text(make_task("mqar"), -100) == "."


@pytest.mark.parametrize("task", TASKS)
def test_tokenizers_read_what_they_write(task: str, tmp_path: Path) -> None:
    law = make_task(task, **task_class(task).presets[specify(task).preset].knobs)
    tokenizer = task_tokenizer(law)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = RowSource(specify(task)).block("train", 0).input_ids[:40].tolist()
    assert loaded.vocab_size == law.vocab_size
    assert loaded(loaded.decode(ids))["input_ids"] == ids
    assert loaded.decode(ids) == "".join(f" {symbols(law)[number]}" for number in ids)
    assert loaded.decode(ids[:7]) + loaded.decode(ids[7:]) == loaded.decode(ids)


def test_an_unknown_word_raises_and_no_id_is_padding() -> None:
    tokenizer = task_tokenizer(make_task("dyck"))
    assert tokenizer.pad_token_id is None
    assert tokenizer("( [ ] )")["input_ids"] == [0, 1, 4, 3]
    for read in (tokenizer, tokenizer.tokenize, tokenizer.encode, lambda text: tokenizer(["( )", text])):
        with pytest.raises(
            ValueError, match=r"text: 'x' is no symbol of this task; its symbols are \( \[ \{ \) \] \}$"
        ):
            read("( x")


def test_what_is_loaded_names_an_unknown_word_too(tmp_path: Path) -> None:
    task_tokenizer(make_task("bit_parity")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="text: '2' is no symbol of this task; its symbols are 0 1$"):
        AutoTokenizer.from_pretrained(tmp_path)("0 1 2")


def test_words_of_ones_own_have_the_ids_after_those_of_the_task(tmp_path: Path) -> None:
    law = make_task("dyck")
    tokenizer = task_tokenizer(law, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    tokenizer.save_pretrained(tmp_path)
    for form in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert (form.eos_token_id, form.pad_token_id, form.unk_token_id) == (6, 7, 8)
        assert len(form) == law.vocab_size + 3 == 9
        assert form("( x ) <eos>")["input_ids"] == [0, 8, 3, 6]
        batch = form(["( ) [", "("], padding=True)
        assert batch["input_ids"] == [[0, 3, 1], [0, 7, 7]]
        assert batch["attention_mask"] == [[1, 1, 1], [1, 0, 0]]
        assert form.decode([0, 3, 6, 7], skip_special_tokens=True) == " ( )"
    assert task_tokenizer(law, pad_token="_").pad_token_id == 6
    for words, name in (
        ({"eos_token": "("}, "eos_token"),
        ({"pad_token": "a b"}, "pad_token"),
        ({"unk_token": ""}, "unk_token"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be a word without blanks that is no symbol of dyck"):
            task_tokenizer(law, **words)
    with pytest.raises(ValueError, match="eos_token must be a word"):
        task_tokenizer(law, eos_token="<x>", pad_token="<x>")


def test_symbols_that_are_no_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BitParity, "symbols", ("a", "b c"), raising=False)
    with pytest.raises(ValueError, match="symbols of bit_parity must be 2 distinct words"):
        task_tokenizer(BitParity())
    assert np.array_equal(symbols(make_task("mqar"))[:3], ["0", "1", "2"])
