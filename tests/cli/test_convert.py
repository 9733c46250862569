"""``hf-memory convert``: what it prints, and what can be done with what it wrote."""

from pathlib import Path

from hf_memory.data.specification import specify
from hf_memory.data.tokenizers import task_tokenizer
from tests.cli.test_errors import refused
from tests.hub.sources import random_source


def test_a_converted_model_keeps_its_tokenizer_and_says_what_it_is(call):
    model = random_source("xlstm", vocab_size=80, num_hidden_layers=3)
    model.save_pretrained("theirs")
    task = specify("mqar", vocab_size=80, num_kv_pairs=2).task
    task_tokenizer(task).save_pretrained("theirs")
    code, out, errors = call("convert", "theirs", "ours", "--layer", "2", "--layer", "0")
    assert code == 0, errors
    lines = out.splitlines()
    assert lines[0] == "ours: MemoryMLSTMForCausalLM, 2 layers, layers 2, 0 of the source"
    assert lines[1].startswith("scores differ from those of the source by ")
    assert lines[2] == "scores are those before the source's bound of 30, which leaves their order as it is"
    assert lines[3] == "probe it: hf-memory probe ours --task mqar"
    probe = ["--task", "mqar", "--lengths", "32", "--pairs", "2", "--rows", "2", "--vocabularies", "2"]
    code, out, errors = call("probe", "ours", *probe, "--results", "probes")
    assert code == 0, errors
    assert Path("probes").is_dir()


def test_what_cannot_be_converted_is_one_line(call):
    random_source("olmo_hybrid").save_pretrained("theirs")
    assert "theirs cannot be converted: the mixer of layers 3" in refused(call, "convert", "theirs", "ours")
    assert "checkpoint: there is no folder 'nowhere'" in refused(call, "convert", "nowhere", "ours")
    assert "output must be a new or an empty folder" in refused(call, "convert", "theirs", "theirs")
    assert not Path("ours").exists()
