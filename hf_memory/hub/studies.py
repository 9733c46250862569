"""A study on the Hub: one model repository with its recipe, rows, page, figures, cards and checkpoints.

``results/`` holds what lies in the folder of the sweep, so that a download of it is such a folder again; ``report/``
the page with figures and tables; ``checkpoints/<cell>/`` each final checkpoint that was kept, with a card of its own,
which ``from_pretrained`` loads by ``subfolder``; ``rows.parquet`` all rows.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from huggingface_hub import CommitInfo, HfApi, ModelCard, ModelCardData

from hf_memory.data.cards import LICENSE
from hf_memory.data.folders import working_folder
from hf_memory.experiments.evaluation import AUTO
from hf_memory.experiments.results import SWEEP_ENDING, Row, cell_path
from hf_memory.hub.client import CARD, WORK, check_repo_id, make_repo, read_card, upload
from hf_memory.hub.loading import load_checkpoint
from hf_memory.hub.merging import merge_card
from hf_memory.hub.model_card import model_card
from hf_memory.hub.results import rows_table
from hf_memory.hub.sections import FIGURES
from hf_memory.reports.length_plots import save_figures
from hf_memory.reports.study_page import runs_in_words, write_study_page
from hf_memory.reports.study_tables import place_tables
from hf_memory.reports.tables import to_markdown
from hf_memory.reports.verdict_tables import verdict_table
from hf_memory.storage import encode, write_text
from hf_memory.studies.judging import judge_study
from hf_memory.studies.outcomes import Result, Study, read_study, runs_of_record
from hf_memory.studies.watched import CHECKPOINTS, checkpoint_path, history_path
from hf_memory.tasks import task_class

RECIPE, ROWS, RESULTS, REPORT = "recipe.yaml", "rows.parquet", "results", "report"


def study_records(folder: str | os.PathLike[str]) -> list[Path]:
    """The records of the sweeps whose folder this is."""
    return sorted(Path(folder).glob(f"*{SWEEP_ENDING}"))


def push_study(
    results: str | os.PathLike[str],
    repo_id: str,
    *,
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    commit_message: str | None = None,
) -> CommitInfo:
    """Push the folder of a sweep as one model repository, in one commit.

    Args:
        results: Folder of the sweep.
        repo_id: ``<namespace>/<name>`` of the repository, which is made where it does not exist.
        revision: Branch to push to; the main branch by default.
        private: Whether a new repository is private.
        token: Access token; that of the login by default.
        commit_message: Title of the commit.

    Raises:
        ValueError: The folder is none of one sweep, its record or a checkpoint is damaged, or the Hub refuses.
    """
    check_repo_id(repo_id)
    api = HfApi(token=token)
    with working_folder(tempfile.gettempdir(), WORK) as temporary:
        folder = temporary / "study"
        study, checkpoints = save_study(results, folder, repo_id)
        repo_id = make_repo(api, repo_id, "model", revision=revision, private=private)
        card = _card(repo_id, study, checkpoints)
        write_text(folder / CARD, merge_card(read_card(api, repo_id, "model", revision) or "", card))
        title = commit_message or f"{study.recipe.name}, {len(study.results)} runs and {len(checkpoints)} checkpoints"
        outdated = [f"{name}/*" for name in (RESULTS, REPORT, CHECKPOINTS)]
        return upload(api, folder, repo_id, "model", title=title, revision=revision, outdated=outdated)


def save_study(results: str | os.PathLike[str], folder: Path, repo_id: str) -> tuple[Study, dict[str, Result]]:
    """Write what :func:`push_study` uploads, but for the card of the repository.

    Returns:
        The study, and the runs whose checkpoints are among it, by their folder in the repository.

    Raises:
        ValueError: As for :func:`push_study`.
    """
    records = study_records(results)
    if len(records) != 1:
        raise ValueError(f"results: {results} must be the folder of one sweep, and holds the records of {len(records)}")
    study, runs = read_study(records[0]), runs_of_record(records[0])
    rows = [row for result in study.results for row in result.rows.values()]
    if not rows:
        raise ValueError(f"results: the sweep of {records[0]} has no finished run")
    recipe = {name: value for name, value in study.recipe.to_json().items() if name != "profile"}
    write_text(folder / RECIPE, yaml.safe_dump(encode(recipe), sort_keys=False, allow_unicode=True, width=120))
    pq.write_table(rows_table(rows), folder / ROWS, write_page_checksum=True)
    write_study_page(str(results), str(folder / REPORT), study.recipe.title or study.recipe.name)
    (folder / RESULTS).mkdir()
    for result in study.results:
        for path in (cell_path(runs, result.digest), history_path(runs, result.digest)):
            if path.is_file():
                shutil.copyfile(path, folder / RESULTS / path.name)
    shutil.copyfile(records[0], folder / RESULTS / records[0].name)
    kept = {}
    for result in study.results:
        source = checkpoint_path(runs, result.digest)
        if source.is_dir() and result.rows:
            name = f"{CHECKPOINTS}/{result.digest}"
            save_checkpoint(source, folder / name, repo_id, name, list(result.rows.values()))
            kept[name] = result
    return study, kept


def save_checkpoint(source: Path, folder: Path, repo_id: str, subfolder: str, rows: Sequence[Row]) -> None:
    """Copy a checkpoint that a sweep kept, and write its card and the figure in it.

    Args:
        source: Its folder.
        folder: Where to write.
        repo_id: Repository, or folder, of which ``folder`` becomes ``subfolder``, for the card's example of loading.
        subfolder: Its name there.
        rows: Its rows.

    Raises:
        ValueError: If the checkpoint is damaged.
    """
    model = load_checkpoint(source)
    shutil.copytree(source, folder)
    save_figures(rows, folder / FIGURES)
    write_text(folder / CARD, model_card(model, repo_id, rows, subfolder=subfolder))


def _card(repo_id: str, study: Study, checkpoints: dict[str, Result]) -> ModelCard:
    """The card of the repository: claim, verdicts, values, and how to get at the rest."""
    recipe = study.recipe
    data = ModelCardData(
        license=LICENSE,
        library_name="transformers",
        datasets=[f"hf_memory/{recipe.task}"],
        tags=["hf_memory", "study", recipe.task, *dict.fromkeys(arm["mixer"] for arm in recipe.arms.values())],
    )
    tables = [verdict_table(study, judge_study(study), "verdicts"), *place_tables(study, "values")]
    facts = {"Claim": recipe.claim, "Source": recipe.source, "What differs from the source": recipe.paper}
    parts = [
        f"# {recipe.title or recipe.name}",
        *(f"{name}: {text}" for name, text in facts.items() if text),
        f"{runs_in_words(study)} Profile {recipe.profile}. `{RECIPE}` is the recipe in this profile, `{RESULTS}/` the "
        f"folder of its sweep, `{REPORT}/index.html` its page, `{ROWS}` all rows.",
        *map(to_markdown, tables),
        _loading(repo_id, checkpoints),
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n" + "\n\n".join(filter(None, parts)) + "\n")


def _loading(repo_id: str, checkpoints: dict[str, Result]) -> str:
    """The checkpoints by name, and how one is loaded."""
    if not checkpoints:
        return ""
    first = next(iter(checkpoints))
    auto = AUTO[task_class(checkpoints[first].cell.task).head].__name__
    lines = "\n".join(f"- `{folder}`: {result.cell.name}" for folder, result in checkpoints.items())
    return (
        f"## Checkpoints\n\n{lines}\n\n```python\nimport hf_memory\nfrom transformers import {auto}\n\n"
        f'model = {auto}.from_pretrained("{repo_id}", subfolder="{first}")\n```'
    )
