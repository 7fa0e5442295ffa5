"""What a node says of itself: to the command line, to Prometheus, to its peers."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import trio

from swarmnode import __version__, limits
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.exchange.group.groups import Groups
from swarmnode.daemon.exchange.intent_handlers import IntentHandlers
from swarmnode.daemon.exchange.merge.finalize import Finalizer
from swarmnode.daemon.exchange.mixing import InThread, Meetings, SwarmMixing
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.exchange.standstill import find_standstills, other_base_alarm
from swarmnode.daemon.membership.assignment import ShardAssigner
from swarmnode.daemon.membership.progress import ProgressWatch
from swarmnode.daemon.membership.report import STEP_TIME_S, PeerReport, SelfReport
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.snapshots.blobs import Blobs
from swarmnode.daemon.status.peer_metrics import PeerMetrics
from swarmnode.daemon.transport.key_guard import KeyGuard
from swarmnode.daemon.transport.network import Network
from swarmnode.daemon.volunteer.rules import Volunteer
from swarmnode.daemon.volunteer.totals import Given, TotalsKeeper, TotalsView
from swarmnode.daemon.worker.briefing import data_alarm, data_in_words
from swarmnode.daemon.worker.trainer import Trainer, finite_or_none
from swarmnode.ids import PeerId
from swarmnode.names import default_name
from swarmnode.net.paths import path_of
from swarmnode.net.session import Session
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.store.totals import Mark
from swarmnode.telemetry.metrics import Histogram, LimitsSnapshot
from swarmnode.telemetry.nat import NatSnapshot
from swarmnode.tensor.codec import active_isa
from swarmnode.wire.admission import Role
from swarmnode.wire.membership import PeerState
from swarmnode.wire.session import Priority
from swarmnode.wire.swarm import Manifest

PLANES = {Priority.CONTROL: "control", Priority.STATE: "state", Priority.BULK: "tensor"}


class PeerView(msgspec.Struct, frozen=True):
    """One line of ``swarmnode peers``. Numbers of other peers are what they say themselves."""

    peer: str
    connected: bool
    path: str  # direct, punched-tcp, rtc or relay; "" without a session
    way: str  # the same with the address or the relay, for people
    addresses: tuple[str, ...]
    role: str
    alive: str  # alive, suspect, dead, left, or unknown
    state: str
    step: int
    tokens: int
    eval_loss: float | None
    version: str
    rtt_s: float | None
    step_time_s: float | None = None  # of a local step
    name: str = ""  # its own or two words of its id: two may be called the same


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
    step: int
    tokens: int
    loss: float | None
    eval_loss: float | None
    swarm_loss: float | None
    step_time_s: float | None
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
    paused_until_unix_s: float | None  # None: nothing holds, or nobody knows
    node_name: str
    totals: TotalsView  # what this node gave, over all its lives
    target_tokens: int = 0  # of the whole swarm; 0: it has no end
    lr_factor: float | None = None  # of the task's learning rate, now; None: no recipe


@dataclass
class NodeView:
    """Reads the parts of a node; holds only what no part keeps."""

    network: Network
    discovery: Discovery
    key_guard: KeyGuard
    self_id: PeerId
    swarm: str
    started_monotonic_s: float
    started_unix_s: float
    exchange_duration: Histogram
    role: Role = "trainer"
    node_name: str = ""  # the owner's choice, or two words of the id
    totals: TotalsKeeper | None = None  # None: nobody counts
    manifest: Manifest | None = None
    part: SwarmPart | None = None
    trainer: Trainer | None = None
    exchanges: Exchanges | None = None
    finalizer: Finalizer | None = None
    groups: Groups | None = None
    handlers: IntentHandlers | None = None
    assigner: ShardAssigner | None = None
    progress_watch: ProgressWatch | None = None  # None: the swarm has no recipe
    blobs: Blobs | None = None
    peer_metrics: PeerMetrics | None = None
    nat: Callable[[], NatSnapshot] = NatSnapshot
    volunteer: Volunteer | None = None
    owner_limits: Callable[[], LimitsSnapshot] | None = None  # None: nobody looks after them
    address: str = ""
    addresses: Callable[[], tuple[str, ...]] = tuple  # where others can dial us
    own_addresses: Callable[[], tuple[str, ...]] = tuple  # those of this machine among them
    last_exchange_unix_s: float | None = None
    leaving: bool = False
    has_peers_model: bool = False  # this life began with it
    is_serving: bool = False  # in a role without a worker
    waiting_for: str = "starting"

    def __post_init__(self) -> None:
        self._ahead_steps: int | None = None  # how far the swarm was before our worker's first step
        self.node_name = self.node_name or default_name(self.self_id)
        self.meetings = Meetings()
        self.mixing = SwarmMixing()
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
        if self.is_serving:
            return "serving", f"as a {self.role}: no worker runs here"
        if self.trainer is None:
            if self.volunteer is not None and not self.volunteer.verdict.may_carry_tensors:
                return "paused", self.volunteer.verdict.sentence()
            return "syncing", self.waiting_for
        return self.trainer.state, self.trainer.reason

    def report(self, addresses: tuple[str, ...], now: float) -> SelfReport:
        """Return what the swarm is told; ``now`` is monotonic."""
        state, _ = self.state()
        step, tokens, loss, eval_loss = self.progress()
        counters = {
            "steps": step,
            "tokens": tokens,
            "exchanges": self._committed(),
            "seconds": int(now - self.started_monotonic_s),
        }
        lineage = self.handlers.lineages.own if self.handlers is not None else None
        numbers = {"loss": loss, "eval_loss": eval_loss, STEP_TIME_S: self.step_time_s()}
        report = SelfReport(
            self.role,
            state,
            addresses,
            counters,
            numbers,
            self.swarm_step(step),
            self.meetings.said(now),
            lineage.said if lineage is not None else "",
            self.node_name,
        )
        return report if self.progress_watch is None else self.progress_watch.completed(report)

    def node_status(self, now: float) -> NodeStatus:
        """Return everything that ``status`` shows; ``now`` is monotonic."""
        state, reason = self.state()
        step, tokens, loss, eval_loss = self.progress()
        trainer = self.trainer
        sent, received = self.bytes_by_plane()
        results = self.exchange_results()
        totals = self.part.state.view.counters() if self.part is not None else {}
        applied = trainer.applications if trainer is not None else None
        snapshot = trainer.last_snapshot if trainer is not None else None
        mixing, watch = self.mixing.figures, self.progress_watch
        verdict = self.volunteer.verdict if self.volunteer is not None else None
        return NodeStatus(
            swarm=self.swarm,
            peer=str(self.self_id),
            state=state,
            reason=reason,
            version=__version__,
            pid=os.getpid(),
            worker_pid=trainer.worker_pid if trainer is not None else None,
            address=self.address,
            addresses=self.addresses(),
            uptime_s=now - self.started_monotonic_s,
            device=self.device(),
            codec=self.manifest.codec if self.manifest is not None else "",
            native_isa=active_isa(),
            data=data_in_words(trainer.configure, trainer.ready) if trainer is not None else "",
            step=step,
            tokens=tokens,
            loss=loss,
            eval_loss=eval_loss,
            swarm_loss=self._swarm_loss(eval_loss),
            step_time_s=self.step_time_s(),
            role=self.role,
            peers_known=len(self._known()),
            peers_alive=len(self.part.members.live()) - 1 if self.part is not None else 0,
            peers_connected=sum(not each.is_suspended for each in self._sessions().values()),
            dht_contacts=self.discovery.core.statistics().contacts,
            state_fingerprint=self.part.state.fingerprint() if self.part is not None else "",
            swarm_steps=totals.get("steps", 0),
            swarm_tokens=totals.get("tokens", 0),
            clock_skew_s=self._clock_skew_s(),
            alarm=self._alarm(now),
            exchanges_committed=results["committed"],
            exchanges_applied=applied.applied if applied is not None else 0,
            exchanges_aborted=results["aborted"],
            exchanges_declined=results["busy"],
            exchanges_in_doubt=results["in_doubt"],
            exchanges_half_applied=(
                self.exchanges.core.statistics().half_applied_total if self.exchanges else 0
            ),
            payloads_refused=sum(self.refused_payloads().values()),
            staleness_steps_mean=applied.staleness_steps_mean if applied is not None else None,
            sent_bytes=sent,
            received_bytes=received,
            worker_restarts=trainer.restarts if trainer is not None else 0,
            snapshot_step=snapshot.step if snapshot is not None else None,
            snapshot_path=snapshot.path if snapshot is not None else None,
            strategy=self.strategy_figures(),
            swarm_lambda2=finite_or_none(mixing.lambda2) if mixing else None,
            swarm_chi1=finite_or_none(mixing.chi1) if mixing else None,
            swarm_chi2=finite_or_none(mixing.chi2) if mixing else None,
            paused_by=verdict.reasons if verdict is not None else (),
            paused_until_unix_s=verdict.until_unix_s if verdict is not None else None,
            node_name=self.node_name,
            totals=self.totals.shown(self.given()) if self.totals else TotalsView(),
            target_tokens=watch.target.horizon.target_tokens if watch else 0,
            lr_factor=watch.lr_factor() if watch else None,
        )

    def given(self) -> Given:
        """Return what this node gave since it started, and the step that it is at."""
        sent, received = self.bytes_by_plane()
        step, tokens, _, _ = self.progress()
        is_up = self.trainer is not None and self.trainer.ready is not None
        return Given(
            mark=Mark(step, tokens) if is_up else None,
            is_anew=self.has_peers_model,
            is_training=self.state()[0] == "training",
            exchanges=self._committed(),
            sent_bytes=sum(sent.values()),
            received_bytes=sum(received.values()),
        )

    async def look_at_mixing(self, in_thread: InThread) -> None:
        """Bring the figures of the exchange graph up to date: for those who ask for them."""
        if self.part is not None:
            part = self.part
            said = {peer: part.peer_report(peer).met for peer in part.partners()}
            said[self.self_id] = self.meetings.said(trio.current_time()) or ""
            await self.mixing.refresh(said, in_thread)

    def peers(self) -> list[PeerView]:
        """Return everybody in the swarm whom we know, connected ones first."""
        views = [self._peer_view(peer) for peer in self._known()]
        return sorted(views, key=lambda view: (not view.connected, view.peer))

    # --- parts ----------------------------------------------------------------------------

    def _sessions(self) -> dict[PeerId, Session]:
        return self.part.sessions if self.part is not None else {}

    def _known(self) -> list[PeerId]:
        """Everybody whom the contact book or the failure detector knows, in id order."""
        if self.part is None:
            return []
        members = self.part.members
        return sorted({*members.book.entries, *members.detector.members()})

    def _peer_view(self, peer: PeerId) -> PeerView:
        assert self.part is not None
        session = self.part.sessions.get(peer)
        report = self.part.peer_report(peer)
        liveness = self.part.members.detector.state_of(peer)
        return PeerView(
            peer=str(peer),
            connected=session is not None and not session.is_suspended,
            path=path_of(session.channel_description) if session is not None else "",
            way=session.channel_description if session is not None else "",
            addresses=report.addresses or self.part.members.book.addresses_of(peer),
            role=report.role or "unknown",
            alive=str(liveness) if liveness is not None else "unknown",
            state=_shown_state(report, liveness),
            step=report.counters.get("steps", 0),
            tokens=report.counters.get("tokens", 0),
            eval_loss=report.numbers.get("eval_loss"),
            version=report.version,
            rtt_s=session.statistics().rtt_s if session is not None else None,
            step_time_s=report.numbers.get(STEP_TIME_S),
            name=report.name or default_name(peer),
        )

    def _clock_skew_s(self) -> float | None:
        return None if self.part is None else self.part.state.core.statistics().clock_skew_s

    def standstills(self, now: float) -> Mapping[str, str]:
        """Return what of the training together stands still, a sentence for each kind."""
        handlers = self.handlers
        if handlers is None or self.state()[0] != "training":
            return {}  # a node that rests is in no round
        return find_standstills(handlers.log, handlers.groups, handlers.lineages, now)

    def _alarm(self, now: float) -> str:
        """What somebody should look at, "" if nothing."""
        found = [self.key_guard.alarm]
        if self.part is not None:
            state = self.part.state
            skew_s = self._clock_skew_s() or 0.0
            if abs(skew_s) > limits.CLOCK_ALARM_S:
                side = "behind" if skew_s > 0 else "ahead of"
                found.append(
                    f"this machine's clock is {_in_words(abs(skew_s))} {side} that of its"
                    " neighbours: check which is right, what a wrong clock dates is not believed"
                )
            if state.disk_failure:
                found.append(f"the shared state is not written down: {state.disk_failure}")
        if self.exchanges is not None:
            finished = self.exchanges.core.statistics().finished_total
            found.append(other_base_alarm(finished, self._committed()))
        if self.trainer is not None:
            found.append(data_alarm(self.trainer.configure, self.trainer.ready))
            failed = self.trainer.snapshot_failure
            if failed is not None:
                found.append(f"no snapshot can be written: {failed.message}")
        found += self.standstills(now).values()
        return "; ".join(filter(None, found))

    def progress(self) -> tuple[int, int, float | None, float | None]:
        """Return step, tokens, training loss and probe loss of our worker."""
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

    def swarm_step(self, own: int) -> int:
        """How far the swarm is: our own steps, counted on from where it was when we came in."""
        if self.part is None or self.trainer is None or self.trainer.ready is None:
            return 0
        if self._ahead_steps is None:
            known = self.part.state.view.maxima().get("step", 0)
            self._ahead_steps = max(0, known - own)
        return min(self._ahead_steps + own, limits.STEP_MAX)

    def step_time_s(self) -> float | None:
        """Return the running mean of a step; None before the first one."""
        progress = self.trainer.progress if self.trainer is not None else None
        return finite_or_none(progress.step_time_s) if progress is not None else None

    def strategy_figures(self) -> dict[str, float]:
        """Return what the strategy says of itself."""
        progress = self.trainer.progress if self.trainer is not None else None
        figures = progress.strategy if progress is not None else {}
        finite = [(name, value) for name, value in figures.items() if math.isfinite(value)]
        return dict(sorted(finite)[: limits.STRATEGY_FIGURES_MAX])

    def _swarm_loss(self, own: float | None) -> float | None:
        """Mean probe loss of everybody who trains: other peers' numbers are their own word."""
        losses = [own] if own is not None else []
        if self.part is not None:
            others = (self.part.peer_report(p) for p in self.part.partners() if p != self.self_id)
            losses += [r.numbers["eval_loss"] for r in others if "eval_loss" in r.numbers]
        return sum(losses) / len(losses) if losses else None

    def torch_version(self) -> str:
        """Return the worker's torch, "" before it is up."""
        ready = self.trainer.ready if self.trainer is not None else None
        return ready.torch_version if ready is not None else ""

    def device(self) -> str:
        """Return what our worker computes on, "" before it is up."""
        ready = self.trainer.ready if self.trainer is not None else None
        return ready.device if ready is not None else ""

    def _committed(self) -> int:
        pairs = self.exchanges.totals.committed if self.exchanges is not None else 0
        return pairs + (self.groups.committed_total if self.groups is not None else 0)

    def exchange_results(self) -> dict[str, int]:
        """Return exchanges and means of groups by how they ended."""
        results = {"committed": 0, "aborted": 0, "busy": 0, "in_doubt": 0}
        if self.exchanges is not None:
            statistics = self.exchanges.core.statistics()
            for (_, outcome, _), count in statistics.finished_total.items():
                results["busy" if outcome == "declined" else str(outcome)] += count
            results["in_doubt"] = statistics.in_doubt_total
        if self.groups is not None:
            means = self.groups.runs.statistics()
            results["committed"] += self.groups.committed_total
            results["aborted"] += sum(means.aborted_total.values())
            results["in_doubt"] += means.in_doubt_total
        return results

    def refused_payloads(self) -> dict[str, int]:
        """Return payloads of others that were implausibly large, by the kind of exchange."""
        handlers = self.handlers
        return {
            "pair": self.exchanges.totals.refused if self.exchanges is not None else 0,
            "group": handlers.groups.payloads_refused_total if handlers is not None else 0,
            "pull": handlers.pulls.refused_total if handlers is not None else 0,
        }

    def bytes_by_plane(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return what was sent and received on all sessions, open and closed."""
        sent, received = Counter(self.closed_sent), Counter(self.closed_received)
        for session in self.network.sessions.values():
            _add_bytes(session, sent, received)
        return (
            {plane: sent[plane] for plane in PLANES.values()},
            {plane: received[plane] for plane in PLANES.values()},
        )


def _in_words(seconds: float) -> str:
    return f"{seconds / 86_400:.0f} days" if seconds > 2 * 86_400 else f"{seconds / 3600:.1f} hours"


def _shown_state(report: PeerReport, liveness: MemberState | None) -> str:
    """What a peer says of itself, unless it is gone and cannot say so."""
    if liveness in (MemberState.DEAD, MemberState.LEFT):
        return str(liveness)
    return report.state or "unknown"


def _add_bytes(session: Session, sent: Counter[str], received: Counter[str]) -> None:
    core = session.statistics().core
    for priority, plane in PLANES.items():
        sent[plane] += core.sent_bytes[priority]
        received[plane] += core.received_bytes[priority]
