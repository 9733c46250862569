"""lm-eval scores and continues the text of a task."""

import numpy as np
import pytest
import torch

from hf_memory.data.specification import specify
from hf_memory.data.tokenizers import task_tokenizer
from hf_memory.mixers.auto import mixer_config, mixer_model

pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_likelihoods_and_continuations_are_those_of_the_model():
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    task = specify("string_copy", length=8, alphabet_size=4).task
    tokenizer = task_tokenizer(task, eos_token="<eos>", pad_token="<pad>")
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(1)
    model = mixer_model(mixer_config("gru", vocab_size=len(tokenizer), hidden_size=16, **special), "causal").eval()
    judge = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, device="cpu", max_length=64)
    ids = torch.from_numpy(task.sample(np.random.default_rng(0), 8, 3)[0]).long()
    pairs = [(tokenizer.decode(row[:10]).strip(), tokenizer.decode(row[10:])) for row in ids]

    def asked(kind, arguments):
        return [Instance(request_type=kind, doc={}, arguments=own, idx=0) for own in arguments]

    found = judge.loglikelihood(asked("loglikelihood", pairs))
    with torch.no_grad():
        scores = model(ids).logits.log_softmax(-1)[:, 9:-1]
    expected = scores.gather(2, ids[:, 10:, None]).sum((1, 2))
    np.testing.assert_allclose([value for value, _ in found], expected, rtol=1e-5)
    assert [greedy for _, greedy in found] == (scores.argmax(-1) == ids[:, 10:]).all(1).tolist()
    rules = {"until": ["<eos>"], "max_gen_toks": 4, "do_sample": False}
    texts = judge.generate_until(asked("generate_until", [(context, rules) for context, _ in pairs]))
    continued = model.generate(ids[:, :10], max_new_tokens=4, do_sample=False)[:, 10:]
    wanted = [tokenizer.decode(row, skip_special_tokens=False).partition("<eos>")[0] for row in continued]
    assert [text.split() for text in texts] == [text.split() for text in wanted]
