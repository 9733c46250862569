"""Cells of probes: resumed, shared among processes, and run in batches that memory holds."""

import dataclasses
import os

import pytest
import torch

from hf_memory.experiments.probing import cells
from hf_memory.experiments.probing.cells import Plan, probe_model
from hf_memory.experiments.probing.subject import Subject, load_subject
from hf_memory.experiments.results import Row, read_definition, read_rows
from tests.distributed.launching import CONFIGS, launch
from tests.experiments.probing.pieces import tiny, word_tokenizer

PLAN = Plan(tasks=("mqar",), lengths=(16, 24), sizes=(2,), gaps=(0,), vocabularies=2, rows=2)
TIMES = {"eval_seconds": 0.0}


@pytest.fixture
def subject():
    return Subject("tiny", tiny("llama"), word_tokenizer())


def test_a_probe_that_was_stopped_goes_on_where_it_was(subject, tmp_path, monkeypatch):
    first = probe_model(subject, dataclasses.replace(PLAN, lengths=(16,)), tmp_path, progress=False)
    measured = []
    original = cells._measure_cell
    monkeypatch.setattr(cells, "_measure_cell", lambda *given: measured.append(given[3]) or original(*given))
    both = probe_model(subject, PLAN, tmp_path, progress=False)
    assert measured == [24]
    assert both[: len(first)] == first
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    definition = read_definition(next(iter(sorted(tmp_path.glob("*.jsonl")))))
    assert {"arm", "task", "length", "format", "weights", "config"} <= definition.keys()


def test_batches_are_halved_where_memory_ends(subject, tmp_path, monkeypatch):
    wanted = probe_model(subject, PLAN, tmp_path / "whole", progress=False)
    original, sizes = cells.answer_jobs, []

    def small(runner, jobs):
        sizes.append(len(jobs))
        if len(jobs) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(runner, jobs)

    monkeypatch.setattr(cells, "answer_jobs", small)
    found = probe_model(subject, PLAN, tmp_path / "halved", progress=False)
    assert sizes[:5] == [8, 8, 4, 2, 1]
    for row, other in zip(found, wanted, strict=True):
        for name, metric in other.metrics.items():
            assert row.value(name) == pytest.approx(metric.value, rel=1e-4)


def test_a_row_says_what_was_asked(subject, tmp_path):
    row = probe_model(subject, PLAN, tmp_path, progress=False)[0]
    about = row.probe
    assert (about["format"], about["format_version"], about["size"], about["gap"]) == ("pairs", "1.0.0", 2, None)
    assert [len(drawn["keys"]) for drawn in about["vocabularies"]] == [2, 2]
    assert about["bos"] == [0]
    assert about["words"] == "letters"
    assert (about["trained_context"], about["beyond_context"]) == (2048, False)
    assert about["candidates"] == 2.0
    assert row.train_length is row.seed is row.learning_rate is None
    assert Row.from_json(row.to_json()) == row
    assert "probe" not in dataclasses.replace(row, probe=None, train_length=(8, 8)).to_json()
    with pytest.raises(ValueError, match="train_length must be shortest and longest"):
        Row.from_json(dataclasses.replace(row, probe=None).to_json())


def test_lengths_beyond_the_trained_context_are_marked(tmp_path):
    model = tiny("llama")
    model.config.max_position_embeddings = 16
    rows = probe_model(Subject("short", model, word_tokenizer()), PLAN, tmp_path, progress=False)
    assert {row.length: row.probe["beyond_context"] for row in rows} == {16: False, 24: True}
    learned = Subject("learned", tiny("gpt2"), word_tokenizer())
    assert (learned.trained_context, learned.longest) == (64, 64)
    with pytest.raises(ValueError, match="has positions for 64 tokens and cannot run at 128"):
        probe_model(learned, dataclasses.replace(PLAN, lengths=(16, 128)), tmp_path, progress=False)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_model_runs_in_the_type_that_is_asked_for(dtype, size, tmp_path):
    tiny("llama").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    subject = load_subject(tmp_path / "model", "model", dtype=dtype, device_map="auto")
    rows = probe_model(subject, PLAN, tmp_path / "rows", progress=False)
    assert rows[0].probe["dtype"] == dtype
    assert rows[0].state_bytes == size * rows[0].state_numbers
    assert rows[0].probe["continues_by"] == "chunks"


def test_code_beside_the_weights_is_not_run(tmp_path):
    folder = tmp_path / "model"
    tiny("llama").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    config = (folder / "config.json").read_text()
    (folder / "other.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w').close()")
    auto_map = '"auto_map": {"AutoConfig": "other.Config", "AutoModelForCausalLM": "other.Model"},'
    (folder / "config.json").write_text(config.replace("{", "{" + auto_map, 1).replace('"llama"', '"other"'))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_subject(folder, "model")
    assert not os.path.exists(tmp_path / "run")


@pytest.mark.slow
def test_processes_share_the_rows_and_agree(tmp_path):
    tiny("llama").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    wanted = probe_model(load_subject(tmp_path / "model", "model"), PLAN, tmp_path / "one", progress=False)
    script = os.path.join(os.path.dirname(__file__), "probe_ranks.py")
    launcher = ("accelerate.commands.launch", "--config_file", str(CONFIGS / "cpu_gloo.yaml"))
    result = launch(script, str(tmp_path / "model"), str(tmp_path / "two"), launcher=launcher)
    assert result == {"processes": 2, "rows": len(wanted)}
    found = {(row.length, row.split): row for row in read_rows(tmp_path / "two")}
    for row in wanted:
        other = found[row.length, row.split]
        assert other.cell == row.cell
        for name, metric in row.metrics.items():
            assert other.value(name) == pytest.approx(metric.value, rel=1e-5)
            assert other.measured(name).denominator == metric.denominator
