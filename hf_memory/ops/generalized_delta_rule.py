r"""Generalised delta rule: a matrix state whose every step decays, erases along one key and writes under another.

    S_t = (I - e_t p_t^T) D_t S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t,    D_t = diag(a_t)

    q_t, k_t  query, key    (B, T, H, K)    a_t  decay  (B, T, H) or (B, T, H, K), given as its logarithm; 1 by default
    e_t, p_t  erase, probe  (B, T, H, K)    S_t  state  (B, H, K, V)
    v_t       value         (B, T, H, V)    o_t  output (B, T, H, V)

With e = k, a step replaces what the probe finds by the value: the delta rule has k = beta p (Schlag, Irie and
Schmidhuber, 2021, "Linear transformers are secretly fast weight programmers"), the gated one a decay besides (Yang,
Kautz and Hatamizadeh, 2025, "Gated delta networks", equation 10). A token may make n steps, of which the first decays
and the last is read (Siems et al., 2025, "DeltaProduct", section 3): key, value, erase and probe then have n T steps.

Inside a chunk, with the state S before it, the sums L of log decays and [x . y]_ij = sum_k x_ik y_jk e^{L_ik - L_jk}
for j <= i (``_decays.py``), what the probes find are the rows of R:

    (I + A) R = (P * e^L) S + B V,                A, B = strictly lower parts of [p . e], [p . k],
    O = (Q * e^L) S + [q . k] V - [q . e] R,      S' = e^{L_c} S + (K * e^{L_c - L})^T V - (E * e^{L_c - L})^T R,

a triangular system solved for the part of S and the rest at once, before S is known (Yang et al., 2024, "Parallelizing
linear transformers with the delta rule over sequence length", section 3), so that only T / c steps remain sequential.
Where e = k the products with k are those with e, and V - R is solved for. The system is solved by substitution and
never inverted by a series: with keys that repeat, as in recall tasks, a series loses all digits. Where keys repeat and
a step reflects, the solution is large beside the state, and float32 keeps about 5 digits at c = 16 and 4 at c = 64,
against 6 in the loop.

Decays of any sign are sizes and signs, as in ``gated_linear_attention.py``.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import (
    check_shapes,
    join_chunks,
    keep_padding,
    padding_mask,
    power_of_two,
    split_chunks,
    split_decay,
)
from hf_memory.ops._decays import DecayedScores, decayed_scores
from hf_memory.ops._graph import graph_node
from hf_memory.ops._matrix_memory import matrix_memory
from hf_memory.ops._signs import Signs
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend

_FEW_STEPS = 4  # below which a chunk costs more than it saves


@graph_node("query", "key", "value", "erase", "probe", "log_decay", "sign", "beta")
def generalized_delta_rule(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor,
    log_decay: Tensor | None = None,
    sign: Tensor | None = None,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    least_log_decay: float | None = None,
    beta: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Decay, erase and write at every step, and read with every query.

    Args:
        query: q (B, T, H, K), not scaled here.
        key: k (B, n T, H, K), for n steps a token; None for beta times the probe.
        value: v (B, n T, H, V).
        erase: e (B, n T, H, K); None for that of the key, which takes half the work.
        probe: p (B, n T, H, K).
        log_decay: log a (B, T, H) or (B, T, H, K), finite and at most 0, of the first step of a token; None for a = 1.
        sign: Signs of the decays, 1 or -1, in the shape of ``log_decay``; all 1 if None.
        initial_state: S_0 (B, H, K, V), zeros if None.
        lengths: Tokens that count in each row (B,), all if None.
        least_log_decay: A bound of ``log_decay`` from below that the caller knows; a mild one saves work.
        beta: Strength of the writes (B, n T, H), in the place of the key. Kernels of the delta rule itself need it.
        backend: ``"auto"``, ``"torch"``, ``"numba"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state at each row's own length, in at least float32.

    Raises:
        ValueError: Shapes do not fit, there are both a key and a beta, or neither, or an erase beside a beta, or the
            backend is unknown.
    """
    key = _written(key, erase, probe, beta)
    facts = {
        "device": value.device,
        "dtype": value.dtype,
        "key_dim": key.shape[-1],
        "decay": "none" if log_decay is None else "key" if log_decay.dim() == 4 else "head",
        "has_beta": beta is not None,
        "has_sign": sign is not None,
        "steps": key.shape[1] // max(1, query.shape[1]),
    }
    chosen = resolve_backend("generalized_delta_rule", backend, **facts)
    inputs = query, key, value, erase, probe, log_decay, sign, initial_state, lengths
    with without_autocast(value):
        if chosen != "torch":
            return _in_kernel(chosen, *inputs, beta)
        if key.shape[1] < _FEW_STEPS:
            return generalized_delta_rule_recurrent(*inputs)
        return generalized_delta_rule_chunked(*inputs, least_log_decay=least_log_decay)


