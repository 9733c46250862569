"""Talking to the Hub: repositories, branches, cards and commits, and what their errors mean to a user."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import CommitInfo, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

CARD = "README.md"
MAIN = "main"
TOKENIZER_FILES = ("*.model", "*.txt", "*.jinja")
"""What tokenizers are made of beside JSON: models of SentencePiece, merges and words, chat templates."""

WORK = "hf_memory-push"
"""Name of the temporary folders of pushes."""


class HubError(ValueError):
    """The Hub refused, or could not be reached. The message says what can be done."""


def upload(
    api: HfApi,
    folder: Path,
    repo_id: str,
    repo_type: str,
    *,
    title: str,
    text: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    outdated: Sequence[str] = (),
) -> CommitInfo:
    """Upload a folder in one commit. Files that the Hub holds already are not sent again.

    Args:
        api: The client.
        folder: The folder.
        repo_id: The repository.
        repo_type: ``model``, ``dataset`` or ``space``.
        title: Title of the commit.
        text: Further text of the commit.
        revision: Branch.
        create_pr: Open a pull request instead of changing the branch.
        outdated: Patterns of files that the same commit removes where the folder does not have them.

    Raises:
        HubError: The Hub refused or was lost; the branch is as it was before.
    """
    with explained(repo_id, revision):
        return api.upload_folder(
            repo_id=repo_id,
            repo_type=repo_type,
            folder_path=folder,
            commit_message=title,
            commit_description=text,
            revision=revision,
            create_pr=create_pr,
            delete_patterns=list(outdated),
        )


def make_repo(
    api: HfApi, repo_id: str, repo_type: str, *, revision: str | None, private: bool | None, create_pr: bool = False
) -> str:
    """Make a repository and a branch of it where they do not exist.

    Returns:
        The full name of the repository, also where ``repo_id`` lacks the namespace.

    Raises:
        HubError: The Hub refused, or the name is that of a repository of another type.
    """
    check_repo_id(repo_id)
    with explained(repo_id, revision):
        if "/" in repo_id and not api.repo_exists(repo_id, repo_type=repo_type):
            other = "dataset" if repo_type == "model" else "model"
            if repo_type != "space" and api.repo_exists(repo_id, repo_type=other):
                raise HubError(f"repo_id: {repo_id} is a {other} repository; choose another name for the {repo_type}")
        sdk = "static" if repo_type == "space" else None
        made = api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
        name = made.repo_id
        if revision not in (None, MAIN) and not create_pr and not str(revision).startswith("refs/"):
            api.create_branch(name, repo_type=repo_type, branch=str(revision), exist_ok=True)
    return name


def read_card(api: HfApi, repo_id: str, repo_type: str, revision: str | None) -> str | None:
    """The card of a repository; None where it has none."""
    with explained(repo_id, revision):
        try:
            # A copy in the cache may be older than what others wrote since, and must not replace it.
            path = api.hf_hub_download(repo_id, CARD, repo_type=repo_type, revision=revision, force_download=True)
        except RemoteEntryNotFoundError:
            return None
    return Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding


def local_checkpoint(
    checkpoint: str | os.PathLike[str],
    revision: str | None = None,
    token: bool | str | None = None,
    code: bool = False,
    tokenizer: bool = False,
) -> Path:
    """The folder of a checkpoint: itself where it is a folder, else a download of the repository of that name.

    With ``code`` its Python files come along, with ``tokenizer`` all files that tokenizers are made of.

    Raises:
        HubError: There is neither such a folder nor such a repository or revision.
    """
    path = Path(checkpoint)
    if path.is_dir():
        if revision is not None:
            raise HubError(f"revision: {path} is a folder here, which has none; leave it out, or name a repository")
        return path
    if path.exists():
        raise HubError(f"checkpoint: {path} is a file; give its folder, {str(path.parent)!r}")
    if is_path(checkpoint):
        raise HubError(f"checkpoint: there is no folder {str(checkpoint)!r}")
    check_repo_id(str(checkpoint))
    wanted = ["*.json", "*.safetensors", CARD, *(["*.py"] if code else []), *(TOKENIZER_FILES if tokenizer else [])]
    with explained(str(checkpoint), revision):
        folder = HfApi(token=token).snapshot_download(str(checkpoint), revision=revision, allow_patterns=wanted)
    return Path(folder)


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether a name is meant as a path, and not as ``<namespace>/<name>`` on the Hub.

    It is where it exists, where it does not have exactly one slash or begins with one, a dot or a tilde, and where its
    parent is a folder here.
    """
    path, text = Path(name), os.fspath(name)
    return path.exists() or text.count("/") != 1 or text.startswith(("/", ".", "~")) or path.parent.is_dir()


def check_repo_id(repo_id: str) -> None:
    """Raise a ``HubError`` where a name cannot be that of a repository."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise HubError(f"repo_id must be <namespace>/<name> on the Hub, got {repo_id!r} ({error})") from error


@contextlib.contextmanager
def explained(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn what the Hub answers into a :class:`HubError` that names the repository and the way out."""
    try:
        yield
    except HubError:
        raise
    except (HTTPError, RuntimeError, OSError, ValueError) as error:
        cause = _of_the_hub(error)
        if cause is None and isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            raise HubError(
                f"{repo_id}: there is no such folder here, it is not in the local cache, and HF_HUB_OFFLINE keeps the "
                "Hub away"
            ) from error
        if cause is None:
            raise
        raise HubError(_advice(cause, repo_id, revision)) from error


def _of_the_hub(error: BaseException | None) -> BaseException | None:
    """The error of the client behind an error: uploads wrap theirs in a ``RuntimeError``, downloads in others."""
    while error is not None and not isinstance(error, HTTPError):
        error = error.__cause__
    return error


def _advice(error: BaseException, repo_id: str, revision: str | None) -> str:
    again = "nothing was committed; run the same again, and what was uploaded already is not sent twice"
    if not isinstance(error, HfHubHTTPError):
        return f"{repo_id}: the connection to the Hub was lost ({type(error).__name__}: {error}); {again}"
    status = error.response.status_code
    if isinstance(error, RevisionNotFoundError):
        return f"revision: {repo_id} has no branch, tag or commit {revision!r}"
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return f"{repo_id}: no valid token; log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{repo_id}: there is no such repository, or it is private; check its name and type, and log in with "
            "`hf auth login` or set HF_TOKEN"
        )
    advice = {
        403: f"the token has no permission to write to {repo_id.split('/')[0]}; use one that may",
        404: f"not found ({error.server_message or error.response.url})",
        409: "somebody else is changing it; run the same again",
        412: "somebody else has changed it meanwhile; run the same again",
    }
    known = advice.get(status) or f"the Hub answered with status {status}; {again}"
    return f"{repo_id}: {known}"
