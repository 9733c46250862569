"""What a push uploads, written to a folder without a network."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hf_memory.hub.checkpoints import save_for_hub
from hf_memory.testing.models import make


def test_the_content_of_a_push_can_be_written_to_a_folder(tmp_path: Path) -> None:
    folder = save_for_hub(make("gru", "token_classification"), tmp_path / "out", "me/gru", task="dyck", tags=["mine"])
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "mixers_gru.py", "tokenizer.json", "README.md"} <= names
    assert ModelCard.load(folder / "README.md").data.tags == ["hf_memory", "gru", "mine"]
    with pytest.raises(ValueError, match="folder must be new or empty"):
        save_for_hub(make("gru"), folder, "me/gru")
    (tmp_path / "checkpoint").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "checkpoint" / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "checkpoint" / "README.md").write_text("Mine.\n")
    (tmp_path / "checkpoint" / "optimizer.pt").write_bytes(b"")
    again = save_for_hub(tmp_path / "checkpoint", tmp_path / "again", "me/gru")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (again / "README.md").read_text().split("---\n")[2].startswith("Mine.\n")
    assert not (again / "optimizer.pt").exists()


def test_a_mark_of_the_encoding_hides_no_field_of_a_card(tmp_path: Path) -> None:
    make("gru").save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "README.md").write_text("---\nlicense: mit\n---\nMine.\n", encoding="utf-8-sig")
    card = ModelCard.load(save_for_hub(tmp_path / "checkpoint", tmp_path / "out", "me/gru") / "README.md")
    assert card.data.license == "mit"
    assert card.text.startswith("Mine.\n")
