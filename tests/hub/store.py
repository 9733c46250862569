"""What the Hub on loopback keeps: repositories as commits over contents, faults to come, requests that were met."""

import hashlib
import re
import threading
from dataclasses import dataclass, field

TOKENS = {"hf_writer": "write", "hf_reader": "read"}
NAMESPACES = {"me", "ns", "hf_memory"}
LARGE = (".safetensors", ".parquet", ".png", ".bin", ".pt", ".pth")


@dataclass
class Commit:
    oid: str
    files: dict[str, bytes]
    title: str


@dataclass
class Repo:
    """Commits from old to new, and the names that point to them."""

    kind: str
    name: str
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")

    def commit(self, branch: str, files: dict[str, bytes], title: str) -> str:
        content = repr((len(self.commits), title, sorted((path, sha256(data)) for path, data in files.items())))
        oid = hashlib.sha1(content.encode()).hexdigest()
        self.commits[oid] = Commit(oid, files, title)
        self.branches[branch] = oid
        return oid

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.branches.get(revision) or self.tags.get(revision) or revision)


@dataclass
class Fault:
    """What happens to the next requests that match: a status, or ``drop`` in the middle of the body."""

    method: str
    path: str
    status: int | str
    times: int = 1


@dataclass
class Hub:
    """All repositories, the large files that were uploaded, the faults to come and the requests that were met."""

    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fault(self, method: str, path: str) -> int | str | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.times > 0 and re.search(fault.path, path):
                    fault.times -= 1
                    return fault.status
        return None


class Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = ""):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_oid(path: str, data: bytes) -> str:
    """The name that git, or large file storage, gives to a content."""
    return sha256(data) if path.endswith(LARGE) else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes) -> dict:
    large = {"lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 130}} if path.endswith(LARGE) else {}
    return {"type": "file", "path": path, "size": len(data), "oid": blob_oid(path, data), **large}
