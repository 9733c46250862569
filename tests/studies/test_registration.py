"""What a recipe registers: every claim can be read off its runs, and none is reworded in silence."""

import pytest

from hf_memory.experiments.mechanisms import MEASURES
from hf_memory.experiments.results import cell_path
from hf_memory.studies.outcomes import record_path, write_record
from hf_memory.studies.plans import make_settings
from hf_memory.studies.recipes import Recipe
from hf_memory.studies.registration import check_readable, check_registered
from hf_memory.studies.sweep import run_sweep
from tests.studies.sweep_examples import TINY_DATA, planned, tiny_recipe

CLAIM = {"claim": "LSTM learns.", "left": {"arms": "lstm"}, "relation": ">=", "right": 0.9}
SLICED = {"evaluate": {"points": 3, "crossing": 0.9, "slices": {"token_accuracy": ["ones_so_far"]}, "decays": True}}


def recipe_with(*claims, **changes) -> Recipe:
    return tiny_recipe(expectations=list(claims), **changes)


@pytest.mark.parametrize(
    ("left", "changes", "message"),
    [
        ({"metric": "acuracy"}, {}, "unknown metric in 'LSTM learns.': 'acuracy'"),
        ({"metric": "recall"}, {}, "unknown metric in 'LSTM learns.': 'recall'"),
        ({"split": "test_9"}, {}, "unknown split in 'LSTM learns.': 'test_9'; did you mean 'test_8'"),
        ({"minus": "test_99"}, {}, "unknown split in 'LSTM learns.': 'test_99'"),
        ({"rate": "fixed"}, {}, "rate in 'LSTM learns.': there is no fixed_learning_rate"),
        ({"quantity": "late_drop"}, {}, "points must be at least 3 for late_drop"),
        ({"quantity": "late_drop", "split": "test_8"}, {"evaluate": {"points": 9}}, "unknown split of evaluate"),
        ({"quantity": "grid_regret"}, {}, r"grid_regret needs the learning rates \[0.0001, 0.000464, 0.00215\]"),
        ({"metric": "generated_token_accuracy"}, {}, "unknown metric in 'LSTM learns.': 'generated_token_accuracy'"),
        ({"when": "crossing"}, {}, "when in 'LSTM learns.': evaluate has no crossing"),
        ({"quantity": "longest_trained"}, {}, "longest_trained needs the axis length of grid"),
        ({"metric": "slowest_decay"}, {}, "unknown metric in 'LSTM learns.': 'slowest_decay'"),
        ({"split": "train"}, {}, "unknown split in 'LSTM learns.': 'train'"),
        ({"minus": "train"}, {}, "unknown split in 'LSTM learns.': 'train'"),
        ({"split": "train", "quantity": "seed_reading"}, {}, "unknown split in 'LSTM learns.': 'train'"),
        (
            {"split": "train", "when": "crossing"},
            {"evaluate": {"points": 3, "splits": ["validation", "train"], "crossing": 0.9}},
            "'LSTM learns.': 'train'",
        ),
        ({}, {"control": {"arms": ["lstm"], "at_least": 0.9, "split": "train"}}, "split in 'control': 'train'"),
        (
            {},
            {"control": {"arms": ["lstm"], "at_least": 0.9, "at": {"width": 4}}, "grid": {"width": [8]}},
            "control: at {'width': 4} there is no run of lstm in this profile",
        ),
        (
            {},
            {"evaluate": {"slices": {"token_acuracy": ["ones_so_far"]}}},
            "metric of evaluate.slices: 'token_acuracy'; did you mean 'token_accuracy'",
        ),
        ({}, {"evaluate": {"slices": {"loss": ["ones_so_far"]}}}, "metric of evaluate.slices: 'loss'"),
        (
            {},
            {"evaluate": {"slices": {"token_accuracy": ["ones_so_fair"]}}},
            "annotation of evaluate.slices.token_accuracy: 'ones_so_fair'; did you mean 'ones_so_far'",
        ),
        ({"metric": "token_accuracy_at_ones_so_far_3"}, SLICED, "did you mean 'token_accuracy_at_ones_so_far_1'"),
        ({"metric": "token_accuracy_at_ones_so_far_4_to_8"}, SLICED, "'token_accuracy_at_ones_so_far_4_to_8'"),
        ({"metric": "token_accuracy_at_depth_1"}, SLICED, "unknown metric in 'LSTM learns.'"),
        ({"metric": "token_accuracy_at_ones_so_far_1", "quantity": "steps_to"}, SLICED, "at the end of a run alone"),
        ({"metric": "token_accuracy_at_ones_so_far_1", "when": "crossing"}, SLICED, "at the end of a run alone"),
        ({}, {"metric": "nope"}, "unknown metric: 'nope'"),
        ({}, {"evaluate": {"splits": ["validaton"]}}, "evaluate: 'validaton' is no split of arm lstm"),
        ({}, {"training": {"give_up": [0.5, 0.5]}}, "give_up must be null where runs are judged"),
        ({}, {"control": {"arms": ["lstm"], "at_least": 0.9, "split": "test_7"}}, "unknown split in 'control'"),
    ],
)
def test_what_the_runs_will_not_hold_is_refused_before_they_run(left, changes, message, tmp_path):
    recipe = recipe_with({**CLAIM, "left": {**CLAIM["left"], **left}}, **changes)
    with pytest.raises(ValueError, match=message):
        check_readable(recipe)
    with pytest.raises(ValueError, match=message):
        run_sweep(recipe, tmp_path / "results", progress=False)
    assert list((tmp_path / "results").iterdir()) == []


