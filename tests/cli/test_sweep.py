"""``hf-memory sweep``: what it shows before it runs anything."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hf_memory.cli.app import app

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "recipes" / "r1_bit_parity.yaml"


@pytest.mark.parametrize("flag", ["--dry-run", "--dry_run"])
def test_a_dry_run_counts_the_cells_and_writes_nothing(flag):
    result = CliRunner().invoke(app, ["sweep", str(RECIPE), "--profile", "smoke", flag, "--workers", "2"])
    assert result.exit_code == 0, result.output
    assert "r1_bit_parity, profile smoke" in result.output
    assert "cells, about" in result.output
    assert result.output.rstrip().endswith("with 2 at a time")
    assert list(Path().iterdir()) == []


def test_a_recipe_that_does_not_exist_is_refused():
    result = CliRunner().invoke(app, ["sweep", "nowhere.yaml"])
    assert result.exit_code == 2
    assert "nowhere.yaml" in result.output


def test_a_dry_run_says_what_may_still_join(tmp_path):
    values = {
        "name": "tiny", "task": "bit_parity", "arms": {"lstm": {}, "gru": {}}, "learning_rates": [0.001, 0.002],
        "model": {"hidden_size": 8, "num_hidden_layers": 1}, "extend": {"up": 0.008, "down": 0.0005},
        "data": {"length": 8, "test_lengths": [8]},
        "training": {"steps": 3, "batch_size": 8}, "seeds": {"search": [0, 1], "looks": [5, 10]},
        "profiles": {"cpu": {}},
    }  # fmt: skip
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(app, ["sweep", str(path), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert f"{2 * (2 * 2 + 5)} cells" in result.output
    # 0.0005 below, 0.004 and 0.008 above: two arms, two seeds each.
    assert "up to 12 more may join the search" in result.output
    assert "edge of the grid: 0.0005, 0.004, 0.008" in result.output
    assert "up to 10 more may follow, where claims are left open: looks of 10 seeds" in result.output
