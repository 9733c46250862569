"""A small Hub on loopback: enough of the HTTP interface for the real clients to push, list, load and fail.

It keeps repositories of models, datasets and Spaces in memory (``store.py``), answers small text files
directly and redirects large ones, and can be told to refuse or to cut a connection (``POST /control``).
"""

import base64
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.hub.store import LARGE, NAMESPACES, TOKENS, Commit, Fault, Hub, Refusal, Repo, blob_oid, entry, sha256


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args) -> None:
        """Say nothing; the log of the hub has it all."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        fault = None if path == "/control" else self.hub.fault(self.command, path)
        if fault == "drop":
            self.rfile.read(length // 2)
            self.hub.log.append(f"{self.command} {path} dropped")
            self.close_connection = True
            return
        self.body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
        try:
            if fault is not None:
                raise Refusal(int(fault), "", "the test asks for it")
            for method, pattern, action in ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method.split():
                    with self.hub.lock:
                        action(self, **found.groupdict())
                    return
            raise Refusal(404, "", f"no such endpoint: {self.command} {path}")
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self.answer({"error": refusal.message}, refusal.status, {k: v for k, v in headers.items() if v})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, content: object = None, status: int = 200, headers: dict[str, str] | None = None) -> None:
        if self.path != "/control":
            self.hub.log.append(f"{self.command} {unquote(urlsplit(self.path).path)} {status}")
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        fields = {"Content-Length": str(len(data)), "Content-Type": "application/json", **(headers or {})}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    @property
    def right(self) -> str:
        """What the caller's token allows: ``write``, ``read``, or nothing."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in TOKENS:
            raise Refusal(401, "", "Invalid credentials in Authorization header")
        return TOKENS.get(token, "")

    def must_write(self, namespace: str) -> None:
        if not self.right:
            raise Refusal(401, "", "Invalid username or password.")
        if self.right != "write" or namespace not in NAMESPACES:
            raise Refusal(403, "", f"You don't have the rights to create or change repositories of {namespace}")

    def repo(self, kind: str, name: str) -> Repo:
        repo = self.hub.repos.get((kind, name))
        if repo is None or (repo.private and not self.right):
            raise Refusal(404 if self.right else 401, "RepoNotFound", "Repository not found")
        return repo

    def commit_at(self, kind: str, name: str, revision: str) -> tuple[Repo, Commit]:
        repo = self.repo(kind, name)
        commit = repo.at(revision)
        if commit is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, commit


def create(h: Handler) -> None:
    given = h.json()
    kind, name = given.get("type") or "model", given["name"]
    namespace = given.get("organization") or "me"
    h.must_write(namespace)
    repo_id = f"{namespace}/{name}"
    prefix = "" if kind == "model" else f"{kind}s/"
    url = f"http://{h.headers['Host']}/{prefix}{repo_id}"
    if (kind, repo_id) in h.hub.repos:
        h.answer({"error": "You already created this repo", "url": url}, 409)
        return
    if kind == "space" and given.get("sdk") != "static":
        raise Refusal(400, "", "sdk must be one of static")
    h.hub.repos[kind, repo_id] = Repo(kind, repo_id, given.get("visibility") == "private")
    h.answer({"url": url, "name": repo_id})


def whoami(h: Handler) -> None:
    if not h.right:
        raise Refusal(401, "", "Invalid username or password.")
    orgs = [{"name": name} for name in sorted(NAMESPACES - {"me"})]
    h.answer({"type": "user", "name": "me", "orgs": orgs, "auth": {"accessToken": {"role": h.right}}})


def validate_yaml(h: Handler) -> None:
    text = h.json()["content"]
    try:
        yaml.safe_load(text.split("---")[1])
    except (IndexError, yaml.YAMLError) as error:
        raise Refusal(400, "", "invalid metadata") from error
    h.answer({"errors": [], "warnings": []})


def info(h: Handler, kind: str, name: str, revision: str = "main") -> None:
    repo, commit = h.commit_at(kind, name, revision)
    siblings = [{"rfilename": path} for path in sorted(commit.files)]
    tags = {"tags": [], "downloads": 0, "likes": 0, "private": repo.private, "gated": False, "disabled": False}
    h.answer({"id": name, "sha": commit.oid, "siblings": siblings, "lastModified": "2026-01-01T00:00:00.000Z", **tags})


