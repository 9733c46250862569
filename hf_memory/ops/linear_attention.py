r"""Linear attention: a matrix state that adds up keys and values, with scalar decay and normaliser as options.

    S_t = a_t S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t              and with the normaliser
    z_t = a_t z_{t-1} + k_t,          o_t = S_t^T q_t / (z_t^T q_t + eps)

    q_t, k_t  query, key  (B, T, H, K)    features of the caller's choice, not scaled here
    v_t       value       (B, T, H, V)
    a_t       decay       (B, T, H)       given as its logarithm; 1 by default
    S_t       state       (B, H, K, V)    with the normaliser (B, H, K, V + 1): z_t is one more column, for a value of 1

Source: Katharopoulos et al. (2020), "Transformers are RNNs", equations 16-20. The recurrence and its chunked form are
those of ``gated_linear_attention.py``; here the normaliser is one more column of the values.
"""

from torch import Tensor

from hf_memory.ops._cells import without_autocast
from hf_memory.ops._graph import graph_node
from hf_memory.ops._linear_attention import read_out, value_columns
from hf_memory.ops.backends.dispatch import load_kernel, resolve_backend
from hf_memory.ops.gated_linear_attention import (
    gated_linear_attention_chunked,
    gated_linear_attention_recurrent,
    prepare,
)


@graph_node("query", "key", "value", "log_decay")
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Sum values under their keys, and read with every query.

    Args:
        query: q (B, T, H, K).
        key: k (B, T, H, K).
        value: v (B, T, H, V).
        log_decay: log a (B, T, H), finite; None for a = 1.
        normalize: Divide by the sum of the weights q^T k.
        eps: Added to that sum.
        initial_state: S_0 (B, H, K, V), or (B, H, K, V + 1) with the normaliser; zeros if None.
        lengths: Steps that count in each row (B,), all if None.
        backend: ``"auto"``, ``"torch"`` or ``"triton"``.

    Returns:
        Outputs (B, T, H, V) in the dtype of ``value``, and the state at each row's own length, in at least float32.

    Raises:
        ValueError: Shapes do not fit, or the backend is unknown.
    """
    facts = {"device": value.device, "dtype": value.dtype, "key_dim": key.shape[-1]}
    chosen = resolve_backend("linear_attention", backend, **facts)
    inputs = query, key, value, log_decay, normalize, eps, initial_state, lengths
    with without_autocast(value):
        return linear_attention_chunked(*inputs) if chosen == "torch" else _in_kernel(chosen, *inputs)


def linear_attention_recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; the definition, arguments and results as in ``linear_attention``."""
    columns = value_columns(value, normalize)
    sums, state = gated_linear_attention_recurrent(
        query, key, columns, log_decay, initial_state=initial_state, lengths=lengths
    )
    return read_out(sums, normalize, eps, value.dtype), state


def linear_attention_chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chunks of steps as matrix products; arguments and results as in ``linear_attention``.

    Args:
        chunk_size: Steps per chunk, no more than T are used; with a decay the next power of two. None chooses.
    """
    columns = value_columns(value, normalize)
    sums, state = gated_linear_attention_chunked(
        query, key, columns, log_decay, initial_state=initial_state, lengths=lengths, chunk_size=chunk_size
    )
    return read_out(sums, normalize, eps, value.dtype), state


def _in_kernel(
    chosen: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    normalize: bool,
    eps: float,
    initial_state: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel of this name; arguments and results as in ``linear_attention``."""
    columns = value_columns(value, normalize)
    _, _, columns, log_decay, _, state = prepare(
        query, key, columns, log_decay, None, "after", None, initial_state, lengths
    )
    kernel = load_kernel("linear_attention", chosen)
    sums, state = kernel.linear_attention(query, key, columns, log_decay, state, value.dtype)
    return read_out(sums, normalize, eps, value.dtype), state
