"""Code blocks of a page, and a way to run them all in order, as a reader would in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

RUNNABLE = ("python", "bash", "yaml")

DRIVER = """
import os, shlex, subprocess, sys
import torch
from hf_memory.cli.app import app

torch.set_num_threads(1)
names, outside = {"__name__": "page"}, dict(os.environ)  # a command hands what it includes to its own processes
for language, text in BLOCKS:
    if language == "python":
        exec(compile(text, PAGE, "exec"), names)
    elif language == "yaml":
        first, _, rest = text.partition("\\n")
        open(first.removeprefix("# "), "w").write(rest)
    for line in text.splitlines() if language == "bash" else ():
        print("$", line, flush=True)
        words = shlex.split(line, comments=True)
        if words[:1] == ["hf-memory"]:
            app(words[1:], standalone_mode=False)
        elif words[:1] == ["python"]:
            subprocess.run([sys.executable, *words[1:]], env=outside, check=True)
        elif words:
            raise ValueError(f"{line!r} is no command of this package")
"""


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """Language and code of each block of a page in one of the languages, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(language, code) for language, code in found if language in languages]


def codes(text: str, language: str) -> list[str]:
    """The code of each block of one language."""
    return [code for _, code in blocks(text, language)]


def section(text: str, title: str) -> str:
    """The part of a page below a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"no section {title!r}")
    return found[1]


def program(page: Path, text: str) -> str:
    """Python code that runs the blocks of a page, or of a part of one, in order."""
    return f"BLOCKS = {blocks(text, *RUNNABLE)!r}\nPAGE = {page.name!r}\n{DRIVER}"


def run_page(page: Path, folder: Path) -> str:
    """Run the blocks of a page in a folder, in a process of its own and without a network; returns what it printed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    command = [sys.executable, "-c", program(page, page.read_text(encoding="utf-8"))]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False)
    if done.returncode:
        raise AssertionError(f"{page.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return done.stdout
