r"""Delta rule: a matrix state that replaces the value stored under a key instead of adding to it.

    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,        o_t = S_t^T q_t

    q_t, k_t  query, key  (B, T, H, K)        S_t  state      (B, H, K, V)
    v_t       value       (B, T, H, V)        o_t  output     (B, T, H, V)
    beta_t    beta        (B, T, H)           beta = 1 and |k| = 1 overwrite, beta = 0 keeps the state

Source: Schlag, Irie and Schmidhuber (2021), "Linear transformers are secretly fast weight programmers", section 4.2
(the state there is transposed). It is the generalised delta rule with the key beta k, the probe k and no decay; its
chunked form and what that costs in digits stand in ``generalized_delta_rule.py``.
"""

import torch
from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._chunks import check_shapes, keep_padding, padding_mask
from hf_memory.ops._graph import graph_node
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.generalized_delta_rule import (
    generalized_delta_rule,
    generalized_delta_rule_chunked,
    generalized_delta_rule_recurrent,
)


@graph_node("query", "key", "value", "beta")
def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Write every value under its key and read with every query.

    Keys are used as given: for |k| > 1 and beta near its end the state grows, so callers normalise them.

    Args:
        query: q (B, T, H, K), not scaled here.
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        beta: Strength of the writes (B, T, H), in [0, 2] for unit keys.
        initial_state: S_0 (B, H, K, V), zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        backend: ``"auto"``, ``"torch"``, ``"numba"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state (B, H, K, V) at each row's own length, in at least
        float32.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    beta = _checked(query, key, value, beta, initial_state, lengths)
    chosen = resolve_backend("delta_rule", backend, **facts)
    with without_autocast(value):
        if chosen == "triton":
            return load_kernel("delta_rule", chosen).delta_rule(query, key, value, beta, initial_state)
        return generalized_delta_rule(*_general(query, key, value, beta), initial_state=initial_state, backend=chosen)


def delta_rule_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition, arguments and results as in ``delta_rule``."""
    beta = _checked(query, key, value, beta, initial_state, lengths)
    return generalized_delta_rule_recurrent(*_general(query, key, value, beta), initial_state=initial_state)


def delta_rule_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``delta_rule``.

    Args:
        chunk_size: Steps per chunk c, no more than T are used; None chooses by device and K.
    """
    beta = _checked(query, key, value, beta, initial_state, lengths)
    return generalized_delta_rule_chunked(
        *_general(query, key, value, beta), initial_state=initial_state, chunk_size=chunk_size
    )


def _general(query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, None, Tensor]:
    """The same as query, key, value, erase and probe, with the product of beta and key in the dtype of the state."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    return query, beta.to(dtype).unsqueeze(-1) * key.to(dtype), value, None, key


def _checked(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, initial_state: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Check shapes, and return beta with 0 past each row's length."""
    batch, time, heads, key_dim = key.shape
    check_shapes(
        key,
        query=(query, tuple(key.shape)),
        value=(value, (batch, time, heads, value.shape[-1])),
        beta=(beta, (batch, time, heads)),
        initial_state=(initial_state, (batch, heads, key_dim, value.shape[-1])),
    )
    return beta if lengths is None else keep_padding(beta, padding_mask(lengths, time)[:, :, None, None], 0)
