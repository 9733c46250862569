"""Pages of mixers and tasks are written from docstrings, tables and rows."""

import shutil
from pathlib import Path

import pytest

import hf_memory
from docs.extensions.bibliography import bibliography_page, cited, references, unknown
from docs.extensions.figures import figure
from docs.extensions.measured import BELOW, MixerFacts, mixer_facts, outcomes
from docs.extensions.mixer_pages import advice, mixer_page, mixers_page
from docs.extensions.pages import write_pages
from docs.extensions.reference_pages import commands, public_names
from docs.extensions.task_pages import task_page
from hf_memory.mixers import MIXERS
from hf_memory.mixers.auto import model_keys
from hf_memory.tasks import TASKS, task_class
from tests.snippets import ROOT

SECTIONS = ("State and spectrum", "When to use it", "What it solved here", "Use it", "Fields")
FACTS = MixerFacts(256, 256, 10, (0.1, 0.9), False, {})


@pytest.mark.parametrize("key", model_keys())
def test_every_mixer_has_a_page_with_its_sections_in_order(key):
    page = mixer_page(key, [])
    places = [page.index(f"\n{title}\n-") for title in SECTIONS]
    assert places == sorted(places)
    assert f".. _mixer-{key}:" in page
    assert "No committed study has rows of it yet." in page
    assert key == "hybrid" or ".. math::" in page


@pytest.mark.parametrize("key", TASKS)
def test_every_task_has_a_page_with_all_of_its_configurations_and_knobs(key):
    page, cls = task_page(key, []), task_class(key)
    assert [name for name in (*cls.presets, *cls.knob_names()) if f"``{name}``" not in page] == []
    assert f'hf_memory.load_dataset("hf_memory/{key}", "{next(iter(cls.presets))}")' in page
    assert "**chance**" in page
    assert "score" in page


def test_a_mixer_that_joins_has_its_page_at_once(tables):
    hf_memory.include(ROOT / "examples" / "leaky.py")
    page = mixer_page("leaky", [])
    assert r"h_{t} = a h_{t-1} + (1 - a) W x_{t}" in page
    assert "``slowest``" in page
    assert "       MemoryLeakyConfig,\n" in page
    assert ":ref:`leaky <mixer-leaky>`" in mixers_page()


def test_a_task_that_joins_has_its_page_at_once(tables):
    hf_memory.include(ROOT / "tests" / "plugin" / "memory_plugin" / "last_mark.py")
    page = task_page("last_mark", [])
    assert "``num_marks``" in page
    assert "hf-memory data show last_mark" in page


@pytest.mark.parametrize(
    ("key", "depends", "grows", "switch"),
    [
        ("lstm", True, False, None),
        ("nru", True, False, None),
        ("lru", False, False, None),
        ("rwkv", False, False, None),
        ("delta_net", False, False, "allow_neg_eigval=True"),
        ("mamba", False, False, "negative_eigenvalues=True"),
        ("attention", False, True, None),
    ],
)
def test_motion_and_growth_of_the_state_are_measured(key, depends, grows, switch):
    facts = mixer_facts(key)
    assert facts.depends_on_state is depends
    assert (facts.long > facts.short) is grows
    assert list(facts.switches) == ([switch] if switch else [])
    assert all(low < BELOW for low in facts.switches.values())
    assert (facts.spectrum is None) == (key == "attention")


@pytest.mark.parametrize(
    ("changed", "said", "not_said"),
    [
        ({}, "no eigenvalue below zero", "take ``"),
        ({"switches": {"flip=True": -0.9}}, "take ``flip=True`` (-0.90 with", "can turn"),
        ({"spectrum": (-0.9, 0.9)}, "it can turn signs", "Grazzi"),
        ({"depends_on_state": True}, "depends on the state itself", "Grazzi"),
        ({"spectrum": None, "long": 4096}, "(Hahn, 2020)", "Its state has"),
    ],
)
def test_advice_follows_from_what_was_measured(changed, said, not_said):
    text = " ".join(advice(MixerFacts(**{**vars(FACTS), **changed})))
    assert said in text
    assert not_said not in text


