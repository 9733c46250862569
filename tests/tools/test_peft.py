"""Adapters of PEFT on all types: trained, saved, loaded again and merged."""

import pytest
import torch
from transformers import PreTrainedModel

from hf_memory.mixers.auto import model_keys
from hf_memory.testing.models import close, make, tokens

pytestmark = [
    pytest.mark.tools,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

PACKED = {key: {"target_parameters": ["weight_ih", "weight_hh"]} for key in ("rnn", "lstm", "gru", "nru", "slstm")}
"""Types without linear layers: the weights of their cells are parameters of the mixer."""


def adapted(model: PreTrainedModel, key: str):
    import peft

    target = PACKED.get(key, {"target_modules": "all-linear"})
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", init_lora_weights=False, **target)
    return peft.get_peft_model(model, config).double()


@pytest.mark.parametrize("key", model_keys())
def test_an_adapter_trains_saves_reloads_and_merges(key, tmp_path):
    import peft

    ids = tokens()
    plain = make(key, dtype=torch.float64)
    model = adapted(make(key, dtype=torch.float64), key).train()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all("lora" in name for name in trained)
    before = model(input_ids=ids, labels=ids).loss
    before.backward()
    assert all(weight.grad.abs().max() > 0 for weight in trained.values())
    with torch.no_grad():
        for weight in trained.values():
            weight -= 1e-6 * weight.grad / weight.grad.norm()
    assert model(input_ids=ids, labels=ids).loss < before
    model.eval()
    expected = model(ids).logits
    assert (expected - plain(ids).logits).abs().max() > 1e-3
    assert model.base_model.model.state_size(12) == plain.state_size(12)
    generated = model.generate(input_ids=ids, max_new_tokens=3, do_sample=False)
    assert torch.equal(generated[:, 12], expected[:, -1].argmax(-1))
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(make(key, dtype=torch.float64), tmp_path).double().eval()
    close(again(ids).logits, expected, 1e-6 * expected.abs().max().item())
    merged = model.merge_and_unload().eval()
    assert type(merged) is type(plain)
    close(merged(ids).logits, expected, 1e-9 * expected.abs().max().item())
