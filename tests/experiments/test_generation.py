"""Answers by generation: what the model writes itself, counted as teacher forcing is counted."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hf_memory.cli import app as cli
from hf_memory.data.specification import specify
from hf_memory.data.tensors import TensorRows
from hf_memory.experiments import generation
from hf_memory.experiments.evaluation import evaluate_lengths, predict, write_evaluation
from hf_memory.experiments.generation import answer_blocks, generate_answers
from hf_memory.experiments.metrics import align
from hf_memory.experiments.results import read_rows
from hf_memory.experiments.training import model_for_task

SIZES = {"num_train": 8, "num_validation": 8, "num_test": 8}
COPY = specify("string_copy", length=[2, 4], test_lengths=[3], alphabet_size=2, **SIZES)
LOOKUP = specify("string_copy", length=6, test_lengths=[6], alphabet_size=3, ngram=2, variant="suffix_ngram", **SIZES)
MQAR = specify("mqar", length=16, test_lengths=[16], vocab_size=16, num_kv_pairs=2, **SIZES)


def draw(specification, lengths: list[int], num_rows: int) -> TensorRows:
    rng, ids, labels = np.random.default_rng(3), [], []
    for length in lengths:
        for column, drawn in zip((ids, labels), specification.task.sample(rng, length, num_rows), strict=True):
            column += list(drawn)
    return TensorRows({"input_ids": ids, "labels": labels})


def make_model(specification, mixer: str = "gru"):
    torch.manual_seed(0)
    return model_for_task(
        mixer, specification.task, hidden_size=8, num_hidden_layers=1, initializer_range=1.0, tie_word_embeddings=False
    ).eval()


@pytest.mark.parametrize("mixer", ["gru", "attention"])
@pytest.mark.parametrize(("specification", "lengths"), [(COPY, [2, 3, 4]), (LOOKUP, [6])])
def test_answers_are_those_of_a_loop_that_feeds_back_the_argmax(mixer, specification, lengths):
    model, rows = make_model(specification, mixer), draw(specification, lengths, 5)
    found = generate_answers(model, rows, batch_size=3)
    for index in range(len(rows)):
        row = rows[index]
        supervised = (row["labels"] != -100).nonzero().flatten().tolist()
        ids = row["input_ids"][: supervised[0]][None]
        for position in supervised:
            with torch.no_grad():
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
            assert found["predictions"][index, position - 1] == ids[0, position]


def test_whole_answers_are_right_exactly_where_teacher_forcing_is_right():
    model, rows = make_model(COPY), draw(COPY, [2], 64)
    with torch.no_grad():
        # The letters of the alphabet as in the strings, so that some rows are right by chance.
        model.lm_head.weight[2:4] = 0
    right = []
    for columns in (predict(model, rows, 7), generate_answers(model, rows, 7)):
        due, targets = align(columns["predictions"], columns["labels"], "causal")
        right.append(((due == targets) | (targets == -100)).all(axis=1))
    assert (right[0] == right[1]).all()


def _oracle(monkeypatch, model, rows, wrong: set[int]):
    """Let ``generate`` write the true answers, with a wrong first letter for some prompts."""
    whole = rows.__getitems__(range(len(rows)))
    answers = {}
    for index, (ids, labels) in enumerate(zip(whole["input_ids"], whole["labels"], strict=True)):
        start = int((labels != -100).long().argmax())
        answer = ids[start:].clone()
        if index in wrong:
            answer[0] = (answer[0] + 1) % 2
        answers[tuple(ids[:start].tolist())] = answer

    def generate(prompts, max_new_tokens, **options):
        assert options == {"do_sample": False, "num_beams": 1}
        written = [answers[tuple(prompt.tolist())][:max_new_tokens] for prompt in prompts]
        return torch.cat([prompts, torch.stack(written)], dim=1)

    monkeypatch.setattr(model, "generate", generate)


def test_metrics_of_what_is_written_stand_beside_those_of_teacher_forcing(monkeypatch, tmp_path):
    model, rows = make_model(COPY), draw(COPY, [3], 8)
    strings = rows.__getitems__(range(8))["input_ids"][:, 1:4]
    first = next(i for i in range(8) if sum(torch.equal(strings[i], other) for other in strings) == 1)
    _oracle(monkeypatch, model, rows, {first})
    splits = {"test_3": {"input_ids": list(rows.__getitems__(range(8))["input_ids"].numpy())}}
    splits["test_3"]["labels"] = list(rows.__getitems__(range(8))["labels"].numpy())
    plain, written = (
        evaluate_lengths(model, COPY, splits, progress=False, generate=generate)[0] for generate in (False, True)
    )
    assert written.value("generated_sequence_accuracy") == 7 / 8
    assert written.value("generated_token_accuracy") == 31 / 32
    assert written.measured("generated_sequence_accuracy").chance == COPY.task.chance_level("sequence_accuracy", 3)
    assert {name: value for name, value in written.metrics.items() if "generated" not in name} == plain.metrics
    paths = {write_evaluation(tmp_path, [row]) for row in (plain, written)}
    assert len(paths) == 2


def test_two_processes_write_every_answer_once(monkeypatch):
    model, rows = make_model(COPY), draw(COPY, [2, 3, 4], 5)
    alone, parts, calls = generate_answers(model, rows, 2), [], []
    inner = model.generate
    monkeypatch.setattr(model, "generate", lambda *args, **kwargs: calls.append(1) or inner(*args, **kwargs))
    monkeypatch.setattr(generation, "gather_object", lambda found: parts.append(found) or found)
    for rank in (0, 1):
        generate_answers(model, rows, 2, SimpleNamespace(num_processes=2, process_index=rank))
    # Five rows for each of three lengths are two blocks of at most four, in which both processes take part.
    assert len(calls) == 2 * 3 * 2
    met = sorted(index for part in parts for indices, _, _ in part for index in indices)
    assert met == list(range(15))
    monkeypatch.setattr(generation, "gather_object", lambda found: parts[0] + parts[1])
    both = generate_answers(model, rows, 2, SimpleNamespace(num_processes=2, process_index=0))
    assert (both["predictions"] == alone["predictions"]).all()


def test_an_answer_is_one_block_after_a_prompt():
    starts, sizes = answer_blocks(torch.tensor([[-100, -100, 1, 2], [-100, 0, 5, -100]]))
    assert (starts.tolist(), sizes.tolist()) == ([2, 1], [2, 2])
    for labels in ([-100, 1, -100, 2], [1, 2, -100, -100], [-100, -100, -100, -100]):
        with pytest.raises(ValueError, match="which row 1 lacks"):
            answer_blocks(torch.tensor([[-100, 1, 1, 1], labels]))


def test_what_has_no_answer_to_write_is_refused():
    model, rows = make_model(MQAR), draw(MQAR, [16], 8)
    with pytest.raises(ValueError, match="must be one block of labels after a prompt"):
        generate_answers(model, rows, 4)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        generate_answers(model, rows, 0)
    parity = specify("bit_parity", length=8, test_lengths=[8], **SIZES)
    with pytest.raises(ValueError, match="a causal model is needed, got MemoryGRUForTokenClassification"):
        generate_answers(make_model(parity), draw(parity, [8], 2), 4)


def test_the_command_line_prints_and_stores_both(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_model(COPY).save_pretrained("run")
    data = ["length=[2,4]", "test_lengths=[3]", "alphabet_size=2", "num_train=4", "num_validation=2", "num_test=2"]
    options = [word for pair in data for word in ("--data", pair)]
    command = ["evaluate", "run", "--task", "string_copy", "--results", "rows", "--generate", *options]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.output
    assert "generated sequence accuracy on" in " ".join(result.output.split())
    for row in read_rows("rows"):
        assert row.value("generated_sequence_accuracy") == row.value("sequence_accuracy")
