"""Writes the pages of mixers, tasks, operations, commands and sources before Sphinx reads any.

They follow the tables of the package: a mixer or a task that joins has its page at the next build.
"""

from pathlib import Path
from typing import Any

from docs.extensions.bibliography import bibliography_page, sources_section
from docs.extensions.figures import write_figure
from docs.extensions.measured import outcomes
from docs.extensions.mixer_pages import FIGURE, mixer_page, mixers_page
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
    citing = {
        **{f"mixers/{key}": mixer_page(key, found) for key in model_keys()},
        **{f"tasks/{key}": task_page(key, found) for key in TASKS},
        "reference/operations": operations_page(),
    }
    return {
        "mixers/index": mixers_page(),
        "tasks/index": tasks_page(),
        "reference/index": reference_page(),
        "reference/api": api_page(),
        "reference/commands": commands_page(),
        **{place: text + sources_section(text) for place, text in citing.items()},
        "sources/index": bibliography_page(citing),
    }


def write_pages(source: Path) -> None:
    """Write what has changed, so that Sphinx reads nothing else again, and remove pages of what is gone."""
    write_figure(source / "_static" / FIGURE)
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
