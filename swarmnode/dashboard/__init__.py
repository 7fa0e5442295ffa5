"""The page that a node shows of its swarm: plain files, read once from the package.

There is no build step and nothing is fetched from elsewhere: the page works on a machine
without internet. ``page.py`` serves it, on the port of ``swarmnode/daemon/status/dashboard.py``.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

PAGE = "index.html"

_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """One file of the page."""

    body: bytes
    content_type: str


def load_assets() -> dict[str, Asset]:
    """Return the files of the page by name. Raises OSError if the package lacks them."""
    folder = resources.files(__name__) / "static"
    found = {}
    for file in folder.iterdir():
        ending = file.name[file.name.rfind(".") :]
        if ending in _CONTENT_TYPES:
            found[file.name] = Asset(file.read_bytes(), _CONTENT_TYPES[ending])
    return found
