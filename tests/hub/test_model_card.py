"""Cards of models say what was measured, and invent nothing."""

import math

from huggingface_hub import ModelCard

from hf_memory.hub.merging import open_card
from hf_memory.hub.model_card import model_card
from hf_memory.testing.models import make
from tests.hub.rows import row


def test_a_card_without_rows_has_no_results_and_invents_nothing() -> None:
    text = model_card(make("lru", "token_classification"), "me/lru")
    card = ModelCard(text)
    assert card.data.eval_results is None
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "token-classification",
        "tags": ["hf_memory", "lru"],
    }
    headings = [line for line in card.text.splitlines() if line.startswith("## ")]
    assert headings == ["## Model", "## Equations and source", "## Use", "## Limits"]
    assert "None" not in text and "null" not in text
    assert "Orvieto et al. (2023)" in text


def test_a_card_shows_values_levels_training_and_limits() -> None:
    rows = [row("test_32", 0.96), row("test_64", 0.625), row("validation", 0.97)]
    text = model_card(make("lru", "token_classification"), "me/lru", rows, commands=["hf-memory train --mixer lru"])
    assert "| lru | 0.960 | 0.625 |" in text
    assert "| chance | 0.500 | 0.500 |" in text
    assert "| all zero | 0.450 | 0.450 |" in text
    assert "```bash\nhf-memory train --mixer lru\n```" in text
    assert "| learning rates tried | 0.0001, 0.001 |" in text
    assert "its token accuracy is above 0.9 up to test length 32; the longest test length is 64" in text
    assert "![token_accuracy by test length](figures/hf_memory/bit_parity_at_32_token_accuracy.png)" in text
    data = ModelCard(text).data
    found = [(result.dataset_split, result.metric_type, result.metric_value) for result in data.eval_results]
    assert found == [("test_32", "token_accuracy", 0.96), ("test_64", "token_accuracy", 0.625)]
    assert (data.license, data.datasets) == ("apache-2.0", ["hf_memory/bit_parity"])


def test_metadata_are_a_small_part_of_a_card() -> None:
    rows = [row(split, 0.9) for split in ("validation", "test_32", "test_48", "test_64", "test_128", "test_256")]
    card = ModelCard(model_card(make("lru", "token_classification"), "me/lru", rows))
    metadata = card.content.partition("\n---\n")[0]
    assert len(metadata) < 2_600
    assert rows[0].weights_sha256 not in metadata
    assert rows[0].weights_sha256 in card.text


def test_the_license_is_that_which_is_said_or_stood_there() -> None:
    model = make("lru")
    mine = model_card(model, "me/lru", license="mit")
    assert ModelCard(mine).data.license == "mit"
    assert ModelCard(model_card(model, "me/lru", previous=mine)).data.license == "mit"
    assert ModelCard(model_card(model, "me/lru", previous=mine, license="cc0-1.0")).data.license == "cc0-1.0"


def test_the_curve_over_learning_rates_is_read_from_the_rows_of_the_search() -> None:
    own = [row("test_32"), row("validation", 0.9)]
    others = [row("validation", 0.5, learning_rate=1e-4, weights_sha256="cd" * 32, cell="c1")]
    text = model_card(make("lru", "token_classification"), "me/lru", own, siblings=[*own, *others])
    assert "on `validation` by learning rate, 2 runs. The best rate lies on the edge of the grid." in text
    assert "| 0.0001 | 0.500 |\n| 0.001 | 0.900 |" in text
    assert "by learning rate" not in model_card(make("lru"), "me/lru", own, siblings=own)


def test_values_that_are_not_numbers_are_said_and_not_indexed() -> None:
    rows = [row("test_32", math.nan)]
    text = model_card(make("lru", "token_classification"), "me/lru", rows)
    assert "On `test_32` the token accuracy is not a number." in text
    assert ModelCard(text).data.eval_results is None


THEIRS = """\
---
license: mit
tags: [theirs, hf_memory]
mine: {a: 1, b: [1, 2]}
model-index:
- name: other
  results:
  - task: {type: x}
    dataset: {name: theirs, type: theirs, note: kept}
    metrics:
    - {type: f1, value: 0.5}
- name: half
  results: []
---
Theirs é.
"""


def test_a_push_onto_a_card_of_others_keeps_their_fields_results_and_text() -> None:
    model = make("lru", "token_classification")
    first = model_card(model, "me/lru", [row("test_32"), row("test_64")], previous=THEIRS)
    second = model_card(model, "me/lru", [row("test_32", 0.5)], previous=first, tags=["new"])
    card = open_card(second)
    data = card.data.to_dict()
    assert (data["license"], data["mine"]) == ("mit", {"a": 1, "b": [1, 2]})
    assert data["tags"] == ["theirs", "hf_memory", "lru", "bit_parity", "new"]
    (entry,) = data["model-index"]
    theirs, ours = entry["results"]
    assert entry["name"] == "other"
    assert theirs["dataset"] == {"name": "theirs", "type": "theirs", "note": "kept"}
    assert [metric["value"] for metric in ours["metrics"]] == [0.5]
    assert card.text.startswith("Theirs é.\n")
    assert card.text.count("## Recall and extrapolation") == 1
    assert model_card(model, "me/lru", [row("test_32", 0.5)], previous=second, tags=["new"]) == second


def test_results_of_other_weights_fall_away_with_their_field() -> None:
    model = make("lru", "token_classification")
    measured = model_card(model, "me/lru", [row()])
    assert "model-index" in open_card(measured).data
    assert "model-index" not in open_card(model_card(model, "me/lru", previous=measured)).data.to_dict()
