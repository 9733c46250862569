"""The non-saturating recurrent unit as a model: the equations written out, its sizes and the laws of its weights."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.nru import MemoryNRUConfig, MemoryNRUForCausalLM, NRUMixer


def written_out(mixer, x):
    """The recurrence in float64, one row, step, head and direction after the other, from the paper's equations."""
    config = mixer.config
    heads, width, memory = config.num_memory_heads, *mixer.sizes.values()
    side = math.isqrt(heads * memory)
    weights = {name: p.detach().double() for name, p in mixer.named_parameters()}
    rows = []
    for row in x.double():
        h, m, outputs = torch.zeros(width).double(), torch.zeros(memory).double(), []
        for column in row:
            a = weights["weight_ih"] @ column + weights["weight_hh"] @ torch.cat([h, m]) + weights["bias_ih"]
            if config.layer_norm:
                a = (a - a.mean()) / torch.sqrt(a.var(unbiased=False) + 1e-5)
                a = a * weights["norm_weight"] + weights["norm_bias"]
            h = a.clamp(min=0)
            gates = weights["weight_memory"] @ torch.cat([h, m]) + weights["bias_memory"]
            alpha, beta, p_write, p_erase, q_write, q_erase = gates.split([heads] * 2 + [side] * 4)
            change = torch.zeros(memory).double()
            for sign, gains, p, q in ((1, alpha, p_write, q_write), (-1, beta, p_erase, q_erase)):
                directions = torch.tensor([[a * b for b in q.tolist()] for a in p.tolist()]).double()
                directions = directions.reshape(heads, memory)
                if config.relu_directions:
                    directions = directions.clamp(min=0)
                for gain, direction in zip(gains, directions, strict=True):
                    gain = gain.clamp(min=0) if config.relu_gains else gain
                    change += sign * gain * direction / direction.abs().pow(5).sum().pow(0.2)
            m = m + (change / heads if config.reduce == "mean" else change)
            outputs.append(h)
        rows.append(torch.stack(outputs))
    return torch.stack(rows), m


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reduce": "sum"},
        {"layer_norm": True},
        {"relu_gains": True, "relu_directions": True},
        {"num_memory_heads": 4, "memory_size": 9},
        {"num_memory_heads": 1},
    ],
    ids=str,
)
def test_outputs_and_memory_equal_the_equations(fields):
    mixer = NRUMixer(MemoryNRUConfig(vocab_size=11, hidden_size=8, **fields), 0)
    if mixer.norm_weight is not None:
        torch.nn.init.uniform_(mixer.norm_weight)
        torch.nn.init.uniform_(mixer.norm_bias)
    x = torch.randn(2, 6, 8)
    output, state = mixer(x)
    expected, memory = written_out(mixer, x)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state["memory"][-1].double(), memory, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8])
def test_every_width_has_a_memory_at_least_as_wide_whose_directions_are_an_outer_product(heads):
    for width in range(8, 300, 2):
        config = MemoryNRUConfig(vocab_size=11, hidden_size=width, num_memory_heads=heads)
        memory = config.default_memory_size()
        assert memory == heads * math.ceil(round(math.sqrt(width / heads), 9)) ** 2
        assert memory >= width
        assert math.isqrt(heads * memory) ** 2 == heads * memory


def test_sizes_of_the_published_experiments_construct():
    for width, memory, heads in ((212, 256, 4), (64, 64, 4), (8, 8, 2), (128, 128, 2), (128, 1152, 2)):
        config = MemoryNRUConfig(vocab_size=11, hidden_size=width, memory_size=memory, num_memory_heads=heads)
        assert NRUMixer(config, 0).state_size() == width + memory


def test_weights_follow_the_law_of_linear_layers_after_construction_and_loading(tmp_path):
    config = MemoryNRUConfig(vocab_size=11, hidden_size=32, layer_norm=True)
    model = MemoryNRUForCausalLM(config)
    model.save_pretrained(tmp_path)
    for loaded in (model, MemoryNRUForCausalLM._from_config(config), MemoryNRUForCausalLM.from_pretrained(tmp_path)):
        for block in loaded.model.layers:
            mixer = block.mixer
            memory = mixer.sizes["memory"]
            for tensor, inputs in ((mixer.weight_ih, 64 + memory), (mixer.weight_memory, 32 + memory)):
                assert 0.95 * inputs**-0.5 < tensor.abs().max() <= inputs**-0.5
            assert torch.equal(mixer.norm_weight, torch.ones(32))
            assert torch.equal(mixer.norm_bias, torch.zeros(32))


