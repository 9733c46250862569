"""Someone else's pandas over the committed rows gives every number of REPRODUCTION.md.

Nothing is computed by the package here: rows, looks and recipes are read from their files, and what comes out is
compared with the text of the page. What is not recomputed:

- numbers within the words of a recipe (its source, what differs from it, its claims), which no row holds;
- the trials behind the scale of R5 and R6, of which the page says that they were typed by hand;
- a withdrawn claim that is refused today, which has no number;
- replications of a study before it was mended, of which there is none yet.
"""

import contextlib
import functools
import json
import math
import re
import types
from pathlib import Path
from statistics import median_high

import jinja2
import pytest
import yaml

from tests.recomputed.again import Again, in_a_sentence, lines_of
from tests.recomputed.curves import MissingError
from tests.recomputed.frames import read_recipe
from tests.recomputed.sweeps import Sweep
from tests.recomputed.verdicts import by_luck, judge

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SECTIONS = re.split(r"^## ", (ROOT / "REPRODUCTION.md").read_text(), flags=re.MULTILINE)
RECIPES = sorted(EXAMPLES.glob("recipes/*.yaml"), key=lambda path: (int(re.findall(r"\d+", path.name)[0]), path.name))
SUITES = {path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES.glob("suites/*.yaml")}


@functools.cache
def read(name):
    """A recipe in the profile of the page, and its sweep once that has ended."""
    recipe = read_recipe(EXAMPLES / "recipes" / f"{name}.yaml")
    profile = recipe["profile"]
    record = EXAMPLES / "results" / name / profile / f"{name}.{profile}.sweep.json"
    ended = record.is_file() and json.loads(record.read_text())["complete"]
    return recipe, Sweep(record, recipe) if ended else None


@functools.cache
def read_again(name):
    """Its replication; None where there is none."""
    recipe, sweep = read(name)
    folder = EXAMPLES / "results" / name / recipe["profile"] / "replication"
    return Again(sweep, folder) if (folder / "replication.json").is_file() else None


def section_of(title):
    return next(text for text in SECTIONS if re.match(rf"(((Before|After) )?R\d+: )?{re.escape(title)}\n", text))


