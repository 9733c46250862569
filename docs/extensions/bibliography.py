"""Works that pages cite, with identifiers: at the end of each page, and all together."""

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from docs.extensions.docstrings import escape, heading

_NAME = r"[^\W\d_a-z][\w-]+"
_CITATION = re.compile(
    rf"({_NAME}(?:, {_NAME})*(?: (?:and|et) (?:al\.|{_NAME}))|{_NAME}(?: [Tt]eam)?)(?:,? \(|, )((?:19|20)\d\d)\b"
)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A work.

    Attributes:
        cite: How docstrings name it, without the year.
        year: The year with which they do.
        title: Its title.
        arxiv: Its number there.
        doi: Its digital object identifier.
        other: Another identifier.
    """

    cite: str
    year: int
    title: str
    arxiv: str = ""
    doi: str = ""
    other: str = ""

    @property
    def link(self) -> str:
        """The identifier, as a link where it is one."""
        if self.arxiv:
            return f"`arXiv:{self.arxiv} <https://arxiv.org/abs/{self.arxiv}>`__"
        return f"`doi:{self.doi} <https://doi.org/{self.doi}>`__" if self.doi else self.other

    @property
    def line(self) -> str:
        """The work in one line."""
        title = self.title if self.title.endswith("?") else f"{self.title}."
        return f"{escape(self.cite)} ({self.year}). {escape(title)} {self.link}"

    def is_cited(self, text: str) -> bool:
        """Whether a text names it with its year."""
        return re.search(rf"{re.escape(self.cite)},?\s\(?{self.year}\b", text, re.IGNORECASE) is not None


@cache
def references() -> tuple[Reference, ...]:
    """All works that are known, in the order of their authors."""
    path = Path(__file__).resolve().parents[1] / "references.yaml"
    return tuple(Reference(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8")))


def cited(text: str) -> list[Reference]:
    """The works that a text cites, each once; of two with one name and year, the one whose title it names."""
    plain = " ".join(text.replace("\\", "").split())
    found = [reference for reference in references() if reference.is_cited(plain)]
    chosen: dict[str, Reference] = {}
    for reference in found:
        same = [other for other in found if (other.cite, other.year) == (reference.cite, reference.year)]
        told = [other for other in same if _begins(other.title, plain)]
        if not told or reference in told:
            chosen.setdefault(reference.link, reference)
    return list(chosen.values())


def _begins(title: str, text: str) -> bool:
    """Whether the first three words of a title stand in a text."""
    return " ".join(re.findall(r"[\w-]+", title.lower())[:3]) in text.lower()


def unknown(text: str) -> set[tuple[str, int]]:
    """Names and years that read like a citation and belong to no known work."""
    plain = " ".join(text.replace("\\", "").split())
    found = {(name, int(year)) for name, year in _CITATION.findall(plain)}
    return {
        (name, year)
        for name, year in found
        if not any(
            reference.is_cited(f"{name} ({year})") or _is_part(name, year, reference) for reference in references()
        )
    }


def _is_part(name: str, year: int, reference: Reference) -> bool:
    """Whether a name is the last of a work's authors, as where a line of names was cut."""
    return reference.year == year and name.lower() in reference.cite.lower()


def sources_section(text: str) -> str:
    """The works that a page cites, as its last section; empty where there is none."""
    lines = [f"* {reference.line}" for reference in cited(text)]
    return "\n\n".join(["", heading("Sources", "-"), "\n".join(lines), ""]) if lines else ""


def bibliography_page(pages: Mapping[str, str]) -> str:
    """All works with the pages that cite them; last, names that no identifier is known for.

    Args:
        pages: The text of each page by its place, without its sources.
    """
    by_work: dict[str, tuple[Reference, list[str]]] = {}
    for place, text in pages.items():
        for reference in cited(text):
            by_work.setdefault(reference.link, (reference, []))[1].append(place)
    ordered = sorted(by_work.values(), key=lambda entry: (entry[0].cite.lower(), entry[0].year))
    lines = [f"* {reference.line} Cited on {', '.join(map(_page, places))}." for reference, places in ordered]
    parts = [heading("Sources", "="), "Works that the pages of mixers, tasks and operations cite.", "\n".join(lines)]
    rest = sorted({f"{name} ({year})" for text in pages.values() for name, year in unknown(text)})
    if rest:
        parts += [heading("Cited without an identifier here", "-"), escape(", ".join(rest)) + "."]
    return "\n\n".join(parts) + "\n"


def _page(place: str) -> str:
    return f":doc:`{place.rpartition('/')[2]} </{place}>`"