def test_what_they_will_hold_is_not():
    check_readable(recipe_with(CLAIM))
    looks = {"evaluate": {"points": 3, "splits": ["validation", "test_8"]}}
    check_readable(
        recipe_with({**CLAIM, "left": {"arms": "lstm", "quantity": "late_drop", "split": "test_8"}}, **looks)
    )
    check_readable(recipe_with({**CLAIM, "left": {"arms": "lstm", "metric": "sequence_accuracy"}}))
    looks = {"evaluate": {"points": 3, "splits": ["validation", "train"]}}
    check_readable(recipe_with({**CLAIM, "left": {"arms": "lstm", "quantity": "steps_to", "split": "train"}}, **looks))


def registered(folder, recipe):
    """The record of a sweep of a recipe that has begun."""
    write_record(folder, recipe, [], [])
    return record_path(folder, recipe)


@pytest.mark.parametrize(
    "change",
    [
        {"claim": "LSTM learns it."},
        {"right": 0.85},
        {"margin": -0.01},
        {"left": {"arms": "lstm", "split": "test_8"}},
        {"relation": ">"},
    ],
)
def test_a_claim_that_is_reworded_after_its_runs_is_refused_until_it_is_listed(change, tmp_path):
    record = registered(tmp_path, recipe_with(CLAIM))
    check_registered(recipe_with(CLAIM), record)
    changed = {**CLAIM, **change}
    with pytest.raises(ValueError, match=r"'LSTM learns\.' was registered before these runs .* list its wording under"):
        check_registered(recipe_with(changed), record)
    listed = [{"claim": CLAIM["claim"], "date": "2026-11-28", "why": "It said another thing than it measured."}]
    if "claim" in change:
        check_registered(recipe_with(changed, changed=listed), record)
    else:  # the same words for another prediction stay refused
        with pytest.raises(ValueError, match="is still expected"):
            recipe_with(changed, changed=listed)


def test_a_claim_that_is_dropped_is_listed_and_remarks_may_change(tmp_path):
    record = registered(tmp_path, recipe_with(CLAIM))
    with pytest.raises(ValueError, match="was registered before these runs"):
        check_registered(recipe_with(), record)
    check_registered(recipe_with({**CLAIM, "because": "It is known.", "published": "yes"}), record)
    listed = [{"claim": CLAIM["claim"], "date": "2026-11-28", "why": "It cannot be decided here."}]
    check_registered(recipe_with(changed=listed), record)
    assert recipe_with(changed=listed).to_json()["changed"] == tuple(listed)


