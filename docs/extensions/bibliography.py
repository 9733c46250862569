"""Placeholder."""


def bibliography_page() -> str:
    return "Sources\n=======\n"
