"""Suites: one file of configurations, a sweep for each, and what their seeds came to."""

import math
import shutil
from pathlib import Path

import pytest
import yaml

import hf_memory.studies.sweep
from hf_memory.experiments.metrics import extrapolation_length
from hf_memory.reports.committed_figures import drawn_from
from hf_memory.reports.formats import spread
from hf_memory.reports.profiles import read_profiles
from hf_memory.reports.reproduction import draw_figures, write_reproduction
from hf_memory.reports.suite_page import entry_table, memory_table, profile_drawing, write_suite_page
from hf_memory.studies.recipes_yaml import shipped_files
from hf_memory.studies.statistics import steps_to
from hf_memory.studies.suites import MEMORIES, by_memory, load_suite, read_scores, run_suite
from hf_memory.tasks import task_class
from tests.studies.sweep_examples import TINY_DATA, InlineWorkers

SMALL = {
    "name": "small-1",
    "title": "Small",
    "text": "Two configurations.",
    "base": {
        "model": {"num_hidden_layers": 1},
        "sizing": {"by": "hidden", "value": 8},
        "training": {"steps": 6, "batch_size": 8},
        "learning_rates": [1e-3, 1e-2],
        "seeds": {"search": [0], "looks": [2], "rows": "own"},
        "evaluate": {"points": 4, "splits": ["validation"], "rows": 16},
        "data": TINY_DATA,
    },
    "entries": {
        "parity": {"task": "bit_parity", "solved": 0.3},
        "hard": {"task": "bit_parity", "solved": 1.01},
        "brackets": {"task": "dyck", "solved": 0.99, "learning_rates": [1e-3], "data": {"max_depth": 3}},
    },
}


def write(folder: Path, **changes) -> Path:
    path = folder / "small-1.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}, sort_keys=False))
    return path


@pytest.fixture
def workers(monkeypatch):
    pool = InlineWorkers()
    monkeypatch.setattr(hf_memory.studies.sweep, "make_workers", lambda *args: pool)
    return pool


def test_a_suite_is_run_once_and_read_back_for_all_mixers(tmp_path, workers):
    path = write(tmp_path)
    results = tmp_path / "results"
    suite = load_suite(path, "lstm")
    scores = run_suite(suite, results, progress=False)
    assert len(workers.ran) == 2 * (2 + 2) + (1 + 2)
    assert [(one.entry.name, one.entry.memory, one.planned) for one in scores] == [
        ("parity", "stateful", 2), ("hard", "stateful", 2), ("brackets", "stack", 2)
    ]  # fmt: skip
    parity, hard, brackets = scores
    assert set(parity.values) == {100, 101}
    assert parity.values == {
        result.cell.seed: result.rows["validation"].value("token_accuracy")
        for result in parity.study.results
        if result.cell.stage == "final"
    }
    assert (parity.solved, hard.solved) == (2, 0)
    assert parity.chance == pytest.approx(task_class("bit_parity")().chance_level("token_accuracy", 8), abs=0.2)
    finals = {result.cell.seed: result for result in parity.study.results if result.cell.stage == "final"}
    assert parity.steps == {seed: steps_to(r.curve("validation", "token_accuracy"), 0.3) for seed, r in finals.items()}
    assert all(0 < steps < 6 for steps in parity.steps.values())
    assert hard.steps == {100: math.inf, 101: math.inf}
    assert parity.reached == {
        seed: extrapolation_length({row.length: row.value() for name, row in r.rows.items() if name != "validation"})
        for seed, r in finals.items()
    }
    assert by_memory(scores) == {"stateful": (2, 4), "stack": (brackets.solved, 2)}

    workers.ran.clear()
    wide = load_suite(path, "gru", label="wide gru", model={"mlp_gated": True})
    run_suite(wide, results, progress=False)
    ran = len(workers.ran)
    run_suite(wide, results, progress=False)
    run_suite(suite, results, progress=False)
    assert len(workers.ran) == ran > 0
    assert {cell.fields["mlp_gated"] for cell in workers.ran} == {True}
    every = read_scores(suite, results)
    assert list(every) == ["lstm", "wide gru"]
    assert [one.values for one in every["lstm"]] == [one.values for one in scores]

    page = write_suite_page(suite, every, tmp_path / "page")
    text = page.read_text()
    assert "wide gru" in text
    assert "2 of 4" in text
    assert {file.suffix for file in page.parent.glob("small-1*lstm*")} == {".png", ".svg", ".csv"}
    assert memory_table(suite, every).columns == ("mixer", "stateful", "stack")
    assert len(entry_table(suite, every).lines) == 6
    drawing = profile_drawing(suite, "lstm", scores)
    assert len(drawing.table.splitlines()) == 1 + 6
    reached = drawing.figure.axes[1]
    assert [text.get_text() for text in reached.get_xticklabels()][:4] == ["0", "0.5", "1", "2"]
    places = reached.transData.transform([(x, 0) for x in (0.5, 1, 2)])[:, 0]
    assert places[2] - places[1] == pytest.approx(places[1] - places[0])  # a doubling is as far as the next one
    low, high = reached.get_xlim()
    assert all(low < x < high for line in reached.lines for x in line.get_xdata())