def refs(h: Handler, kind: str, name: str) -> None:
    repo = h.repo(kind, name)
    h.answer({
        "branches": [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": o} for n, o in repo.branches.items()],
        "tags": [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": o} for n, o in repo.tags.items()],
        "converts": [],
    })  # fmt: skip


def branch(h: Handler, kind: str, name: str, ref: str) -> None:
    h.must_write(name.split("/")[0])
    repo = h.repo(kind, name)
    if ref in repo.branches:
        raise Refusal(409, "", "Reference already exists")
    _, start = h.commit_at(kind, name, h.json().get("startingPoint") or "main")
    repo.branches[ref] = start.oid
    h.answer({})


def tag(h: Handler, kind: str, name: str, revision: str) -> None:
    h.must_write(name.split("/")[0])
    repo, commit = h.commit_at(kind, name, revision)
    if h.json()["tag"] in repo.tags:
        raise Refusal(409, "", "Tag reference exists already")
    repo.tags[h.json()["tag"]] = commit.oid
    h.answer({})


def delete_tag(h: Handler, kind: str, name: str, revision: str) -> None:
    h.must_write(name.split("/")[0])
    if h.repo(kind, name).tags.pop(revision, None) is None:
        raise Refusal(404, "RevisionNotFound", f"no tag {revision}")
    h.answer({})


def tree(h: Handler, kind: str, name: str, revision: str, folder: str = "") -> None:
    _, commit = h.commit_at(kind, name, revision)
    folder = f"{folder.strip('/')}/" if folder and folder.strip("/") else ""
    inside = {path: data for path, data in commit.files.items() if path.startswith(folder)}
    if folder and not inside:
        raise Refusal(404, "EntryNotFound", f"{folder} does not exist on {revision}")
    recursive = h.query.get("recursive", "").lower() in ("true", "1")
    shown, folders = [], set()
    for path, data in sorted(inside.items()):
        below = path.removeprefix(folder).split("/")[:-1]
        shown_depth = len(below) if recursive else min(len(below), 1)
        folders.update(folder + "/".join(below[: depth + 1]) for depth in range(shown_depth))
        if recursive or not below:
            shown.append(entry(path, data))
    h.answer([{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)] + shown)


def paths_info(h: Handler, kind: str, name: str, revision: str) -> None:
    _, commit = h.commit_at(kind, name, revision)
    is_json = "json" in (h.headers.get("Content-Type") or "")
    paths = h.json()["paths"] if is_json else parse_qs(h.body.decode()).get("paths", [])
    found = []
    for path in [paths] if isinstance(paths, str) else paths:
        if path in commit.files:
            found.append(entry(path, commit.files[path]))
        elif any(name.startswith(f"{path}/") for name in commit.files):
            found.append({"type": "directory", "path": path, "size": 0, "oid": "0" * 40})
    h.answer(found)


def preupload(h: Handler, kind: str, name: str, revision: str) -> None:
    h.must_write(name.split("/")[0])
    _, commit = h.commit_at(kind, name, revision)
    files = []
    for given in h.json()["files"]:
        path = given["path"]
        mode = "lfs" if path.endswith(LARGE) else "regular"
        known = {"oid": blob_oid(path, commit.files[path])} if path in commit.files else {}
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **known})
    h.answer({"files": files})


def lfs_batch(h: Handler, name: str) -> None:
    h.must_write(name.split("/")[-2])
    objects = []
    for given in h.json()["objects"]:
        upload = {"actions": {"upload": {"href": f"http://{h.headers['Host']}/large/{given['oid']}"}}}
        objects.append({**given, **({} if given["oid"] in h.hub.large else upload)})
    h.answer({"transfer": "basic", "objects": objects})


def put_large(h: Handler, oid: str) -> None:
    if sha256(h.body) != oid:
        raise Refusal(400, "", "the content is not what its name says")
    h.hub.large[oid] = h.body
    h.answer({})


def get_large(h: Handler, oid: str) -> None:
    send(h, h.hub.large[oid], {"ETag": f'"{oid}"'})


def send(h: Handler, data: bytes, headers: dict[str, str]) -> None:
    """A file, or the part of it that a ``Range`` header asks for."""
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", h.headers.get("Range") or "")
    if wanted and h.command == "GET":
        start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        span = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
        h.answer(data[start : end + 1], 206, {**headers, **span, "Content-Type": "application/octet-stream"})
        return
    h.answer(data, 200, {**headers, "Content-Type": "application/octet-stream"})


