"""Fetch the common tests of the installed transformers from its source distribution; prints the folder.

The wheel has no tests, and the source distribution only the top level of them. They are kept in the user's cache.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import transformers

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hf_memory"


def fetch() -> Path:
    """The folder with the tests, and beside them what they import and nothing else here does."""
    name = f"transformers-{transformers.__version__}"
    folder = CACHE / name
    if (folder / ".ready").exists():
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        requirement = f"transformers=={transformers.__version__}"
        pip("download", "--no-deps", "--no-binary", "transformers", "--dest", temporary, requirement)
        with tarfile.open(next(Path(temporary).glob("*.tar.gz"))) as archive:
            wanted = [member for member in archive if member.name.startswith(f"{name}/tests/")]
            archive.extractall(CACHE, members=wanted, filter="data")
    pip("install", "--no-deps", "--target", str(folder / "packages"), "parameterized==0.9.0")
    (folder / ".ready").touch()
    return folder


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(fetch())
