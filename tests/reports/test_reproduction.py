"""The page of reproduced claims is computed: every number of a sentence is one of the rows."""

import dataclasses
import json
import shutil
from pathlib import Path

import jinja2
import matplotlib.image
import pytest
import yaml

from hf_memory.experiments.further import DECAYS
from hf_memory.reports.committed_figures import drawn_from
from hf_memory.reports.report import write_report
from hf_memory.reports.reproduction import (
    Reproduction,
    draw_figures,
    overview,
    read_again,
    read_reproductions,
    render,
    withdrawn,
    write_reproduction,
)
from hf_memory.storage import sealed, unsealed
from hf_memory.studies.outcomes import find_records
from hf_memory.studies.recipes_yaml import load_recipe
from hf_memory.studies.replication import Line, Replication
from hf_memory.studies.verdicts import Tally
from tests.recomputed.sweeps import Sweep
from tests.reports.rows import Page
from tests.reports.study_examples import CHANGED, FINAL, SEEDS, WORDS, stored, words_recipe
from tests.studies.sweep_examples import TINY_DATA, made_up

ROOT = Path(__file__).parents[2]
TEMPLATE = """{{ overview }}
{% set r = recipes.tiny %}
{{ r.claims }}
{{ r.changed }}
{% if r.done %}
LSTM has {{ r.mean("lstm", "test_12") }}, GRU {{ r.spread("gru", "test_12") }}, by seed {{ r.seeds("gru", "test_12") }}.
At least 0.6: {{ r.above(0.6, "gru", "test_12") }}. Rate {{ r.rate("gru") }}.
Chance {{ r.chance("gru", "test_12") }}.
{{ r.tally("GRU learns a little.") }}, {{ r.verdict("LSTM is far better.") }}.
{{ r.runs }}
{{ r.figure("verdicts", "Verdicts") }}
{% endif %}
"""


