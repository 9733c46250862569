"""Recipes: the files at hand are right, and what is wrong with a file is said."""

import copy
import json
import math
import os
import random
import re
from pathlib import Path

import pytest
import yaml

from hf_memory.data.specification import length_bounds
from hf_memory.storage import encode
from hf_memory.studies.expectations import matches
from hf_memory.studies.plans import make_settings
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.recipes_yaml import load_recipe, merge
from tests.studies.sweep_examples import planned, tiny_recipe

FILES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))
CASES = [
    (path, profile)
    for path in FILES
    for profile in ("smoke", "cpu", "cpu_long", "long", "full")
    if profile == "smoke" or profile in yaml.safe_load(path.read_text())["profiles"]
]


def test_every_recipe_is_at_hand():
    assert [path.stem for path in FILES] == [
        "r10_copying_rates", "r11_ablations", "r12_state_tracking", "r12_steps", "r13_one_layer_limit",
        "r14_copying_blanks", "r14_s4d", "r14_weights", "r15_pattern_length", "r16_denoising", "r17_interval_counting",
        "r18_phase", "r19_stale_errors", "r1_bit_parity", "r20_state_tracking", "r21_recall_at_equal_state",
        "r2_controlled_parity", "r3_dyck", "r4_dyck_training", "r5_lr_windows", "r5_scale", "r6_mqar_widths",
        "r7_one_layer_widths", "r8_width_or_depth", "r9_bump",
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
    recipe = load_recipe(path, "cpu_long" if "cpu_long" in yaml.safe_load(path.read_text())["profiles"] else "cpu")
    settings = make_settings(recipe)
    for expectation in recipe.expectations:
        for measure in expectation.measures:
            places = [
                setting
                for setting in settings
                if setting.place["arm"] in measure.arms and matches(setting.place, measure.at)
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
        ("r7_one_layer_widths", "cpu", 5 * 2 * (2 * 2 + 5)),
        ("r9_bump", "cpu", 4 * (2 * 2 + 5)),
        ("r10_copying_rates", "cpu", 2 * 7 * 5),
        ("r14_copying_blanks", "cpu", 7 * (2 * 2 + 5)),
        ("r17_interval_counting", "cpu", 8 * (2 * 2 + 2 * 5)),
        ("r18_phase", "cpu", 8 * (2 * 2 + 2 * 5)),
        ("r19_stale_errors", "cpu", 5 * 2 * 5),
        ("r20_state_tracking", "cpu", (13 + 6) * (2 * 2 + 5)),
        ("r20_state_tracking", "long", 7 * 2 * (1 + 5)),
        ("r21_recall_at_equal_state", "cpu", 6 * (2 * 2 + 5)),
    ],
)
def test_number_of_cells_is_the_planned_one(stem, profile, cells):
    recipe = load_recipe(FILES[0].with_name(f"{stem}.yaml"), profile)
    assert len(planned(recipe)) == cells


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_recipe_can_be_planned_in_seconds(path):
    recipe = load_recipe(path, "smoke")
    cells = planned(recipe)
    assert {cell.place["arm"] for cell in cells} == set(recipe.arms)
    assert recipe.runs_of is None
    runs = {repr((sorted(cell.place.items()), cell.stage, cell.seed)) for cell in cells}
    assert len({cell.digest for cell in cells}) == len(runs)


@pytest.mark.parametrize(("stem", "of"), [("r9_bump", "r7_one_layer_widths"), ("r18_phase", "r17_interval_counting")])
def test_a_recipe_that_judges_the_runs_of_another_one_has_runs_of_its(stem, of):
    recipe, other = (load_recipe(FILES[0].with_name(f"{name}.yaml"), "cpu") for name in (stem, of))
    assert recipe.runs_of == of
    assert {cell.digest for cell in planned(recipe)} <= {cell.digest for cell in planned(other)}


