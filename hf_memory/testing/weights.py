"""Initial values, saving and loading, dtypes, for every model type."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

from hf_memory.mixers.auto import config_class, mixer_config, model_class, model_keys
from hf_memory.models.layers import StatefulLayer
from hf_memory.testing.models import close, make, tokens

AUTO = {
    "base": AutoModel,
    "causal": AutoModelForCausalLM,
    "token_classification": AutoModelForTokenClassification,
}


@pytest.mark.parametrize("width", [8, 10, 16, 30])
def test_every_config_constructs_with_a_vocabulary_and_an_even_width(key, width):
    model = model_class(key, "causal")(mixer_config(key, vocab_size=5, hidden_size=width))
    ids = torch.randint(0, 5, (2, 6))
    assert model(ids).logits.shape == (2, 6, 5)


def test_the_config_survives_a_dictionary_and_needs_keywords(key):
    config = mixer_config(key, vocab_size=7, hidden_size=16)
    again = config_class(key).from_dict(json.loads(json.dumps(config.to_dict(), default=str)))
    assert again.to_dict() == config.to_dict()
    with pytest.raises((ValueError, TypeError)):
        config_class(key)(16)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"hiden_size": 16}, "hidden_size"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"norm": "batch"}, "norm"),
        ({"residual_dropout": 1.0}, "residual_dropout"),
        ({"vocab_size": -1}, "vocab_size"),
    ],
)
def test_a_wrong_field_is_refused_by_name(key, fields, name):
    with pytest.raises(Exception, match=name) as error:
        mixer_config(key, **fields)
    assert isinstance(error.value, ValueError) or "Validation" in type(error.value).__name__


def test_a_field_set_later_is_checked_when_a_model_is_built(key):
    config = mixer_config(key, vocab_size=5, hidden_size=16)
    config.hidden_size = 0
    with pytest.raises(Exception, match="hidden_size"):
        model_class(key)(config)


def test_initial_values_follow_their_law_wherever_a_model_comes_from(key):
    torch.manual_seed(3)
    config = mixer_config(key, vocab_size=11, hidden_size=16, num_labels=3, initializer_range=0.3)
    built = model_class(key, "causal")(config)
    torch.manual_seed(3)
    auto = AutoModelForCausalLM.from_config(config)
    for (name, ours), (_, theirs) in zip(built.named_parameters(), auto.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert torch.isfinite(ours).all(), name


def test_initialisation_rebuilds_every_parameter_from_garbage(key):
    model = make(key, block_conv_kernel=3, intermediate_size=8)
    torch.manual_seed(5)
    for module in model.modules():
        module._is_hf_initialized = False
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    model.initialize_weights()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter).all(), name
    assert not list(model.buffers()), "tables are functions of the config, so that no loader can lose them"


@pytest.mark.parametrize("head", AUTO)
def test_saving_and_loading_returns_every_parameter_and_the_same_outputs(key, head, tmp_path):
    model = make(key, head)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.add_(0.01 * (index + 1))
    model.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".safetensors"}
    ids = tokens()
    for cls in (type(model), AUTO[head]):
        again = cls.from_pretrained(tmp_path)
        for (name, saved), (_, loaded) in zip(model.named_parameters(), again.named_parameters(), strict=True):
            assert torch.equal(saved, loaded), name
        assert torch.equal(model(ids)[0], again.eval()(ids)[0])


def test_a_tied_head_is_one_tensor_that_is_saved_once(key, tmp_path):
    tied, untied = make(key), make(key, tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert isinstance(tied._tied_weights_keys, dict)
    tied.save_pretrained(tmp_path / "tied")
    untied.save_pretrained(tmp_path / "untied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    assert "lm_head.weight" in load_file(tmp_path / "untied" / "model.safetensors")
    ids = tokens()
    for model, folder in ((tied, "tied"), (untied, "untied")):
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / folder)(ids).logits, model(ids).logits)


def test_heads_can_be_exchanged_and_only_the_head_is_new(key, tmp_path):
    causal = make(key, tie_word_embeddings=False)
    causal.save_pretrained(tmp_path)
    ids = tokens()
    hidden = causal.model(ids).last_hidden_state
    assert torch.equal(AutoModel.from_pretrained(tmp_path)(ids).last_hidden_state, hidden)
    other = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert torch.equal(other.model(ids).last_hidden_state, hidden)
    assert torch.isfinite(other.score.weight).all()
    assert other.score.bias.abs().max() == 0


def test_missing_and_surplus_tensors_are_refused_by_name(key, tmp_path):
    model = make(key)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    inside = next(name for name in sorted(tensors) if ".mixer." in name)
    save_file({k: v for k, v in tensors.items() if k != inside}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=inside.removeprefix("model.")):
        type(model).from_pretrained(tmp_path)
    save_file({**tensors, "model.layers.0.mixer.surplus": torch.ones(1)}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="surplus"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_checkpoint_of_another_mixer_is_refused(key, tmp_path):
    make(key).save_pretrained(tmp_path)
    other = next(name for name in model_keys() if name != key)
    with pytest.raises(ValueError, match="model_type"):
        model_class(other, "causal").from_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == f"memory_{key}"


def test_bfloat16_weights_give_finite_outputs_near_those_of_float32(key):
    model = make(key, hidden_act="silu")
    ids = tokens(length=40)
    expected = model(ids).logits
    half = make(key, hidden_act="silu").to(torch.bfloat16)
    actual = half(ids, use_cache=True)
    assert actual.logits.dtype == torch.bfloat16
    scale = expected.abs().max()
    assert torch.isfinite(actual.logits).all()
    assert (actual.logits.float() - expected).abs().mean() < 0.05 * scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_a_model_leaves_parameters_of_the_recurrence_as_they_are(key, dtype):
    model, whole = make(key).to(dtype), make(key)
    assert model.dtype == dtype
    for cast, layer in zip(model.modules(), whole.modules(), strict=True):
        if isinstance(layer, StatefulLayer):
            for name in layer.fp32_parameters:
                if hasattr(layer, name):
                    assert torch.equal(getattr(cast, name), getattr(layer, name)), name


def test_parameters_of_the_recurrence_stay_in_float32_when_loaded_as_bfloat16(key, tmp_path):
    make(key).save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.model.embed_tokens.weight.dtype == torch.bfloat16
    for layer in half.modules():
        if isinstance(layer, StatefulLayer):
            own = dict(layer.named_parameters(recurse=False))
            assert all(own[name].dtype == torch.float32 for name in layer.fp32_parameters if name in own)
    logits = half(tokens(), use_cache=True).logits
    assert torch.isfinite(logits).all()
    labels = tokens()
    half.train()(labels, labels=labels).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in half.parameters() if p.grad is not None)


def test_autocast_to_bfloat16_is_finite_forward_and_backward(key):
    model = make(key).train()
    ids = tokens(length=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    close(loss.float(), model(ids, labels=ids).loss, 0.15)


def test_longer_inputs_than_planned_work_or_name_the_limit(key):
    model = make(key, max_position_embeddings=16)
    assert torch.isfinite(model(tokens(length=16)).logits).all()
    cache = model(tokens(length=15), use_cache=True).cache
    if not any(layer.mixer.limited_length for layer in model.base_model.layers):
        assert torch.isfinite(model(tokens(length=40)).logits).all()
        return
    for call in (lambda: model(tokens(length=17)), lambda: model(tokens(length=2), cache=cache)):
        with pytest.raises(ValueError, match="max_position_embeddings"):
            call()


def test_learned_positions_refuse_what_lies_beyond_their_table(key):
    model = make(key, position_embedding="learned", max_position_embeddings=16)
    cache = model(tokens(length=10), use_cache=True).cache
    model(tokens(length=6), cache=cache)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        model(tokens(length=7), cache=cache)


def test_the_optimiser_groups_hold_every_parameter_once(key):
    model = make(key, intermediate_size=8, block_conv_kernel=3)
    for mode in ("documented", "uniform"):
        groups = model.optim_groups(3e-3, 0.1, mode=mode)
        held = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(held) == sorted({id(parameter) for parameter in model.parameters()})
        rates = {group["lr"] for group in groups}
        assert rates == {3e-3} if mode == "uniform" else rates <= {3e-3, 1e-3}
        decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
        for layer in model.modules():
            if isinstance(layer, StatefulLayer):
                own = dict(layer.named_parameters())
                assert not any(
                    id(own[n]) in decayed for n in (*layer.fp32_parameters, *layer.slow_parameters) if n in own
                )
    with pytest.raises(ValueError, match="mode"):
        model.optim_groups(1e-3, 0.1, mode="both")
