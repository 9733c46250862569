"""The generalised delta rule against its definition, against matrices written out, and near its limits."""

import pytest
import torch
from torch.nn import functional as F

from hf_memory.ops.backends.numba_matrix_memory import SPAN, refusal
from hf_memory.ops.generalized_delta_rule import (
    generalized_delta_rule,
    generalized_delta_rule_chunked,
    generalized_delta_rule_recurrent,
)
from tests.ops.core_checks import assert_same, assert_splits, assert_stacks, gradients

DECAYS = ("none", "scalar", "vector")
BACKENDS = ("torch", "numba")


def _problem(decay="vector", own_erase=False, substeps=1, batch=2, time=9, heads=2, key_dim=3, value_dim=4):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    steps = (batch, substeps * time, heads)
    probe, beta = F.normalize(draw(*steps, key_dim), dim=-1), 2 * torch.sigmoid(draw(*steps, 1))
    tensors = {"query": draw(batch, time, heads, key_dim), "key": beta * probe, "probe": probe}
    tensors |= {"value": draw(*steps, value_dim), "initial_state": draw(batch, heads, key_dim, value_dim)}
    if own_erase:
        tensors |= {"erase": beta * probe * torch.sigmoid(draw(*steps, key_dim)), "key": draw(*steps, key_dim)}
    if decay != "none":
        tensors["log_decay"] = -draw(batch, time, heads, *((key_dim,) if decay == "vector" else ())).exp()
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def _bound(function, own_erase, **options):
    return lambda **tensors: function(**({} if own_erase else {"erase": None}), **tensors, **options)


