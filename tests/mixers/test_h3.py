"""H3 against a loop over its two state spaces in complex128, and its initial values."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_memory.mixers.h3 import MemoryH3Config, MemoryH3ForCausalLM, MemoryH3Model
from tests.mixers.option_checks import assert_laws, assert_spectrum, close, randomised

OPTIONS = [
    {},
    {"head_dim": 2},
    {"head_dim": 4, "shift_size": 3},
    {"shift_size": 1},
    {"state_size": 2, "shift_size": 20},
]


def _config(**fields):
    return MemoryH3Config(vocab_size=5, **{"hidden_size": 8, "state_size": 6, "initializer_range": 0.4, **fields})


def _mixer(**fields):
    mixer = randomised(MemoryH3Model, _config(**fields)).layers[1].mixer
    with torch.no_grad():
        for name in ("log_dt", "log_A_real", "A_imag", "B"):
            parameter = getattr(mixer, name)
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def _loop(mixer, u):
    """The equations one step at a time, the shift as a matrix on the last inputs."""
    rows, _, width = u.shape
    taps, size = mixer.shift_taps.shape[1], mixer.config.head_dim
    A = torch.complex(-mixer.log_A_real.exp(), mixer.A_imag)
    z = mixer.log_dt.exp().unsqueeze(1) * A
    eigenvalues, B = (1 + z / 2) / (1 - z / 2), mixer.log_dt.exp().unsqueeze(1) / (1 - z / 2)
    B, C = B * torch.view_as_complex(mixer.B), torch.view_as_complex(mixer.C)
    shift = torch.diag(torch.ones(taps - 1, dtype=u.dtype), -1)
    buffer = torch.zeros(rows, width, taps, dtype=u.dtype)
    h = torch.zeros(rows, width // size, size, size, A.shape[1], dtype=torch.complex128)
    outputs = []
    for u_t in u.unbind(1):
        q, k, v = (u_t @ mixer.qkv_proj.weight.T + mixer.qkv_proj.bias).chunk(3, dim=1)
        buffer = buffer @ shift.T
        buffer[..., 0] = k
        k = (buffer * mixer.shift_taps).sum(-1) + mixer.shift_D * k
        q, k, v = (x.view(rows, -1, size) for x in (q, k, v))
        kv = k.unsqueeze(3) * v.unsqueeze(2)
        h = eigenvalues[:, None, None] * h + B[:, None, None] * kv.unsqueeze(-1)
        y = 2 * (C[:, None, None] * h).sum(-1).real + mixer.D[:, None, None] * kv
        o = torch.einsum("bhi,bhij->bhj", q, y).reshape(rows, width)
        outputs.append(o @ mixer.out_proj.weight.T + mixer.out_proj.bias)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_equal_a_loop_over_the_equations(options):
    mixer, u = _mixer(**options), torch.randn(2, 12, 8, dtype=torch.float64)
    gradients = []
    for outputs in (mixer(u)[0], _loop(mixer, u)):
        gradients.append((outputs, *torch.autograd.grad(outputs.cos().sum(), list(mixer.parameters()))))
    for actual, expected in zip(*gradients, strict=True):
        close(actual, expected, 1e-9)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_keeps_the_laws_of_the_state(options):
    assert_laws(randomised(MemoryH3Model, _config(**options)))


@pytest.mark.parametrize(("options", "size"), [({}, 6 * 8 + 5 * 8), ({"head_dim": 4, "shift_size": 3}, 4 * 8 * 6 + 16)])
def test_the_state_counts_both_parts(options, size):
    assert MemoryH3Model(_config(**options)).state_size() == 2 * size


@pytest.mark.parametrize("options", [{}, {"shift_size": 1}])
def test_the_spectrum_is_that_of_the_jacobian(options):
    mixer = _mixer(hidden_size=4, state_size=4, **options)
    assert_spectrum(mixer, torch.randn(1, 3, 4, dtype=torch.float64))


def test_initial_values_follow_their_laws_after_construction_and_loading(tmp_path):
    model = MemoryH3ForCausalLM(_config(hidden_size=512, head_dim=2, state_size=32))
    model.save_pretrained(tmp_path)
    loaded = MemoryH3ForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    for layer in loaded.model.requires_grad_(False).layers:
        mixer = layer.mixer
        torch.testing.assert_close(mixer.log_A_real.exp(), torch.full((256, 16), 0.5))
        torch.testing.assert_close(mixer.A_imag, math.pi * torch.arange(16.0).expand(256, 16))
        assert math.log(0.001) <= mixer.log_dt.min() <= mixer.log_dt.max() <= math.log(0.1)
        assert torch.equal(mixer.B, torch.tensor([1.0, 0.0]).expand(256, 16, 2))
        assert abs(mixer.C.square().sum(-1).mean() - 1) < 0.1
        assert all(abs(leaf.std() - 1) < 0.2 for leaf in (mixer.D, mixer.shift_D))


@pytest.mark.parametrize(("shift_size", "taps"), [(0, 64), (1, 1), (9, 9)])
def test_shift_taps_start_uniform_within_one_over_the_root_of_their_number(shift_size, taps):
    torch.manual_seed(0)
    model = MemoryH3Model(_config(hidden_size=512, state_size=64, shift_size=shift_size))
    for layer in model.requires_grad_(False).layers:
        found, bound = layer.mixer.shift_taps, taps**-0.5
        assert found.shape == (512, taps)
        assert 0.98 * bound < found.abs().max() <= bound
        assert abs(found.mean()) < 0.1 * bound
        assert abs(found.std() * math.sqrt(3 * taps) - 1) < 0.05  # 0.072 for 64 taps
        assert abs((found.abs() < bound / 2).float().mean() - 0.5) < 0.05


@pytest.mark.parametrize("head_dim", [1, 2, 4])
def test_the_official_order_of_channels_is_a_rearrangement_of_the_columns_of_the_output_map(head_dim):
    mixer, u = _mixer(head_dim=head_dim), torch.randn(2, 7, 8, dtype=torch.float64)
    expected = mixer(u)[0]
    with torch.no_grad():
        weight, bias = mixer.out_proj.weight.clone(), mixer.out_proj.bias.clone()
        mixer.out_proj.weight.copy_(torch.eye(8, dtype=torch.float64))
        mixer.out_proj.bias.zero_()
    channels = mixer(u)[0]
    # Channel p of head h is number h P + p here, and p D / P + h there.
    official, columns = (x.unflatten(-1, (-1, head_dim)).transpose(-1, -2).flatten(-2) for x in (channels, weight))
    assert torch.equal(official, channels) == (head_dim == 1)
    close(official @ columns.T + bias, expected, 1e-12)


def test_documented_groups_train_the_state_space_slowly():
    model = MemoryH3Model(_config())
    names = {id(parameter): name.rpartition(".")[2] for name, parameter in model.named_parameters()}
    slow = [group for group in model.optim_groups(1e-2, 0.1) if group["lr"] == 1e-3]
    found = {names[id(parameter)] for group in slow for parameter in group["params"]}
    assert found == {"log_dt", "log_A_real", "A_imag", "B"}
    assert {group["weight_decay"] for group in slow} == {0.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [("state_size", 5), ("shift_size", -1), ("head_dim", 3), ("head_dim", 0), ("time_step_min", 0.2)],
)
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(StrictDataclassError, match=f"{field} must"):
        _config(**{field: value})
