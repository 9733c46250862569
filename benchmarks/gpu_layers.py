"""Training steps of layers in bfloat16: every mixer beside the public layers of its kind, and beside the roofline."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_common import Clock, Scale, first_line, timed
from hf_memory.mixers.auto import mixer_class, mixer_config
from hf_memory.ops.backends.dispatch import available_backends, use_backend

OURS = ("hf_memory", "hf_memory, use_backend('triton')")
"""Layers of this package: in torch, and with the kernels that must be asked for."""

WITH_KERNEL = (
    "qlstm", "lru", "rg_lru", "min_gru", "linear_transformer", "delta_net", "gated_delta_net", "gated_delta_product",
    "kda", "gla", "hgrn2", "retnet", "forgetting_attention", "based", "rwkv", "rwkv6", "rwkv7", "mamba", "mamba2",
    "mamba3", "nru", "ids4",
)  # fmt: skip
"""Mixers whose operation may have such a kernel."""

Builders = dict[str, Callable[[], nn.Module]]


def ceilings(device: torch.device, scale: Scale) -> dict[str, float]:
    """Measured peaks: bytes per second of a copy, bfloat16 operations per second of a matrix product."""
    large = device.type == "cuda"
    source = torch.randn(2**28 if large else 2**16, device=device)
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), device, scale)
    size = 8192 if large else 64
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = timed(lambda: torch.mm(left, right), device, scale)
    return {
        "bytes_per_second": 2 * source.numel() * 4 / (copy / 1e3),
        "flops_per_second": 2 * size**3 / (product / 1e3),
    }


def peers(key: str, width: int) -> Builders:
    """Public layers of the kind of a mixer, by name: constructors that may fail."""
    heads = max(1, width // 128)
    size = {"hidden_size": width, "num_heads": heads}
    delta = {**size, "head_dim": width // heads, "expand_v": 1, "layer_idx": 0}
    table: dict[str, Builders] = {
        **{key: {f"torch.nn.{name}": _cell(name, width)} for key, name in _CELLS.items()},
        "attention": {"torch.nn.functional SDPA layer": lambda: SDPALayer(width, heads)},
        "qlstm": _fla("HGRNAttention", hidden_size=width),
        "linear_transformer": _fla("LinearAttention", feature_map="elu", **size),
        "based": _fla("BasedLinearAttention", num_key_value_heads=heads, **size),
        "delta_net": _fla("DeltaNet", **size),
        "gated_delta_net": _fla("GatedDeltaNet", **delta),
        "gated_delta_product": _fla("GatedDeltaProduct", **delta),
        "kda": _fla("KimiDeltaAttention", **delta),
        "gla": _fla("GatedLinearAttention", layer_idx=0, **size),
        "hgrn2": _fla("HGRN2Attention", layer_idx=0, **size),
        "retnet": _fla("MultiScaleRetention", layer_idx=0, **size),
        "forgetting_attention": _fla("ForgettingAttention", layer_idx=0, **size),
        "rwkv6": _fla("RWKV6Attention", layer_idx=0, **size),
        "rwkv7": _fla("RWKV7Attention", layer_idx=0, hidden_size=width, head_dim=64, num_hidden_layers=2),
        "mamba": {
            "mamba-ssm Mamba": _layer("mamba_ssm", "Mamba", d_model=width),
            "transformers MambaMixer": lambda: transformers_mamba(width),
        },
        "mamba2": {"mamba-ssm Mamba2": _layer("mamba_ssm", "Mamba2", d_model=width)},
        "mamba3": _fla("Mamba3", hidden_size=width),
    }
    return table.get(key, {})


_CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}


def _layer(module: str, name: str, **arguments: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(importlib.import_module(module), name)(**arguments)


def _fla(name: str, **arguments: Any) -> Builders:
    return {f"fla {name.removesuffix('Attention')}": _layer("fla.layers", name, **arguments)}


def _cell(name: str, width: int) -> Callable[[], nn.Module]:
    return _layer("torch.nn", name, input_size=width, hidden_size=width, batch_first=True)


class SDPALayer(nn.Module):
    """Projections around torch's own attention kernel."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Causal attention over (B, T, D)."""
        batch, length, width = hidden.shape
        query, key, value = self.qkv(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(output.transpose(1, 2).reshape(batch, length, width))


def transformers_mamba(width: int) -> nn.Module:
    """The Mamba layer of transformers, which loops over time in Python where its kernels are missing."""
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    return MambaMixer(MambaConfig(hidden_size=width), layer_idx=0)


def first_tensor(outputs: Any) -> torch.Tensor:
    """The hidden states of a layer that may return a tuple."""
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


def training_step(layer: nn.Module, inputs: torch.Tensor, ours: bool) -> Callable[[], None]:
    """Forward and backward of a layer under bfloat16 autocast."""
    options = {"return_state": False} if ours else {}

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        inputs.grad = None
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            output = first_tensor(layer(inputs, **options))
        output.float().square().mean().backward()

    return step


def measure(layer: nn.Module, length: int, device: torch.device, scale: Scale, ours: bool) -> dict[str, float]:
    """Milliseconds, tokens per second and peak bytes of a training step of one layer, and what it cannot do without.

    The operations are those of matrix products and convolutions in torch: of a kernel nothing is counted. The bytes are
    the weights, read twice, and their gradient; inputs and outputs, and their gradients.
    """
    batch = max(1, scale.tokens // length)
    inputs = torch.randn(batch, length, scale.width, device=device, requires_grad=True)
    step = training_step(layer.to(device).train(), inputs, ours)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    milliseconds = timed(step, device, scale)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    with FlopCounterMode(display=False) as counter:
        step()
    weights = sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())
    return {
        "milliseconds": milliseconds,
        "tokens_per_second": batch * length / milliseconds * 1e3,
        "peak_bytes": peak,
        "flops": counter.get_total_flops(),
        "bytes": 3 * weights + 4 * inputs.numel() * 4,
    }


def has_kernel(key: str, device: torch.device) -> bool:
    """Whether a mixer's operation has a kernel that is taken only where it is asked for."""
    return device.type == "cuda" and "triton" in available_backends() and key in WITH_KERNEL


def speed(key: str, device: torch.device, scale: Scale, peak: dict[str, float], clock: Clock) -> list[dict[str, Any]]:
    """One row for each length and layer: ours first, then the public ones of its kind with the ratio ours / theirs."""
    rows: list[dict[str, Any]] = []
    for length in scale.lengths:
        ours: dict[str, Any] = {}
        for name, build in candidates(key, device, scale).items():
            row: dict[str, Any] = {"mixer": key, "layer": name, "length": length}
            slow = [r for r in rows if r["layer"] == name and r.get("milliseconds", 0) > 1e3 * scale.patience / 4]
            if clock.left() < 5 or slow:
                rows.append({**row, "skipped": "slow at a shorter length" if slow else "out of time"})
                continue
            try:
                torch.manual_seed(0)
                with use_backend("triton" if name == OURS[1] else "torch"):
                    row.update(measure(initialise(build()), length, device, scale, ours=name in OURS))
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way of its own; the table says how
                row["skipped"] = first_line(error)
            else:
                compare(row, ours, peak)
                ours = row if name == OURS[0] else ours
            rows.append(row)
    return rows


def compare(row: dict[str, Any], ours: dict[str, Any], peak: dict[str, float]) -> None:
    """Add the share of the roofline, and how ours in torch compares, where this is another layer."""
    if row["layer"] == OURS[1] and ours:
        row["flops"] = ours["flops"]  # the same sums, which are not counted in kernels
    floor = max(row["flops"] / peak["flops_per_second"], row["bytes"] / peak["bytes_per_second"])
    row["roofline_share"] = floor / (row["milliseconds"] / 1e3)
    if row["layer"] != OURS[0] and ours:
        row["speed_of_ours"] = row["milliseconds"] / ours["milliseconds"]


def candidates(key: str, device: torch.device, scale: Scale) -> Builders:
    """Ours, with its kernel where it has one, and the public layers of its kind."""
    config = mixer_config(
        key,
        hidden_size=scale.width,
        vocab_size=8,
        max_position_embeddings=max(scale.lengths),
        **speed_fields(key, scale),
    )
    names = OURS[: 1 + has_kernel(key, device)]
    return {**dict.fromkeys(names, lambda: mixer_class(key)(config, 0)), **peers(key, scale.width)}


def speed_fields(key: str, scale: Scale) -> dict[str, Any]:
    """Heads of 128 where a mixer has heads, as the public layers have."""
    config = mixer_config(key, hidden_size=scale.width, vocab_size=8)
    return {"num_heads": max(1, scale.width // 128)} if hasattr(config, "num_heads") else {}


def initialise(layer: nn.Module) -> nn.Module:
    """Give a layer of ours that stands alone its initial values."""
    for module in layer.modules():
        if hasattr(module, "reset_parameters") and not isinstance(module, nn.RNNBase):
            module.reset_parameters()
    return layer


def speed_table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of the table of layers."""
    lines = ["| layer | T | ms | Mtok/s | peak GiB | roofline | ours is faster by |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        name = row["mixer"] if row["layer"] == OURS[0] else f"  {row['layer']}"
        if "skipped" in row:
            lines.append(f"| {name} | {row['length']} | {row['skipped']} | | | | |")
            continue
        other = "-" if row.get("speed_of_ours") is None else f"{row['speed_of_ours']:.2f}"
        lines.append(
            f"| {name} | {row['length']} | {row['milliseconds']:.2f} | {row['tokens_per_second'] / 1e6:.2f} | "
            f"{row['peak_bytes'] / 2**30:.2f} | {row['roofline_share']:.1%} | {other} |"
        )
    return lines