FORMS = generalized_delta_rule, generalized_delta_rule_chunked, generalized_delta_rule_recurrent


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("substeps", [1, 3])
def test_a_token_is_the_matrices_written_out(decay, substeps):
    tensors = {n: t.detach() for n, t in _problem(decay, True, substeps, batch=1, time=2, heads=1).items()}
    state, eye = tensors["initial_state"][0, 0], torch.eye(3, dtype=torch.float64)
    log_decay = tensors.get("log_decay", torch.zeros(1, 2, 1, dtype=torch.float64))
    output, final = generalized_delta_rule_recurrent(**tensors)
    for t in range(2):
        state = torch.diag(log_decay[0, t, 0].exp().expand(3)) @ state
        for s in range(t * substeps, (t + 1) * substeps):
            k, v, e, p = (tensors[name][0, s, 0] for name in ("key", "value", "erase", "probe"))
            state = (eye - torch.outer(e, p)) @ state + torch.outer(k, v)
        torch.testing.assert_close(output[0, t, 0], state.T @ tensors["query"][0, t, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(final[0, 0], state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("own_erase", [False, True])
@pytest.mark.parametrize("substeps, chunk_size", [(1, 1), (1, 2), (1, 7), (1, 16), (2, 4), (3, 16)])
def test_chunks_of_any_size_equal_the_definition(decay, own_erase, substeps, chunk_size):
    _, fast, slow = (_bound(form, own_erase) for form in FORMS)
    tensors = _problem(decay, own_erase, substeps)
    for lengths in (None, (9, 4), (0, 1)):
        lengths = None if lengths is None else torch.tensor(lengths)
        assert_same(fast, slow, tensors, lengths, chunk_size=chunk_size)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("own_erase", [False, True])
def test_the_public_form_equals_the_definition_at_every_length(decay, own_erase):
    fast, _, slow = (_bound(form, own_erase) for form in FORMS)
    for time in (1, 2, 3, 5, 33):
        tensors = _problem(decay, own_erase, time=time)
        assert_same(fast, slow, tensors, torch.tensor([time, time // 2]), backend="torch")


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("own_erase", [False, True])
@pytest.mark.parametrize("substeps", [1, 3])
@pytest.mark.parametrize("time", [1, SPAN - 1, SPAN, 2 * SPAN + 1])
def test_compiled_loops_equal_the_definition(decay, own_erase, substeps, time):
    fast, _, slow = (_bound(form, own_erase) for form in FORMS)
    lengths = torch.tensor([time, time // 2])
    assert_same(fast, slow, _problem(decay, own_erase, substeps, time=time), lengths, backend="numba")


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("key_dim, value_dim", [(1, 1), (1, 5), (2, 1), (33, 17)])
def test_compiled_loops_take_states_of_any_shape(decay, key_dim, value_dim):
    fast, _, slow = (_bound(form, True) for form in FORMS)
    tensors = _problem(decay, True, key_dim=key_dim, value_dim=value_dim)
    assert_same(fast, slow, tensors, backend="numba", tolerance=1e-9)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("own_erase", [False, True])
def test_second_derivatives_of_the_compiled_loops_are_those_in_torch(decay, own_erase):
    tensors = _problem(decay, own_erase, 2)
    found = []
    for backend in ("numba", "torch"):
        output, final = _bound(generalized_delta_rule, own_erase, backend=backend)(**tensors)
        loss = output.pow(3).sum() + final.pow(2).sum()
        first = torch.autograd.grad(loss, list(tensors.values()), create_graph=True)
        found.append(torch.autograd.grad(sum(grad.pow(2).sum() for grad in first), list(tensors.values())))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", DECAYS)
def test_a_stack_is_trained_by_compiled_loops_as_each_replica_alone(decay):
    tensors = _problem(decay)
    stacked = {name: torch.stack((t, t.flip(0))).detach().requires_grad_() for name, t in tensors.items()}
    function = _bound(generalized_delta_rule, False, backend="numba")
    output, final = torch.vmap(lambda own: function(**own))(stacked)
    together = torch.autograd.grad(output.pow(2).sum() + final.pow(3).sum(), list(stacked.values()))
    for index in range(2):
        own = {name: tensor[index].detach().requires_grad_() for name, tensor in stacked.items()}
        output, final = function(**own)
        alone = torch.autograd.grad(output.pow(2).sum() + final.pow(3).sum(), list(own.values()))
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left[index], right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", DECAYS)
def test_jacobians_through_the_compiled_loops_are_those_of_the_definition(decay):
    tensors = {name: tensor.detach() for name, tensor in _problem(decay, time=5, batch=1, heads=1).items()}

    def jacobian(form, **options):
        def last(state):
            return form(**{**tensors, "initial_state": state}, erase=None, **options)[1]

        return torch.func.jacrev(last)(tensors["initial_state"])

    expected = jacobian(generalized_delta_rule_recurrent)
    torch.testing.assert_close(jacobian(generalized_delta_rule, backend="numba"), expected, rtol=1e-11, atol=1e-11)
    many = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    _, final = generalized_delta_rule(**many, erase=None, backend="numba")
    basis = torch.eye(12, dtype=torch.float64).view(12, *final.shape)
    (rows,) = torch.autograd.grad(final, many["initial_state"], basis, is_grads_batched=True)
    torch.testing.assert_close(rows.view_as(expected), expected, rtol=1e-11, atol=1e-11)


def test_threads_change_no_bit_of_the_compiled_loops():
    tensors, found, before = (
        _problem("vector", True, batch=8, time=64, key_dim=16, value_dim=16),
        [],
        torch.get_num_threads(),
    )
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            output, final = generalized_delta_rule(**tensors, backend="numba")
            found.append([output, final, *torch.autograd.grad(output.sum() + final.sum(), list(tensors.values()))])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_very_long_keys_stay_with_products_of_matrices():
    facts = {"device": torch.device("cpu"), "dtype": torch.float32}
    assert refusal(**facts, key_dim=128) is None
    assert refusal(**facts, key_dim=64, read="before") is None
    assert refusal(**facts, key_dim=65, read="after") == "its loops lose against matrix products at keys of 65 numbers"
    assert "no key has a decay of its own" in refusal(**facts, key_dim=8, read="before", decay="head")
    assert refusal(**facts, key_dim=129) == "its loops lose against matrix products at keys of 129 numbers"
    assert (
        refusal(device=torch.device("cpu"), dtype=torch.bfloat16, key_dim=8) == "its loops do not take torch.bfloat16"
    )


@pytest.mark.parametrize("decay", ["scalar", "vector"])
@pytest.mark.parametrize("own_erase", [False, True])
@pytest.mark.parametrize("substeps", [1, 2])
def test_decays_of_any_sign_equal_the_definition(decay, own_erase, substeps):
    tensors = _problem(decay, own_erase, substeps, time=21)
    sign = 1 - 2 * torch.randint(0, 2, tensors["log_decay"].shape).double()
    fast, _, slow = (_bound(form, own_erase, sign=sign) for form in FORMS)
    for backend in BACKENDS:
        assert_same(fast, slow, tensors, torch.tensor([21, 8]), backend=backend)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("own_erase", [False, True])
@pytest.mark.parametrize("substeps", [1, 2])
def test_handing_the_state_on_at_any_split_equals_one_pass(decay, own_erase, substeps):
    tensors = _problem(decay, own_erase, substeps)
    timed = {name: 1 if name in ("query", "log_decay", "sign") else substeps for name in tensors}
    if decay != "none":
        tensors["sign"], timed["sign"] = 1 - 2 * torch.randint(0, 2, tensors["log_decay"].shape).double(), 1
    for backend in BACKENDS:
        assert_splits(_bound(generalized_delta_rule, own_erase, backend=backend), tensors, timed)


def test_first_and_second_derivatives_agree_with_finite_differences():
    tensors = _problem(own_erase=True, batch=1, time=3, heads=1, key_dim=2, value_dim=1)

    def function(*values):
        return generalized_delta_rule_chunked(**dict(zip(tensors, values, strict=True)), chunk_size=2)

    assert torch.autograd.gradcheck(function, tuple(tensors.values()))
    assert torch.autograd.gradgradcheck(function, tuple(tensors.values()))


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("own_erase", [False, True])
def test_a_stack_of_replicas_equals_each_replica_alone(decay, own_erase):
    for backend in BACKENDS:
        assert_stacks(_bound(generalized_delta_rule, own_erase, backend=backend), _problem(decay, own_erase))


@pytest.mark.parametrize("decay", ["scalar", "vector"])
@pytest.mark.parametrize("strong", [-20.0, -88.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_decays_near_the_limits_keep_their_digits_in_float32_forward_and_backward(decay, strong, backend):
    tensors = {n: t.detach().float() for n, t in _problem(decay, time=150, key_dim=8).items()}
    where = torch.rand(tensors["log_decay"].shape) < 0.3
    tensors["log_decay"] = torch.where(where, strong, -0.01 * torch.rand(where.shape))
    wide = {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}
    tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    output, ours = gradients(*generalized_delta_rule(**tensors, erase=None, backend=backend), tensors)
    expected, theirs = gradients(*generalized_delta_rule_recurrent(**wide, erase=None), wide)
    for actual, exact in zip((output, *ours), (expected, *theirs), strict=True):
        assert torch.isfinite(actual).all()
        assert (actual - exact).abs().max() < 5e-6 * exact.abs().max()


@pytest.mark.parametrize("decay", ["scalar", "vector"])
@pytest.mark.parametrize("strength, chunk_size, tolerance", [(1.0, 16, 2e-6), (2.0, 16, 2e-5), (2.0, 64, 1e-4)])
def test_nearly_parallel_keys_cost_few_digits_in_float32(decay, strength, chunk_size, tolerance):
    generator = torch.Generator().manual_seed(0)
    base, noise = (torch.randn(1, size, 2, 16, generator=generator) for size in (1, 512))
    probe = F.normalize(base + 0.05 * noise, dim=-1)
    query, value = (torch.randn(1, 512, 2, 16, generator=generator) for _ in range(2))
    log_decay = -0.001 * torch.rand(1, 512, 2, 16)
    log_decay = log_decay if decay == "vector" else log_decay[..., 0]
    inputs = (query, strength * probe, value, None, probe, log_decay)
    exact, exact_state = generalized_delta_rule_recurrent(*(None if t is None else t.double() for t in inputs))
    output, state = generalized_delta_rule_chunked(*inputs, chunk_size=chunk_size)
    assert (output - exact).abs().max() < tolerance * exact.abs().max()
    assert (state - exact_state).abs().max() < tolerance * exact_state.abs().max()
    errors = []
    for form, options in ((generalized_delta_rule, {"backend": "numba"}), (generalized_delta_rule_recurrent, {})):
        output, state = form(*inputs, **options)
        errors.append(max((output - exact).abs().max().item(), (state - exact_state).abs().max().item()))
    assert errors[0] < 3 * errors[1]  # a loop loses about what the definition loses in float32


@pytest.mark.parametrize("own_erase", [False, True])
def test_a_known_bound_of_mild_decays_changes_nothing(own_erase):
    tensors = _problem("vector", own_erase, time=37)
    tensors["log_decay"] = (-0.6 * torch.rand_like(tensors["log_decay"])).detach().requires_grad_()
    fast, slow = (_bound(form, own_erase) for form in (generalized_delta_rule_chunked, FORMS[2]))
    for chunk_size in (4, 16, 32):
        assert_same(fast, slow, tensors, torch.tensor([37, 20]), chunk_size=chunk_size, least_log_decay=-0.6)
    strong = {n: t.detach().float() for n, t in tensors.items()}
    strong["log_decay"] = torch.full_like(strong["log_decay"], -50.0)  # whose factors would overflow
    output, _ = fast(**strong, chunk_size=16, least_log_decay=-50.0)
    torch.testing.assert_close(output, slow(**strong)[0], rtol=1e-5, atol=1e-5)


def test_two_reflections_in_one_token_turn_the_state():
    angle = torch.tensor(0.6, dtype=torch.float64)
    first, second = torch.zeros(2, dtype=torch.float64), torch.stack((torch.cos(angle / 2), torch.sin(angle / 2)))
    first[0] = 1
    probe = torch.stack((first, second)).view(1, 2, 1, 2)
    start = torch.eye(2, dtype=torch.float64).view(1, 1, 2, 2)
    _, state = generalized_delta_rule(
        probe[:, :1], 2 * probe, torch.zeros_like(probe), None, probe, initial_state=start
    )
    turn = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
    torch.testing.assert_close(state[0, 0], turn, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_float32(dtype):
    tensors = {name: tensor.detach().to(dtype) for name, tensor in _problem(time=20).items()}
    output, state = generalized_delta_rule(**tensors, erase=None)
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    expected, exact = generalized_delta_rule_recurrent(**wide, erase=None)
    assert (output.dtype, state.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(output, expected.to(dtype))
    torch.testing.assert_close(state, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["value", "probe", "erase", "log_decay", "initial_state"])
def test_shapes_that_do_not_fit_are_refused_by_name(name):
    tensors = {name: tensor.detach() for name, tensor in _problem(own_erase=True).items()}
    tensors[name] = tensors[name][:, :1]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        generalized_delta_rule(**tensors)


def test_steps_that_are_no_multiple_of_the_tokens_are_refused():
    tensors = {name: tensor.detach() for name, tensor in _problem(own_erase=True).items()}
    tensors["query"] = tensors["query"][:, :2]
    with pytest.raises(ValueError, match="key must have a multiple of the 2 steps"):
        generalized_delta_rule(**tensors)
