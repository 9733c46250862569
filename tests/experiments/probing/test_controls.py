"""Controls of probing whose answer is known: a head that recalls by construction, and models that know nothing."""

import numpy as np
import pytest
import torch
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_memory.experiments.probing.cells import Plan, probe_model
from hf_memory.experiments.probing.subject import Subject, load_subject
from hf_memory.experiments.provenance import measure_state, weights_digest
from hf_memory.experiments.results import read_rows
from hf_memory.experiments.training import model_for_task
from hf_memory.tasks import make_task
from tests.experiments.probing.pieces import STATE_NUMBERS, induction_head, tiny, word_tokenizer, words

LENGTHS = (64, 128, 512)


def test_an_induction_head_set_by_hand_recalls_at_every_length(tmp_path):
    plan = Plan(tasks=("mqar", "associative_recall"), lengths=LENGTHS, sizes=(8, 16), rows=2, vocabularies=2)
    rows = probe_model(Subject("head", induction_head(), word_tokenizer()), plan, tmp_path, progress=False)
    assert {row.split for row in rows} == {
        f"test_{length}{ending}" for length in LENGTHS for ending in ("", "_size16", "_gap0")
    }
    for row in rows:
        for name in ("counterfactual_recall", "recall", "recall_calibrated", "greedy_accuracy"):
            assert row.value(name) == pytest.approx(1.0), (row.split, name)
        assert row.value("probability_among_all") > 0.99
    assert read_rows(tmp_path) == sorted(rows, key=lambda row: row.cell)


def test_without_its_second_layer_it_is_at_chance(tmp_path):
    model = induction_head()
    with torch.no_grad():
        for parameter in model.transformer.h[1].parameters():
            parameter.zero_()
    plan = Plan(tasks=("mqar",), lengths=(64, 128), sizes=(8,), gaps=(), rows=2)
    for row in probe_model(Subject("headless", model, word_tokenizer()), plan, tmp_path, progress=False):
        # All candidates are equally likely.
        assert row.value("counterfactual_recall") == pytest.approx(1 / 64)
        assert row.value("recall") == pytest.approx(1 / 8)
        assert row.value("greedy_accuracy") == 0.0


@pytest.mark.parametrize("name", STATE_NUMBERS)
def test_a_random_model_is_at_chance_and_its_state_has_its_size(name, tmp_path):
    plan = Plan(tasks=("mqar",), lengths=(24, 48), sizes=(4,), gaps=(), rows=2)
    rows = probe_model(Subject(name, tiny(name), word_tokenizer()), plan, tmp_path, progress=False)
    assert [row.length for row in rows] == [24, 48]
    for row in rows:
        numbers = STATE_NUMBERS[name](row.length)
        assert (row.state_numbers, row.state_bytes) == (numbers, 4 * numbers)
        assert row.mixer == name
        assert_at_chance(row, "recall", 1 / 4)
        assert row.measured("recall").chance == 1 / 4
        assert row.measured("counterfactual_recall").chance == 1 / 16
        low, high = row.probe["intervals"]["recall"]
        assert low <= row.value("recall") <= high


def assert_at_chance(row, metric, chance):
    measured = row.measured(metric)
    low, high = stats.binom.ppf([1e-3, 1 - 1e-3], round(measured.denominator), chance)
    assert low <= measured.numerator <= high


def test_a_model_of_our_own_recalls_what_its_evaluation_says(tmp_path):
    task = make_task(
        "mqar",
        vocab_size=40,
        num_kv_pairs=2,
        shared_vocab=True,
        filler="random",
        slot_assignment="shuffled",
        power_a=1.0,
    )
    model = train(task, 16, 180)
    model.save_pretrained(tmp_path / "own")
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(["_", *words(39)])}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "own")
    ids, labels = task.sample(np.random.default_rng(1), 16, 500)
    with torch.no_grad():
        guessed = model(input_ids=torch.from_numpy(ids).long()).logits.argmax(-1).numpy()[:, :-1]
    asked = labels[:, 1:] != -100
    evaluated = (guessed == labels[:, 1:])[asked].mean()
    assert evaluated > 0.95
    subject = load_subject(tmp_path / "own", "own")
    plan = Plan(tasks=("mqar",), lengths=(16,), sizes=(2,), gaps=())
    rows = probe_model(subject, plan, tmp_path / "results", progress=False)
    for row in rows:
        assert row.mixer == "attention"
        assert row.value("greedy_accuracy") > evaluated - 0.05
        assert row.value("counterfactual_recall") > 0.9
    assert rows[0].state_bytes == measure_state(subject.model, 16)[1]
    assert rows[0].weights_sha256 == weights_digest(tmp_path / "own")
    assert rows[0].parameters == sum(parameter.numel() for parameter in model.parameters())


def train(task, length, steps):
    """A small attention that sees rows once each."""
    rng, rows = np.random.default_rng(0), 64
    model = model_for_task("attention", task, hidden_size=64, num_hidden_layers=1, block_conv_kernel=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 30, 1 - step / steps))
    for _ in range(steps):
        ids, labels = (torch.from_numpy(array).long() for array in task.sample(rng, length, rows))
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()
