"""What is remembered of a node's exchanges: lines for audits, and the peers that it meets.

Of each exchange a line is written down, for audits and for people. Each node also says in the
shared state which partners it had lately, as ``PEER:RATE PEER:RATE ...``: the first letters of an
id, and exchanges an hour. Any node can put the graph together from that, and say how well it mixes:
lambda2, chi1 and chi2. It is self-reported: a picture for people, nothing is decided by it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import StorageError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Applied
from swarmnode.protocol.gossip.events import Finished
from swarmnode.protocol.gossip.group import GROUP_OUTCOMES_MAX
from swarmnode.protocol.gossip.group_events import MeanEnded
from swarmnode.store.files import HistoryFile
from swarmnode.telemetry.logs import get_logger
from swarmnode.telemetry.metrics import MixingFigures

_log = get_logger("swarmnode.daemon.exchange")
# What a node that starts reads of its history: a line is half a kilobyte, and those of means that
# others can still be at are the last ones.
_REMEMBERED_BYTES = 64 * limits.KIB
_XID = re.compile("[0-9a-f]{32}")
_SWARM_BYTES = 8  # of its id


class ExchangeLog:
    """One line for each exchange that ended, was merged, or was lost with its worker.

    Attributes:
        means_before: names of the last group means of this swarm that this node committed in
            earlier lives.
    """

    def __init__(self, path: Path, boot_epoch: int, env: Env, swarm_id: bytes) -> None:
        self._file = HistoryFile(path)
        self._swarm = swarm_id[:_SWARM_BYTES].hex()  # a home may have been in others
        self.means_before = _means_in(self._file.last(_REMEMBERED_BYTES), self._swarm)
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
        """A group mean, or a gathering, is over, one way or another."""
        self._write(
            {
                "event": "finished",
                "xid": mean.gid.hex(),
                "swarm": self._swarm,
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


_LETTERS = 8  # 40 bits of an id
_HOUR_S = 3600.0
_RATE_MAX = 99_999
_SAID = re.compile(r"([a-z2-7]{8}):([0-9]{1,5})")

Edge = tuple[int, int]
InThread = Callable[..., Awaitable[Any]]  # of an Env


def letters_of(peer: PeerId) -> str:
    """Return by what a peer is called here."""
    return str(peer)[3 : 3 + _LETTERS]


@dataclass
class Meetings:
    """Counts committed exchanges by partner, over the last MET_WINDOW_S."""

    _times: deque[tuple[float, PeerId]] = field(
        default_factory=lambda: deque(maxlen=limits.MET_KEPT_MAX)
    )
    _since: float = math.inf  # the first one
    _said: str | None = None
    _said_at: float = -math.inf

    def note(self, partner: PeerId, now: float) -> None:
        """An exchange with ``partner`` has been committed."""
        self._since = min(self._since, now)
        self._times.append((now, partner))

    def said(self, now: float) -> str | None:
        """Return what the swarm is told of it, the same for MET_SAY_S; None before the first."""
        if self._since < math.inf and now >= self._said_at + limits.MET_SAY_S:
            self._said, self._said_at = self._text(now), now
        return self._said

    def _text(self, now: float) -> str:
        while self._times and self._times[0][0] < now - limits.MET_WINDOW_S:
            self._times.popleft()
        if not self._times:
            return ""
        is_full = len(self._times) == self._times.maxlen
        begin = self._times[0][0] if is_full else max(self._since, now - limits.MET_WINDOW_S)
        # Of the first minute nothing can be said yet: two quick exchanges are no habit.
        window_s = max(now - begin, limits.MET_SAY_S)
        counts = Counter(partner for _, partner in self._times)
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        rates = (
            (letters_of(peer), min(_RATE_MAX, math.ceil(count * _HOUR_S / window_s)))
            for peer, count in most[: limits.MET_PARTNERS_MAX]
        )
        return " ".join(f"{letters}:{rate}" for letters, rate in rates)


def observed_rates(said: Mapping[PeerId, str]) -> dict[Edge, float]:
    """Return exchanges a second on each edge of the graph over ``said``'s keys, in id order.

    The two ends of an edge say the same unless one left it out; the larger word counts. What is
    said of others than these members, and what makes no sense, is left out.
    """
    peers = sorted(said)
    place = {letters_of(peer): i for i, peer in enumerate(peers)}
    rates: dict[Edge, float] = {}
    for i, peer in enumerate(peers):
        for letters, rate in _SAID.findall(said[peer]):
            j = place.get(letters, i)
            if i != j and int(rate):
                edge = (min(i, j), max(i, j))
                rates[edge] = max(rates.get(edge, 0.0), int(rate) / _HOUR_S)
    return rates


def mixing_of(n: int, rates: Mapping[Edge, float]) -> MixingFigures:
    """Return the figures of a graph of ``n`` nodes. Imports numpy; O(n³)."""
    from swarmnode.strategies.topology import Graph

    found = Graph(n, rates).mixing()
    return MixingFigures(found.lambda2, found.chi1, found.chi2)


class SwarmMixing:
    """The figures of the swarm, computed when a caller asks, in a thread, and kept a while.

    Attributes:
        figures: None until then, for a node alone, and for more than MIXING_MEMBERS_MAX.
    """

    def __init__(self) -> None:
        self.figures: MixingFigures | None = None
        self._made_at = -math.inf
        self._lock = trio.Lock()

    async def refresh(self, said: Mapping[PeerId, str], in_thread: InThread) -> None:
        """Compute anew what is older than MIXING_KEEP_S; ``said`` by each member that trains."""
        async with self._lock:
            if trio.current_time() < self._made_at + limits.MIXING_KEEP_S:
                return
            self._made_at = trio.current_time()
            if not 2 <= len(said) <= limits.MIXING_MEMBERS_MAX:
                self.figures = None
                return
            compute = partial(mixing_of, len(said), observed_rates(said))
            self.figures = await in_thread(compute)


def _means_in(entries: Iterable[Mapping[str, object]], swarm: str) -> tuple[bytes, ...]:
    found = [
        str(entry.get("xid"))
        for entry in entries
        if entry.get("outcome") == "committed"
        and "present" in entry
        # Versions before wrote no swarm: a mean too many is not made twice either.
        and entry.get("swarm", swarm) == swarm
    ]
    return tuple(bytes.fromhex(xid) for xid in found if _XID.fullmatch(xid))[-GROUP_OUTCOMES_MAX:]
