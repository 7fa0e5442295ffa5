"""What a node says of itself: to the command line, to Prometheus, to its peers."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass

import msgspec

from swarmnode import __version__
from swarmnode.daemon.exchange import Exchanges
from swarmnode.daemon.neighbours import Neighbours
from swarmnode.daemon.trainer import Trainer, finite_or_none
from swarmnode.net.session import Session
from swarmnode.protocol.membership.peerbook import PeerEntry
from swarmnode.telemetry.metrics import Histogram, NodeSnapshot
from swarmnode.tensor.codec import active_isa
from swarmnode.wire.membership import PeerState, PeerStatus
from swarmnode.wire.session import Priority
from swarmnode.wire.swarm import Manifest

PLANES = {Priority.CONTROL: "control", Priority.STATE: "state", Priority.BULK: "tensor"}


class PeerView(msgspec.Struct, frozen=True):
    """One line of ``swarmnode peers``. Numbers of other peers are what they say themselves."""

    peer: str
    connected: bool
    path: str
    addresses: tuple[str, ...]
    state: str
    step: int
    tokens: int
    eval_loss: float | None
    version: str
    rtt_s: float | None
    silent_s: float


class NodeStatus(msgspec.Struct, frozen=True):
    """What ``swarmnode status --json`` prints."""

    swarm: str
    peer: str
    state: str
    reason: str
    version: str
    pid: int
    worker_pid: int | None
    address: str
    uptime_s: float
    device: str
    codec: str
    native_isa: str
    step: int
    tokens: int
    loss: float | None
    eval_loss: float | None
    swarm_loss: float | None
    step_time_s: float | None
    peers_known: int
    peers_connected: int
    exchanges_committed: int
    exchanges_applied: int
    exchanges_aborted: int
    exchanges_declined: int
    exchanges_in_doubt: int
    exchanges_half_applied: int
    staleness_steps_mean: float | None
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    worker_restarts: int
    snapshot_step: int | None
    snapshot_path: str | None


@dataclass
class NodeView:
    """Reads the parts of a node; holds only what no part keeps."""

    manifest: Manifest | None
    neighbours: Neighbours
    trainer: Trainer | None
    exchanges: Exchanges | None
    peer: str
    swarm: str
    address: str
    started_monotonic_s: float
    started_unix_s: float
    exchange_duration: Histogram
    last_exchange_unix_s: float | None = None
    leaving: bool = False
    waiting_for: str = "starting"

    def __post_init__(self) -> None:
        # Bytes of sessions that are closed: a counter must not fall when a peer leaves.
        self.closed_sent: Counter[str] = Counter()
        self.closed_received: Counter[str] = Counter()

    def count_closed(self, session: Session) -> None:
        """Keep the byte counts of a session that ends."""
        _add_bytes(session, self.closed_sent, self.closed_received)

    def state(self) -> tuple[PeerState, str]:
        """Return the state and the reason for it, in words."""
        if self.leaving:
            return "left", "leaving the swarm"
        if self.trainer is None:
            return "syncing", self.waiting_for
        return self.trainer.state, self.trainer.reason

    def peer_status(self) -> PeerStatus:
        """Return what the swarm is told."""
        state, _ = self.state()
        step, tokens, loss, eval_loss = self._progress()
        return PeerStatus(state, step, tokens, self._committed(), loss, eval_loss)

    def node_status(self, now: float) -> NodeStatus:
        """Return everything that ``status`` shows; ``now`` is monotonic."""
        state, reason = self.state()
        step, tokens, loss, eval_loss = self._progress()
        trainer = self.trainer
        sent, received = self._bytes()
        results = self._exchange_results()
        book = self.neighbours.book.statistics()
        applied = trainer.applications if trainer is not None else None
        snapshot = trainer.last_snapshot if trainer is not None else None
        return NodeStatus(
            swarm=self.swarm,
            peer=self.peer,
            state=state,
            reason=reason,
            version=__version__,
            pid=os.getpid(),
            worker_pid=trainer.worker_pid if trainer is not None else None,
            address=self.address,
            uptime_s=now - self.started_monotonic_s,
            device=self._device(),
            codec=self.manifest.codec if self.manifest is not None else "",
            native_isa=active_isa(),
            step=step,
            tokens=tokens,
            loss=loss,
            eval_loss=eval_loss,
            swarm_loss=self._swarm_loss(eval_loss),
            step_time_s=self._step_time_s(),
            peers_known=book.known,
            peers_connected=book.connected,
            exchanges_committed=results["committed"],
            exchanges_applied=applied.applied if applied is not None else 0,
            exchanges_aborted=results["aborted"],
            exchanges_declined=results["busy"],
            exchanges_in_doubt=results["in_doubt"],
            exchanges_half_applied=(
                self.exchanges.core.statistics().half_applied_total if self.exchanges else 0
            ),
            staleness_steps_mean=(
                applied.staleness_steps / applied.applied if applied and applied.applied else None
            ),
            sent_bytes=sent,
            received_bytes=received,
            worker_restarts=trainer.restarts if trainer is not None else 0,
            snapshot_step=snapshot.step if snapshot is not None else None,
            snapshot_path=snapshot.path if snapshot is not None else None,
        )

    def peers(self, now: float) -> list[PeerView]:
        """Return everybody in the book, connected ones first."""
        entries = sorted(
            self.neighbours.book.entries.values(), key=lambda e: (not e.connected, e.peer)
        )
        return [self._peer_view(entry, now) for entry in entries]

    def metrics(self, now: float) -> NodeSnapshot:
        """Return what /metrics renders."""
        state, _ = self.state()
        step, tokens, loss, eval_loss = self._progress()
        sent, received = self._bytes()
        return NodeSnapshot(
            version=__version__,
            python=platform.python_version(),
            native_isa=active_isa(),
            role="trainer",
            device=self._device(),
            swarm=self.swarm,
            state=state,
            start_unix_s=self.started_unix_s,
            peers=len(self.neighbours.book.members(now)) - 1,
            connections={"direct": len(self.neighbours.sessions)},
            sent_bytes=sent,
            received_bytes=received,
            exchanges=self._exchange_results(),
            exchange_duration_s=self.exchange_duration.snapshot(),
            last_exchange_unix_s=self.last_exchange_unix_s,
            steps=step,
            tokens=tokens,
            step_duration_s=self._step_time_s(),
            loss=loss,
            eval_loss=eval_loss,
            encode_s=self.exchanges.totals.encode_s if self.exchanges is not None else 0.0,
            worker_restarts=self.trainer.restarts if self.trainer is not None else 0,
        )

    # --- parts ----------------------------------------------------------------------------

    def _peer_view(self, entry: PeerEntry, now: float) -> PeerView:
        session = self.neighbours.sessions.get(entry.peer)
        status = entry.record.status if entry.record is not None else PeerStatus("starting")
        return PeerView(
            peer=str(entry.peer),
            connected=session is not None,
            path=session.channel_description if session is not None else "",
            addresses=entry.addresses,
            state=status.state if entry.record is not None else "unknown",
            step=status.step,
            tokens=status.tokens,
            eval_loss=status.eval_loss,
            version=entry.record.version if entry.record is not None else "",
            rtt_s=session.statistics().rtt_s if session is not None else None,
            silent_s=max(0.0, now - entry.heard_at),
        )

    def _progress(self) -> tuple[int, int, float | None, float | None]:
        trainer = self.trainer
        if trainer is None or trainer.ready is None:
            return 0, 0, None, None
        progress = trainer.progress
        if progress is None:
            return trainer.ready.step, trainer.ready.tokens, None, None
        return (
            progress.step,
            progress.tokens,
            finite_or_none(progress.loss),
            finite_or_none(progress.eval_loss),
        )

    def _step_time_s(self) -> float | None:
        progress = self.trainer.progress if self.trainer is not None else None
        return finite_or_none(progress.step_time_s) if progress is not None else None

    def _swarm_loss(self, own: float | None) -> float | None:
        """Mean probe loss of everybody who trains: other peers' numbers are their own word."""
        losses = [own] if own is not None else []
        for entry in self.neighbours.book.entries.values():
            if entry.connected and entry.record is not None:
                loss = finite_or_none(entry.record.status.eval_loss)
                losses += [loss] if loss is not None else []
        return sum(losses) / len(losses) if losses else None

    def _device(self) -> str:
        ready = self.trainer.ready if self.trainer is not None else None
        return ready.device if ready is not None else ""

    def _committed(self) -> int:
        return self.exchanges.totals.committed if self.exchanges is not None else 0

    def _exchange_results(self) -> dict[str, int]:
        results = {"committed": 0, "aborted": 0, "busy": 0, "in_doubt": 0}
        if self.exchanges is not None:
            statistics = self.exchanges.core.statistics()
            for (_, outcome, _), count in statistics.finished_total.items():
                results["busy" if outcome == "declined" else str(outcome)] += count
            results["in_doubt"] = statistics.in_doubt_total
        return results

    def _bytes(self) -> tuple[dict[str, int], dict[str, int]]:
        sent, received = Counter(self.closed_sent), Counter(self.closed_received)
        for session in self.neighbours.sessions.values():
            _add_bytes(session, sent, received)
        return (
            {plane: sent[plane] for plane in PLANES.values()},
            {plane: received[plane] for plane in PLANES.values()},
        )


def _add_bytes(session: Session, sent: Counter[str], received: Counter[str]) -> None:
    core = session.statistics().core
    for priority, plane in PLANES.items():
        sent[plane] += core.sent_bytes[priority]
        received[plane] += core.received_bytes[priority]
