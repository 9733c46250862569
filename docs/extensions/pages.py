"""Writes the pages of mixers, tasks, operations, commands and sources before Sphinx reads any.

They follow the tables of the package: a mixer or a task that joins has its page at the next build.
"""

from pathlib import Path
from typing import Any

from docs.extensions.bibliography import bibliography_page
from docs.extensions.measured import outcomes
from docs.extensions.mixer_pages import mixer_page, mixers_page
from docs.extensions.reference_pages import api_page, commands_page, operations_page, reference_page
from docs.extensions.task_pages import task_page, tasks_page
from hf_memory.mixers.auto import model_keys
from hf_memory.tasks import TASKS

FOLDERS = ("mixers", "tasks", "reference", "sources")
"""Folders of generated pages, below the sources of the site."""

ROOT = Path(__file__).resolve().parents[2]


def setup(app: Any) -> dict[str, Any]:
    """Write the pages when a build begins."""
    app.connect("builder-inited", lambda started: write_pages(Path(started.srcdir)))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def pages(results: Path) -> dict[str, str]:
    """All generated pages, by their place below the sources of the site."""
    found = outcomes(results)
    return {
        "mixers/index": mixers_page(),
        **{f"mixers/{key}": mixer_page(key, found) for key in model_keys()},
        "tasks/index": tasks_page(),
        **{f"tasks/{key}": task_page(key, found) for key in TASKS},
        "reference/index": reference_page(),
        "reference/api": api_page(),
        "reference/operations": operations_page(),
        "reference/commands": commands_page(),
        "sources/index": bibliography_page(),
    }


def write_pages(source: Path) -> None:
    """Write what has changed, so that Sphinx reads nothing else again, and remove pages of what is gone."""
    written = pages(ROOT / "examples" / "results")
    for place, text in written.items():
        path = source / f"{place}.rst"
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for folder in FOLDERS:
        for path in (source / folder).glob("*.rst"):
            if f"{folder}/{path.stem}" not in written:
                path.unlink()
