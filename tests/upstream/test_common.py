"""transformers' common tests of models, configs and training, for every model type."""

import os
import tempfile
import unittest

import pytest
import torch
from safetensors.torch import save_file
from suite import MIXINS

from hf_memory.mixers.auto import config_class, model_class, model_keys

ModelTesterMixin, ConfigTester, TrainingTesterMixin = MIXINS.values()

OVERRIDES = {
    "has_attentions": "MambaModelTest, RecurrentGemmaModelTest, xLSTMModelTest: no map of attention is returned",
    "training_overfit_steps": (
        "NandiModelTest: twice the steps, for minGRU and Based alone, whose loss falls by 97% in 300 steps and its "
        "gradients, small from the start on, by 86 and 89%; the thresholds are those of the mixin"
    ),
    "test_config": "MambaModelTest, RwkvModelTest, xLSTMModelTest: the properties of a config without attention heads",
    "test_model_weights_reload_no_missing_tied_weights": (
        "deliberate: a checkpoint that lacks tensors of the model is refused, since numbers measured with weights that "
        "were drawn anew would pass for those of the checkpoint"
    ),
}
"""What differs from transformers' mixins: the classes of their tests that differ likewise, or the reason.

A second deliberate difference needs no override: while training with labels a head returns no logits, which would cost
several times the step, unless ``return_logits=True`` asks for them.
"""


class SmallModel:
    """A small model and a batch, as each model of transformers has them."""

    def __init__(self, parent, key):
        self.parent, self.key = parent, key
        self.batch_size, self.seq_length, self.is_training = 5, 7, True
        self.vocab_size, self.hidden_size, self.num_hidden_layers, self.num_labels = 99, 32, 2, 3
        self.causal_lm_class = model_class(key, "causal")
        self.base_model_class = model_class(key)

    def get_config(self):
        sizes = {name: getattr(self, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_labels")}
        return config_class(self.key)(**sizes)

    def prepare_config_and_inputs(self):
        input_ids = torch.randint(0, self.vocab_size, (self.batch_size, self.seq_length))
        return self.get_config(), input_ids, torch.ones_like(input_ids).tril()

    def prepare_config_and_inputs_for_common(self):
        config, input_ids, attention_mask = self.prepare_config_and_inputs()
        return config, {"input_ids": input_ids, "attention_mask": attention_mask}


class Common(ModelTesterMixin, TrainingTesterMixin):
    """What the class of each type has in common."""

    key: str
    has_attentions = False
    model_tester = None

    def setUp(self):
        self.model_tester = SmallModel(self, self.key)
        self.config_tester = ConfigTester(
            self,
            config_class=config_class(self.key),
            has_text_modality=True,
            common_properties=["hidden_size", "num_hidden_layers"],
            hidden_size=40,
        )

    def test_config(self):
        self.config_tester.run_common_tests()

    def test_model_weights_reload_no_missing_tied_weights(self):
        for cls in self.all_model_classes:
            model = cls(self.model_tester.get_config())
            names = sorted(name for name in model.state_dict() if not name.startswith(("lm_head.", "score.")))
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                file = os.path.join(folder, "model.safetensors")
                save_file({"tensor": torch.tensor([1, 2])}, file, metadata={"format": "pt"})
                with pytest.raises(
                    ValueError, match=f": for {cls.__name__} the checkpoint has missing keys: "
                ) as caught:
                    cls.from_pretrained(folder)
            assert str(caught.value).partition("keys: ")[2].split(", ") == names


def test_nothing_is_overridden_without_a_name_or_a_reason():
    own = {name for name, value in vars(Common).items() if getattr(value, "__module__", "") == __name__}
    assert own - {"setUp"} == OVERRIDES.keys() - {"has_attentions", "training_overfit_steps"}


for _key in model_keys():
    _name = model_class(_key).__name__ + "Test"
    _classes = tuple(model_class(_key, head) for head in ("base", "causal", "token_classification"))
    _own = {
        "key": _key,
        "all_model_classes": _classes,
        **({"training_overfit_steps": 600} if _key in ("min_gru", "based") else {}),
    }
    globals()[_name] = type(_name, (Common, unittest.TestCase), _own)
