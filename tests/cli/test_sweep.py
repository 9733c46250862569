"""``hf-memory sweep``: what it shows before it runs anything."""

import shutil
import tomllib
import types
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hf_memory.cli.app import app
from hf_memory.studies import recipes_yaml
from hf_memory.studies.recipes_yaml import find_file, load_recipe, shipped_files

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "examples" / "recipes" / "r1_bit_parity.yaml"


@pytest.mark.parametrize("flag", ["--dry-run", "--dry_run"])
def test_a_dry_run_counts_the_cells_and_writes_nothing(flag):
    result = CliRunner().invoke(app, ["sweep", str(RECIPE), "--profile", "smoke", flag, "--workers", "2"])
    assert result.exit_code == 0, result.output
    assert "r1_bit_parity, profile smoke" in result.output
    assert "cells, about" in result.output
    assert result.output.rstrip().endswith("with 2 at a time")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r1_bit_party", "'r1_bit_party' is no file and no name; did you mean 'r1_bit_parity'?"),
        ("R3_Dyck", "did you mean 'r3_dyck'?"),
        ("recipes/r3_dyck.yaml", "'recipes/r3_dyck.yaml' is no file and no name; did you mean 'r3_dyck'?"),
        ("nowhere.yaml", "'nowhere.yaml' is no file and no name (known: 'r1_bit_parity', "),
    ],
)
def test_a_recipe_that_does_not_exist_is_refused_and_the_nearest_named(name, text, call):
    code, out, err = call("sweep", name, "--dry-run")
    assert (code, out) == (2, "")
    assert text in err


def test_recipes_of_the_package_are_found_by_name(call):
    code, by_name, _ = call("sweep", "r1_bit_parity", "--profile", "smoke", "--dry-run", "--workers", "2")
    assert code == 0
    assert "r1_bit_parity, profile smoke" in by_name
    assert call("sweep", str(RECIPE), "--profile", "smoke", "--dry-run", "--workers", "2")[1] == by_name
    assert shipped_files("recipes") == {path.stem: path for path in sorted(RECIPE.parent.glob("*.yaml"))}
    Path("r1_bit_parity").write_text("a file of that name comes first")
    assert find_file("r1_bit_parity", "recipes") == Path("r1_bit_parity")


def test_an_installed_package_finds_the_recipes_where_the_wheel_puts_them(tmp_path, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert list(wheel) == ["examples/recipes", "examples/suites"]
    copied = tmp_path / "site" / wheel["examples/recipes"]
    shutil.copytree(RECIPE.parent, copied)
    monkeypatch.setattr(recipes_yaml, "__file__", str(tmp_path / "site" / "hf_memory" / "studies" / "recipes_yaml.py"))
    assert find_file("r1_bit_parity", "recipes") == copied / "r1_bit_parity.yaml"
    assert load_recipe(find_file("r6_mqar_widths", "recipes"), "smoke").name == "r6_mqar_widths"


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


def test_an_unknown_backend_is_refused_before_anything_is_shown(call):
    code, out, err = call("sweep", "r1_bit_parity", "--profile", "smoke", "--dry-run", "--backend", "rai")
    assert (code, out) == (2, "")
    assert "backend must be one of local, ray, got 'rai'" in err


def test_a_replication_is_asked_for_with_its_seeds(call, monkeypatch):
    study, asked = types.SimpleNamespace(complete=True, results=()), []
    monkeypatch.setattr("hf_memory.studies.sweep.run_sweep", lambda *args, **others: study)
    monkeypatch.setattr("hf_memory.cli.sweep.show_verdicts", lambda study: None)
    monkeypatch.setattr("hf_memory.cli.sweep.show_replication", lambda replication: None)
    monkeypatch.setattr(
        "hf_memory.studies.replication.replicate",
        lambda study, folder, seeds, **others: asked.append({"seeds": seeds, **others}),
    )
    for flags in ([], ["--replicate", "5"], ["--replicate", "5", "--fresh", "--stack", "3", "--retry-failed"]):
        assert call("sweep", str(RECIPE), "--profile", "smoke", "--workers", "2", "--overwrite", *flags)[0] == 0
    as_swept = {"workers": 2, "backend": "local", "gpu_share": 0.0, "other_code": "overwrite", "seeds": 5}
    assert asked == [
        {**as_swept, "fresh": False, "stack": 1, "retry_failed": False},
        {**as_swept, "fresh": True, "stack": 3, "retry_failed": True},
    ]
    code, _, err = call("sweep", str(RECIPE), "--profile", "smoke", "--fresh")
    assert code == 2
    assert "fresh: there are no seeds to choose without --replicate" in err