def commit(h: Handler, kind: str, name: str, revision: str) -> None:
    h.must_write(name.split("/")[0])
    repo = h.repo(kind, name)
    if revision not in repo.branches:
        raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    files = dict(repo.commits[repo.branches[revision]].files)
    title = ""
    for line in filter(None, h.body.split(b"\n")):
        step = json.loads(line)
        value = step["value"]
        if step["key"] == "header":
            title = value["summary"]
            if value.get("parentCommit") not in (None, repo.branches[revision]):
                raise Refusal(412, "", "A commit has happened since. Please refresh and try again.")
        elif step["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif step["key"] == "lfsFile":
            if value["oid"] not in h.hub.large:
                raise Refusal(400, "", f"{value['path']} was not uploaded")
            files[value["path"]] = h.hub.large[value["oid"]]
        elif step["key"] == "deletedFile":
            del files[value["path"]]
        elif step["key"] == "deletedFolder":
            files = {path: data for path, data in files.items() if not path.startswith(value["path"].rstrip("/") + "/")}
    proposed = f"refs/pr/{sum(ref.startswith('refs/pr/') for ref in repo.branches) + 1}"
    oid = repo.commit(proposed if "create_pr" in h.query else revision, files, title)
    root = f"http://{h.headers['Host']}/{name}"
    pull_request = {"pullRequestUrl": f"{root}/discussions/{proposed[8:]}"} if "create_pr" in h.query else {}
    h.answer({"success": True, "commitOid": oid, "commitUrl": f"{root}/commit/{oid}", **pull_request})


def commits(h: Handler, kind: str, name: str, revision: str) -> None:
    repo, _ = h.commit_at(kind, name, revision)
    shown = [{"id": c.oid, "title": c.title, "message": "", "authors": [], "date": "2026-01-01T00:00:00.000Z"}
             for c in reversed(repo.commits.values())]  # fmt: skip
    h.answer(shown)


def resolve(h: Handler, name: str, revision: str, path: str, prefix: str | None = None) -> None:
    kind = {"datasets/": "dataset", "spaces/": "space", None: "model"}[prefix]
    _, found = h.commit_at(kind, name, revision)
    headers = {"X-Repo-Commit": found.oid}
    if path not in found.files:
        h.answer({"error": "Entry not found"}, 404, {**headers, "X-Error-Code": "EntryNotFound"})
        return
    data = found.files[path]
    if path.endswith(LARGE):
        oid = sha256(data)
        linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(data))}
        # The client reads the headers of a redirect to another host, and follows one to the same; a CDN is another.
        elsewhere = h.headers["Host"].replace("127.0.0.1", "localhost")
        h.answer(b"", 302, {**headers, **linked, "Location": f"http://{elsewhere}/large/{oid}"})
    else:
        send(h, data, {**headers, "ETag": f'"{blob_oid(path, data)}"'})


def control(h: Handler) -> None:
    """Faults to come (``POST`` a list of them), or all requests so far (``GET``)."""
    if h.command == "POST":
        h.hub.faults = [Fault(**given) for given in json.loads(h.body)]
        h.hub.log.clear()
        h.answer({})
    else:
        h.answer(list(h.hub.log))


_NAME = r"(?P<name>[^/]+/[^/]+)"
_REPO = rf"/api/(?P<kind>model|dataset|space)s/{_NAME}"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET POST", "/control", control),
    ("POST", "/api/repos/create", create),
    ("GET", "/api/whoami-v2", whoami),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("GET", _REPO, info),
    ("GET", rf"{_REPO}/revision/(?P<revision>.+)", info),
    ("GET", rf"{_REPO}/refs", refs),
    ("POST", rf"{_REPO}/branch/(?P<ref>.+)", branch),
    ("POST", rf"{_REPO}/tag/(?P<revision>.+)", tag),
    ("DELETE", rf"{_REPO}/tag/(?P<revision>.+)", delete_tag),
    ("GET", rf"{_REPO}/tree/(?P<revision>[^/]+)(?P<folder>/.*)?", tree),
    ("GET", rf"{_REPO}/commits/(?P<revision>.+)", commits),
    ("POST", rf"{_REPO}/paths-info/(?P<revision>[^/]+)", paths_info),
    ("POST", rf"{_REPO}/preupload/(?P<revision>[^/]+)", preupload),
    ("POST", rf"{_REPO}/commit/(?P<revision>[^/]+)", commit),
    ("POST", r"/(?P<name>(?:datasets/|spaces/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", r"/large/(?P<oid>\w+)", put_large),
    ("GET HEAD", r"/large/(?P<oid>\w+)", get_large),
    ("GET HEAD", rf"/(?P<prefix>datasets/|spaces/)?{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", resolve),
]


@contextlib.contextmanager
def running_hub() -> Iterator[tuple[str, Hub]]:
    """Address and state of a hub that runs in a thread of this process."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