def tables_of(text):
    """The tables of a section, as lines by column."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        head, _, *lines = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in block.splitlines())
        found.append([dict(zip(head, line, strict=True)) for line in lines])
    return found


ENDED = [path.stem for path, line in zip(RECIPES, tables_of(SECTIONS[0])[0], strict=True) if line["state"] == "done"]


# How the page writes numbers.


def spread(values):
    return f"{values.mean():.3f}" + (f" ({values.min():.3f}, {values.max():.3f})" if len(values) > 1 else "")


def count(value):
    return "" if value is None or math.isnan(value) else f"{value:,.0f}"


def of_seed(value):
    if not math.isfinite(value):
        return "never" if value > 0 else "none"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def bound(sweep, *places):
    """The sign of values at a rate that was best on the edge of its grid."""
    return "≥ " if any(not sweep.own_rate(place) and sweep.choice(place).on_edge for place in places) else ""


def k_of_n(found):
    return f"{found.holds} of {found.planned}" if found.planned else found.reason


def side(sweep, measure, values, dropped):
    """One side of a claim by seed."""
    if not isinstance(measure, dict):
        return f"{measure:g}"
    text = ", ".join(f"({of_seed(one)})" if seed in dropped else of_seed(one) for seed, one in values.items())
    is_value = measure.get("quantity", "value") == "value" and not measure.get("minus")
    is_bound = text and is_value and measure.get("rate", "chosen") == "chosen"
    is_bound = is_bound and measure.get("metric") in (None, sweep.metric)
    return (bound(sweep, *sweep.places(measure["arms"], measure.get("at"))) if is_bound else "") + text


# Verdicts.


@pytest.mark.parametrize("name", ENDED)
def test_verdicts_with_their_intervals_and_both_sides_by_seed(name):
    recipe, sweep = read(name)
    lines = tables_of(section_of(recipe["title"]))[0]
    assert [line["claim"] for line in lines] == [item["claim"] for item in recipe["expectations"]]
    for item, line in zip(recipe["expectations"], lines, strict=True):
        found = judge(sweep, item)
        word = f"leans ({k_of_n(found)})" if found.word == "leans" else found.word
        assert (line["verdict"], line["seeds"]) == (word, found.reason)
        assert line["left, by seed"] == side(sweep, item["left"], found.left, found.dropped)
        assert line["right, by seed"] == side(sweep, item["right"], found.right, found.dropped)


@pytest.mark.parametrize("name", ENDED)
def test_how_many_false_verdicts_to_expect(name):
    recipe, sweep = read(name)
    chance = sum(by_luck(sweep, item["left"]) for item in recipe["expectations"])
    told = f"these {len(recipe['expectations'])} relations a coin in every seed, {chance:.2f} of them would agree"
    assert told in section_of(recipe["title"])


@pytest.mark.parametrize("name", ENDED)
def test_what_agreed_is_run_again(name):
    recipe, sweep = read(name)
    tables = [table for table in tables_of(section_of(recipe["title"])) if "chance to hold" in table[0]]
    again = read_again(name)
    assert len(tables) == (again is not None)
    if again is None:
        return
    lines = lines_of(sweep, again)
    assert tables[0] == [
        {
            "claim": line.claim, "study": k_of_n(line.first), "chance to hold": f"{line.chance:.2f}",
            "again": f"{line.again.holds} of {line.again.planned}" if line.again.planned else "missing",
            "held": "yes" if line.held else "no",
        }
        for line in lines
    ]  # fmt: skip
    assert in_a_sentence(lines, again) in section_of(recipe["title"])


def test_withdrawn_claims_read_again():
    lines = [(line, line["its rows, read again"]) for line in tables_of(SECTIONS[-1])[0]]
    counted = [(line, told) for line, told in lines if told != "no rows" and not told.startswith("refused now")]
    assert counted
    for line, told in counted:
        [record] = EXAMPLES.glob(f"withdrawn/{line['recipe']}/*/*.sweep.json")
        sweep = withdrawn(record)
        [item] = [item for item in sweep.recipe["expectations"] if item["claim"] == line["old claim"]]
        assert told == k_of_n(judge(sweep, item)), line["old claim"]


withdrawn = functools.cache(Sweep)


# Tables.


def test_the_opening_table_counts_verdicts_seeds_hours_and_claims():
    for path, line in zip(RECIPES, tables_of(SECTIONS[0])[0], strict=True):
        recipe, sweep = read(path.stem)
        words = [judge(sweep, item).word for item in recipe["expectations"]] if sweep else []
        assert line["recipe"] == f"[{path.stem}](examples/recipes/{path.name})"
        order = ("agrees", "disagrees", "same direction, smaller", "leans", "not decided")
        assert line["verdicts"] == "; ".join(f"{words.count(word)} {word}" for word in order if word in words)
        assert (line["seeds"], line["hours"]) == ((seeds_of(sweep), hours_of(sweep)) if sweep else ("", ""))
        assert line["claims"] == str(len(recipe["expectations"]))
        assert line["changed or dropped"] == str(len(recipe.get("changed") or ()))
        assert (line["profile"], line["state"] == "done") == (recipe["profile"], sweep is not None)


def at_chosen_rates(sweep):
    """The runs that count of each place; a depth that the search passed over has none."""
    found = {}
    for place in sweep.runs.place.unique():
        with contextlib.suppress(MissingError):
            found[place] = sweep.at_rate(place)
    return found


def seeds_of(sweep):
    """How many runs there are at the chosen rate of a place."""
    counts = [len(runs) for runs in at_chosen_rates(sweep).values()]
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def hours_of(sweep):
    """Training and evaluations of all runs, unless they are another recipe's."""
    training = sweep.facts.train_seconds.groupby("cell").first().sum()
    return "" if sweep.recipe.get("runs_of") else f"{(training + sweep.facts.eval_seconds.sum()) / 3600:.1f}"


@pytest.mark.parametrize("name", ENDED)
def test_how_many_runs_were_measured(name):
    recipe, sweep = read(name)
    known, lost = sweep.runs.headline.notna().sum(), sweep.facts[sweep.facts.lost & ~sweep.facts.diverged]
    diverged, splits = sweep.runs.diverged.sum(), ", ".join(sorted(lost.split.unique()))
    text = f"{known} of {len(sweep.runs)} runs were measured"
    text += f"; {diverged} of them diverged and count as chance" if diverged else ""
    where = f"left the range of floats on tests ({splits}) and count as chance there"
    text += f"; {lost.index.nunique()} {where}" if len(lost) else ""
    assert f"\n{text}.\n" in section_of(recipe["title"])


