"""Recipes: the files at hand are right, and what is wrong with a file is said."""

import json
from pathlib import Path

import pytest
import yaml

from hf_memory.storage import encode
from hf_memory.studies.plans import make_settings
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.recipes_yaml import load_recipe, merge
from tests.studies.sweep_examples import planned, tiny_recipe

FILES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))
CASES = [
    (path, profile)
    for path in FILES
    for profile in ("smoke", "cpu", "cpu_long", "full")
    if profile == "smoke" or profile in yaml.safe_load(path.read_text())["profiles"]
]


def test_every_recipe_is_at_hand():
    assert [path.stem for path in FILES] == [
        "r1_bit_parity", "r2_controlled_parity", "r3_dyck", "r4_dyck_training", "r5_lr_windows", "r6_mqar_widths",
    ]  # fmt: skip


@pytest.mark.parametrize(("path", "profile"), CASES, ids=[f"{path.stem}-{profile}" for path, profile in CASES])
def test_recipe_loads_and_is_what_its_record_says(path, profile):
    recipe = load_recipe(path, profile)
    assert recipe.name == path.stem
    assert recipe.claim
    assert recipe.source
    assert recipe.expectations
    assert recipe.control is not None
    assert recipe.control["at_least"] == 0.95
    assert Recipe.from_json(json.loads(json.dumps(encode(recipe.to_json())))).to_json() == recipe.to_json()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_expectations_speak_of_axes_and_splits_that_the_cpu_run_has(path):
    recipe = load_recipe(path, "cpu_long" if path.stem[:2] in ("r5", "r6") else "cpu")
    settings = make_settings(recipe)
    for expectation in recipe.expectations:
        for measure in expectation.measures:
            places = [
                setting
                for setting in settings
                if setting.place["arm"] in measure.arms
                and all(setting.place[axis] == value for axis, value in measure.at.items())
            ]
            assert {setting.place["arm"] for setting in places} == set(measure.arms)
            splits = [s.cell(recipe, "search", 1e-3, 0).experiment().specification.splits for s in places]
            assert all(measure.split in names for names in splits)
            assert all(measure.minus in names for names in splits if measure.minus)
            if measure.quantity in ("steps_to", "late_drop", "bump"):
                assert measure.split in recipe.evaluate["splits"]


@pytest.mark.parametrize(
    ("stem", "profile", "cells"),
    [
        ("r1_bit_parity", "cpu", 12 * (3 * 2 + 5) + 7 * 5),
        ("r2_controlled_parity", "cpu", 4 * (3 * 2 + 7 * 5)),
        ("r4_dyck_training", "cpu", 14 * (2 + 5)),
        ("r5_lr_windows", "cpu", 2 * 7),
        ("r5_lr_windows", "cpu_long", 3 * 7 * 5),
        ("r6_mqar_widths", "cpu", 4 * 2 * 2),
        ("r6_mqar_widths", "cpu_long", 5 * 2 * (2 * 2 + 5)),
    ],
)
def test_number_of_cells_is_the_planned_one(stem, profile, cells):
    recipe = load_recipe(FILES[0].with_name(f"{stem}.yaml"), profile)
    assert len(planned(recipe)) == cells


def test_smoke_takes_a_few_steps_of_every_arm():
    recipe = load_recipe(FILES[0], "smoke")
    cells = planned(recipe)
    assert set(recipe.arms) == set(load_recipe(FILES[0], "cpu").arms)
    assert {cell.training["steps"] for cell in cells} == {3}
    assert max(cell.data["num_train"] for cell in cells) <= 64


def write(folder: Path, **changes) -> Path:
    """A recipe's file with some keys changed; None removes a key."""
    values = {
        "name": "tiny",
        "task": "bit_parity",
        "arms": {"lstm": {}},
        "learning_rates": ["1e-3"],
        "profiles": {"cpu": {}},
    }
    values |= changes
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return path


