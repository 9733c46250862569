"""``hf-memory probe`` on local checkpoints of many architectures, and the page of what it finds."""

import json

import pytest

from hf_memory.cli.probe import numbers
from hf_memory.experiments.results import read_rows
from hf_memory.hub.results import rows_from_table, rows_table
from tests.experiments.probing.pieces import STATE_NUMBERS, induction_head, tiny, word_tokenizer

SMALL = ("--pairs", "2", "--gaps", "", "--vocabularies", "2", "--rows", "2")


def save(name, folder="."):
    model = induction_head(64) if name == "head" else tiny(name)
    model.save_pretrained(f"{folder}/{name}")
    word_tokenizer().save_pretrained(f"{folder}/{name}")
    return name


@pytest.mark.parametrize("name", STATE_NUMBERS)
def test_a_model_of_transformers_is_probed_over_lengths(name, call):
    code, out, err = call("probe", save(name), "--task", "mqar", "--lengths", "16..32", *SMALL)
    assert (code, err.count("Error")) == (0, 0)
    rows = {row.length: row for row in read_rows("results/probe")}
    assert sorted(rows) == [16, 32]
    assert rows[32].state_bytes == 4 * STATE_NUMBERS[name](32)
    assert rows[32].arm == name
    assert "mqar (probe pairs)" in out


def test_several_models_on_a_suite_become_rows_and_a_page(call, tmp_path):
    names = [save(name) for name in ("head", "gpt2", "mamba")]
    words = ("probe", *names, "--suite", "recall", "--lengths", "64", "--results", "results", *SMALL)
    assert call(*words)[0] == 0
    rows = read_rows("results")
    assert {row.arm for row in rows} == set(names)
    assert {row.task for row in rows} >= {"mqar", "associative_recall", "updating_mqar", "string_copy"}
    values = {row.arm: row.value() for row in rows if row.task == "mqar"}
    assert values["head"] == pytest.approx(1.0)
    assert values["gpt2"] < 0.6
    assert values["mamba"] < 0.6
    assert call("report", "results", "--out", "report/")[0] == 0
    page = (tmp_path / "report" / "index.html").read_text()
    for text in ("What was recalled", "How far back", "bits per byte", "By distance", 'class="sortable"'):
        assert text in page
    assert len(list((tmp_path / "report").glob("*_state_bytes.png"))) == len({row.task for row in rows})
    assert rows_from_table(rows_table(rows)) == rows
    # What is there is found again.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*.jsonl")}
    assert call(*words)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*.jsonl")} == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--lengths", "16"), "task or suite: give one of them"),
        (("--task", "mqr", "--lengths", "16"), "did you mean 'mqar'"),
        (("--task", "mqar", "--lengths", "128"), "has positions for 64 tokens and cannot run at 128"),
        (("--task", "mqar", "--lengths", "64..16"), "lengths must be numbers such as 64,128"),
        (("--task", "mqar", "--lengths", "8", "--pairs", "4"), "length must be at least 10 for a context of size 4"),
        (("--task", "mqar", "--lengths", "32", "--format", "chat"), "needs a tokenizer with a chat template"),
        (("--task", "mqar", "--lengths", "32", "--rows", "3"), "rows an even number"),
        (("--task", "mqar", "--lengths", "64", "--pairs", "40"), "59 words that are one token each"),
    ],
)
def test_what_cannot_be_probed_is_said_in_one_line(words, text, call):
    code, _, err = call("probe", save("gpt2"), *words)
    assert code == 2
    assert text in " ".join(err.split())


def test_lengths_are_lists_or_ranges_that_double():
    assert numbers("64..4096", "lengths") == (64, 128, 256, 512, 1024, 2048, 4096)
    assert numbers("64,100", "lengths") == (64, 100)
    with pytest.raises(ValueError, match="lengths must be numbers"):
        numbers("64-128", "lengths")


def test_a_checkpoint_without_tokenizer_or_model_is_refused(call, tmp_path):
    tiny("gpt2").save_pretrained("bare")
    code, _, err = call("probe", "bare", "--task", "mqar", "--lengths", "32")
    assert code == 2
    assert "tokenizer" in err
    word_tokenizer().save_pretrained("empty")
    (tmp_path / "empty" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    code, _, err = call("probe", "empty", "--task", "mqar")
    assert code == 2
    assert "holds no model.safetensors" in err


def test_task_files_for_the_harness_come_with_the_command_that_runs_them(call, tmp_path):
    code, out, _ = call("export-harness", "out/", "--model", save("llama"), "--lengths", "32,64", "--pairs", "4")
    assert code == 0
    assert "--model_args pretrained=llama,add_bos_token=True" in " ".join(out.split())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "hf_memory_tasks.py",
        *(f"hf_memory_mqar_pairs_{n}.{ending}" for n in (32, 64) for ending in ("json", "yaml")),
    }
