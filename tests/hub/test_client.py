"""Names and errors of the client without a network; what a Hub refuses is in ``test_refusals.py``."""

from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from hf_memory.hub.client import HubError, check_repo_id, explained, local_checkpoint


@pytest.mark.parametrize("name", ["me/no good", "a/b/c", "me/.git", "-me/lru"])
def test_a_name_that_no_repository_can_have_is_refused(name: str) -> None:
    check_repo_id("me/lru")
    with pytest.raises(HubError, match="repo_id must be <namespace>/<name> on the Hub, got"):
        check_repo_id(name)


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("gone"), OfflineModeIsEnabled("offline")])
def test_without_a_network_the_cache_is_named(error: Exception) -> None:
    with pytest.raises(HubError, match="me/lru: .* not in the local cache, and HF_HUB_OFFLINE"), explained("me/lru"):
        raise error


def test_errors_that_are_not_of_the_hub_pass() -> None:
    with pytest.raises(ValueError, match="^mine$") as raised, explained("me/lru"):
        raise ValueError("mine")
    assert not isinstance(raised.value, HubError)


def test_a_folder_is_its_own_checkpoint(tmp_path: Path) -> None:
    assert local_checkpoint(tmp_path) == tmp_path