def test_rates_without_a_point_are_numbers(tmp_path):
    (tmp_path / "tiny.yaml").write_text(write(tmp_path).read_text().replace("'1e-3'", "1e-3"))
    assert load_recipe(tmp_path / "tiny.yaml").learning_rates == (1e-3,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"traning": {}}, "unknown key of a recipe: 'traning'; did you mean 'training'"),
        ({"training": {"step": 3}}, "unknown key of training: 'step'; did you mean 'steps'"),
        ({"arms": {"lstm": {"modle": {}}}}, "unknown key of arm 'lstm': 'modle'; did you mean 'model'"),
        ({"arms": {"lstmm": {}}}, "unknown mixer of arm 'lstmm': 'lstmm'; did you mean 'lstm'"),
        ({"arms": {}}, "arms must name at least one arm"),
        ({"arms": None}, "the key 'arms' is missing"),
        ({"learning_rates": []}, "learning_rates must be a list of at least one value"),
        ({"learning_rates": [1e-2, 1e-3]}, "rising order"),
        ({"grid": {"width": []}}, "width must be a list of at least one value"),
        ({"grid": {"widht": [8]}}, "unknown axis of grid: 'widht'; did you mean 'width'"),
        ({"grid": {"size": [8]}}, "the axis is width where sizing is by hidden"),
        ({"grid": {"data.lenght": [8]}}, "unknown data axis of grid: 'lenght'; did you mean 'length'"),
        ({"sizing": {"by": "params"}}, "value must be given for sizing by params"),
        ({"seeds": {"search": [0], "final": [0]}}, "final seeds must be fresh"),
        ({"fixed_learning_rate": 0.5}, "fixed_learning_rate must be one of"),
        ({"task": "bit_party"}, "did you mean 'bit_parity'"),
        ({"data": {"lenght": 8}}, "did you mean 'length'"),
        ({"control": {"arms": ["gru"], "at_least": 0.9}}, "none of its arms"),
        ({"expectations": [{"claim": "x", "left": {"arms": "lstm"}, "relation": ">="}]}, "the key 'right' is missing"),
        ({"expectations": [{"claim": "x", "left": {"arms": "gruu"}, "relation": ">=", "right": 1}]}, "unknown arm in"),
        ({"profiles": {"quick": {}}}, "unknown profile: 'quick'"),
        ({"control": {"arms": ["lstm"], "at_least": 0.9, "at": {"width": 8}}}, "axis of at in control: 'width'"),
        ({"expectations": [{"claim": "x", "left": {"arms": "lstm", "at": {"depth": 2}}, "relation": ">=", "right": 1}]},
         "unknown axis of at in an expectation: 'depth'"),
        ({"name": "a/b"}, "name must be a word"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_name_and_key(tmp_path, changes, message):
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load_recipe(path)
    if "profiles" not in changes:
        assert str(path) in str(caught.value)


def test_what_is_no_recipe_is_refused(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(ValueError, match="must hold keys and values"):
        load_recipe(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("name: [1\n")
    with pytest.raises(ValueError, match="is not YAML"):
        load_recipe(tmp_path / "broken.yaml")
    with pytest.raises(ValueError, match="'full' is not one of this recipe's"):
        load_recipe(write(tmp_path), "full")


def test_a_profile_lies_over_the_rest(tmp_path):
    profiles = {"cpu": {"arms": ["gru"], "training": {"steps": 7}, "grid": {"depth": [1]}}}
    path = write(
        tmp_path, arms={"lstm": {}, "gru": {}}, training={"batch_size": 5}, grid={"width": [8]}, profiles=profiles
    )
    recipe = load_recipe(path)
    assert list(recipe.arms) == ["gru"]
    assert (recipe.training["steps"], recipe.training["batch_size"]) == (7, 5)
    assert dict(recipe.grid) == {"depth": [1]}
    with pytest.raises(ValueError, match="unknown entry of arms"):
        merge({"arms": {"lstm": {}}}, {"arms": ["gru"]})


def test_a_setting_that_cannot_be_sized_is_named():
    recipe = tiny_recipe(grid={"width": [8]}, arms={"attention": {"model": {"num_heads": 3}}})
    with pytest.raises(
        ValueError, match="arm attention, width 8: sizing: attention cannot have hidden_size 8: num_heads must divide"
    ):
        make_settings(recipe)
    recipe = tiny_recipe(sizing={"by": "state", "value": 144}, arms={"attention": {}})
    with pytest.raises(ValueError, match="arm attention: sizing: attention cannot have 144 state within 3%"):
        make_settings(recipe)
