"""What identifies a model's configuration in result rows."""

import dataclasses

from huggingface_hub.dataclasses import strict

from hf_memory.experiments.provenance import config_digest
from hf_memory.mixers.lru import MemoryLRUConfig
from hf_memory.models.configuration import later_field


@strict
class Extended(MemoryLRUConfig):
    """A config that has gained a field."""

    gain: float = later_field(1.0)


def test_a_field_that_joins_later_leaves_the_digests_of_before():
    before, after = MemoryLRUConfig(vocab_size=5), Extended(vocab_size=5)
    assert after.to_dict()["gain"] == 1.0
    assert config_digest(after) == config_digest(before)
    assert config_digest(Extended(vocab_size=5, gain=2.0)) != config_digest(before)
    assert (
        config_digest(Extended(vocab_size=6)) == config_digest(MemoryLRUConfig(vocab_size=6)) != config_digest(before)
    )
    assert [field.name for field in dataclasses.fields(Extended) if field.metadata.get("later")] == ["gain"]


def test_names_of_labels_do_not_count_and_their_number_does():
    plain = MemoryLRUConfig(vocab_size=5, num_labels=3)
    named = MemoryLRUConfig(vocab_size=5, id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2})
    assert named.id2label == {0: "a", 1: "b", 2: "c"}
    assert config_digest(named) == config_digest(plain) != config_digest(MemoryLRUConfig(vocab_size=5, num_labels=4))