@pytest.mark.parametrize("name", ENDED)
def test_values_and_facts_of_every_place(name):
    recipe, sweep = read(name)
    axes = ["arm", *(recipe.get("grid") or {})]
    lines = next(lines for lines in tables_of(section_of(recipe["title"])) if "learning rate" in lines[0])
    places = at_chosen_rates(sweep)
    for line, (place, runs) in zip(lines, places.items(), strict=False):
        told = {**{axis: str(json.loads(place)[axis]) for axis in axes}, **facts_of(sweep, place, runs)}
        for split in sweep.facts.split[runs.index].unique():
            told[split] = bound(sweep, place) + spread(sweep.ended(runs, split, sweep.metric))
        assert {column: text for column, text in line.items() if text} == {key: one for key, one in told.items() if one}
    levels = levels_of(sweep)
    for line in lines[len(places) :]:
        own = levels.pop((line["arm"], line.get("config", "")))
        assert {split: text for split, text in line.items() if text and split not in axes} == own
    assert not levels


def facts_of(sweep, place, runs):
    """What the table says of a place besides its values; bytes of a state are those at the training length."""
    facts = sweep.facts.loc[runs.index]
    first, choice = facts.iloc[0], None if sweep.own_rate(place) else sweep.choice(place)
    at_home = facts[facts.split == f"test_{first.train_length[1]}"]
    home = facts[facts.split == "validation"].iloc[0] if at_home.empty else at_home.iloc[0]
    tried = f"best of {len(choice.means) if choice else 1}{', on the edge' if bound(sweep, place) else ''}"
    return {
        "learning rate": f"{runs.rate.iloc[0]:g} ({tried})",
        "seeds": str(len(runs)),
        "parameters per block": count(first.parameters_per_block),
        "parameters of blocks": count(first.parameters_non_embedding),
        "state bytes": count(home.state_bytes),
        "seconds": count(facts.train_seconds.groupby("cell").first().median()),
        "mean of seeds' bests": f"{choice.mean_of_bests:.3f}" if choice else "",
    }


@pytest.mark.parametrize("name", ENDED)
def test_windows_of_learning_rates(name):
    recipe, sweep = read(name)
    sides = [item.get(side) for item in recipe["expectations"] for side in ("left", "right", "given")]
    asked = [side for side in sides if isinstance(side, dict) and side.get("quantity") == "lr_window"]
    tables = [lines for lines in tables_of(section_of(recipe["title"])) if "window" in lines[0]]
    assert len(tables) == bool(asked)
    lines = [line for lines in tables for line in lines]
    told = {(line["arm"], line["level"]): line for line in lines}
    expected = {}
    for measure in asked:
        for place in sweep.places(measure["arms"], measure.get("at")):
            arm, *rest = json.loads(place).items()
            label = ", ".join([arm[1], *(f"{axis} {value}" for axis, value in rest)])
            level = f"{measure.get('theta', 0.9):g}{' of its best' if measure.get('of_best') else ''}"
            level += f" on {measure.get('split', 'validation')}"
            found = sweep.seeds_that_solve(place, measure)
            wide = found.index[found["sum"] >= found["size"] * 2 / 3]
            expected[label, level] = {
                "arm": label, "level": level,
                **{f"{rate:g}": f"{solved} of {seeds}" for rate, (solved, seeds) in found.iterrows()},
                "window": ", ".join(f"{rate:g}" for rate in wide) or "none",
            }  # fmt: skip
    assert (told, len(lines)) == (expected, len(expected))


def levels_of(sweep):
    """Chance and the rules without memory by split, for each of them and each law of the data."""
    rows, found = sweep.rows[sweep.rows.metric == sweep.metric], {}
    for row in rows.drop_duplicates(["place", "split"], keep="last").itertuples():
        for name, value in {"chance": row.chance, **row.baselines}.items():
            if value is not None and math.isfinite(value):
                key = name.replace("_", " "), str(json.loads(row.place).get("config", ""))
                found.setdefault(key, {})[row.split] = f"{value:.3f}"
    return found


# Sentences, and suites.


