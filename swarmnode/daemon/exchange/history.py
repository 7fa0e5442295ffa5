"""The history of a node's exchanges: what is written down of each, for audits and for people."""

from __future__ import annotations

from pathlib import Path

from swarmnode.env import Env
from swarmnode.errors import StorageError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Applied
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.gossip.group_events import MeanEnded
from swarmnode.store.files import HistoryFile
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.exchange")


class ExchangeLog:
    """One line for each exchange that ended, was merged, or was lost with its worker."""

    def __init__(self, path: Path, boot_epoch: int, env: Env) -> None:
        self._file = HistoryFile(path)
        self._boot_epoch = boot_epoch
        self._env = env
        self._fails = False

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def finished(self, finished: Finished) -> None:
        """An exchange is over, one way or another."""
        self._write(
            {
                "event": "finished",
                "xid": finished.xid.hex(),
                "peer": str(PeerId(finished.peer)),
                "role": str(finished.role),
                "outcome": str(finished.outcome),
                "reason": finished.reason,
                "in_doubt": finished.in_doubt,
                "took_s": round(finished.ended - finished.started, 6),
            }
        )

    def mean_ended(self, mean: MeanEnded) -> None:
        """A group mean is over, one way or another."""
        self._write(
            {
                "event": "finished",
                "xid": mean.gid.hex(),
                "present": [str(peer) for peer in mean.contributors],
                "result": mean.result.hex(),
                "outcome": "committed" if mean.result else "aborted",
                "reason": mean.reason,
                "in_doubt": mean.in_doubt,
                "took_s": round(mean.took_s, 6),
            }
        )
        if mean.is_lost:
            self.lost(mean.gid)

    def applied(self, applied: Applied) -> None:
        """The worker has merged one."""
        self._write(
            {
                "event": "applied",
                "xid": applied.xid.hex(),
                "step": applied.step,
                "staleness_steps": applied.staleness_steps,
            }
        )

    def lost(self, xid: bytes) -> None:
        """One has committed, and the worker that was to merge it is gone."""
        self._write({"event": "lost", "xid": xid.hex()})

    def _write(self, entry: dict[str, object]) -> None:
        entry = {**entry, "boot": self._boot_epoch, "unix_s": round(self._env.wall(), 3)}
        try:
            self._file.append(entry)
        except StorageError as error:
            # A full disk must not stop training, nor fill the log with a line an exchange.
            if not self._fails:
                _log.error("exchanges are not written down", why=str(error))
            self._fails = True
        else:
            self._fails = False