@pytest.mark.parametrize(
    ("stem", "cpu"),
    [("r1_bit_parity", 1600), ("r2_controlled_parity", 2000), ("r3_dyck", 2000), ("r4_dyck_training", 6000)],
)
def test_claims_of_the_poster_name_the_steps_of_their_profile(stem, cpu):
    named = {}
    for profile in ("cpu", "full"):
        recipe = load_recipe(FILES[0].with_name(f"{stem}.yaml"), profile)
        named[profile] = set(re.findall(r"(\S+) steps[ ,.]", " ".join(item.claim for item in recipe.expectations)))
    assert named["cpu"] - {"fewer", "40,000"} == {f"{cpu:,}"}
    assert named["full"] - {"fewer"} == {"40,000"}


@pytest.mark.parametrize(("path", "profile"), [case for case in CASES if "plateau: " in case[0].read_text()])
def test_a_plateau_is_the_chance_level_of_its_law(path, profile):
    recipe = load_recipe(path, profile)
    if profile == "full":
        assert recipe.plateau is None
        return
    for place in recipe.places():
        for part in recipe.specification_at(place).splits["validation"].parts:
            level = part.task.chance_level(recipe.metric_name, length_bounds(part.length)[1])
            assert recipe.plateau == pytest.approx(level, rel=0, abs=1e-3), place


@pytest.mark.parametrize("profile", ["cpu", "full"])
def test_bumps_count_from_a_guess_among_all_values(profile):
    recipe = load_recipe(FILES[0].with_name("r9_bump.yaml"), profile)
    [below] = {m.below for item in recipe.expectations for m in item.measures if m.quantity == "bump"}
    for place in recipe.places():
        [part] = recipe.specification_at(place).splits["validation"].parts
        guess = part.task.baselines(length_bounds(part.length)[1])["any_value"]
        assert below == pytest.approx(-math.log(guess), abs=1e-4)


def test_mixers_of_equal_state_hold_equally_many_numbers():
    for profile in ("cpu", "full"):
        recipe = load_recipe(FILES[0].with_name("r21_recall_at_equal_state.yaml"), profile)
        held = {setting.place["arm"]: setting.size.state_numbers for setting in make_settings(recipe)}
        reference, budget = held.pop("attention"), held["gated_delta_net"]
        assert all(abs(numbers - budget) <= 0.03 * budget for numbers in held.values()), held
        assert reference > 6 * budget