def _written(key: Tensor | None, erase: Tensor | None, probe: Tensor, beta: Tensor | None) -> Tensor:
    """The key, from the strengths of the writes where it is not given."""
    if (key is None) == (beta is None):
        raise ValueError("key must be None where there is a beta, and only there")
    if beta is None:
        return key
    if erase is not None:
        raise ValueError("erase must be None where there is a beta: what is written is what is erased")
    check_shapes(probe, beta=(beta, tuple(probe.shape[:3])))
    return beta.unsqueeze(-1) * probe


def _in_kernel(
    chosen: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor,
    log_decay: Tensor | None,
    sign: Tensor | None,
    initial_state: Tensor | None,
    lengths: Tensor | None,
    beta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of this name; arguments and results as in ``generalized_delta_rule``."""
    steps, tokens, dtype = key.shape[1], query.shape[1], value.dtype
    key, value, erase, probe, query, log_decay, sign, state = _prepare(
        query, key, value, erase, probe, log_decay, sign, initial_state, lengths
    )
    if chosen == "numba":
        tensors = query, key, value, erase, probe, log_decay, sign, state
        output, state = matrix_memory(generalized_delta_rule_chunked, "generalized_delta_rule", chosen, *tensors)
        return output.to(dtype), state
    kernel = load_kernel("generalized_delta_rule", chosen)
    if chosen == "fla":  # the kernels of one rule each, which know of steps in a token
        if lengths is not None:
            padding = padding_mask(lengths, tokens).repeat_interleave(steps // tokens, dim=1)
            beta = keep_padding(beta, padding[:, :, None, None], 0)
        signs = Signs(sign)
        output, state = kernel.delta_rule(signs(query), signs(probe), value, beta, log_decay, state, dtype)
        return output.to(dtype), signs.last(state)
    if steps > tokens:
        query, log_decay, sign = _substeps(query, log_decay, sign, steps // tokens)
    signs = Signs(sign)
    query, key, probe = signs(query), signs(key), signs(probe)
    erase = key if erase is None else signs(erase)
    output, state = kernel.delta_rule(query, key, value, erase, probe, log_decay, state, dtype)
    output = output if steps == tokens else output.unflatten(1, (tokens, -1))[:, :, -1]
    return output.to(dtype), signs.last(state)


def generalized_delta_rule_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor,
    log_decay: Tensor | None = None,
    sign: Tensor | None = None,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition, arguments and results as in ``generalized_delta_rule``."""
    key, new, erase, probe, query, log_decay, sign, state = _prepare(
        query, key, value, erase, probe, log_decay, sign, initial_state, lengths
    )
    decay = _decays(log_decay, sign)
    decays = [None] * query.shape[1] if decay is None else decay.unbind(1)
    named = (key, new, probe) if erase is None else (key, new, probe, erase)
    tokens = zip(*(tensor.unflatten(1, (query.shape[1], -1)).unbind(1) for tensor in named), strict=True)
    outputs = []
    for q, a, token in zip(query.unbind(1), decays, tokens, strict=True):
        state = state if a is None else a * state
        for k, v, p, *e in zip(*(tensor.unbind(1) for tensor in token), strict=True):
            found = torch.einsum("bhk,bhkv->bhv", p, state)
            if e:
                state = state - torch.einsum("bhk,bhv->bhkv", e[0], found)
                found = 0
            state = state + torch.einsum("bhk,bhv->bhkv", k, v - found)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(outputs, dim=1).to(value.dtype), state


def generalized_delta_rule_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor,
    log_decay: Tensor | None = None,
    sign: Tensor | None = None,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int | None = None,
    least_log_decay: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``generalized_delta_rule``.

    Args:
        chunk_size: Steps per chunk c, no more than n T are used; with a decay the next power of two. None chooses by
            device and K.
        least_log_decay: As in ``generalized_delta_rule``.
    """
    batch, steps = key.shape[:2]
    tokens = query.shape[1]
    key, new, erase, probe, query, log_decay, sign, state = _prepare(
        query, key, value, erase, probe, log_decay, sign, initial_state, lengths
    )
    if steps > tokens:
        query, log_decay, sign = _substeps(query, log_decay, sign, steps // tokens)
    signs = Signs(sign)
    query, key, probe = signs(query), signs(key), signs(probe)
    chunk = min(chunk_size or _chunk_size(key), steps)
    chunk = chunk if log_decay is None else power_of_two(chunk)
    query, key, probe, new = (split_chunks(tensor, chunk) for tensor in (query, key, probe, new))
    columns = [key] if erase is None else [split_chunks(signs(erase), chunk), key]
    decays = decayed_scores([probe, query], columns, split_decay(log_decay, chunk), least=least_log_decay)
    output, state = _combine(query, key, new, columns[0], probe, decays, state)
    output = join_chunks(output, batch, steps).to(value.dtype)
    output = output if steps == tokens else output.unflatten(1, (tokens, -1))[:, :, -1]
    return output, signs.last(state)


def _decays(log_decay: Tensor | None, sign: Tensor | None) -> Tensor | None:
    """Factors of the state (B, T, H, 1 or K, 1), or None."""
    if log_decay is None and sign is None:
        return None
    decay = sign if log_decay is None else log_decay.exp() if sign is None else log_decay.exp() * sign
    return decay.reshape(*decay.shape[:3], -1, 1)


def _combine(
    query: Tensor, key: Tensor, value: Tensor, erase: Tensor, probe: Tensor, decays: DecayedScores, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (G, n, c, V) and final state (B, H, K, V) of chunks (G, n, c, K) whose scores are known."""
    (system, *written), (seen, *read) = decays.scores
    # U are V - R where e = k, else -R: what is added along e. It is known but for what the state before the chunk adds.
    known = -(written[0].tril(-1) @ value) if written else value
    targets = torch.cat((known, decays.from_start(probe)), dim=-1)
    solved = torch.linalg.solve_triangular(system.tril(-1), targets, upper=False, unitriangular=True)
    known, found = solved.split((value.shape[-1], key.shape[-1]), dim=-1)
    added = decays.to_end(key).mT @ value if written else None
    before, updates, final = _chain(decays.total, decays.to_end(erase), known, found, added, state.flatten(0, 1))
    output = decays.from_start(query) @ before + seen @ updates
    return output + read[0] @ value if written else output, final.view(state.shape)


def _chain(
    total: Tensor | None, erase: Tensor, known: Tensor, found: Tensor, added: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """States S' = e^L S + A + E^T U with U = U_0 - W S, from chunk to chunk.

    Args:
        total: L (G, n) or (G, n, K), 0 if None.
        erase: E (G, n, c, K).
        known: U_0 (G, n, c, V).
        found: W (G, n, c, K).
        added: A (G, n, K, V), 0 if None.
        state: The first S (G, K, V).

    Returns:
        S before each chunk (G, n, K, V), U (G, n, c, V), and the last S (G, K, V).
    """
    count = known.shape[1]
    factors = [None] * count if total is None else total.exp().reshape(*total.shape[:2], -1, 1).unbind(1)
    additions = [None] * count if added is None else added.unbind(1)
    states, updates = [], []
    for e, u, w, factor, new in zip(erase.unbind(1), known.unbind(1), found.unbind(1), factors, additions, strict=True):
        update = torch.baddbmm(u, w, state, alpha=-1)
        states.append(state)
        updates.append(update)
        state = state if factor is None else factor * state
        state = torch.baddbmm(state if new is None else state + new, e.mT, update)
    return torch.stack(states, dim=1), torch.stack(updates, dim=1), state


def _substeps(
    query: Tensor, log_decay: Tensor | None, sign: Tensor | None, count: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Queries at the last of the steps of a token, decays and signs at the first."""
    query = F.pad(query.unsqueeze(2), (0, 0, 0, 0, count - 1, 0)).flatten(1, 2)

    def first(gate: Tensor | None, neutral: float) -> Tensor | None:
        if gate is None:
            return None
        padding = (*(0, 0) * (gate.dim() - 2), 0, count - 1)
        return F.pad(gate.unsqueeze(2), padding, value=neutral).flatten(1, 2)

    return query, first(log_decay, 0.0), first(sign, 1.0)


def _chunk_size(key: Tensor) -> int:
    """On a CPU the work per step, O(c), counts; elsewhere the number of sequential launches, O(T / c)."""
    if key.device.type != "cpu":
        return 64
    return 32 if key.shape[-1] >= 64 else 16


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    erase: Tensor | None,
    probe: Tensor,
    log_decay: Tensor | None,
    sign: Tensor | None,
    initial_state: Tensor | None,
    lengths: Tensor | None,
) -> tuple:
    """Check, bring everything to the dtype of the state, and make tokens past a row's length change nothing.

    Returns:
        Key, value, erase, probe, query, log decay, sign and state.
    """
    batch, steps, heads, key_dim = key.shape
    tokens = query.shape[1]
    if tokens < 1 or steps % tokens:
        raise ValueError(f"key must have a multiple of the {tokens} steps of the query, got {steps}")
    gates = (batch, tokens, heads) + ((key_dim,) if log_decay is not None and log_decay.dim() == 4 else ())
    check_shapes(
        key,
        query=(query, (batch, tokens, heads, key_dim)),
        value=(value, (batch, steps, heads, value.shape[-1])),
        erase=(erase, tuple(key.shape)),
        probe=(probe, tuple(key.shape)),
        log_decay=(log_decay, gates),
        sign=(sign, gates),
        initial_state=(initial_state, (batch, heads, key_dim, value.shape[-1])),
    )
    dtype = torch.promote_types(value.dtype, torch.float32)
    state = value.new_zeros(batch, heads, key_dim, value.shape[-1], dtype=dtype)
    state = state if initial_state is None else initial_state.to(dtype)
    key, value, probe, query = (tensor.to(dtype) for tensor in (key, value, probe, query))
    erase, log_decay, sign = (None if tensor is None else tensor.to(dtype) for tensor in (erase, log_decay, sign))
    if lengths is not None:
        padding = padding_mask(lengths, tokens)[:, :, None, None]
        later = padding.repeat_interleave(steps // tokens, dim=1)
        key, erase = keep_padding(key, later, 0), keep_padding(erase, later, 0)
        log_decay, sign = keep_padding(log_decay, padding, 0), keep_padding(sign, padding, 1)
    return key, value, erase, probe, query, log_decay, sign, state
