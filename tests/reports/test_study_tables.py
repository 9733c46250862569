"""Tables of a sweep hold chosen rates, ticks, outcomes and plateaus."""

from hf_memory.reports.study_tables import PLACE_FACTS, RUN_FACTS, cell_table, place_tables, tick_table
from tests.reports.study_examples import HISTORY, VALUES, recipe_of
from tests.studies.sweep_examples import made_up


def test_tables_hold_chosen_rates_ticks_and_outcomes():
    study = made_up(recipe_of(fixed_learning_rate=1e-3), {**VALUES, ("gru", 1e-2, 0): 0.5}, history=HISTORY)
    chosen, fixed, ticks, tries = place_tables(study, "t")
    lines = {(line.cells[0].text, line.cells[1].text): [cell.text for cell in line.cells] for line in chosen.lines}
    assert lines["lstm", "8"][2] == "0.01 (best of 2, on the edge)"
    assert lines["gru", "8"][2] == "0.001 (best of 2, on the edge)"
    assert lines["lstm", "8"][-3:] == ["≥ 0.950", "≥ 0.950", "≥ 0.850"]
    assert lines["chance", ""][-3:] == ["0.562", "0.562", "0.542"]  # at 8, 8 and 12: the first label is certain
    assert [line.cells[0].text for line in chosen.lines if line.level] == ["chance", "majority"]
    assert next(line for line in fixed.lines if line.cells[0].text == "lstm").cells[2].text == "0.001 (best of 1)"
    assert next(line for line in fixed.lines if line.cells[0].text == "lstm").cells[-1].text == "0.800"
    assert [cell.text for cell in ticks.lines[0].cells] == [
        "lstm, width 8",
        "8",
        "✓ 1/1 (0.03, 1.00)",
        "✗ 0/1 (0.00, 0.97)",
    ]
    assert [cell.text for cell in tries.lines[0].cells] == ["lstm, width 8", "0.925", "0.950"]


def test_a_crashed_run_is_in_no_mean_and_leaves_its_place_without_a_rate():
    study = made_up(recipe_of(), VALUES)
    assert {line.cells[0].text for line in place_tables(study, "t")[0].lines} == {"lstm", "chance", "majority"}
    outcomes = {(line.cells[0].text, line.cells[3].text): line.cells[5].text for line in cell_table(study, "c").lines}
    assert outcomes["gru", "0.01"] == "crashed: ValueError: broken"
    assert outcomes["gru", "0.001"] == "finished"


def test_ticks_of_whole_sequences_show_the_accuracy_of_a_step():
    recipe = recipe_of(metric="sequence_accuracy", grid={}, arms={"lstm": {}})
    study = made_up(recipe, {("lstm", 1e-3, 0): 0.95, ("lstm", 1e-2, 0): 0.1})
    table = tick_table(study, "t")
    assert table.lines[0].cells[-1].text == (
        f"✗ 0/1 (0.00, 0.97), {0.85 ** (1 / 12):.4f} a step, independent {0.95**1.5:.3f}"
    )
    value = cell_table(study, "c").lines[0].cells[-2].text
    assert value == "0.8500 (0.793, 0.896)"


def test_runs_say_how_long_they_were_on_the_plateau():
    study = made_up(recipe_of(plateau=0.56, grid={}), VALUES, history={"lstm": [(10, 0.5), (60, 0.6), (100, 0.9)]})
    table = cell_table(study, "c")
    column = table.columns.index("on plateau")
    assert [line.cells[column].text for line in table.lines] == ["60%", "60%", "", ""]


def test_every_line_has_a_cell_for_every_column():
    study = made_up(recipe_of(fixed_learning_rate=1e-3), VALUES, history=HISTORY)
    for table in (*place_tables(study, "t"), cell_table(study, "c")):
        assert {len(line.cells) for line in table.lines} == {len(table.columns)}
    assert place_tables(study, "t")[0].columns[2:9] == PLACE_FACTS
    assert cell_table(study, "c").columns[2:14] == RUN_FACTS