def test_an_arm_is_kept_to_its_values_of_the_grid():
    arms = {"lstm": {}, "gru": {"at": {"width": [8, 16]}}, "rnn": {"at": {"width": 4}}}
    recipe = tiny_recipe(arms=arms, grid={"width": [4, 8], "depth": [1]})
    assert [(place["arm"], place["width"]) for place in recipe.places()] == [
        ("lstm", 4), ("lstm", 8), ("gru", 8), ("rnn", 4),
    ]  # fmt: skip
    for wrong, message in (
        ({"at": {"widht": 4}}, "axis of at in arm 'gru': 'widht'; did you mean 'width'"),
        ({"at": {"width": 16}}, "arms.gru.at leaves no point of the grid"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny_recipe(arms={"gru": wrong}, grid={"width": [4, 8]})
    with pytest.raises(ValueError, match="arms.gru.at leaves out the place of search_on"):
        tiny_recipe(arms={"gru": {"at": {"width": 8}}}, grid={"width": [4, 8]}, search_on={"width": 4})


def test_smoke_runs_where_rates_are_searched(tmp_path):
    control = {"arms": ["lstm"], "at_least": 0.9, "at": {"depth": 2}}
    path = write(tmp_path, grid={"width": [8, 16], "depth": [1, 2]}, search_on={"width": 16}, control=control)
    assert dict(load_recipe(path, "smoke").grid) == {"width": [16], "depth": [1]}
    assert {cell.place["width"] for cell in planned(load_recipe(path, "smoke"))} == {16}


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
        ({"arms": {"lstm": {"modle": {}}}}, "unknown key of arms.lstm: 'modle'; did you mean 'model'"),
        ({"arms": {"lstmm": {}}}, "unknown mixer of arm 'lstmm': 'lstmm'; did you mean 'lstm'"),
        ({"arms": {}}, "arms must be a mapping with at least one entry"),
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
        ({"first_depth": 0.9}, "first_depth needs the axis depth of grid"),
        ({"first_depth": 0.9, "grid": {"depth": [2, 1]}}, "in rising order"),
        ({"first_depth": 0.9, "grid": {"depth": [1, 2]}, "search_on": {"depth": 1}}, "a search of its own"),
        ({"evaluate": {"points": 3, "every": 5}}, "points and every exclude each other"),
        ({"evaluate": {"crossing": 0.9, "splits": ["test_8"]}}, "crossing needs validation"),
        ({"evaluate": {"generate": True}, "task": "bit_parity"}, "generate needs a task whose answers are written"),
        ({"arms": {"lstm": {"mlp_ratio": -1}}}, "arms.lstm.mlp_ratio must be"),
        ({"checkpoints": "yes"}, "checkpoints must be true or false, or null"),
        ({"task": "bit_party"}, "did you mean 'bit_parity'"),
        ({"data": {"lenght": 8}}, "did you mean 'length'"),
        ({"control": {"arms": ["gru"], "at_least": 0.9}}, "none of its arms"),
        ({"expectations": [{"claim": "x", "left": {"arms": "lstm"}, "relation": ">="}]}, "the key 'right' is missing"),
        ({"expectations": [{"claim": "x", "left": {"arms": "gruu"}, "relation": ">=", "right": 1}]}, "unknown arm in"),
        ({"profiles": {"quick": {}}}, "unknown key of profiles: 'quick'"),
        ({"control": {"arms": ["lstm"], "at_least": 0.9, "at": {"width": 8}}}, "axis of at in control: 'width'"),
        ({"expectations": [{"claim": "x", "left": {"arms": "lstm", "at": {"depth": 2}}, "relation": ">=", "right": 1}]},
         "unknown axis of at in an expectation: 'depth'"),
        ({"grid": {"width": [16, 64]}, "control": {"arms": ["lstm"], "at_least": 0.9, "at": {"width": 65}}},
         "unknown width of at in 'control': '65'; did you mean '64'"),
        ({"grid": {"width": [16, 64]}, "search_on": {"width": 65}}, "width of search_on: 65; did you mean '64'"),
        ({"grid": {"width": [16]}, "profiles": {"cpu": {}, "full": {"grid": {"width": [64]}}},
          "control": {"arms": ["lstm"], "at_least": 0.9, "at": {"width": 64}}},
         "control: at {'width': 64} there is no run of lstm in this profile"),
        ({"name": "a/b"}, "name must be a word"),
        ({"training": {"steps": -1}}, "training.steps must be a whole number of at least 1 .*got -1"),
        ({"training": {"steps": 1.5}}, "training.steps must be a whole number .*got 1.5"),
        ({"training": {"steps": True}}, "training.steps must be a whole number .*got True"),
        ({"training": {"clip": -1}}, "training.clip must be a finite number of at least 0, got -1"),
        ({"training": {"clip": float("nan")}}, "training.clip must be a finite number"),
        ({"training": {"batch_size": 0}}, "training.batch_size must be a whole number of at least 1"),
        ({"training": {"schedule": "cosin"}}, "training.schedule: 'cosin'; did you mean 'cosine'"),
        ({"training": {"adam_beta2": 1}}, "training.adam_beta2 must be"),
        ({"training": {"give_up": [0.5, 2]}}, r"give_up\[1\] must be .* at least 0 and at most 1"),
        ({"training": 3}, "training must be a mapping"),
        ({"arms": {"lstm": 3}}, "arms.lstm must be a mapping with keys of mixer"),
        ({"arms": {"lstm": {"width": 0}}}, "arms.lstm.width must be a whole number"),
        ({"arms": {"lstm": {"training": {"steps": 0}}}}, "arms.lstm.training.steps must be"),
        ({"arms": {1: {}}}, "arms: keys must be texts, got 1; write it in quotes"),
        ({"arms": ["lstm"]}, "arms must be a mapping"),
        ({"learning_rates": ["fast"]}, r"learning_rates\[0\] must be a finite number above 0"),
        ({"learning_rates": [0]}, r"learning_rates\[0\] must be a finite number above 0"),
        ({"learning_rates": 1}, "learning_rates must be a list"),
        ({"seeds": {"search": [-1]}}, r"seeds.search\[0\] must be a whole number of at least 0"),
        ({"seeds": {"search": [0, 0]}}, "seeds.search must hold distinct values, got 0 twice"),
        ({"seeds": {"rows": "ow"}}, "seeds.rows: 'ow'; did you mean 'own'"),
        ({"grid": {"depth": [0]}}, "grid.depth must be a whole number of at least 1"),
        ({"grid": {"training.steps": [5, -1]}}, "grid.training.steps must be a whole number"),
        ({"grid": {"width": [8, 8]}}, "grid.width must hold distinct values, got 8 twice"),
        ({"sizing": {"mlp_ratio": -2}}, "sizing.mlp_ratio must be"),
        ({"evaluate": {"rows": 0}}, "evaluate.rows must be a whole number of at least 1"),
        ({"evaluate": {"splits": "validation"}}, "evaluate.splits must be a list"),
        ({"metric": "nope"}, "unknown metric: 'nope'"),
        ({"metric": 3}, "metric must be a text, or null"),
        ({"data": None, "model": 3}, "model must be a mapping"),
        ({"extend": {"up": 0}}, "extend.up must be a finite number above 0"),
        ({"expectations": 3}, "expectations must be a list"),
        ({"expectations": [{"claim": "x", "left": {"arms": "lstm"}, "relation": ">=", "right": "much"}]},
         r"expectations\[0\].right must be"),
        ({"profiles": {"full": {"training": {"steps": -1}}}}, "profiles.full.training.steps must be"),
        ({"profiles": 3}, "profiles must be a mapping"),
        ({"profile": "cpu"}, "unknown key of a recipe: 'profile'"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b0: &b0 [x, x]\n" + "".join(f"b{i + 1}: &b{i + 1} [{', '.join([f'*b{i}'] * 10)}]\n" for i in range(9)),
         "more than 50,000 values with its aliases written out"),
        ("a: " + "[" * 3000 + "]" * 3000, "line 1: it is deeper than 20 levels"),
        ("a: &a [*a]", "line 1: it refers to itself"),
        ("name: x\ntask: y\nname: z\n", "line 3: the key 'name' is given twice"),
        ("training: {steps: 1, steps: 2}", "the key 'steps' is given twice"),
        ("? [a]\n: 1\n", "keys must be texts"),
        ("date: 2026-13-45", "month must be in 1..12"),
        ("x" * 1_000_001, "longer than 1,000,000 bytes"),
        ("", "must hold keys and values, got NoneType"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_refused_at_once(tmp_path, text, message):
    path = tmp_path / "tiny.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)


def test_recipes_are_utf8_whatever_the_locale_and_no_pipe_is_read(tmp_path, monkeypatch):
    path = write(tmp_path, title="Gedächtnis")
    path.write_bytes(path.read_bytes().decode("unicode_escape").encode("utf-8"))
    monkeypatch.setattr("locale.getencoding", lambda: "ascii")
    assert load_recipe(path).title == "Gedächtnis"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ValueError, match="tiny.yaml is not YAML: 'utf-8' codec"):
        load_recipe(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(OSError, match="no such file"):
        load_recipe(tmp_path / "pipe.yaml")


def test_no_value_of_a_wrong_type_ends_in_anything_but_a_named_refusal(tmp_path):
    rng = random.Random(0)
    values = yaml.safe_load(
        write(tmp_path, training={"steps": 3}, grid={"width": [8]}, seeds={"search": [0]}).read_text()
    )
    strange = [None, -1, 1.5, 0, "x", [], {}, [1], {"x": 1}, True, float("nan"), float("inf"), 10**30, [[1]], {"x": {}}]
    refused = accepted = 0
    for _ in range(300):
        changed = copy.deepcopy(values)
        path = tmp_path / "changed.yaml"
        place = changed
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.4:
                place[key] = rng.choice(strange)
                break
            place = place[key]
        path.write_text(yaml.safe_dump(changed))
        try:
            recipe = load_recipe(path)
        except ValueError as error:
            refused += str(path) in str(error)
            continue
        accepted += 1
        same = json.loads(json.dumps(encode(recipe.to_json()), allow_nan=False))
        assert Recipe.from_json(same).to_json() == recipe.to_json()
    assert refused + accepted == 300
    assert refused > 200