PLAN = {
    "arms": {"lstm": {}, "gru": {}}, "seeds": {"search": [0], "looks": [5], "rows": "own"}, "grid": {"depth": [1, 2]},
    "control": {"arms": ["lstm"], "at_least": 0.9},
}  # fmt: skip
AT_ONE = {**CLAIM, "left": {"arms": "lstm", "at": {"depth": 1}}}


def begun(folder, recipe, cells=1):
    """The record of a sweep some of whose runs have ended."""
    write_record(folder, recipe, make_settings(recipe), planned(recipe))
    for cell in planned(recipe)[:cells]:
        cell_path(folder, cell.digest).touch()
    return record_path(folder, recipe)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training": {"steps": 4, "batch_size": 8}}, "training.steps was 3 and is 4"),
        ({"seeds": {**PLAN["seeds"], "looks": [5, 10]}}, r"seeds.looks was \[5\] and is \[5, 10\]"),
        ({"seeds": {**PLAN["seeds"], "search": [0, 1]}}, r"seeds.search was \[0\] and is \[0, 1\]"),
        ({"learning_rates": [1e-3, 4e-3, 1e-2]}, "learning_rates was .0.001, 0.01. and is .0.001, 0.004, 0.01."),
        (
            {"arms": {"lstm": {"model": {"conv_kernel": 2}}, "gru": {}}},
            "arms.lstm.model was None and is {'conv_kernel': 2}",
        ),
        ({"evaluate": {"points": 9}}, "evaluate.points was 0 and is 9"),
        ({"data": {**TINY_DATA, "length": 6}}, "data.length was 8 and is 6"),
        ({"control": {"arms": ["lstm"], "at_least": 0.8}}, "control.at_least was 0.9 and is 0.8"),
        ({"plateau": 0.5}, "plateau was None and is 0.5"),
        ({"extend": {}}, "extend was None and is {'up'"),
        ({"grid": {"depth": [2]}}, r"grid was \[.*'depth': 1.* and is"),
        # More steps of another arm are more rows for all, so that all runs are other ones.
        ({"arms": {"lstm": {}, "gru": {"training": {"steps": 9}}}}, "rows of the longest run was 24 and is 72"),
    ],
)
def test_a_claim_that_has_results_keeps_its_plan(change, named, tmp_path):
    record = begun(tmp_path, recipe_with(CLAIM, **PLAN))
    check_registered(recipe_with(CLAIM, **PLAN), record)
    with pytest.raises(ValueError, match=rf"'LSTM learns\.' .* with another plan: {named}.*; reword it and list"):
        check_registered(recipe_with(CLAIM, **{**PLAN, **change}), record)
    listed = [{"claim": CLAIM["claim"], "date": "2026-11-28", "why": "It has another plan now."}]
    reworded = {**CLAIM, "claim": "LSTM learns it."}
    check_registered(recipe_with(reworded, changed=listed, **{**PLAN, **change}), record)


def test_before_the_first_result_a_plan_may_change(tmp_path):
    record = begun(tmp_path, recipe_with(CLAIM, **PLAN), cells=0)
    check_registered(recipe_with(CLAIM, **PLAN, training={"steps": 4}), record)


def test_what_a_claim_does_not_rest_on_may_change(tmp_path):
    plan = {**PLAN, "control": {**PLAN["control"], "at": {"depth": 1}}}
    record = begun(tmp_path, recipe_with(AT_ONE, **plan))
    for change in (
        {"arms": {**PLAN["arms"], "rnn": {}}},
        {"arms": {"lstm": {}}},
        {"grid": {"depth": [1, 2, 3]}},
        {"title": "Another one", "checkpoints": False},
    ):
        check_registered(recipe_with(AT_ONE, **{**plan, **change}), record)
    # What the control reads is a part of every plan.
    plan = {**PLAN, "control": {"arms": ["lstm", "gru"], "at_least": 0.9}}
    record = begun(tmp_path, recipe_with(AT_ONE, **plan))
    with pytest.raises(ValueError, match="arms.gru.width was None and is 4"):
        check_registered(recipe_with(AT_ONE, **{**plan, "arms": {"lstm": {}, "gru": {"width": 4}}}), record)


