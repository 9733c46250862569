"""A Hub on loopback for the tests of one file."""

from collections.abc import Iterator

import pytest

from tests.hub.server import Hub, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[str, Hub]]:
    """Address and state of the server."""
    with running_hub() as running:
        yield running
