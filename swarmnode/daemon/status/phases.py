"""The phases of a node's life, each a record that is complete when it exists.

::

    Listening, for as long as the node runs: sessions, the DHT, the owner's rules
      in its swarm    Outside ---> Member
      at work         Idle ------> Training, or Serving in a role without a worker

A node is asked for its status in every phase. What is not there yet answers too, with nothing: no
reader has to know how far the node has come. A caller that needs the parts themselves asks
``NodeView`` for the phase, and is told what the node waits for if it has not come to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import msgspec

from swarmnode import limits
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.exchange.intent_handlers import IntentHandlers, other_base_alarm
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.membership.assignment import ShardAssigner
from swarmnode.daemon.membership.progress import NoProgress, ProgressWatch
from swarmnode.daemon.membership.report import STEP_TIME_S, PeerReport, SelfReport, finite_or_none
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.snapshots.blobs import Blobs
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.daemon.transport.key_guard import KeyGuard
from swarmnode.daemon.transport.network import Network
from swarmnode.daemon.volunteer.rules import Volunteer
from swarmnode.daemon.volunteer.totals import TotalsKeeper
from swarmnode.daemon.worker.briefing import data_alarm, data_in_words
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.ids import PeerId
from swarmnode.names import default_name
from swarmnode.net.paths import path_of
from swarmnode.net.session import Session
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.protocol.plausible import bounded_losses
from swarmnode.protocol.swarm import Hint
from swarmnode.protocol.trust import NEUTRAL
from swarmnode.telemetry.nat import NatSnapshot
from swarmnode.wire.admission import Role
from swarmnode.wire.swarm import Manifest

if TYPE_CHECKING:
    from swarmnode.daemon.collective.finalize import Finalizer


class PeerView(msgspec.Struct, frozen=True):
    """One line of ``swarmnode peers``. Numbers of other peers are what they say themselves.

    But for those of trust, which this node has measured; see ``protocol/trust.py``.
    """

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
    trust: float = NEUTRAL  # with what others say of it
    useful: int = 0  # contacts
    refused: int = 0
    slow: int = 0
    copied: int = 0  # messages of gatherings that were copies
    error: str = ""  # why it could not be reached when it was last tried


@dataclass(kw_only=True)
class Listening:
    """What is there from the start to the end.

    Attributes:
        node_name: the owner's choice, or two words of the id.
        addresses: where others can dial us.
        own_addresses: those of this machine among them.
    """

    network: Network
    discovery: Discovery
    key_guard: KeyGuard
    self_id: PeerId
    swarm: str
    role: Role
    node_name: str
    started_monotonic_s: float
    started_unix_s: float
    totals: TotalsKeeper
    volunteer: Volunteer
    nat: Callable[[], NatSnapshot]
    addresses: Callable[[], tuple[str, ...]]
    own_addresses: Callable[[], tuple[str, ...]]
    hints: tuple[Hint, ...] = ()  # where the owner and the link say that others are


# --- in the swarm -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SwarmTerms:
    """What the manifest says that is shown; empty until it is known."""

    task: str = ""
    strategy: str = ""
    codec: str = ""
    numel: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> SwarmTerms:
        """Return those of a manifest."""
        return cls(manifest.task, manifest.strategy, manifest.codec, manifest.numel)


@dataclass(frozen=True)
class SwarmFigures:
    """The swarm in numbers; those of a node that is not in it are nothing."""

    known: int = 0  # other members, those that have gone among them
    alive: int = 0  # other members
    connected: int = 0
    fingerprint: str = ""
    steps: int = 0
    tokens: int = 0
    clock_skew_s: float | None = None  # how far the clocks of the neighbours are ahead
    target_tokens: int = 0  # 0: it has no end
    lr_factor: float | None = None  # of the task's learning rate, now; None: no recipe


@dataclass(frozen=True)
class Outside:
    """The node is not in its swarm yet: it looks for the manifest, or has it just now."""

    terms: SwarmTerms = SwarmTerms()

    def figures(self) -> SwarmFigures:
        """Return nothing."""
        return SwarmFigures()

    def completed(self, report: SelfReport) -> SelfReport:
        """Return what the swarm is told, as it is."""
        return report

    def peers(self) -> list[PeerView]:
        """Return no peer."""
        return []

    def losses(self) -> Sequence[float]:
        """Return what no other member has said."""
        return ()

    def alarms(self) -> Sequence[str]:
        """Return nothing: no clock to compare with, no state to write down."""
        return ()


@dataclass(frozen=True)
class Member:
    """The node is in its swarm, and knows what the others say."""

    self_id: PeerId
    manifest: Manifest
    part: SwarmPart
    blobs: Blobs
    snapshots: Snapshots
    progress: ProgressWatch | NoProgress

    @property
    def terms(self) -> SwarmTerms:
        """What the manifest says that is shown."""
        return SwarmTerms.of(self.manifest)

    def figures(self) -> SwarmFigures:
        """Return the swarm in numbers."""
        part = self.part
        totals = part.totals()
        return SwarmFigures(
            known=len(self._known()),
            alive=len(part.members.live()) - 1,
            connected=sum(not each.is_suspended for each in part.sessions.values()),
            fingerprint=part.state.fingerprint(),
            steps=totals.steps,
            tokens=totals.tokens,
            clock_skew_s=part.state.core.statistics().clock_skew_s,
            target_tokens=self.progress.target.horizon.target_tokens,
            lr_factor=self.progress.lr_factor(),
        )

    def completed(self, report: SelfReport) -> SelfReport:
        """Return what the swarm is told, and how far it is itself."""
        return self.progress.completed(report)

    def peers(self) -> list[PeerView]:
        """Return all peers that the contact book or the failure detector knows, in id order."""
        return [_peer_view(self.part, peer) for peer in self._known()]

    def losses(self) -> Sequence[float]:
        """Return the probe losses of the other members that train: their own word, bounded."""
        others = (self.part.peer_report(p) for p in self.part.partners() if p != self.self_id)
        said = [each.numbers["eval_loss"] for each in others if "eval_loss" in each.numbers]
        return bounded_losses(said)

    def said_meetings(self) -> dict[PeerId, str]:
        """Return the partners that each member that trains says it exchanges with."""
        return {peer: self.part.peer_report(peer).met for peer in self.part.partners()}

    def alarms(self) -> Sequence[str]:
        """Return what is wrong with the clock, and with the disk that the state is written to."""
        found = []
        state = self.part.state
        skew_s = state.core.statistics().clock_skew_s or 0.0
        if abs(skew_s) > limits.CLOCK_ALARM_S:
            side = "behind" if skew_s > 0 else "ahead of"
            found.append(
                f"this machine's clock is {_in_words(abs(skew_s))} {side} that of its"
                " neighbours: check which is right, what a wrong clock dates is not believed"
            )
        if state.disk_failure:
            found.append(f"the shared state is not written down: {state.disk_failure}")
        return found

    def _known(self) -> list[PeerId]:
        members = self.part.members
        return sorted({*members.book.entries, *members.detector.members()})


def _peer_view(part: SwarmPart, peer: PeerId) -> PeerView:
    report = part.peer_report(peer)
    liveness = part.members.detector.state_of(peer)
    counts = part.trust.counts(peer)
    view = PeerView(
        peer=str(peer),
        connected=False,
        path="",
        way="",
        addresses=report.addresses or part.members.book.addresses_of(peer),
        role=report.role or "unknown",
        alive=str(liveness) if liveness is not None else "unknown",
        state=_shown_state(report, liveness),
        step=report.counters.get("steps", 0),
        tokens=report.counters.get("tokens", 0),
        eval_loss=report.numbers.get("eval_loss"),
        version=report.version,
        rtt_s=None,
        step_time_s=report.numbers.get(STEP_TIME_S),
        name=report.name or default_name(peer),
        trust=part.trust_in(peer),
        useful=counts.useful,
        refused=counts.refused,
        slow=counts.slow,
        copied=counts.copied,
    )
    return _with_session(view, part.sessions[peer]) if peer in part.sessions else view


def _with_session(view: PeerView, session: Session) -> PeerView:
    return msgspec.structs.replace(
        view,
        connected=not session.is_suspended,
        path=path_of(session.channel_description),
        way=session.channel_description,
        rtt_s=session.statistics().rtt_s,
    )


def _shown_state(report: PeerReport, liveness: MemberState | None) -> str:
    """What a peer says of itself, unless it is gone and cannot say so."""
    if liveness in (MemberState.DEAD, MemberState.LEFT):
        return str(liveness)
    return report.state or "unknown"


def _in_words(seconds: float) -> str:
    return f"{seconds / 86_400:.0f} days" if seconds > 2 * 86_400 else f"{seconds / 3600:.1f} hours"


# --- at work ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkFigures:
    """The worker in numbers; those of a node without one are nothing."""

    worker_pid: int | None = None
    is_up: bool = False  # it has said that it is ready
    device: str = ""
    threads: int = 0
    torch_version: str = ""
    data: str = ""  # what is trained on, in words
    sandbox: str = ""  # what the worker has given up, in words
    step: int = 0
    tokens: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    step_time_s: float | None = None  # the running mean; None before the first one
    pause_median_s: float | None = None  # of steps that waited for views and merges
    pause_max_s: float | None = None
    strategy: Mapping[str, float] = field(default_factory=dict)  # the strategy's own figures
    applied: int = 0
    staleness_steps: int = 0  # of those applied, summed
    restarts: int = 0
    snapshot_step: int | None = None
    snapshot_path: str | None = None


class Work:
    """What a node without a worker says of its work: nothing.

    Attributes:
        has_worker: so that there is something to pause.
    """

    has_worker: ClassVar[bool] = False

    def figures(self) -> WorkFigures:
        """Return nothing."""
        return WorkFigures()

    def committed(self) -> int:
        """Return how many exchanges, means of groups and gatherings have committed."""
        return 0

    def exchange_results(self) -> dict[str, int]:
        """Return exchanges, means of groups and gatherings by how they ended."""
        return {"committed": 0, "aborted": 0, "busy": 0, "in_doubt": 0}

    def half_applied(self) -> int:
        """Return how many exchanges count on one side only."""
        return 0

    def refused_payloads(self) -> dict[str, int]:
        """Return payloads of others that were implausibly large, by the kind of exchange."""
        return {"pair": 0, "group": 0, "pull": 0}

    def swarm_step(self) -> int:
        """How far the swarm is, as the worker counts on."""
        return 0

    def slow_weights(self) -> tuple[str, str]:
        """Return their lineage and their sketches, as others are told."""
        return "", ""

    def alarms(self) -> Sequence[str]:
        """Return what a person should look at."""
        return ()

    def standstills(self, now: float) -> Mapping[str, str]:  # noqa: ARG002
        """Return what of the training together stands still, a sentence for each kind."""
        return {}


class Idle(Work):
    """No worker runs here yet."""


class Serving(Work):
    """The node is in a role without a worker: none will ever run here."""


@dataclass(eq=False)
class Training(Work):
    """The node trains: its worker, and what exchanges for it.

    ``merge_runs`` are those of what ``make_finalizer`` makes, once a merge is asked for.
    """

    has_worker: ClassVar[bool] = True
    part: SwarmPart
    trainer: Trainer
    exchanges: Exchanges
    handlers: IntentHandlers
    merge_runs: GroupRuns
    make_finalizer: Callable[[], Finalizer]
    assigner: ShardAssigner

    @cached_property
    def finalizer(self) -> Finalizer:
        """What merges all members' models."""
        return self.make_finalizer()

    def figures(self) -> WorkFigures:
        """Return what the worker said last; a new one goes on counting where it begins."""
        trainer, ready, progress = self.trainer, self.trainer.ready, self.trainer.progress
        found = WorkFigures(
            worker_pid=trainer.worker_pid,
            data=data_in_words(trainer.configure, ready),
            applied=trainer.applications.applied,
            staleness_steps=trainer.applications.staleness_steps,
            restarts=trainer.restarts,
        )
        if trainer.pauses_s:
            found = replace(
                found,
                pause_median_s=statistics.median(trainer.pauses_s),
                pause_max_s=max(trainer.pauses_s),
            )
        if (snapshot := trainer.last_snapshot) is not None:
            found = replace(found, snapshot_step=snapshot.step, snapshot_path=snapshot.path)
        if ready is not None:
            found = replace(
                found,
                is_up=True,
                device=ready.device,
                threads=ready.threads,
                torch_version=ready.torch_version,
                sandbox=ready.sandbox,
                step=ready.step,
                tokens=ready.tokens,
            )
        if progress is not None:
            found = replace(
                found,
                step=progress.step,
                tokens=progress.tokens,
                loss=finite_or_none(progress.loss),
                eval_loss=finite_or_none(progress.eval_loss),
                step_time_s=finite_or_none(progress.step_time_s),
                strategy=_finite(progress.strategy),
            )
        return found

    def committed(self) -> int:
        """Return how many exchanges, means of groups and gatherings have committed."""
        return self.exchanges.totals.committed + self.handlers.rounds.committed_total

    def exchange_results(self) -> dict[str, int]:
        """Return exchanges, means of groups and gatherings by how they ended."""
        pairs, means = self.exchanges.core.statistics(), self.handlers.rounds.runs.statistics()
        results = {
            "committed": self.handlers.rounds.committed_total,
            "aborted": sum(means.aborted_total.values()),
            "busy": 0,
            "in_doubt": pairs.in_doubt_total + means.in_doubt_total,
        }
        for (_, outcome, _), count in pairs.finished_total.items():
            results["busy" if outcome == "declined" else str(outcome)] += count
        return results

    def half_applied(self) -> int:
        """Return how many exchanges count on one side only."""
        return self.exchanges.core.statistics().half_applied_total

    def refused_payloads(self) -> dict[str, int]:
        """Return payloads of others that were implausibly large, by the kind of exchange."""
        return {
            "pair": self.exchanges.totals.refused,
            "group": self.handlers.groups.payloads_refused_total,
            "pull": self.handlers.pulls.refused_total,
        }

    def swarm_step(self) -> int:
        """How far the swarm is: our own steps, counted on from where it was when we came in."""
        figures = self.figures()
        return min(self._ahead_steps + figures.step, limits.STEP_MAX) if figures.is_up else 0

    @cached_property
    def _ahead_steps(self) -> int:
        """How far the swarm was before our worker's first step."""
        return max(0, self.part.swarm_step() - self.figures().step)

    def slow_weights(self) -> tuple[str, str]:
        """Return their lineage and their sketches, as others are told."""
        return self.handlers.lineages.text, self.handlers.lineages.sketches.said

    def alarms(self) -> Sequence[str]:
        """Return what a person should look at, but for what stands still."""
        finished = self.exchanges.core.statistics().finished_total
        found = [
            other_base_alarm(finished, self.committed()),
            data_alarm(self.trainer.configure, self.trainer.ready),
        ]
        if self.trainer.snapshot_failure is not None:
            found.append(f"no snapshot can be written: {self.trainer.snapshot_failure.message}")
        return found

    def standstills(self, now: float) -> Mapping[str, str]:
        """Return what of the training together stands still, a sentence for each kind."""
        return self.handlers.standstills(now)


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    finite = [(name, value) for name, value in figures.items() if math.isfinite(value)]
    return dict(sorted(finite)[: limits.STRATEGY_FIGURES_MAX])
