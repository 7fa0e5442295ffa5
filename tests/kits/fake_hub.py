"""What of the API of Hugging Face's hub huggingface_hub publishes and fetches by, as a real server.

It trusts nothing: every byte is hashed, a commit that names what has not come is refused, and so is
a request that shows its token to storage. What is public is read without a token, nothing else is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import yaml

# As `push` does it; here for tests that use the library in their own process.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

TOKEN = "hf_swordfish"
OWNER = "me"
_BLOCK_BYTES = 1 << 14


@dataclass
class Repo:
    """A repository: what the last commit shows, and earlier ones by their hashes and tags."""

    is_private: bool = False
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.gguf lfs\n"})
    commits: list[str] = field(default_factory=list)
    earlier: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], summary: str = "", *, tag: str = "") -> str:
        """Show other files from now on; return the hash of the commit."""
        self.files = dict(files)
        self.commits.append(summary)
        oid = _oid(self)
        self.earlier[oid] = self.files
        self.tags |= {tag: oid} if tag else {}
        return oid

    def resolve(self, revision: str) -> str:
        """Return the hash of the commit that a branch, a tag or a hash means."""
        oid = self.tags.get(revision, _oid(self) if revision == "main" else revision)
        if oid != _oid(self) and oid not in self.earlier:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid

    def at(self, revision: str) -> dict[str, bytes]:
        """Return the files of a revision."""
        return self.earlier.get(self.resolve(revision), self.files)


@dataclass
class FakeHub:
    """The hub's state, and what goes wrong on it.

    Attributes:
        repos: models; data sets are under ``datasets/OWNER/NAME``.
        part_bytes: larger files come in parts of this size; 0: no file does.
        refusals: the status for requests whose path has this in it, and its words.
        cut: of so many uploads the connection is closed when half of it has come.
        stalled: set when an upload has come half, if that is where they are to stand still.
    """

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    part_bytes: int = 0
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    cut: int = 0
    stalled: threading.Event | None = None
    go_on: threading.Event = field(default_factory=threading.Event)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


class Refusal(Exception):
    """A request that the hub answers with a status."""

    def __init__(self, status: int, words: str, code: str = "") -> None:
        super().__init__(words)
        self.status, self.words, self.code = status, words, code


@contextmanager
def serve() -> Iterator[FakeHub]:
    """Run a hub on loopback."""
    hub = FakeHub()

    class Bound(_Handler):
        pass

    Bound.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    _unread = 0
    _is_known = False
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self._unread = int(self.headers.get("Content-Length") or 0)
        self.hub.requests.append(f"{self.command} {path}")
        try:
            for part, (status, words) in self.hub.refusals.items():
                if part in path:
                    raise Refusal(status, words)
            if path.startswith("/storage/"):  # by an address that is the permission
                if self.headers.get("Authorization"):
                    raise Refusal(400, "storage has no business with a token")
                self._store(*path.removeprefix("/storage/").split("/"))
                return
            self._check_token()
            self._send(*self._of_hub(path, self._read()))
        except Refusal as refusal:
            self._read()  # what was sent, or the client cannot use this connection again
            body = json.dumps({"error": refusal.words}).encode()
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.words}
            self._send(body, {k: v for k, v in headers.items() if v}, refusal.status)
        except (ConnectionError, BrokenPipeError):
            self.close_connection = True

    def _check_token(self) -> None:
        shown = self.headers.get("Authorization")
        self._is_known = shown == f"Bearer {TOKEN}"
        is_read = self.command in ("GET", "HEAD") or "/paths-info/" in self.path
        if not self._is_known and (shown or not is_read):
            raise Refusal(401, "Invalid credentials in Authorization header")

    def _read(self, bytes_max: int | None = None) -> bytes:
        """Return what is left of the body, or as much of it as asked."""
        wanted = self._unread if bytes_max is None else min(bytes_max, self._unread)
        data = self.rfile.read(wanted)
        self._unread -= len(data)
        return data

    def _send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # --- the hub -------------------------------------------------------------------------

    def _of_hub(self, path: str, body: bytes) -> tuple[bytes, dict[str, str]]:
        match path.strip("/").split("/"):
            case ["api", "whoami-v2"]:
                found: Any = {"type": "user", "name": OWNER}
            case ["api", "validate-yaml"]:
                found = _checked_card(json.loads(body)["content"])
            case ["api", "repos", "create"]:
                found = self._create(json.loads(body))
            case ["api", "models" | "datasets" as kind, owner, name]:
                found = self._about(_named(kind, owner, name))
            case ["api", "models" | "datasets" as kind, owner, name, "revision", revision]:
                found = self._about(_named(kind, owner, name), unquote(revision))
            case ["api", "models" | "datasets" as kind, owner, name, "tree", revision, *folder]:
                files = self._repo(_named(kind, owner, name)).at(unquote(revision))
                inside = "".join(f"{unquote(each)}/" for each in folder)
                found = [_entry(each, files[each]) for each in files if each.startswith(inside)]
                if inside and not found:
                    raise Refusal(404, f"{inside} does not exist", "EntryNotFound")
            case ["api", "datasets", owner, name, "paths-info", revision]:
                asked = json.loads(body)["paths"]
                files = self._repo(_named("datasets", owner, name)).at(unquote(revision))
                found = [_entry(each, files[each]) for each in asked if each in files]
            case ["api", "models", owner, name, "preupload", "main"]:
                self._repo(f"{owner}/{name}")
                found = {"files": [_mode(file) for file in json.loads(body)["files"]]}
            case ["api", "models", owner, name, "commit", "main"]:
                found = self._commit(f"{owner}/{name}", body)
            case [owner, git, "info", "lfs", "objects", "batch"] if git.endswith(".git"):
                self._repo(f"{owner}/{git.removesuffix('.git')}")
                found = {"objects": [self._place(one) for one in json.loads(body)["objects"]]}
            case ["verify", oid]:
                size = json.loads(body)["size"]
                if len(self.hub.stored.get(oid, b"")) != size:
                    raise Refusal(422, "it has not come")
                found = {}
            case ["datasets", owner, name, "resolve", revision, *file]:
                repo = self._repo(_named("datasets", owner, name))
                return self._file(repo, unquote(revision), unquote("/".join(file)))
            case [owner, name, "resolve", revision, *file]:
                repo = self._repo(f"{owner}/{name}")
                return self._file(repo, unquote(revision), unquote("/".join(file)))
            case _:
                raise Refusal(404, f"no such path: {path}")
        return json.dumps(found).encode(), {"Content-Type": "application/json"}

    def _repo(self, name: str) -> Repo:
        found = self.hub.repos.get(name)
        if found is not None and (self._is_known or not found.is_private):
            return found
        if self._is_known:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        # The hub tells a stranger nothing of what is private and what is not there at all.
        raise Refusal(401, "Invalid username or password.")

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"{asked['organization'] or OWNER}/{asked['name']}"
        if asked["organization"] not in (None, OWNER):
            raise Refusal(403, "You don't have the rights to create a model under this namespace")
        if name in self.hub.repos:
            raise Refusal(409, "You already created this model repo")
        is_private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repos[name] = Repo(is_private)
        return {"url": f"{self.hub.url}/{name}"}

    def _about(self, name: str, revision: str = "main") -> dict[str, Any]:
        repo = self._repo(name)
        found = repo.at(revision)
        files = [{"rfilename": each, "size": len(data)} for each, data in found.items()]
        about = {"id": name, "private": repo.is_private, "siblings": files}
        return about | {"sha": repo.resolve(revision)}

    def _file(self, repo: Repo, revision: str, name: str) -> tuple[bytes, dict[str, str]]:
        files = repo.at(revision)
        if name not in files:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        data = files[name]
        commit = repo.resolve(revision)
        return data, {"ETag": f'"{_sha256(data)}"', "X-Repo-Commit": commit}

    def _place(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Say where an object is to come, unless it is there."""
        oid, size = asked["oid"], asked["size"]
        answer = {"oid": oid, "size": size}
        if oid in self.hub.stored:
            return answer
        self.hub.sizes[oid] = size
        upload: dict[str, Any] = {"href": f"{self.hub.url}/storage/{oid}"}
        part = self.hub.part_bytes
        if part and size > part:
            numbers = range(1, -(-size // part) + 1)
            places = {str(n): f"{self.hub.url}/storage/{oid}/{n}" for n in numbers}
            href = f"{self.hub.url}/storage/{oid}/complete"
            upload = {"href": href, "header": {"chunk_size": str(part), **places}}
        verify = {"href": f"{self.hub.url}/verify/{oid}"}
        return answer | {"actions": {"upload": upload, "verify": verify}}

    def _commit(self, name: str, body: bytes) -> dict[str, Any]:
        """Show what has come, all at once."""
        repo = self._repo(name)
        files = dict(repo.files)
        summary = ""
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            match entry["key"]:
                case "header":
                    summary = value["summary"]
                case "file":
                    assert value["encoding"] == "base64"
                    files[value["path"]] = base64.b64decode(value["content"], validate=True)
                case "lfsFile":
                    data = self.hub.stored.get(value["oid"])
                    if data is None or len(data) != value["size"] or value["algo"] != "sha256":
                        raise Refusal(422, f"{value['path']} has not come")
                    files[value["path"]] = data
                case "deletedFile":
                    del files[value["path"]]
                case other:
                    raise Refusal(400, f"no such operation: {other}")
        oid = repo.commit(files, summary)
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid}

    # --- storage, which is another's ------------------------------------------------------

    def _store(self, oid: str, part: str = "") -> None:
        if part == "complete":
            self._complete(oid, json.loads(self._read()))
            self._send(b"{}", {"Content-Type": "application/json"})
            return
        length = self._unread
        data = b""
        while len(data) < length:
            block = self._read(_BLOCK_BYTES)
            if not block:
                raise ConnectionError
            data += block
            if len(data) < length / 2:
                continue
            if self.hub.stalled is not None:
                self.hub.stalled.set()
                self.hub.go_on.wait()
                raise ConnectionError
            if self.hub.cut:
                self.hub.cut -= 1
                raise ConnectionError
        if part:
            self.hub.parts.setdefault(oid, {})[int(part)] = data
        else:
            self._keep(oid, data)
        self._send(b"", {"ETag": _sha256(data)})

    def _complete(self, oid: str, asked: dict[str, Any]) -> None:
        parts = self.hub.parts.pop(oid)
        for one in asked["parts"]:
            if _sha256(parts[one["partNumber"]]) != one["etag"]:
                raise Refusal(400, "another part")
        self._keep(oid, b"".join(parts[number] for number in sorted(parts)))

    def _keep(self, oid: str, data: bytes) -> None:
        if _sha256(data) != oid or len(data) != self.hub.sizes[oid]:
            raise Refusal(400, "other bytes than were said")
        self.hub.stored[oid] = data


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    """Say how a file is to come, as the hub does by its .gitattributes."""
    assert len(base64.b64decode(file["sample"])) == min(512, file["size"])
    is_large = file["path"].endswith((".safetensors", ".gguf"))
    mode = "lfs" if is_large else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}


def _checked_card(text: str) -> dict[str, Any]:
    if text.startswith("---\n"):
        with suppress(yaml.YAMLError):
            if isinstance(yaml.safe_load(text.split("---\n")[1]), dict):
                return {"errors": [], "warnings": []}
        raise Refusal(400, "Invalid metadata in README.md")
    return {"errors": [], "warnings": [{"message": "empty or missing yaml metadata"}]}


def _named(kind: str, owner: str, name: str) -> str:
    """Return under which name a repository is kept."""
    return f"{owner}/{name}" if kind == "models" else f"{kind}/{owner}/{name}"


def _entry(name: str, data: bytes) -> dict[str, Any]:
    """Return a file as a tree shows it, by the hash that git has of it."""
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": blob}


def _oid(repo: Repo) -> str:
    """Return a commit's hash, 40 digits."""
    files = {name: _sha256(data) for name, data in sorted(repo.files.items())}
    return _sha256(json.dumps([files, repo.commits]).encode())[:40]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
