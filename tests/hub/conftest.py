"""A Hub on loopback for the tests of one file."""

from collections.abc import Iterator

import pytest

from tests.hub.server import running_hub
from tests.hub.store import Hub


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[str, Hub]]:
    """Address and state of the server."""
    with running_hub() as running:
        yield running