def test_what_was_solved_is_read_from_rows():
    found = [outcome for outcome in outcomes(ROOT / "examples" / "results") if outcome.recipe == "r1_bit_parity"]
    assert found
    for outcome in found:
        assert next(iter(outcome.values)) == "validation"
        assert all(0 <= value <= 1 for value in outcome.values.values())
        assert outcome.chance < 0.6
    page = mixer_page(found[0].row.mixer, found)
    assert "r1_bit_parity (cpu)" in page
    assert ":ref:`bit_parity <task-bit_parity>`" in page


def test_rows_of_suites_are_read_and_those_of_replications_are_not(tmp_path):
    source = next((ROOT / "examples" / "results" / "r1_bit_parity" / "cpu").glob("*.jsonl"))
    for place in ("r1/cpu", "r1/cpu/replication", "memory-1/cpu/lstm/parity"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tmp_path / place)
    assert {(one.recipe, one.profile) for one in outcomes(tmp_path)} == {("r1", "cpu"), ("memory-1", "cpu")}
    assert len(outcomes(tmp_path)) == 2


def test_pages_of_what_is_gone_are_removed_and_others_left_as_they_are(tmp_path, monkeypatch):
    from docs.extensions import pages

    monkeypatch.setattr(pages, "pages", lambda results: {"mixers/index": "Mixers\n", "tasks/index": "Tasks\n"})
    monkeypatch.setattr(pages, "write_figure", lambda path: None)
    (tmp_path / "mixers").mkdir()
    (tmp_path / "mixers" / "old.rst").write_text("Old\n")
    write_pages(tmp_path)
    before = (tmp_path / "mixers" / "index.rst").stat().st_mtime_ns
    write_pages(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.rst")) == [
        "mixers/index.rst",
        "tasks/index.rst",
    ]
    assert (tmp_path / "mixers" / "index.rst").stat().st_mtime_ns == before


def test_the_figure_has_a_line_for_each_mixer_and_is_the_same_every_time():
    facts = dict.fromkeys(MIXERS, FACTS)
    drawn = figure(facts)
    assert [key for key in MIXERS if f">{key}<" not in drawn] == []
    assert figure(facts) == drawn


def test_a_work_is_found_by_name_and_year_and_of_two_the_one_that_is_titled():
    assert [work.arxiv for work in cited("as in (Orvieto et al.,\n2023, section 3)")] == ["2303.06349"]
    both = cited("Yang et al. (2024)")
    assert {work.arxiv for work in both} == {"2312.06635", "2406.06484"}
    named = cited('Yang et al. (2024), "Parallelizing linear transformers with the delta rule"')
    assert [work.arxiv for work in named] == ["2406.06484"]
    assert cited("Orvieto et al. (2024)") == []
    assert unknown("MQAR, Arora et al. (2023)") == set()
    assert unknown("(Orvieto et al., 2023), Nobody and Else (2031)") == {("Nobody and Else", 2031)}


def test_every_work_has_one_identifier():
    for work in references():
        assert bool(work.arxiv) + bool(work.doi) + bool(work.other) == 1, work
        assert work.title
    page = bibliography_page({"mixers/lru": "Orvieto et al. (2023), then Nobody and Else (2031)"})
    assert "arXiv:2303.06349" in page
    assert ":doc:`lru </mixers/lru>`" in page
    assert "Nobody and Else (2031)" in page


def test_the_reference_holds_what_the_package_names():
    names = {full for found in public_names().values() for full in found}
    assert {
        "hf_memory.models.configuration.MemoryConfig",
        "hf_memory.models.modeling.Mixer",
        "hf_memory.models.heads.MemoryForCausalLM",
        "hf_memory.data.builder.load_dataset",
        "hf_memory.tasks.base.Task",
        "hf_memory.testing.check_mixer",
        "hf_memory.ops.backends.dispatch.use_backend",
    } <= names
    assert not any(name.endswith("LSTMConfig") for name in names)
    assert {"hf-memory train", "hf-memory data build", "hf-memory new task"} <= {name for name, _ in commands()}


def test_generated_pages_are_not_kept_in_the_repository():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {f"/docs/{folder}/" for folder in ("mixers", "tasks", "reference", "sources")} <= set(ignored)
    assert Path(ROOT / "docs" / "index.md").is_file()
