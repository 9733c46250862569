"""A page of results as a static Space."""

import os
import tempfile
from pathlib import Path

import yaml
from huggingface_hub import CommitInfo, HfApi

from hf_memory.data.cards import LICENSE
from hf_memory.data.folders import working_folder
from hf_memory.experiments.results import recover_rows
from hf_memory.hub.client import CARD, WORK, check_repo_id, make_repo, read_card, upload
from hf_memory.hub.merging import open_card, set_fields
from hf_memory.reports.leaderboard import write_leaderboard
from hf_memory.storage import write_text


def push_space(
    results: str | os.PathLike[str],
    repo_id: str,
    *,
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    commit_message: str | None = None,
    heading: str = "Memory of sequence mixers",
) -> CommitInfo:
    """Push the page of result rows as a static Space: a table of all models that sorts and filters, and each study.

    Args:
        results: Folder with result rows in it or below it, as sweeps and suites leave them, or one file. What is
            damaged is named on the page.
        repo_id: ``<namespace>/<name>`` of the Space, which is made where it does not exist.
        revision: Branch to push to; the main branch by default.
        private: Whether a new Space is private.
        token: Access token; that of the login by default.
        commit_message: Title of the commit.
        heading: Title of the page, and of a new Space.

    Raises:
        ValueError: There is no readable row, or the Hub refuses.
    """
    check_repo_id(repo_id)
    rows, problems = recover_rows(results, below=True)
    if not rows:
        raise ValueError(f"results: {str(results)!r} holds no readable row: {'; '.join(problems)}")
    api = HfApi(token=token)
    with working_folder(tempfile.gettempdir(), WORK) as temporary:
        folder = Path(temporary) / "page"
        write_leaderboard(rows, folder, heading, problems)
        repo_id = make_repo(api, repo_id, "space", revision=revision, private=private)
        write_text(folder / CARD, _card(read_card(api, repo_id, "space", revision) or "", heading))
        title = commit_message or f"Page of {len(rows)} rows of {len({row.cell for row in rows})} runs"
        return upload(
            api, folder, repo_id, "space", title=title, revision=revision, outdated=["*.html", "*.png", "*.csv"]
        )


def _card(previous: str, heading: str) -> str:
    """The card of the Space, whose metadata tell the Hub how to show it; what others wrote there stays."""
    card = open_card(previous)
    own = {"title": heading, "license": LICENSE, "pinned": False}
    set_fields(card, {name: value for name, value in own.items() if card.data.get(name) is None})
    set_fields(card, {"sdk": "static", "app_file": "index.html"})
    return f"---\n{yaml.safe_dump(card.data.to_dict(), sort_keys=False, allow_unicode=True)}---\n{card.text}"
