"""``hf-memory sweep``: what it shows before it runs anything."""

from pathlib import Path

import pytest
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
