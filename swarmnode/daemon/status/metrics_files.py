"""Metrics and targets as files, for setups where Prometheus does not ask this node over HTTP.

``metrics_textfile`` is for the textfile collector of node_exporter, ``metrics_file_sd`` for
``file_sd_configs``. Each is replaced as a whole, so that a reader never sees half of one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.status.scrape import sd_targets
from swarmnode.errors import StorageError
from swarmnode.store.files import write_atomic
from swarmnode.telemetry.logs import get_logger

if TYPE_CHECKING:
    from swarmnode.daemon.app.node import Node

_READABLE = 0o644  # by Prometheus and node_exporter, which are other users
_log = get_logger("swarmnode.daemon.status")


async def keep_metrics_files(node: Node, textfile: str, file_sd: str) -> None:
    """Write these files every METRICS_FILE_S until cancelled; an empty path is none."""
    from swarmnode.telemetry.exposition import render  # 3 MB, for nodes that write files

    writer = _Writer(node)
    while True:
        if textfile:
            await node.readings.refresh(node.env.in_thread)
            await writer.write(Path(textfile), render(node.readings.read())[1])
        if file_sd:
            await writer.write(Path(file_sd), msgspec.json.encode(sd_targets(node)) + b"\n")
        await trio.sleep(limits.METRICS_FILE_S)


class _Writer:
    """Writes files; of failures in a row the log has the first."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._failed: set[Path] = set()

    async def write(self, path: Path, data: bytes) -> None:
        try:
            await self._node.env.in_thread(partial(write_atomic, path, data, mode=_READABLE))
        except StorageError as error:
            if path not in self._failed:
                _log.warning("metrics are not written", path=str(path), why=str(error))
            self._failed.add(path)
        else:
            self._failed.discard(path)
