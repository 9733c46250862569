"""What others wrote on a card stays, and what was written here is replaced."""

import logging

import pytest
from huggingface_hub import DatasetCard

from hf_memory.hub.merging import BEGIN, END, join_tags, merge_card, merge_index, merge_text, open_card

OURS = {"type": "accuracy", "value": 1.0, "args": {"weights_sha256": "ab"}}
THEIRS = {"type": "f1", "value": 0.5}


def entry(*metrics: dict, name: str = "model") -> dict:
    return {"name": name, "results": [{"dataset": {"type": "d"}, "metrics": list(metrics)}]}


def test_text_outside_of_the_marks_stays() -> None:
    assert merge_text("", "new") == f"{BEGIN}\nnew\n{END}\n"
    assert merge_text("Theirs.\n", "new") == f"Theirs.\n{BEGIN}\nnew\n{END}\n"
    assert merge_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n", "new") == f"Before.\n{BEGIN}\nnew\n{END}\nAfter.\n"


def test_cards_of_datasets_are_merged_too() -> None:
    previous = "---\nlicense: mit\ntags:\n- theirs\nconfigs: old\n---\nTheirs.\n"
    own = DatasetCard("---\ntags:\n- ours\nconfigs: new\n---\nOurs.\n")
    card = open_card(merge_card(previous, own))
    assert card.data.to_dict() == {"license": "mit", "tags": ["theirs", "ours"], "configs": "new"}
    assert card.text == f"Theirs.\n{BEGIN}\nOurs.\n{END}\n"
    assert merge_card(card.content, own) == card.content


@pytest.mark.parametrize("metadata", ["a: [", "- a", "1: a", "words"])
def test_metadata_that_cannot_be_read_are_refused(metadata: str) -> None:
    with pytest.raises(ValueError, match="card: its metadata are not YAML with names and values"):
        open_card(f"---\n{metadata}\n---\n")


@pytest.mark.parametrize("text", ["", "Mine.\n", "# Rule\n\n---\n\nMore.\n"])
def test_a_card_without_metadata_is_text_alone_and_nobody_is_warned(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        card = open_card(text)
    assert (card.data.to_dict(), card.text) == ({}, text)
    assert caplog.records == []


def test_fields_that_the_readers_have_no_place_for_survive() -> None:
    text = "---\nmodel-index:\n- name: odd\n  extra: 1\nown: {deep: [1, é]}\n---\nText.\n"
    assert open_card(open_card(text).content).data.to_dict() == {
        "model-index": [{"name": "odd", "extra": 1}],
        "own": {"deep": [1, "é"]},
    }


def test_own_results_are_replaced_and_those_of_others_stay() -> None:
    new = entry({**OURS, "value": 2.0}, name="new")
    both = {"name": "theirs", "results": entry(THEIRS)["results"] + new["results"]}
    assert merge_index(None, [new]) == [new]
    assert merge_index([entry(OURS)], [new]) == [new]
    assert merge_index([entry(OURS, THEIRS, name="theirs")], [new]) == [both]
    assert merge_index([entry(OURS), entry(THEIRS, name="theirs")], []) == [entry(THEIRS, name="theirs")]
    ours = entry(THEIRS)
    ours["results"][0]["dataset"] = {"type": "d", "args": {"data_version": "1.0.0"}}
    assert merge_index([ours], [new]) == [new]


def test_tags_are_one_value_or_several_or_none() -> None:
    assert join_tags("a", ["b", "a"]) == ["a", "b"]
    assert join_tags(None, None) == []
