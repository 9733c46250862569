"""One token after a context, for many rows at once: milliseconds, state, and the share of the roofline."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_common import Clock, Scale, first_line, timed
from benchmarks.gpu_layers import speed_fields
from hf_memory.mixers.auto import mixer_config, mixer_model

Row = dict[str, Any]
VOCABULARY = 64


def decode_rows(keys: list[str], device: torch.device, scale: Scale, peak: dict[str, float], clock: Clock) -> list[Row]:
    """One row for each mixer: two layers that have read a context decode one token more."""
    rows: list[Row] = []
    for key in keys:
        row: Row = {"mixer": key, "context": scale.context, "streams": scale.streams}
        if clock.left() < 2:
            rows.append({**row, "skipped": "out of time"})
            continue
        try:
            rows.append({**row, **measure(key, device, scale, peak)})
        except Exception as error:  # noqa: BLE001 - one mixer must not hide the others; the table says what failed
            rows.append({**row, "skipped": first_line(error)})
    return rows


def measure(key: str, device: torch.device, scale: Scale, peak: dict[str, float]) -> Row:
    """Milliseconds of a token, and those that reading the weights and moving the state alone would take."""
    torch.manual_seed(0)
    sizes = {"hidden_size": scale.width, "vocab_size": VOCABULARY, "num_hidden_layers": 2}
    config = mixer_config(key, max_position_embeddings=scale.context + 64, **sizes, **speed_fields(key, scale))
    model = mixer_model(config).to(device).eval()
    cache = read(model, torch.randint(0, VOCABULARY, (scale.streams, scale.context), device=device))
    milliseconds = timed(decoder(model, cache, scale.streams, device), device, scale)
    state = sum(leaf.nbytes for part in cache.states for leaf in part.values())
    weights = sum(p.numel() * p.element_size() for name, p in model.named_parameters() if "embed" not in name)
    return {
        "milliseconds": milliseconds,
        "tokens_per_second": scale.streams / milliseconds * 1e3,
        "state_bytes": state // scale.streams,
        "roofline_share": (weights + 2 * state) / peak["bytes_per_second"] / (milliseconds / 1e3),
    }


@torch.no_grad()
def read(model: Any, ids: torch.Tensor, piece: int = 512) -> Any:
    """The cache after these tokens, read in pieces."""
    cache = None
    for part in ids.split(piece, dim=1):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            cache = model(part, cache=cache, use_cache=True).cache
    return cache


def decoder(model: Any, cache: Any, streams: int, device: torch.device) -> Callable[[], None]:
    """Read one more token of each row."""
    token = torch.zeros(streams, 1, dtype=torch.long, device=device)

    @torch.no_grad()
    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            model(token, cache=cache, use_cache=True)

    return step


def decode_table(rows: list[Row]) -> list[str]:
    """Lines of the table of decoding."""
    lines = ["| mixer | rows x context | ms per token | ktok/s | state, KiB | roofline |", "|---|---|---|---|---|---|"]
    for row in rows:
        place = f"{row['streams']} x {row['context']}"
        if "skipped" in row:
            lines.append(f"| {row['mixer']} | {place} | {row['skipped']} | | | |")
            continue
        lines.append(
            f"| {row['mixer']} | {place} | {row['milliseconds']:.2f} | {row['tokens_per_second'] / 1e3:.1f} | "
            f"{row['state_bytes'] / 1024:.0f} | {row['roofline_share']:.1%} |"
        )
    return lines
