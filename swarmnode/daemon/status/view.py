"""What a node says of itself: to the command line, to Prometheus, to its peers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from swarmnode import __version__
from swarmnode.daemon.exchange.history import InThread, Meetings, SwarmMixing
from swarmnode.daemon.membership.report import (
    LINE_BYTES_PER_S,
    STEP_TIME_S,
    SelfReport,
    finite_or_none,
)
from swarmnode.daemon.status.phases import (
    Idle,
    Listening,
    Member,
    Outside,
    PeerView,
    Serving,
    Training,
    Work,
)
from swarmnode.daemon.volunteer.totals import Given, TotalsView
from swarmnode.errors import NotRunning
from swarmnode.ids import PeerId
from swarmnode.net.paths import path_of
from swarmnode.net.session import Session
from swarmnode.protocol.connectivity import Bootstrap, Connectivity, LineFacts, Way, judge
from swarmnode.store.volunteer import Mark
from swarmnode.telemetry.metrics import Histogram
from swarmnode.tensor.codec import active_isa
from swarmnode.wire.membership import PeerState
from swarmnode.wire.session import Priority

if TYPE_CHECKING:
    from swarmnode.daemon.volunteer.rules import Volunteer

PLANES = {Priority.CONTROL: "control", Priority.STATE: "state", Priority.BULK: "tensor"}

STARTING = Connectivity("alone", "starting", "starting")
_LOOPBACK = ("127.", "[::1]")
METRICS_SERVICE = "metrics/1"  # where members ask each other for their metrics


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
    addresses: tuple[str, ...]
    uptime_s: float
    device: str
    codec: str
    native_isa: str
    data: str  # what is trained on, in words; "" without a worker
    sandbox: str  # what the worker has given up, in words; "" without one
    step: int
    tokens: int
    loss: float | None
    eval_loss: float | None
    swarm_loss: float | None
    step_time_s: float | None
    pause_median_s: float | None  # of steps that waited for views and merges
    pause_max_s: float | None
    role: str
    peers_known: int
    peers_alive: int
    peers_connected: int
    dht_contacts: int
    state_fingerprint: str
    swarm_steps: int
    swarm_tokens: int
    clock_skew_s: float | None  # how far the clocks of the neighbours are ahead
    alarm: str
    exchanges_committed: int
    exchanges_applied: int
    exchanges_aborted: int
    exchanges_declined: int
    exchanges_in_doubt: int
    exchanges_half_applied: int
    payloads_refused: int  # of others, implausibly large
    staleness_steps_mean: float | None
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    worker_restarts: int
    snapshot_step: int | None
    snapshot_path: str | None
    strategy: dict[str, float]  # the strategy's own figures
    swarm_lambda2: float | None
    swarm_chi1: float | None
    swarm_chi2: float | None
    paused_by: tuple[str, ...]  # the codes of all that holds training, the first one first
    paused_until_unix_s: float | None  # None: nothing holds, or it is not known
    node_name: str
    totals: TotalsView  # what this node gave, over all its lives
    target_tokens: int = 0  # of the whole swarm; 0: it has no end
    lr_factor: float | None = None  # of the task's learning rate, now; None: no recipe
    # What left and came over the line, with all headers, by what it was for: relayed bytes too.
    line_sent_bytes: dict[str, int] = {}
    line_received_bytes: dict[str, int] = {}
    connectivity: Connectivity = STARTING
    bootstraps: tuple[Bootstrap, ...] = ()  # the addresses that the node was given
    exchange_s_mean: float | None = None  # of those that committed, means too: rounds follow it
    line_bytes_per_s: float | None = None  # what the uplink carried of rounds, as it was measured
    follows_line: str = ""  # how rounds of means follow a thin line, in words; "": there is none
    held_step: int | None = None  # the swarm's, of the furthest snapshot held, own or another's


class NodeView:
    """Reads the phases of a node; holds only what no part keeps.

    Attributes:
        node: what is there from the start to the end.
        membership: whether the node is in its swarm.
        work: whether it trains.
        waiting_for: the next phase, in words.
        is_leaving: the node goes, whatever phase it is in.
        has_peers_model: this life began with it.
    """

    def __init__(self, node: Listening) -> None:
        self.node = node
        self.membership: Outside | Member = Outside()
        self.work: Work = Idle()
        self.waiting_for = "starting"
        self.is_leaving = self.has_peers_model = False
        self.exchange_duration = Histogram()
        self.last_exchange_unix_s: float | None = None
        self.meetings = Meetings()
        self.mixing = SwarmMixing()
        # Bytes of sessions that are closed: a counter must not fall when a peer leaves.
        self.closed_sent: Counter[str] = Counter()
        self.closed_received: Counter[str] = Counter()
        self._closed_at = node.started_monotonic_s  # the last session that has ended

    def count_closed(self, session: Session) -> None:
        """Keep the byte counts of a session that ends."""
        self._closed_at = trio.current_time()
        _add_bytes(session, self.closed_sent, self.closed_received)

    def member(self) -> Member:
        """Return the parts of a node in its swarm. Raises NotRunning: it is not there yet."""
        match self.membership:
            case Member() as member:
                return member
        raise NotRunning(f"this node is not in its swarm yet: {self.waiting_for}")

    def training(self) -> Training:
        """Return the parts of a node that trains. Raises NotRunning: it does not yet."""
        match self.work:
            case Training() as training:
                return training
        raise NotRunning(f"this node does not train yet: {self.waiting_for}")

    def state(self) -> tuple[PeerState, str]:
        """Return the state and the reason for it, in words."""
        if self.is_leaving:
            return "left", "leaving the swarm"
        match self.work:
            case Training(trainer=trainer):
                return trainer.state, trainer.reason
            case Serving():
                return "serving", f"as a {self.node.role}: no worker runs here"
        verdict = self.node.volunteer.verdict
        if not verdict.may_carry_tensors:
            return "paused", verdict.sentence()
        return "syncing", self.waiting_for

    def report(self, addresses: tuple[str, ...], now: float) -> SelfReport:
        """Return what the swarm is told; ``now`` is monotonic."""
        state, _ = self.state()
        work = self.work.figures()
        report = SelfReport(
            self.node.role,
            state,
            addresses,
            {
                "steps": work.step,
                "tokens": work.tokens,
                "exchanges": self.work.committed(),
                "seconds": int(now - self.node.started_monotonic_s),
            },
            {
                "loss": work.loss,
                "eval_loss": work.eval_loss,
                STEP_TIME_S: work.step_time_s,
                LINE_BYTES_PER_S: self._line_bytes_per_s(),
            },
            self.work.swarm_step(),
            self.meetings.said(now),
            *self.work.slow_weights(),
            self.node.node_name,
        )
        return self.membership.completed(report)

    def node_status(self, now: float) -> NodeStatus:
        """Return everything that ``status`` shows; ``now`` is monotonic."""
        state, reason = self.state()
        node, work, swarm = self.node, self.work.figures(), self.membership.figures()
        sent, received = self.bytes_by_plane()
        results, connectivity = self.work.exchange_results(), self.connectivity(now)
        mixing, verdict = self.mixing.figures, node.volunteer.verdict
        return NodeStatus(
            swarm=node.swarm,
            peer=str(node.self_id),
            state=state,
            reason=reason,
            version=__version__,
            pid=os.getpid(),
            worker_pid=work.worker_pid,
            address=node.network.address,
            addresses=node.addresses(),
            uptime_s=now - node.started_monotonic_s,
            device=work.device,
            codec=self.membership.terms.codec,
            native_isa=active_isa(),
            data=work.data,
            sandbox=work.sandbox,
            step=work.step,
            tokens=work.tokens,
            loss=work.loss,
            eval_loss=work.eval_loss,
            swarm_loss=self._swarm_loss(work.eval_loss),
            step_time_s=work.step_time_s,
            pause_median_s=work.pause_median_s,
            pause_max_s=work.pause_max_s,
            role=node.role,
            peers_known=swarm.known,
            peers_alive=swarm.alive,
            peers_connected=swarm.connected,
            dht_contacts=node.discovery.core.statistics().contacts,
            state_fingerprint=swarm.fingerprint,
            swarm_steps=swarm.steps,
            swarm_tokens=swarm.tokens,
            clock_skew_s=swarm.clock_skew_s,
            alarm=self._alarm(connectivity, now),
            exchanges_committed=results["committed"],
            exchanges_applied=work.applied,
            exchanges_aborted=results["aborted"],
            exchanges_declined=results["busy"],
            exchanges_in_doubt=results["in_doubt"],
            exchanges_half_applied=self.work.half_applied(),
            payloads_refused=sum(self.work.refused_payloads().values()),
            staleness_steps_mean=work.staleness_steps / work.applied if work.applied else None,
            sent_bytes=sent,
            received_bytes=received,
            worker_restarts=work.restarts,
            snapshot_step=work.snapshot_step,
            snapshot_path=work.snapshot_path,
            strategy=dict(work.strategy),
            swarm_lambda2=finite_or_none(mixing.lambda2) if mixing else None,
            swarm_chi1=finite_or_none(mixing.chi1) if mixing else None,
            swarm_chi2=finite_or_none(mixing.chi2) if mixing else None,
            paused_by=verdict.reasons,
            paused_until_unix_s=verdict.until_unix_s,
            node_name=node.node_name,
            totals=node.totals.shown(self.given()),
            target_tokens=swarm.target_tokens,
            lr_factor=swarm.lr_factor,
            line_sent_bytes=node.volunteer.traffic.up.by_purpose(),
            line_received_bytes=node.volunteer.traffic.down.by_purpose(),
            connectivity=connectivity,
            held_step=self._held_step(),
            **self._line_figures(),
        )

    def note_met(self, peers: Collection[PeerId], now: float, unix_s: float) -> None:
        """An exchange or a mean with these has committed; this node may be among them."""
        for peer in peers:
            if peer != self.node.self_id:
                self.meetings.note(peer, now)
        self.last_exchange_unix_s = unix_s

    def _exchange_s_mean(self) -> float | None:
        took = self.exchange_duration.snapshot()
        return took.sum / sum(took.counts) if any(took.counts) else None

    def _line_bytes_per_s(self) -> float | None:
        match self.work:
            case Training(handlers=handlers):
                return float(f"{handlers.groups.runs.rate.bytes_per_s:.2g}") or None
        return None

    def _held_step(self) -> int | None:
        match self.membership:
            case Member(snapshots=snapshots):
                return max((claim.step for claim in snapshots.claims.values()), default=None)
        return None

    def _line_figures(self) -> dict[str, Any]:
        """Return the fields of the status that say who is called, how exchanges follow the line."""
        found = {
            "bootstraps": self.bootstraps(),
            "exchange_s_mean": self._exchange_s_mean(),
            "line_bytes_per_s": self._line_bytes_per_s(),
        }
        match self.work:
            case Training(handlers=handlers):
                return {**found, "follows_line": handlers.groups.follows_line}
        return found

    def connectivity(self, now: float) -> Connectivity:
        """Return how this node is connected; ``now`` is monotonic."""
        network, nat, own = self.node.network, self.node.nat(), self.node.own_addresses()
        open_ = {peer: each for peer, each in network.sessions.items() if not each.is_suspended}
        return judge(
            LineFacts(
                ways=tuple(_way_of(each, self._role_of(peer)) for peer, each in open_.items()),
                lost=len(network.sessions) - len(open_),
                bootstraps=self.bootstraps(),
                unreached=len(network.dial_errors),
                has_network=network.address.startswith(_LOOPBACK)
                or not (own and all(each.startswith(_LOOPBACK) for each in own)),
                is_reached=nat.reachable,
                relays_held=nat.relays_held,
                relays_refusing=nat.relays_refusing,
                quiet_s=now - self._closed_at,
            )
        )

    def bootstraps(self) -> tuple[Bootstrap, ...]:
        """Return the addresses of others that this node was given, and what came of each."""
        network, own_id = self.node.network, self.node.self_id
        return tuple(
            Bootstrap(
                str(hint.peer),
                hint.address,
                hint.peer in network.sessions and not network.sessions[hint.peer].is_suspended,
                *network.dial_failures.of(hint.address),
            )
            for hint in self.node.hints
            if hint.peer != own_id
        )

    def _role_of(self, peer: PeerId) -> str:
        match self.membership:
            case Member(part=part):
                return part.peer_report(peer).role or ""
        return ""

    def given(self) -> Given:
        """Return what this node gave since it started, and the step that it is at."""
        sent, received = self.bytes_by_plane()
        work = self.work.figures()
        return Given(
            mark=Mark(work.step, work.tokens) if work.is_up else None,
            is_anew=self.has_peers_model,
            is_training=self.state()[0] == "training",
            exchanges=self.work.committed(),
            sent_bytes=sum(sent.values()),
            received_bytes=sum(received.values()),
        )

    async def look_at_mixing(self, in_thread: InThread) -> None:
        """Bring the figures of the exchange graph up to date: for callers that ask for them."""
        match self.membership:
            case Member() as member:
                said = member.said_meetings()
                said[self.node.self_id] = self.meetings.said(trio.current_time()) or ""
                await self.mixing.refresh(said, in_thread)

    def peers(self) -> list[PeerView]:
        """Return all peers in the swarm that we know, connected ones first."""
        errors = {str(peer): str(error) for peer, error in self.node.network.dial_errors.items()}
        views = [
            msgspec.structs.replace(view, error="" if view.connected else errors.get(view.peer, ""))
            for view in self.membership.peers()
        ]
        return sorted(views, key=lambda view: (not view.connected, view.peer))

    def standstills(self, now: float) -> Mapping[str, str]:
        """Return what of the training together stands still, a sentence for each kind."""
        if self.state()[0] != "training":
            return {}  # a node that rests is in no round
        return self.work.standstills(now)

    def bytes_by_plane(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return what was sent and received on all sessions, open and closed."""
        sent, received = Counter(self.closed_sent), Counter(self.closed_received)
        for session in self.node.network.sessions.values():
            _add_bytes(session, sent, received)
        return (
            {plane: sent[plane] for plane in PLANES.values()},
            {plane: received[plane] for plane in PLANES.values()},
        )

    def _alarm(self, line: Connectivity, now: float) -> str:
        """What a person should look at, "" if nothing."""
        found = [
            self.node.key_guard.alarm,
            f"{line.state}: {line.why}; see `netcheck`" if line.is_alarming else "",
            *self.membership.alarms(),
            *self.work.alarms(),
            *self.standstills(now).values(),
        ]
        return "; ".join(filter(None, found))

    def _swarm_loss(self, own: float | None) -> float | None:
        """Mean probe loss of all members that train: other peers' numbers are their own word."""
        losses = [loss for loss in (own, *self.membership.losses()) if loss is not None]
        return sum(losses) / len(losses) if losses else None


class Owned(Protocol):
    """A node whose owner may pause it."""

    view: NodeView
    volunteer: Volunteer

    def finish(self) -> None:
        """Complete what runs, then stop."""


def in_one_line(status: NodeStatus) -> str:
    """Return what a node does, for a person who looks at its terminal now and then."""
    losses = (status.eval_loss, status.swarm_loss)
    loss, swarm = ("-" if value is None else f"{value:.4f}" for value in losses)
    return (
        f"{status.state} ({status.reason}): step {status.step:,}, held-out loss {loss},"
        f" swarm {swarm}, {status.peers_connected} peers, {status.exchanges_committed} exchanges"
    )


def _way_of(session: Session, role: str) -> Way:
    way = session.channel_description
    path = path_of(way)
    address = way.partition(" ")[2] if path in ("direct", "punched-tcp") else ""
    return Way(path, address.rpartition(":")[0].strip("[]"), role == "relay")


def _add_bytes(session: Session, sent: Counter[str], received: Counter[str]) -> None:
    core = session.statistics().core
    for priority, plane in PLANES.items():
        sent[plane] += core.sent_bytes[priority]
        received[plane] += core.received_bytes[priority]