def test_runs_without_a_claim_have_no_plan_to_keep(tmp_path):
    record = begun(tmp_path, recipe_with(**PLAN))
    check_registered(recipe_with(CLAIM, **PLAN, training={"steps": 4}), record)


@pytest.mark.parametrize("damage", ["cut", "edited", "folder"])
def test_a_damaged_record_is_no_leave_to_reword(damage, tmp_path):
    record = begun(tmp_path, recipe_with(CLAIM, **PLAN))
    text = record.read_text()
    record.unlink()
    if damage == "folder":
        record.mkdir()
    else:
        record.write_text(text[:-9] if damage == "cut" else text.replace('"right": 0.9', '"right": 0.8'))
    with pytest.raises(
        ValueError, match=r"tiny.cpu.sweep.json is no record of a sweep .*; restore it, or move it away"
    ):
        run_sweep(recipe_with(CLAIM, **PLAN), tmp_path, progress=False)


@pytest.mark.parametrize("key", ["claim", "date", "why"])
def test_a_change_has_its_old_wording_a_date_and_a_reason(key):
    entry = {"claim": "a", "date": "2026-11-28", "why": "b"}
    with pytest.raises(ValueError, match=f"changed: the text '{key}' is missing"):
        recipe_with(changed=[{name: text for name, text in entry.items() if name != key}])


def test_one_expectation_stands_for_several_arms():
    each = {**CLAIM, "claim": "{arm} learns.", "left": {"arms": "{arm}"}, "for_each": ["lstm", "gru"]}
    recipe = recipe_with(each)
    assert [item.claim for item in recipe.expectations] == ["lstm learns.", "gru learns."]
    assert [item.left.arms for item in recipe.expectations] == [("lstm",), ("gru",)]
    assert Recipe.from_json(recipe.to_json()) == recipe


BUDGETS = {"arms": {"lstm": {}, "gru": {"training": {"steps": 40000}}}, "training": {"steps": 1600}}


@pytest.mark.parametrize(
    ("claim", "arms", "said"),
    [
        ("Trained for {steps} steps, it learns.", "lstm", "Trained for 1,600 steps, it learns."),
        ("Within {steps} steps, it learns.", ["gru"], "Within 40,000 steps, it learns."),
        ("Within {steps} steps, it learns.", "rnn", "Within 1,600 steps, it learns."),  # another profile has it
    ],
)
def test_a_claim_is_told_the_steps_of_its_runs(claim, arms, said):
    recipe = recipe_with(
        {**CLAIM, "claim": claim, "left": {"arms": arms}, "plateau_counts": "thin" in claim}, **BUDGETS
    )
    assert [item.claim for item in recipe.expectations] == [said]
    check_readable(recipe)
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("claim", "arms", "trained"),
    [
        ("Trained for 2,000 steps, it learns.", "lstm", "1,600"),
        ("It learns WITHIN 16,000 steps.", "lstm", "1,600"),
        ("Within 1600 steps, it learns.", "gru", "40,000"),
        ("Within 1,600 steps, both learn.", ["lstm", "gru"], "1,600 and 40,000"),
    ],
)
def test_a_claim_that_names_another_budget_than_that_of_its_runs_is_refused(claim, arms, trained):
    recipe = recipe_with({**CLAIM, "claim": claim, "left": {"arms": arms}}, **BUDGETS)
    with pytest.raises(ValueError, match=f"'{claim}': its runs are trained for {trained} steps in the profile cpu; "):
        check_readable(recipe)
    check_readable(recipe_with({**CLAIM, "claim": claim, "left": {"arms": arms}}, **BUDGETS, profile="smoke"))


