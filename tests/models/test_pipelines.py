"""Pipelines of transformers read a trained checkpoint, in the words of its task."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, pipeline

from hf_memory.data.preview import label_text, symbols
from hf_memory.data.specification import specify
from hf_memory.experiments.arguments import main

QUIET = ["--disable_tqdm", "True", "--use_cpu", "True", "--max_steps", "1", "--per_device_train_batch_size", "4"]
SIZES = ["num_train=8", "num_validation=2", "num_test=2"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(task: str, *data: str):
    """The law of a task, and one row of it, after a run whose checkpoint lies in ``run``."""
    arguments = ["--mixer", "lstm", "--task", task, "--smoke", "--output_dir", "run", *QUIET]
    main([*arguments, "--model", "hidden_size=16", "num_hidden_layers=1", "--data", *SIZES, *data])
    specified = specify(task, **{name: int(value) for name, value in (pair.split("=") for pair in data)})
    law = specified.task
    ids, labels = law.sample(np.random.default_rng(0), specified.train_length, 1)
    return law, ids[0].tolist(), labels[0].tolist()


@pytest.mark.parametrize(
    ("task", "data"),
    [("dyck", ["length=8", "max_depth=4"]), ("bit_parity", ["length=8"]), ("group_word_problem", ["length=8"])],
)
def test_tokens_are_classified_as_by_the_model(task, data):
    law, ids, _ = trained(task, *data)
    words = [symbols(law)[number] for number in ids]
    found = pipeline("token-classification", model="run")(" ".join(words))
    assert [entity["word"] for entity in found] == words
    model = AutoModelForTokenClassification.from_pretrained("run").eval()
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].softmax(-1)
    assert [entity["entity"] for entity in found] == [label_text(law, int(best)) for best in scores.argmax(-1)]
    assert model.config.label2id == {label_text(law, label): label for label in range(law.num_labels)}
    np.testing.assert_allclose([entity["score"] for entity in found], scores.amax(-1).numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="text: 'stranger' is no symbol of this task"):
        pipeline("token-classification", model="run")(f"{words[0]} stranger")


@pytest.mark.parametrize(
    ("task", "data"),
    [("mqar", ["length=16", "vocab_size=32", "num_kv_pairs=2"]), ("string_copy", ["length=8", "alphabet_size=4"])],
)
def test_what_is_generated_follows_the_prompt_word_by_word(task, data):
    law, ids, labels = trained(task, *data)
    start = next(place for place, label in enumerate(labels) if label != -100)
    prompt = " ".join(symbols(law)[number] for number in ids[:start])
    # Unless it is told, the pipeline of older versions takes the blank before "." for a slip and removes it.
    options = {"max_new_tokens": 3, "do_sample": False, "clean_up_tokenization_spaces": False}
    (found,) = pipeline("text-generation", model="run")(prompt, **options)
    model = AutoModelForCausalLM.from_pretrained("run").eval()
    expected = model.generate(torch.tensor([ids[:start]]), max_new_tokens=3, do_sample=False)[0].tolist()
    assert found["generated_text"] == " ".join(symbols(law)[number] for number in expected)
