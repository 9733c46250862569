"""Replicas with weights of their own, run as one by ``torch.func.vmap``, for the mixers with a gated memory."""

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from hf_memory.mixers.auto import mixer_config, mixer_model

CASES = {
    "gated_delta_net": {"allow_neg_eigval": True},
    "gated_delta_product": {"write": False, "learned_start": True},
    "kda": {"decay": "signed"},
    "gla": {},
    "hgrn2": {},
    "retnet": {},
    "mlstm": {"input_bias": 0.5},
    "slstm": {},
    "rg_lru": {},
    "min_gru": {},
    "rwkv6": {},
    "rwkv7": {},
    "mamba2": {"negative_eigenvalues": True, "state_size": 4},
    "mamba3": {"state_size": 4},
}


@pytest.mark.parametrize("key", CASES)
def test_gradients_of_stacked_replicas_are_those_of_each_alone(key):
    fields = {"vocab_size": 5, "hidden_size": 8, "initializer_range": 0.3, **CASES[key]}
    mixers = [mixer_model(mixer_config(key, **fields)).double().layers[1].mixer for _ in range(2)]
    weights = {name: tensor.detach() for name, tensor in stack_module_state(mixers)[0].items()}
    inputs, lengths = torch.randn(2, 2, 19, 8, dtype=torch.float64), torch.tensor([19, 11])

    def loss(own, hidden_states):
        outputs, state = functional_call(mixers[0], own, (hidden_states, None, lengths))
        memory = state["memory"] if "memory" in state else state["hidden"]
        return outputs[:, :11].square().sum() + memory.square().sum()

    together = vmap(grad(loss, argnums=(0, 1)))(weights, inputs)
    for index in range(2):
        alone = grad(loss, argnums=(0, 1))({name: tensor[index] for name, tensor in weights.items()}, inputs[index])
        torch.testing.assert_close(together[1][index], alone[1], rtol=1e-9, atol=1e-11)
        for name, gradient in alone[0].items():
            torch.testing.assert_close(together[0][name][index], gradient, rtol=1e-9, atol=1e-11)