def test_state_and_gradients_stay_finite_over_512_steps_at_width_64():
    mixer = NRUMixer(MemoryNRUConfig(vocab_size=11, hidden_size=64), 0)
    output, state = mixer(torch.randn(2, 512, 64))
    output.square().mean().backward()
    assert state["memory"].isfinite().all()
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


def test_norm_takes_no_weight_decay():
    model = MemoryNRUForCausalLM(MemoryNRUConfig(vocab_size=11, hidden_size=8, layer_norm=True))
    decayed = {id(p) for group in model.optim_groups(1e-3, 0.1) if group["weight_decay"] for p in group["params"]}
    for block in model.model.layers:
        assert id(block.mixer.weight_hh) in decayed
        assert not decayed & {id(block.mixer.norm_weight), id(block.mixer.norm_bias)}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"memory_size": 10}, r"must be a square, got 10 \* 4; with 4 heads 64 would do"),
        ({"memory_size": -4}, "memory_size must be at least 1"),
        ({"num_memory_heads": 0}, "num_memory_heads must be at least 1"),
    ],
)
def test_bad_fields_raise(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        MemoryNRUConfig(vocab_size=11, hidden_size=64, **fields)


@pytest.mark.parametrize("fields", [{}, {"relu_gains": True, "relu_directions": True}], ids=str)
@pytest.mark.parametrize("size", [1e7, 1e20, 1e37])
def test_a_state_of_any_size_is_updated_as_in_float64(fields, size):
    mixer = NRUMixer(MemoryNRUConfig(hidden_size=8, **fields), 0)
    state = {name: size * leaf.normal_() for name, leaf in mixer.initial_state(3).items()}
    x = torch.randn(3, 2, 8)
    output, final = mixer(x, state)
    memory = final["memory"]
    wide = NRUMixer(mixer.config, 0).double()
    wide.load_state_dict(mixer.state_dict())
    expected = wide(x.double(), {name: leaf.double() for name, leaf in state.items()})[1]["memory"]
    torch.testing.assert_close((memory / size).double(), expected / size, rtol=0, atol=1e-5)
    assert output.isfinite().all()
    assert (memory != state["memory"]).any(-1).all()
    assert mixer.unresolved_rows(final).tolist() == [size > 2**23] * 3


@pytest.mark.parametrize("fields", [{}, {"relu_gains": True, "relu_directions": True}], ids=str)
def test_a_state_beyond_floats_is_no_number_and_never_stands_still(fields):
    mixer = NRUMixer(MemoryNRUConfig(hidden_size=8, **fields), 0)
    state = {name: torch.full_like(leaf, 3e38) for name, leaf in mixer.initial_state(1).items()}
    with torch.no_grad():
        mixer.weight_memory.abs_()
        mixer.weight_hh.abs_()
        _, state = mixer(torch.randn(1, 3, 8), state)
    assert not state["memory"].isfinite().any()
    assert mixer.unresolved_rows(state).all()


def test_rows_are_told_apart_by_whether_their_state_still_resolves_an_input():
    mixer = NRUMixer(MemoryNRUConfig(hidden_size=8), 0)
    state = mixer.initial_state(4)
    state["memory"][1, 0], state["memory"][2, 3], state["hidden"][3, 0] = 2.0**22, torch.nan, -(2.0**24)
    assert mixer.unresolved_rows(state).tolist() == [False, False, True, True]


def test_the_horizon_of_fresh_weights_is_as_documented():
    mixer = NRUMixer(MemoryNRUConfig(hidden_size=64), 0)
    with torch.no_grad():
        _, early = mixer(torch.randn(4, 128, 64))
        _, late = mixer(torch.randn(4, 1024, 64))
    assert not mixer.unresolved_rows(early).any()
    assert mixer.unresolved_rows(late).all()
    assert all(leaf.isfinite().all() for leaf in late.values())
