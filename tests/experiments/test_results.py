"""Result rows survive the disk, and damage is named."""

import dataclasses
import json
import math
import os
import random
from pathlib import Path

import pytest

from hf_memory.data.specification import length_bounds, specify
from hf_memory.experiments.metrics import MetricValue
from hf_memory.experiments.results import (
    Row,
    cell_path,
    read_definition,
    read_rows,
    recover_rows,
    split_length,
    write_cell,
)
from hf_memory.experiments.summary import best_learning_rate, chosen_rows, curves, reference_levels, studies
from hf_memory.storage import decode, digest, encode
from hf_memory.tasks import TASKS, task_class

DEFINITION = {"task": "bit_parity", "model": {"hidden_size": 64}, "seed": 0, "learning_rate": 1e-3}


def make_row(**changes) -> Row:
    """A row of bit parity; the split follows the length unless it is given."""
    length = changes.get("length", 32)
    value = changes.pop("value", 0.75)
    values = {
        "cell": digest(DEFINITION), "arm": "lstm", "mixer": "lstm", "config_digest": "c0", "task": "bit_parity",
        "task_knobs": {}, "data_version": "1.0.0+numpy2.3", "split": f"test_{length}", "length": length,
        "train_length": (32, 32), "seed": 0, "data_seed": 0, "learning_rate": 1e-3, "learning_rate_grid": (1e-3,),
        "schedule": "cosine", "optim_groups": "documented", "stop_rule": "200 steps", "steps": 200, "tokens": 409600,
        "parameters": 1000, "parameters_non_embedding": 900, "parameters_per_block": 450, "state_numbers": 128,
        "state_bytes": 512, "headline": "token_accuracy",
        "metrics": {"token_accuracy": MetricValue(value, value * 400, 400, 0.5, {"zeros": 0.45})},
        "train_seconds": 2.5, "eval_seconds": 0.5, "device": "cpu", "backend": "torch", "versions": {"torch": "2.13"},
        "weights_sha256": "ab" * 32,
    }  # fmt: skip
    return Row(**(values | changes))


def test_rows_read_back_equal_with_nan_and_infinity(tmp_path):
    rows = [
        make_row(length=32, value=0.1),
        make_row(length=48, train_seconds=math.inf, metrics={"token_accuracy": MetricValue(math.nan, 0, 0, 0.5, {})}),
    ]
    path = write_cell(tmp_path, DEFINITION, rows)
    assert path == cell_path(tmp_path, digest(DEFINITION))
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    first, second = read_rows(tmp_path)
    assert first == rows[0]
    assert math.isnan(second.value())
    assert second.train_seconds == math.inf
    assert dataclasses.replace(second, metrics={}) == dataclasses.replace(rows[1], metrics={})
    assert read_definition(path) == DEFINITION


def test_digest_depends_on_values_and_not_on_order_or_tuples():
    assert digest({"a": 1, "b": (1, 2)}) == digest({"b": [1, 2], "a": 1})
    assert (
        len({digest(DEFINITION), digest(DEFINITION | {"seed": 1}), digest(DEFINITION | {"learning_rate": 2e-3})}) == 3
    )
    assert digest({"a": 1}) == "015abd7f5cc57a2d"


def test_encode_refuses_what_json_cannot_hold():
    assert decode(encode({"x": [float("-inf"), None, True]})) == {"x": [float("-inf"), None, True]}
    with pytest.raises(ValueError, match="JSON values only, got set"):
        encode({"x": {1, 2}})


def test_rows_of_another_cell_or_no_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        write_cell(tmp_path, DEFINITION, [])
    with pytest.raises(ValueError, match="cell must be"):
        write_cell(tmp_path, DEFINITION, [make_row(cell="0123")])
    assert list(tmp_path.iterdir()) == []


def _two_cells(folder: Path) -> tuple[Path, Path]:
    other = DEFINITION | {"seed": 1}
    first = write_cell(folder, DEFINITION, [make_row(length=length) for length in (32, 48, 64)])
    second = write_cell(folder, other, [make_row(length=32, seed=1, cell=digest(other))])
    return first, second