def test_a_suite_that_was_stopped_says_what_is_missing(tmp_path, workers):
    suite = load_suite(write(tmp_path), "lstm")
    scores = run_suite(suite, tmp_path / "results", progress=False)
    for file in suite.folder(tmp_path / "results", suite.entries[0]).glob("*.jsonl"):
        file.unlink()
    every = read_scores(suite, tmp_path / "results")
    assert every["lstm"][0].values == {}
    assert by_memory(every["lstm"]) == {"stateful": (0, 4), "stack": (scores[2].solved, 2)}
    assert "is missing" in write_suite_page(suite, every, tmp_path / "page").read_text()
    workers.ran.clear()
    again = run_suite(suite, tmp_path / "results", progress=False)
    assert len(workers.ran) == 4
    assert again[0].values == scores[0].values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "small"}, "name must be a word and a version, as memory-1"),
        ({"entries": {"a": {"task": "bit_parity"}}}, "entries.a: the key 'solved' is missing"),
        ({"entries": {"a": {"task": "nope", "solved": 1}}}, "entries.a: .*'nope'"),
        ({"entries": {"a": {"task": "bit_parity", "solved": "all"}}}, "entries.a: solved must be"),
        ({"entries": {"a": {"task": "bit_parity", "solved": 1, "steps": 3}}}, "entries.a: .*'steps'"),
        ({"extra": 1}, "unknown key of .*'extra'"),
    ],
)
def test_what_is_wrong_with_a_suite_is_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_suite(write(tmp_path, **changes), "lstm")


def test_the_suite_of_the_package_asks_for_all_kinds_of_memory_within_an_hour():
    suite = load_suite("memory-1", "lstm")
    assert shipped_files("suites").keys() == {"memory-1"}
    assert len(suite.entries) == 12
    assert {entry.memory for entry in suite.entries} == set(MEMORIES)
    assert {len(entry.recipe.planned_seeds("final")) for entry in suite.entries} == {3}
    assert {entry.recipe.profile for entry in load_suite("memory-1", "lstm", profile="smoke").entries} == {"smoke"}
    for entry in suite.entries:
        headline = task_class(entry.recipe.task).headline_metric
        part = entry.recipe.specification_at(entry.recipe.places()[0]).splits["validation"].parts[0]
        length = part.length if isinstance(part.length, int) else part.length[1]
        level = part.task.chance_level(headline, length)
        assert math.isnan(level) or level + 0.3 < entry.solved <= 1


def test_a_page_of_markdown_shows_the_mixers_for_which_a_suite_has_ended(tmp_path, workers):
    (tmp_path / "examples" / "suites").mkdir(parents=True)
    path, folder = write(tmp_path / "examples" / "suites"), tmp_path / "examples" / "results" / "small-1"
    assert not read_profiles(tmp_path)["small-1"].done
    for mixer in ("lstm", "gru"):
        run_suite(load_suite(path, mixer), folder / "cpu", progress=False)
    shutil.rmtree(folder / "cpu" / "gru" / "hard")
    found = read_profiles(tmp_path)["small-1"]
    assert list(found.scores) == ["lstm"]
    assert found.figures == []
    parity = found.scores["lstm"][0]
    assert (found.kind("lstm", "stateful"), found.kind("lstm", "stack")) == ("2 of 4", "0 of 2")
    assert (found.solved("lstm", "parity"), found.solved("lstm", "hard")) == ("2 of 2", "0 of 2")
    assert found.values("lstm", "parity") == spread(list(parity.values.values()))
    assert found.reached("lstm", "hard") == ", ".join(
        f"{n:.0f}" for n in sorted(found.scores["lstm"][1].reached.values())
    )
    with pytest.raises(ValueError, match="did you mean 'parity'"):
        found.solved("lstm", "party")
    (drawn,) = draw_figures(tmp_path, ["small-1-lstm-cpu"])
    assert drawn_from(drawn) == found.digest_of("small-1-lstm-cpu") != found.digest_of("small-1-gru-cpu") == ""
    assert found.figures == ["![Profile of lstm](examples/results/small-1/figures/small-1-lstm-cpu.png)"]
    (tmp_path / "examples" / "reproduction.md.jinja").write_text(
        "{% for name, suite in suites.items() %}{{ name }}: {{ suite.memories }}\n{{ suite.runs }}{% endfor %}"
    )
    text = write_reproduction(tmp_path).read_text()
    assert text.startswith("small-1: | mixer | stateful | stack |")
    assert text.count("| lstm | stateful | hard | 0 of 2 |") == 1
    assert "gru" not in text
