"""Made-up rows of bit parity, and what a reader of a page finds on it."""

import html.parser

from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import Row
from hf_memory.storage import digest

LENGTHS = (32, 64, 128)


def make_row(mixer: str = "lstm", length: int = 32, seed: int = 0, value: float = 0.75, **changes) -> Row:
    """A row of one mixer at one test length."""
    facts = {
        "cell": f"{mixer}{seed}", "arm": mixer, "mixer": mixer, "config_digest": "c0", "task": "bit_parity",
        "task_knobs": {}, "data_version": "1.0.0+numpy2.3", "split": f"test_{length}", "length": length,
        "train_length": (32, 32), "seed": seed, "data_seed": 0, "learning_rate": 1e-3, "learning_rate_grid": (1e-3,),
        "schedule": "cosine", "optim_groups": "documented", "stop_rule": "200 steps", "steps": 200, "tokens": 409600,
        "parameters": 12345, "parameters_non_embedding": 900, "parameters_per_block": 450,
        "state_numbers": 8 * length, "state_bytes": 32 * length, "headline": "token_accuracy",
        "metrics": {"token_accuracy": MetricValue(value, value * 400, 400, 0.5, {"all_zero": 0.45})},
        "train_seconds": 2.5, "eval_seconds": 0.5, "device": "cpu", "backend": "torch", "versions": {"torch": "2.13"},
        "weights_sha256": "ab" * 32,
    }  # fmt: skip
    return Row(**(facts | changes))


def make_rows(mixer: str, values: tuple[float, ...], seed: int = 0, **changes) -> tuple[dict, list[Row]]:
    """Definition and rows of one cell, with one value per length of ``LENGTHS``."""
    definition = {"mixer": mixer, "seed": seed} | {name: str(value) for name, value in changes.items()}
    changes = {"cell": digest(definition), **changes}
    rows = [make_row(mixer, length, seed, value, **changes) for length, value in zip(LENGTHS, values, strict=True)]
    return definition, rows


class Page(html.parser.HTMLParser):
    """Collects table rows, descriptions of drawings, and every address that the page refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.rows, self.addresses, self.drawings, self._cell = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if ("class", "drawing") in attrs:
            self.drawings.append(dict(attrs)["aria-label"])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None