def test_a_claim_names_each_budget_of_its_runs():
    both = {**CLAIM, "left": {"arms": ["lstm", "gru"]}}
    check_readable(recipe_with({**both, "claim": "Within 1,600 steps, and within 40,000 steps, it learns."}, **BUDGETS))
    with pytest.raises(ValueError, match=r"its runs have several numbers of steps, \[1600, 40000\]; write them out"):
        recipe_with({**both, "claim": "Within {steps} steps, both learn."}, **BUDGETS)
    given = {**CLAIM, "claim": "Within 1,600 steps, it learns.", "given": {"arms": "gru"}}
    with pytest.raises(ValueError, match="trained for 1,600 and 40,000 steps"):
        check_readable(recipe_with(given, **BUDGETS))
    grid = {"training": {"steps": 1600}, "grid": {"training.steps": [5, 9]}}
    one = {"arms": "lstm", "at": {"training.steps": 9}}
    assert recipe_with({**CLAIM, "claim": "Within {steps} steps.", "left": one}, **grid).expectations[0].claim == (
        "Within 9 steps."
    )


@pytest.mark.parametrize("mixer", ["hyena", "base_conv"])
def test_a_filter_for_another_length_than_that_of_the_rows_is_refused(mixer):
    own = {"conv_kernel": 0} if mixer == "base_conv" else {}
    arms = {"lstm": {}, mixer: {"model": {**own, "max_position_embeddings": 2048}}}
    with pytest.raises(ValueError, match=f"of arm {mixer} must be 12, the longest row that is evaluated, .* got 2048"):
        check_readable(recipe_with(arms=arms))
    arms[mixer]["model"] = own
    recipe = recipe_with(arms=arms)
    check_readable(recipe)
    (cell,) = [cell for cell in planned(recipe) if cell.mixer == mixer and cell.stage == "final"]
    assert cell.experiment().make_model(0).config.max_position_embeddings == 12


def test_measures_that_a_recipe_asks_for_are_known():
    writes = {"task": "string_copy", "data": {"length": 4, "test_lengths": [4]}, "evaluate": {"generate": True}}
    left = {"arms": "lstm", "metric": "generated_sequence_accuracy"}
    check_readable(recipe_with({**CLAIM, "left": left}, **writes))
    with pytest.raises(ValueError, match="is measured at the end of a run alone"):
        check_readable(recipe_with({**CLAIM, "left": {**left, "quantity": "steps_to"}}, **writes))
    prompts = {**writes, "task": "mqar", "data": {"length": 16, "test_lengths": [16], "num_kv_pairs": 2}}
    with pytest.raises(ValueError, match="the answer of a row must be one block"):
        check_readable(recipe_with(CLAIM, **prompts))
    for metric in ("token_accuracy_at_ones_so_far_2_to_3", "token_accuracy_at_ones_so_far_0", "slowest_decay"):
        check_readable(recipe_with({**CLAIM, "left": {"arms": "lstm", "metric": metric}}, **SLICED))
    recalls = {"task": "mqar", "data": {"length": 16, "test_lengths": [16], "num_kv_pairs": 2}}
    looks = {**recalls, "evaluate": {"points": 3, "mechanisms": True}}
    drop = {"arms": "lstm", "metric": MEASURES[0], "quantity": "late_drop"}
    check_readable(recipe_with({**CLAIM, "left": drop}, **looks))
    with pytest.raises(ValueError, match="is measured at looks alone"):
        check_readable(recipe_with({**CLAIM, "left": {**drop, "quantity": "value"}}, **looks))


def test_rows_that_mix_laws_are_not_told_apart():
    mixed = {"task": "mqar", "config": "kv4_to_32_len128", "data": {}, "evaluate": {"slices": {"recall": ["distance"]}}}
    sliced = {"arms": "lstm", "metric": "recall_at_distance_1", "split": "test_128_kv8"}
    check_readable(recipe_with({**CLAIM, "left": sliced}, **mixed))
    with pytest.raises(ValueError, match="unknown metric in 'LSTM learns.': 'recall_at_distance_1'"):
        check_readable(recipe_with({**CLAIM, "left": {**sliced, "split": "validation"}}, **mixed))
