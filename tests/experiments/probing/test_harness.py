"""Task files of lm-evaluation-harness: what they ask is what a probe asks."""

import importlib.util

import pytest
import torch
import yaml

from hf_memory.experiments.probing.cells import Plan, probe_model
from hf_memory.experiments.probing.harness import READER, write_harness
from hf_memory.experiments.probing.subject import Subject
from tests.experiments.probing.pieces import tiny, word_tokenizer

PLAN = Plan(
    tasks=("mqar", "updating_mqar"),
    lengths=(48,),
    formats=("pairs", "lines"),
    sizes=(4,),
    gaps=(),
    rows=2,
    vocabularies=2,
)


class Loader(yaml.SafeLoader):
    """Reads the tag that names a function as its name."""


Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


def test_the_accuracy_of_the_files_is_the_recall_of_the_probe(tmp_path):
    tokenizer, model = word_tokenizer(), tiny("llama")
    files = write_harness(tmp_path, tokenizer, PLAN)
    reader = read_module(tmp_path / f"{READER}.py")
    rows = probe_model(Subject("tiny", model, tokenizer), PLAN, tmp_path / "rows", progress=False)
    recalls = {f"hf_memory_{row.task}_{row.task_knobs['probe']}_{row.length}": row.measured("recall") for row in rows}
    settings = [yaml.load(path.read_text(), Loader) for path in files if path.suffix == ".yaml"]
    assert {found["task"] for found in settings} == set(recalls)
    for found in settings:
        assert found["custom_dataset"] == f"{READER}.load"
        docs = reader.load(**found["metadata"], **found["dataset_kwargs"])[found["test_split"]]
        assert len(docs) == recalls[found["task"]].denominator
        right = sum(best_choice(model, tokenizer, doc, found["target_delimiter"]) == doc["gold"] for doc in docs)
        assert right / len(docs) == pytest.approx(recalls[found["task"]].value)


def best_choice(model, tokenizer, doc, delimiter):
    """The choice of the largest log-likelihood, as the harness counts it: text and choice encoded as one."""
    context = len(tokenizer(doc["text"])["input_ids"])
    scores = []
    for choice in doc["choices"]:
        ids = torch.tensor([tokenizer(doc["text"] + delimiter + choice)["input_ids"]])
        assert ids.shape[1] == context + 1
        with torch.no_grad():
            logits = model(input_ids=ids[:, :-1]).logits[0, -1]
        scores.append(float(torch.log_softmax(logits, -1)[ids[0, -1]]))
    return max(range(len(scores)), key=scores.__getitem__)


def read_module(path):
    spec = importlib.util.spec_from_file_location("reader", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_harness_cannot_ask_is_refused(tmp_path):
    with pytest.raises(ValueError, match="applies templates itself"):
        write_harness(tmp_path, word_tokenizer(), Plan(tasks=("mqar",), lengths=(48,), formats=("chat",)))
    with pytest.raises(ValueError, match="string_copy are no single words"):
        write_harness(tmp_path, word_tokenizer(), Plan(tasks=("string_copy",), lengths=(64,), sizes=(4,)))