@pytest.mark.parametrize(
    ("damage", "message", "left"),
    [
        (lambda text: "", "is empty", 0),
        (lambda text: text[: len(text) // 2], "is no row", 1),
        (lambda text: "".join(text.splitlines(keepends=True)[:-1]), "2 rows, but its header says 3", 2),
        (lambda text: text.replace('"seed": 0, "data_seed"', '"data_seed"', 2), r"line 2 is no row .*\['seed'\]", 1),
        (lambda text: text.replace('"steps": 200', '"steps": "many"', 1), "row.steps must be a whole number", 2),
        (lambda text: text.split("\n", 1)[1], "not a header", 2),
        (lambda text: "{" + text, "line 1 is not JSON", 3),
    ],
)
def test_damaged_file_is_named_and_the_rest_recovered(tmp_path, caplog, damage, message, left):
    first, _ = _two_cells(tmp_path)
    text = first.read_text()
    assert damage(text) != text
    first.write_text(damage(text))
    with pytest.raises(ValueError, match=message) as error:
        read_rows(tmp_path)
    assert first.name in str(error.value)
    rows, problems = recover_rows(tmp_path)
    assert len(rows) == left + 1
    assert any(first.name in problem for problem in problems)
    assert first.name in caplog.text


def test_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no file"):
        read_rows(tmp_path)
    path = write_cell(tmp_path / "study" / "rows", DEFINITION, [make_row()])
    with pytest.raises(ValueError, match=f"below it do: {path.parent}"):
        read_rows(tmp_path)


def test_row_names_the_metrics_that_it_has():
    with pytest.raises(ValueError, match=r"'recall' was not measured .*token_accuracy"):
        make_row().value("recall")


def test_learning_rate_is_chosen_on_validation_alone():
    rows = [
        make_row(learning_rate=rate, split=split, length=length, value=value, seed=seed)
        for rate, validation, test in ((1e-4, 0.6, 0.99), (1e-3, 0.9, 0.7), (1e-2, 0.8, 1.0))
        for seed in (0, 1)
        for split, length, value in (("validation", 32, validation + 0.01 * seed), ("test_64", 64, test))
    ]
    choice = best_learning_rate(rows)
    assert (choice.learning_rate, choice.tries, choice.on_edge) == (1e-3, 6, False)
    assert choice.curve == pytest.approx({1e-4: 0.605, 1e-3: 0.905, 1e-2: 0.805})
    assert curves(rows)["lstm"][64].values == (0.7, 0.7)
    assert best_learning_rate([row for row in rows if row.learning_rate < 5e-3]).on_edge
    with pytest.raises(ValueError, match="validation"):
        best_learning_rate([row for row in rows if row.split != "validation"])
    with pytest.raises(ValueError, match="one arm"):
        best_learning_rate([*rows, make_row(arm="gru")])


def test_runs_of_a_search_do_not_count_where_others_followed_it():
    search = [
        make_row(learning_rate=rate, split=split, length=length, value=value)
        for rate, value in ((1e-4, 0.9), (1e-3, 1.0))
        for split, length in (("validation", 32), ("test_64", 64))
    ]
    final = [
        make_row(learning_rate=1e-4, learning_rate_grid=(1e-4, 1e-3), split=split, length=length, value=0.8, seed=seed)
        for seed in (1, 2)
        for split, length in (("validation", 32), ("test_64", 64))
    ]
    assert curves([*search, *final])["lstm"][64].values == (0.8, 0.8)
    assert {row.seed for row in chosen_rows([*search, *final])} == {1, 2}
    assert curves(search)["lstm"][64].values == (1.0,)


def test_an_arm_of_several_sizes_is_several_arms():
    rows = [make_row(length=64, parameters=count, value=value) for count, value in ((1000, 0.5), (2000, 0.75))]
    (study,) = studies([*rows, make_row(arm="gru", length=64)])
    assert {arm: points[64].values for arm, points in curves(study).items()} == {
        "lstm, 1,000 parameters": (0.5,), "lstm, 2,000 parameters": (0.75,), "gru": (0.75,),
    }  # fmt: skip


def test_cells_below_a_folder_are_read_once(tmp_path):
    write_cell(tmp_path / "one", DEFINITION, [make_row()])
    write_cell(tmp_path / "two" / "deep", DEFINITION, [make_row()])
    assert read_rows(tmp_path, below=True) == read_rows(tmp_path / "one") == read_rows(tmp_path / "two", below=True)


def test_value_that_is_no_number_counts_as_chance():
    diverged = {"token_accuracy": MetricValue(math.nan, 0, 0, 0.5, {})}
    rows = [make_row(length=64, value=1.0), make_row(length=64, seed=1, metrics=diverged)]
    assert curves(rows)["lstm"][64].mean == 0.75


def test_reference_levels_hold_chance_and_baselines_per_length():
    rows = [make_row(length=64), make_row(length=32), make_row(length=32, split="validation")]
    assert reference_levels(rows) == {"chance": {32: 0.5, 64: 0.5}, "zeros": {32: 0.45, 64: 0.45}}


def test_rows_of_two_data_versions_are_not_mixed():
    rows = [make_row(cell="aaaa"), make_row(cell="bbbb", data_version="1.1.0+numpy2.3")]
    with pytest.raises(ValueError, match="data_version") as error:
        studies(rows)
    assert "aaaa" in str(error.value)
    assert "bbbb" in str(error.value)
    assert len(studies([make_row(), make_row(task="mqar"), make_row(task_knobs={"num_ones": 4})])) == 3


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STRANGE = [
    None, True, -1, -0.5, 0, 1.5, "", "x", [], {}, [1], {"x": 1}, "NaN", "Infinity", "-Infinity", 10**30, 1e300, 5,
]  # fmt: skip
# What a row cannot tell by itself: names in words, and measurements within their range.
OPEN = {
    "config_digest", "data_version", "schedule", "stop_rule", "optim_groups", "device", "backend", "versions",
    "weights_sha256", "code", "task_knobs", "steps", "tokens", "parameters", "parameters_non_embedding",
    "parameters_per_block", "state_numbers", "state_bytes", "train_seconds", "eval_seconds", "data_seed", "chance",
    "baselines", "learning_rate", "learning_rate_grid", "train_length",
}  # fmt: skip
PUBLISHED = sorted(EXAMPLES.rglob("*.jsonl"))


def leaves(value, path=()):
    """Places of all values within a row."""
    if isinstance(value, (dict, list)) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    yield path


def test_all_published_rows_are_read():
    folders = sorted({path.parent for path in PUBLISHED})
    found = [recover_rows(folder) for folder in folders]
    assert sum(len(rows) for rows, _ in found) >= 2586
    assert [problem for _, problems in found for problem in problems] == []


def test_no_mutated_row_reads_as_something_else(tmp_path):
    rng = random.Random(0)
    caught = same = still_a_row = 0
    for _ in range(1500):
        source = rng.choice(PUBLISHED)
        lines = source.read_text().splitlines()
        number = rng.randrange(len(lines))
        content = json.loads(lines[number])
        path = rng.choice([path for path in leaves(content) if path])
        place = content
        for key in path[:-1]:
            place = place[key]
        if rng.random() < 0.2:
            del place[path[-1]]
        else:
            place[path[-1]] = rng.choice(STRANGE)
        lines[number] = json.dumps(content)
        target = tmp_path / source.name
        target.write_text("\n".join(lines) + "\n")
        rows, problems = recover_rows(target)
        target.unlink()
        if problems:
            caught += 1
        elif [row.to_json() for row in rows] == [row.to_json() for row in read_rows(source)]:
            same += 1
        else:
            assert number, path
            assert "sha256" not in json.loads(lines[0]), path  # nothing of a sealed file is read as something else
            # A metric that is gone is missed where it is asked for, and 0 of 5 is the rate that 0 of 1000 is.
            is_gone = len(path) == 2 and path[0] == "metrics" and path[1] != content["headline"]
            is_zero = path[-1] == "denominator" and content["metrics"][path[1]]["numerator"] == 0
            # A macro recall is a mean of ratios, and rows from before there were seals hold their sums alone.
            is_sum = path[0] == "metrics" and "macro_" in path[1] and path[-1] in ("numerator", "denominator")
            # The length of a test stands in its name, that of a validation nowhere else in such a row.
            is_own = path == ("length",) and content["split"] == "validation"
            assert is_gone or is_zero or is_sum or is_own or OPEN & set(path), (path, content)
            still_a_row += 1
    assert caught + same + still_a_row == 1500
    assert still_a_row < 150


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {"token_accuracy": MetricValue(0.5, 300, 400)}}, "token_accuracy must be 0.75, numerator over"),
        ({"metrics": {"token_accuracy": MetricValue(1.5, 600, 400)}}, "numerator from 0 to its denominator"),
        ({"metrics": {"token_accuracy": MetricValue(math.nan, 3, 4), "loss": MetricValue(0.5, 2, 4)}}, "must be 0.75"),
        (
            {"metrics": {"token_accuracy": MetricValue(0.5, 2, 4, chance=2.0)}},
            "chance of token_accuracy must be",
        ),
        ({"headline": "recall"}, "headline 'recall' is none of its metrics"),
        ({"length": 0, "split": "validation"}, "row.length must be a whole number of at least 1"),
        ({"split": "test_48"}, "length must be 48 for the split 'test_48', got 32"),
        ({"train_length": (40, 3)}, "train_length must be shortest and longest"),
        ({"learning_rate": -1.0}, "row.learning_rate must be a finite number above 0, or null"),
        ({"learning_rate": 0.5}, "learning_rate 0.5 is not in its learning_rate_grid"),
        ({"parameters": 3}, "parameters must be at least those without embeddings"),
        ({"optim_groups": "none"}, "row.optim_groups must be one of documented, uniform, or null"),
        ({"weights_sha256": "abc"}, "row.weights_sha256 must be a digest, or empty"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Row.from_json(make_row(**changes).to_json())


def test_the_names_of_all_splits_agree_with_their_lengths():
    wrong = []
    for key in TASKS:
        for preset in task_class(key).presets:
            for name, split in specify(key, preset).splits.items():
                longest = max(length_bounds(part.length)[1] for part in split.parts)
                wrong += [(key, preset, name)] if split_length(name) not in (None, longest) else []
    assert wrong == []


def test_a_diverged_row_and_a_macro_recall_are_rows():
    nan = {"token_accuracy": MetricValue(math.nan, 200, 400), "loss": MetricValue(math.nan, math.nan, 400)}
    assert math.isnan(Row.from_json(make_row(metrics=nan).to_json()).value())
    macro = {"macro_recall": MetricValue(0.9, 300, 400)}
    assert Row.from_json(make_row(metrics=macro, headline="macro_recall").to_json()).value() == 0.9
    with pytest.raises(ValueError, match="macro_recall is 0.5, with 400 of 400"):
        Row.from_json(make_row(metrics={"macro_recall": MetricValue(0.5, 400, 400)}, headline="macro_recall").to_json())


def test_strange_files_are_named_and_passed_over(tmp_path):
    write_cell(tmp_path, DEFINITION, [make_row()])
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").mkdir()
    (tmp_path / "d.jsonl").write_bytes(bytes(range(256)))
    (tmp_path / "e.jsonl").write_text("[" * 100_000)
    (tmp_path / "f.jsonl").write_text("")
    rows, problems = recover_rows(tmp_path)
    assert rows == [make_row()]
    assert {Path(problem.split(" ")[0].rstrip(":")).name for problem in problems} == {f"{x}.jsonl" for x in "abcdef"}
    with pytest.raises(ValueError, match=r"b.jsonl is no regular file"):
        read_rows(tmp_path / "b.jsonl")


def test_rows_of_another_run_and_a_changed_definition_are_named(tmp_path):
    path = write_cell(tmp_path, DEFINITION, [make_row()])
    header, row = path.read_text().splitlines()
    path.write_text(f"{header.replace('0.001', '0.002')}\n{row}\n")
    assert "its definition is that of the cell" in recover_rows(path)[1][0]
    path.write_text(f"{header}\n{row}\n{row}\n".replace('"rows": 1', '"rows": 2'))
    assert "split 'test_32' is there already" in recover_rows(path)[1][0]
    path.write_text(f"{header}\n{row.replace('bit_parity', 'mqar')}\n")
    assert "task must be 'bit_parity' as in the header, got 'mqar'" in recover_rows(path)[1][0]