@pytest.fixture
def root(tmp_path):
    """A folder with one recipe and a template, before any run."""
    recipes = tmp_path / "examples" / "recipes"
    recipes.mkdir(parents=True)
    values = {
        "name": "tiny", "title": "Tiny", "task": "bit_parity", "data": TINY_DATA, "model": {"num_hidden_layers": 1},
        "sizing": {"by": "hidden", "value": 8}, "training": {"steps": 3, "batch_size": 8},
        "arms": {"lstm": {}, "gru": {}}, "learning_rates": [1e-3, 1e-2],
        "seeds": {"search": [0, 1], "looks": [5], "rows": "own"}, "expectations": WORDS, "changed": list(CHANGED),
        "profiles": {"cpu": {}},
    }  # fmt: skip
    (recipes / "tiny.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "examples" / "reproduction.md.jinja").write_text(TEMPLATE)
    return tmp_path


def lay(root, values=FINAL):
    folder = root / "examples" / "results" / "tiny" / "cpu"
    stored(folder, load_recipe(root / "examples" / "recipes" / "tiny.yaml", "cpu"), values)
    return find_records(folder)[0]


def test_before_the_runs_the_page_shows_registered_claims_and_no_sentence_about_results(root):
    lines = write_reproduction(root).read_text().splitlines()
    assert lines[2] == "| [tiny](examples/recipes/tiny.yaml) | Tiny |  |  |  | 5 | 1 | cpu | registered |"
    assert "| LSTM keeps it. | token accuracy on test_12 of lstm >= 0.7 |" in lines
    assert f"| {CHANGED[0]['claim']} | not held | 2026-11-28 | {CHANGED[0]['why']} |" in lines
    assert not any("LSTM has" in line for line in lines)


def test_a_sweep_that_has_not_ended_is_running_and_gives_no_number(root):
    record = lay(root)
    record.write_text(json.dumps(sealed({**unsealed(json.loads(record.read_text())), "complete": False})))
    found = read_reproductions(root)["tiny"]
    assert (found.state, found.done) == ("running", False)
    with pytest.raises(ValueError, match="the sweep is running, and only one that is done has results"):
        found.mean("lstm", "test_12")
    assert "LSTM has" not in render(root, {"tiny": found})


def test_every_number_of_a_sentence_is_that_of_the_rows(root):
    sweep = Sweep(lay(root))
    lstm, gru = (sweep.by_seed({"arms": arm, "split": "test_12"})[0] for arm in ("lstm", "gru"))
    assert list(gru.index) == list(SEEDS)
    text = write_reproduction(root).read_text()
    assert (
        f"LSTM has ≥ {lstm.mean():.3f}, GRU ≥ {gru.mean():.3f} ({gru.min():.3f}, {gru.max():.3f}), "
        f"by seed ≥ {', '.join(f'{value:.3g}' for value in gru)}."
    ) in text
    assert f"At least 0.6: {(gru >= 0.6).sum()} of {len(gru)}. Rate 0.001." in text
    assert "\nChance 0.542.\n" in text  # the first of 12 is certain, the others are even
    assert "3 of 5, same direction, smaller." in text
    assert "18 of 18 runs were measured." in text
    told = "1 agrees; 1 disagrees; 1 same direction, smaller; 1 leans; 1 not decided"
    assert f"| Tiny | {told} | 5 | 0.0 | 5 | 1 | cpu | done |" in text
    table = next(line for line in text.splitlines() if line.startswith("| GRU learns a little."))
    assert "| not decided | holds in 3 of 5 seeds (0.15 to 0.95) | ≥ 0.65, 0.55, 0.65, 0.55, 0.65 | 0.6 |" in table


def test_what_was_run_again_stands_beside_what_it_was(root):
    record = lay(root)
    assert read_reproductions(root)["tiny"].replication == ""
    lines = (
        Line("LSTM keeps it.", Tally(5, 0, 5), Tally(5, 0, 5), 0.545, True),
        Line("GRU keeps it.", Tally(5, 0, 5), None, 0.545, False),
    )
    again = Replication("tiny", "cpu", tuple(range(1000, 1005)), (1000, 1002, 1004), lines)
    path = record.parent / "replication" / "replication.json"
    path.parent.mkdir()
    path.write_text(json.dumps(dataclasses.asdict(again)))
    found = read_reproductions(root)["tiny"].replication.splitlines()
    assert found[2:4] == [
        "| LSTM keeps it. | 5 of 5 | 5 of 5 | 0.55 | yes |",
        "| GRU keeps it. | 5 of 5 | missing | 0.55 | no |",
    ]
    assert found[-1].startswith("1 of 2 lines hold again with 5 fresh seeds, 3 of them with a search")
    page = write_report(root / "examples" / "results", root / "report").read_text()
    assert found[-1] in page
    assert ["GRU keeps it.", "5 of 5", "missing", "0.55", "no"] in Page(page).rows


def test_hours_are_those_of_all_runs_with_their_evaluations_and_none_where_another_recipe_paid(root):
    lay(root)
    found = read_reproductions(root)["tiny"]

    def slow(result):
        rows = {
            split: dataclasses.replace(row, train_seconds=1800.0, eval_seconds=90.0)
            for split, row in result.rows.items()
        }
        return dataclasses.replace(result, rows=rows)

    study = dataclasses.replace(found.study, results=tuple(map(slow, found.study.results)))
    evaluations = sum(len(result.rows) for result in study.results)
    wanted = (1800 * len(study.results) + 90 * evaluations) / 3600
    assert dataclasses.replace(found, study=study).hours == f"{wanted:.1f}"
    judged = dataclasses.replace(found.recipe, runs_of="other")
    assert dataclasses.replace(found, study=study, recipe=judged).hours == ""


def test_seeds_are_counted_where_the_rate_is_chosen_and_not_in_the_search(root):
    lay(root)
    found = read_reproductions(root)["tiny"]
    assert found.seeds_run == f"{len(SEEDS)}"
    fewer = [run for run in found.study.results if (run.arm, run.cell.seed) != ("gru", SEEDS[-1])]
    study = dataclasses.replace(found.study, results=tuple(fewer))
    assert dataclasses.replace(found, study=study).seeds_run == f"{len(SEEDS) - 1} to {len(SEEDS)}"
    running = dataclasses.replace(found.study, complete=False)
    assert dataclasses.replace(found, study=running).seeds_run == ""


def test_a_figure_is_shown_where_it_was_drawn_and_names_its_rows(root):
    record = lay(root)
    assert "![" not in write_reproduction(root).read_text()
    path = root / "examples" / "results" / "tiny" / "figures" / "tiny-verdicts-cpu.png"
    assert draw_figures(root, ["tiny-verdicts-cpu"]) == [path]
    link = "![Verdicts](examples/results/tiny/figures/tiny-verdicts-cpu.png)"
    assert link in write_reproduction(root).read_text()
    assert matplotlib.image.imread(path).shape[2] in (3, 4)
    assert drawn_from(path) == read_reproductions(root)["tiny"].digest_of(path.stem)
    assert draw_figures(root) == []
    for file in record.parent.iterdir():
        file.unlink()
    lay(root, {**FINAL, ("gru", 1e-3, 104): 0.5})
    old = path.read_bytes()
    assert draw_figures(root) == [path]
    assert path.read_bytes() != old
    assert draw_figures(root) == []
    with pytest.raises(ValueError, match="'tiny-verdict-cpu'.*'tiny-verdicts-cpu'"):
        draw_figures(root, ["tiny-verdict-cpu"])


def test_a_reference_to_what_was_not_measured_is_an_error(root):
    lay(root, {**FINAL, ("gru", 1e-3, 104): None})
    found = read_reproductions(root)["tiny"]
    assert found.runs.splitlines()[1] == "- tiny, profile cpu: gru, rate 0.001, seed 104 is missing"
    with pytest.raises(ValueError, match="gru, rate 0.001, seed 104 was not measured"):
        found.mean("gru", "test_12")
    with pytest.raises(ValueError, match="has no 'test_99'"):
        found.mean("lstm", "test_99")
    with pytest.raises(ValueError, match="'no such arm' at {} is 0 places"):
        found.mean("no such arm", "test_12")
    with pytest.raises(ValueError, match="claim: 'No such.' is none of tiny"):
        found.tally("No such.")
    assert found.tally("GRU keeps it.") == "runs of gru are missing"
    (root / "examples" / "reproduction.md.jinja").write_text("{{ recipes.tiny.median('lstm') }}")
    with pytest.raises(jinja2.UndefinedError):
        write_reproduction(root)


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "examples" / "recipes").glob("*.yaml"))])
def test_every_reference_of_the_template_is_one_that_the_runs_will_hold(name, tmp_path):
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "reproduction.md.jinja", tmp_path / "examples")
    found = {one: dataclasses.replace(of, study=None) for one, of in read_reproductions(ROOT).items()}
    study = with_rows(found[name].recipe)
    text = render(tmp_path, {**found, name: Reproduction(study.recipe, study, tmp_path, tmp_path)})
    assert "Values on validation and on the tests" in text
    assert text.count("| registered |") == len(found) - 1


