"""The Hub on loopback, for the guide on sharing."""

from tests.hub.conftest import hub

__all__ = ["hub"]
