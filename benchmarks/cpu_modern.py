"""The modern mixers on a CPU, and the floors that they are to keep: one interleaved run, public models, long inputs."""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import interleaved, peak_bytes, ratio
from benchmarks.cpu_model import context, decoder
from benchmarks.cpu_peers import VOCABULARY, ours, public_model_step, public_models
from benchmarks.roofline import Step
from benchmarks.rows import Row, Scale, add_limits, compared, skipped
from hf_memory.mixers.auto import mixer_class, mixer_config, mixer_model

MODERN = (
    "gated_delta_net", "gated_delta_product", "kda", "gla", "hgrn2", "retnet", "mlstm", "slstm", "rg_lru", "min_gru",
    "forgetting_attention", "rwkv6", "rwkv7", "mamba2", "mamba3",
)  # fmt: skip

TIMES_ATTENTION = 3.0
"""Of the time of attention, what a mixer may take at the usual length; as often as it makes steps in a token."""

CONSTANT, LINEAR = 1.1, 1.25
"""Of what one token costs after a short context, what it may after a long one; the same of memory for each token."""


def modern(scale: Scale) -> Iterator[Row]:
    """All modern mixers and attention in one interleaved run, at the usual length and at a long one."""
    width = scale.widths[0]
    for length, batch in ((scale.length, scale.batch), (scale.long, 1)):
        steps = {key: ours(key, width, length, batch) for key in ("attention", *MODERN)}
        seconds = interleaved(steps, scale.repeats, scale.clock, scale.patience)
        held = peak_bytes(steps["attention"])
        for key in MODERN:
            count = getattr(steps[key].module.config, "num_householder", 1)
            at_most = TIMES_ATTENTION * count if length == scale.length else 1.0
            row: Row = {
                "what": f"{key} against attention, {batch} x {length}",
                "ours_ms": 1e3 * float(np.median(seconds[key])),
                "other_ms": 1e3 * float(np.median(seconds["attention"])),
                "ratio": ratio(seconds[key], seconds["attention"]),
                "seconds": {"ours": seconds[key], "other": seconds["attention"]},
            }
            if scale.judged:
                row.update(at_most=at_most, met=row["ratio"]["median"] <= at_most)
            add_limits(row, steps[key], seconds[key], scale)
            row["other_bytes"] = held
            yield row


def modern_peers(scale: Scale) -> Iterator[Row]:
    """Two layers against those of transformers in plain torch, of the same width, heads and sizes of keys."""
    width = scale.widths[0]
    ids = torch.randint(0, VOCABULARY, (scale.batch, scale.length))
    for key, name, build, at_most in public_layers(width):
        try:
            yield compared(
                f"{key} against {name}",
                ours(key, width, scale.length, scale.batch),
                public_model_step(build(), ids),
                scale,
                at_most,
            )
        except ImportError as error:
            yield skipped(f"{key} against {name}", error)


def public_layers(width: int) -> list[tuple[str, str, Callable[[], nn.Module], float]]:
    """Our key, a name, a constructor, and the most that our time may be of theirs."""
    (mamba2,) = [build for _, name, build, _ in public_models(width) if name == "transformers Mamba-2"]
    return [
        ("mamba2", "transformers Mamba-2, torch", mamba2, 1 / 5),
        ("gated_delta_net", "transformers Qwen3-Next's layer, torch", functools.partial(qwen3_next, width), 1 / 4),
        ("kda", "transformers Kimi Linear's layer, torch", functools.partial(kimi_linear, width), 1 / 4),
        ("mlstm", "transformers xLSTM's layer, native", functools.partial(xlstm, width), 1 / 3),
    ]


class Stack(nn.Module):
    """Two layers with norms and residuals over embedded tokens."""

    def __init__(self, width: int, build: Callable[[int], nn.Module]):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.layers = nn.ModuleList(build(index) for index in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        """Outputs (B, T, D)."""
        hidden = self.embedding(ids)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            output = layer(norm(hidden))
            hidden = hidden + (output if isinstance(output, Tensor) else output[0])
        return self.norms[-1](hidden)


def qwen3_next(width: int) -> nn.Module:
    """Gated delta rule, two heads."""
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    config = module.Qwen3NextConfig(
        hidden_size=width,
        num_hidden_layers=2,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=width // 2,
        linear_value_head_dim=width // 2,
        layer_types=["linear_attention"] * 2,
    )
    return Stack(width, lambda index: module.Qwen3NextGatedDeltaNet(config, index))


def kimi_linear(width: int) -> nn.Module:
    """Delta rule with a decay for each key, two heads."""
    from transformers.models.kimi_linear import modeling_kimi_linear as module

    config = module.KimiLinearConfig(
        hidden_size=width,
        num_hidden_layers=2,
        linear_num_heads=2,
        linear_head_dim=width // 2,
        layer_types=["linear_attention"] * 2,
        mlp_layer_types=["dense"] * 2,
    )
    return Stack(width, lambda index: module.KimiLinearDeltaAttention(config, index))


def xlstm(width: int) -> nn.Module:
    """mLSTM, two heads, chunks in plain torch."""
    from transformers.models.xlstm import modeling_xlstm as module

    config = module.xLSTMConfig(
        hidden_size=width,
        num_heads=2,
        num_hidden_layers=2,
        mode="train",
        autocast_kernel_dtype="float32",
        chunk_size=16 if width < 64 else 64,
    )
    return Stack(width, lambda _: module.xLSTMLayer(config))


def modern_decoding(scale: Scale) -> Iterator[Row]:
    """One token after a long context against one after a short one, for the modern mixers whose state does not grow."""
    few = dataclasses.replace(scale, repeats=4 * scale.repeats)
    for key in MODERN:
        if mixer_class(key).growing_state:
            continue
        config = mixer_config(key, vocab_size=VOCABULARY, hidden_size=scale.widths[0], num_hidden_layers=2)
        model = mixer_model(config).eval()
        short, long = (decoder(model, context(model, tokens)) for tokens in scale.contexts)
        what = f"{key}, one token after {scale.contexts[1]:,} against {scale.contexts[0]:,}"
        row = compared(what, long, short, few, CONSTANT)
        row.update(ours_ms=row["ours_ms"] / 10, other_ms=row["other_ms"] / 10)  # ten tokens per run
        yield row


def modern_memory(scale: Scale) -> Iterator[Row]:
    """Peak memory of a training step for each token, at a long length against the usual one, one row."""
    for key in MODERN:
        steps = [ours(key, scale.widths[0], length, batch=1) for length in scale.lengths[-2:]]
        yield linear(key, steps, scale)


def linear(key: str, steps: list[Step], scale: Scale) -> Row:
    """Whether memory grows no faster than the length."""
    for step in steps:
        step()  # compiled and allocated once before
    sizes = [peak_bytes(step) for step in steps]
    lengths = scale.lengths[-2:]
    row: Row = {"what": f"{key}, memory of a token at {lengths[1]:,} against {lengths[0]:,} tokens"}
    if None in sizes or not sizes[0]:
        return {**row, "value": "not told"}
    each = [size / length for size, length in zip(sizes, lengths, strict=True)]  # type: ignore[operator]
    row.update(value=f"{each[1] / each[0]:.2f}: {each[1] / 1024:.0f} / {each[0] / 1024:.0f} KiB", peak_bytes=sizes)
    if scale.judged:
        row.update(at_most=LINEAR, met=each[1] <= LINEAR * each[0])
    return row