def with_rows(recipe):
    """A sweep with the splits that its runs will have; runs of the search are taken for fresh ones as well."""
    rates = {arm: fields.get("learning_rate") or 1e-3 for arm, fields in recipe.arms.items()}
    values = {(arm, rate, seed): 0.75 for arm, rate in rates.items() for seed in recipe.seeds["search"]}
    splits = {str(place): {*recipe.specification_at(place).splits} - {"train"} for place in recipe.places()}
    asked = {measure.metric for item in recipe.expectations for measure in item.measures} - {None}
    asked |= {*DECAYS} if recipe.evaluate.get("decays") else set()
    history = {arm: [(1, 0.5), (2, 0.6), (3, 0.75)] for arm in recipe.arms}
    study = made_up(recipe, values, dict.fromkeys(sorted(set().union(*splits.values())), 0.0), history)
    results = []
    for result in study.results:
        own = {split: row for split, row in result.rows.items() if split in splits[str(dict(result.cell.place))]}
        rows = {
            split: dataclasses.replace(row, metrics=dict.fromkeys(asked, row.metrics[row.headline]) | row.metrics)
            for split, row in own.items()
        }
        searched = dataclasses.replace(result, rows=rows)
        fresh = dataclasses.replace(searched, cell=dataclasses.replace(result.cell, stage="final"))
        results += [searched, fresh] if recipe.seeds["looks"] else [searched]
    return dataclasses.replace(study, results=tuple(results))


def test_withdrawn_claims_are_listed_with_what_their_rows_say_now(tmp_path):
    recipe = words_recipe()
    stored(tmp_path / "tiny", dataclasses.replace(recipe, changed=()), FINAL)
    assert read_again(tmp_path / "tiny")["LSTM keeps it."] == ("token accuracy on test_12 of lstm >= 0.7", "5 of 5")
    moved = dataclasses.replace(recipe.expectations[1], right=0.5)
    changed = ({"claim": "LSTM keeps it.", "date": "2026-11-28", "why": "Why."}, *CHANGED)
    now = dataclasses.replace(recipe, expectations=(moved,), changed=changed)
    assert withdrawn(tmp_path, [now]).splitlines()[2:] == [
        "| tiny | LSTM keeps it. | 5 of 5 | not held | 2026-11-28 | Why. |",
        f"| tiny | {CHANGED[0]['claim']} | no rows | not held | 2026-11-28 | {CHANGED[0]['why']} |",
        "| tiny | GRU keeps it. | 0 of 5 | measured otherwise now |  "
        "| Measured then: token accuracy on test_12 of gru >= 0.7. |",
    ]


def test_the_overview_counts_claims_and_changes(root):
    shutil.copy(root / "examples" / "recipes" / "tiny.yaml", root / "examples" / "recipes" / "other.yaml")
    assert overview(read_reproductions(root)).count("| Tiny |  |  |  | 5 | 1 | cpu | registered |") == 1