class Numbers:
    """What the template asks of a recipe, by pandas; tables and figures are left out."""

    claims = values = changed = runs = replication = windows = ""

    def __init__(self, name):
        recipe, self.sweep = read(name)
        self.recipe, self.done = types.SimpleNamespace(**recipe), self.sweep is not None

    def figure(self, *_):
        return ""

    def mean(self, *asked, **at):
        return self._bound(*asked, **at) + f"{self._values(*asked, **at).mean():.3f}"

    def spread(self, *asked, **at):
        return self._bound(*asked, **at) + spread(self._values(*asked, **at))

    def seeds(self, *asked, **at):
        return self._bound(*asked, **at) + ", ".join(map(of_seed, self._values(*asked, **at)))

    def above(self, level, *asked, **at):
        values = self._values(*asked, **at)
        return f"{(values >= level).sum()} of {len(values)}"

    def chance(self, arm, split, **at):
        facts = self.sweep.rows[(self.sweep.rows.split == split) & (self.sweep.rows.metric == self.sweep.metric)]
        return f"{facts.chance[facts.cell.isin(self._runs(arm, at).index)].iloc[0]:.3f}"

    def rate(self, arm, **at):
        return f"{self._runs(arm, at).rate.iloc[0]:g}"

    def tally(self, claim):
        [item] = [item for item in self.sweep.recipe["expectations"] if item["claim"] == claim]
        return k_of_n(judge(self.sweep, item))

    def _bound(self, arm, split, metric=None, **at):
        return bound(self.sweep, *self.sweep.places(arm, at)) if metric in (None, self.sweep.metric) else ""

    def _runs(self, arm, at):
        [place] = self.sweep.places(arm, at)
        return self.sweep.at_rate(place)

    def _values(self, arm, split, metric=None, **at):
        return self.sweep.ended(self._runs(arm, at), split, metric or self.sweep.metric)


class Scores:
    """What the template asks of a suite, by pandas; tables and figures are left out."""

    memories, runs, figures, done = "", "", (), True

    def __init__(self, name):
        self.name, self.suite = name, types.SimpleNamespace(text=SUITES[name]["text"])
        lines = tables_of(section_of_suite(name))[1]
        self.scores = {line["mixer"] for line in lines}
        self._memory = {entry_of(line): line["memory"] for line in lines}

    def kind(self, arm, memory):
        own = [score(self.name, arm, entry) for entry, kind in self._memory.items() if kind == memory]
        return f"{sum(one.solved for one in own)} of {sum(len(one.values) for one in own)}"

    def solved(self, arm, entry):
        found = score(self.name, arm, entry)
        return f"{found.solved} of {len(found.values)}"

    def values(self, arm, entry):
        return spread(score(self.name, arm, entry).values)

    def reached(self, arm, entry):
        return ", ".join(map(count, sorted(score(self.name, arm, entry).reached)))


def section_of_suite(name):
    return section_of(f"What mixers learn within a fixed budget: {name}")


def entry_of(line):
    return line["configuration"].replace(" ", "_")


@functools.cache
def score(suite, arm, entry):
    """What the fresh seeds of one mixer came to at one configuration."""
    [record] = EXAMPLES.glob(f"results/{suite}/cpu/{arm}/{entry}/*.sweep.json")
    sweep, level = Sweep(record), SUITES[suite]["entries"][entry]["solved"]
    values, _ = sweep.by_seed({"arms": arm})
    steps, _ = sweep.by_seed({"arms": arm, "quantity": "steps_to", "theta": level})
    reached, _ = sweep.by_seed({"arms": arm, "quantity": "extrapolation_length"})
    [place] = sweep.runs.place.unique()
    first = sweep.rows[(sweep.rows.split == "validation") & (sweep.rows.metric == sweep.metric)].iloc[0]
    return types.SimpleNamespace(
        values=values, solved=(values >= level).sum(), steps=median_high(steps), reached=reached,
        rate=sweep.at_rate(place).rate.iloc[0], chance=first.chance, state_bytes=first.state_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("name", SUITES)
def test_the_tables_of_a_suite(name):
    memories, runs = tables_of(section_of_suite(name))
    numbers = Scores(name)
    for line in runs:
        mixer, entry = line["mixer"], entry_of(line)
        found = score(name, mixer, entry)
        assert list(line.values())[3:] == [
            *(numbers.solved(mixer, entry), numbers.values(mixer, entry), f"{found.chance:.3f}"),
            count(median_high(found.reached)),
            count(found.steps) if math.isfinite(found.steps) else "never",
            *(f"{found.rate:g}", count(found.state_bytes)),
        ]
    for line in memories:
        mixer = line.pop("mixer")
        assert line == {kind: numbers.kind(mixer, kind) for kind in line}


def test_every_sentence_of_the_template():
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((EXAMPLES / "reproduction.md.jinja").read_text())
    recipes, suites = {path.stem: Numbers(path.stem) for path in RECIPES}, {name: Scores(name) for name in SUITES}
    again = {name: found for name in ENDED if (found := read_again(name)) is not None}
    lines = [line for name, found in again.items() for line in lines_of(read(name)[1], found)]
    replicated = in_a_sentence(lines, next(iter(again.values()))) if again else ""
    text = template.render(recipes=recipes, suites=suites, overview="", withdrawn="", replicated=replicated)
    page = "## ".join(SECTIONS)
    assert [part for part in re.split(r"\n{2,}", text) if part.strip() not in page] == []
