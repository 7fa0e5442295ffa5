"""A package index and files of data on loopback, and wheels that are made on the spot."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

# One number per example: enough for a node to train, and quick on any machine.
TASK = '''
"""A task of a package."""

import torch

from swarmnode import Task, TaskConfig
from {needed} import TARGET


class Level(Task):
    name = "level"
    version = 1

    class Config(TaskConfig):
        pass

    @property
    def tokens_per_batch(self):
        return 4

    def build_model(self, seed):
        return torch.nn.Linear(1, 1)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def batches(self, seed):
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield torch.rand(4, 1, generator=generator)

    def loss(self, model, batch):
        return (model(batch) - TARGET).square().mean()

    def evaluate(self, model):
        return float(self.loss(model, torch.full((1, 1), 0.5)))
'''


def wheel(
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    needs: tuple[str, ...] = (),
    task: str = "",
) -> bytes:
    """Return the bytes of a pure wheel, the same for the same arguments.

    ``task``: ``NAME = MODULE:CLASS`` of its entry point.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {need}\n" for need in needs]
    inside = dict(files) | {
        f"{info}/METADATA": "".join(metadata),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if task:
        inside[f"{info}/entry_points.txt"] = f"[swarmnode.tasks]\n{task}\n"
    record = "".join(_recorded(path, text) for path, text in inside.items())
    inside[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in inside.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return made.getvalue()


def _recorded(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(text)}\n"


class Index:
    """A simple index in a folder; ``address`` is what pip is told."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.base = folder, address
        self.address = f"{address}/simple"
        self.asked: list[str] = []

    def add(self, name: str, version: str, data: bytes) -> None:
        """Offer a wheel, or take the place of the one of that version."""
        page = self.folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        (page / f"{name.replace('-', '_')}-{version}-py3-none-any.whl").write_bytes(data)
        # With their hashes, as real ones have it: pip then finds the right one of a version among
        # those of all indexes that it is set to.
        links = "".join(
            f'<a href="{each.name}#sha256={hashlib.sha256(each.read_bytes()).hexdigest()}">'
            f"{each.name}</a>\n"
            for each in page.glob("*.whl")
        )
        (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")

    def add_level(self, version: str = "1.0") -> tuple[bytes, bytes]:
        """Offer a package with the task ``level``, and another one that it needs."""
        target = wheel("level-target", "2.1", {"level_target.py": "TARGET = 3.0\n"})
        source = TASK.format(needed="level_target")
        task = wheel(
            "swarmnode-level",
            version,
            {"swarmnode_level.py": source},
            needs=("level-target>=2", "torch"),
            task="level = swarmnode_level:Level",
        )
        self.add("level-target", "2.1", target)
        self.add("swarmnode-level", version, task)
        return task, target


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, asked: list[str], **kwargs: Any) -> None:
        self._asked = asked
        super().__init__(*args, **kwargs)

    def log_message(self, *_: Any) -> None:
        self._asked.append(self.path)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """Serve a folder on loopback while the block is open."""
    folder.mkdir(exist_ok=True)
    index = Index(folder, "")
    handler = partial(_Handler, directory=str(folder), asked=index.asked)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        index.base = f"http://127.0.0.1:{server.server_port}"
        index.address = f"{index.base}/simple"
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
