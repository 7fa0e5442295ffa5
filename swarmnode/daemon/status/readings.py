"""Fills the metrics of this node: reads the statistics of its parts, counts nothing itself."""

from __future__ import annotations

import math
import platform
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from swarmnode import __version__, limits
from swarmnode.daemon.exchange.history import InThread
from swarmnode.daemon.membership.assignment import Shards
from swarmnode.daemon.membership.progress import ProgressWatch
from swarmnode.daemon.membership.report import PeerReport
from swarmnode.daemon.status.phases import Member, Training
from swarmnode.net.paths import path_of
from swarmnode.protocol.connectivity import BOOTSTRAP_STATES, tally
from swarmnode.protocol.plausible import bounded_losses
from swarmnode.telemetry.catalogue import FIGURE, METRICS_WORST_MAX, NAME, VERSION, WORD
from swarmnode.telemetry.logs import log_counts
from swarmnode.telemetry.machine import MachineSnapshot, read_machine
from swarmnode.telemetry.metrics import STATES
from swarmnode.telemetry.readings import Readings
from swarmnode.telemetry.remote import label_name
from swarmnode.tensor.codec import active_isa

if TYPE_CHECKING:
    from swarmnode.daemon.exchange.intent_handlers import IntentHandlers
    from swarmnode.daemon.exchange.pair.exchanges import Exchanges
    from swarmnode.daemon.membership.swarm import SwarmPart
    from swarmnode.daemon.snapshots.blobs import Blobs
    from swarmnode.daemon.status.view import NodeView
    from swarmnode.daemon.worker.trainer import Trainer
    from swarmnode.protocol.trust import Trust


@dataclass
class ReadingsDesk:
    """Makes the readings of one node; keeps what takes too long to find out at each scrape."""

    view: NodeView
    home: Path
    machine: MachineSnapshot = field(default_factory=MachineSnapshot)
    _looked_at: float = -math.inf
    _lock: trio.Lock = field(default_factory=trio.Lock)

    async def refresh(self, in_thread: InThread) -> None:
        """Look at the machine and at the graph of exchanges, at most every few seconds."""
        await self.look_at_machine(in_thread)
        await self.view.look_at_mixing(in_thread)

    async def look_at_machine(self, in_thread: InThread) -> None:
        """Bring what the machine says up to date."""
        async with self._lock:
            if trio.current_time() >= self._looked_at + limits.METRICS_MACHINE_S:
                pid = self.view.work.figures().worker_pid
                self.machine = await in_thread(partial(read_machine, self.home, pid))
                self._looked_at = trio.current_time()

    def read(self) -> Readings:
        """Return everything as it is now; it does not wait, and takes a few milliseconds."""
        readings, view = Readings(), self.view
        _node(readings, view)
        _machine(readings, self.machine)
        _limits(readings, view)
        _network(readings, view)
        _nat(readings, view)
        _dht(readings, view)
        _exchanges(readings, view)
        _training(readings, view)
        match view.membership:
            case Member() as member:
                _blobs(readings, member.blobs)
                _membership(readings, member.part)
                _shared_state(readings, member.part)
                _trust(readings, member.part.trust)
                _swarm(readings, view, member.part)
                _recipe(readings, member)
        return readings


def _node(readings: Readings, view: NodeView) -> None:
    state, _ = view.state()
    node, work = view.node, view.work.figures()
    readings.set(
        "build_info",
        1,
        _plain(__version__, VERSION),
        _plain(platform.python_version(), VERSION),
        _plain(work.torch_version, VERSION),
        _plain(active_isa(), WORD),
    )
    device = _plain(work.device, WORD)
    names = (_plain(node.swarm, NAME), node.role, device, view.membership.terms.strategy)
    readings.set("node_info", 1, node.self_id.short, *names, label_name(node.node_name))
    readings.set("start_timestamp_seconds", node.started_unix_s)
    readings.one_of("state", state)
    readings.each("log_messages_total", log_counts())


def _machine(readings: Readings, machine: MachineSnapshot) -> None:
    for process, use in machine.processes.items():
        readings.set("cpu_seconds_total", use.cpu_s, process)
        readings.set("resident_memory_bytes", use.resident_bytes or None, process)
    readings.set("disk_free_bytes", machine.disk_free_bytes)
    readings.set("disk_size_bytes", machine.disk_size_bytes)
    for number, gpu in machine.gpus.items():
        readings.set("gpu_utilization_ratio", gpu.busy_ratio, number)
        readings.set("gpu_memory_used_bytes", gpu.memory_used_bytes, number)
        readings.set("gpu_memory_size_bytes", gpu.memory_size_bytes, number)
        readings.set("gpu_temperature_celsius", gpu.celsius, number)


def _limits(readings: Readings, view: NodeView) -> None:
    held = view.node.volunteer.snapshot()
    readings.one_of("paused", *(held.paused or ("none",)))
    readings.each("limit_bytes_per_second", held.bytes_per_s)
    readings.set("quota_bytes", held.quota_bytes)
    readings.set("quota_used_bytes", held.quota_used_bytes)
    readings.each("throttled_seconds_total", held.throttled_s)
    for direction, purposes in held.line_bytes.items():
        for purpose, n_bytes in purposes.items():
            readings.set("line_bytes_total", n_bytes, direction, purpose)


def _network(readings: Readings, view: NodeView) -> None:
    sessions = view.node.network.sessions
    paths: Counter[str] = Counter(path_of(each.channel_description) for each in sessions.values())
    readings.one_of("connections")
    readings.each("connections", paths)
    readings.set("connections_refused_total", view.node.network.listener.refused.total())
    sent, received = view.bytes_by_plane()
    readings.each("sent_bytes_total", sent)
    readings.each("received_bytes_total", received)
    rtts = {peer: each.statistics().rtt_s for peer, each in sessions.items()}
    known = {peer: rtt_s for peer, rtt_s in rtts.items() if rtt_s is not None}
    for peer, rtt_s in known.items():
        readings.set("peer_rtt_seconds", rtt_s, peer.short)
    if known:
        readings.set("rtt_seconds", min(known.values()), "min")
        readings.set("rtt_seconds", statistics.median(known.values()), "median")
        readings.set("rtt_seconds", max(known.values()), "max")


def _nat(readings: Readings, view: NodeView) -> None:
    nat = view.node.nat()
    readings.one_of("nat", nat.kind)
    readings.one_of("connectivity", view.connectivity(trio.current_time()).state)
    counts = tally(view.bootstraps())
    for state in BOOTSTRAP_STATES:
        readings.set("bootstraps", counts[state], state)
    readings.one_of("reachable", nat.reachable)
    readings.one_of("port_mapping", nat.mapper)
    readings.set("relays_held", nat.relays_held)
    readings.set("relay_reservations", nat.relay_reservations)
    readings.set("relay_circuits", nat.relay_circuits)
    readings.set("relayed_connections_total", nat.relay_circuits_total)
    readings.set("relayed_bytes_total", nat.relayed_bytes_total)
    readings.set("sessions_resumed_total", nat.resumed_total)
    readings.each("relay_refused_total", nat.relay_refused_total)
    for (path, result), count in nat.ways_total.items():
        readings.set("connection_attempts_total", count, path, result)


def _dht(readings: Readings, view: NodeView) -> None:
    dht = view.node.discovery.core.statistics()
    readings.set("dht_contacts", dht.contacts)
    readings.set("dht_records", dht.records)
    readings.set("dht_bootstrapped", dht.is_bootstrapped)
    readings.set("dht_requests_total", dht.requests_sent)
    readings.set("dht_requests_unanswered_total", dht.requests_unanswered)
    readings.each("dht_records_rejected_total", dict(dht.records_rejected))


def _membership(readings: Readings, part: SwarmPart) -> None:
    swim, book = part.members.detector.statistics(), part.members.book.statistics()
    for state in ("alive", "suspect", "dead", "left"):
        readings.set("peers", getattr(swim, state), state)
    readings.set("swim_probes_total", swim.probes_total)
    readings.set("swim_probe_failures_total", swim.probes_failed_total)
    readings.set("swim_suspicions_total", swim.suspected_total)
    readings.set("swim_deaths_total", swim.died_total)
    readings.set("swim_stalls_total", swim.stalls_total)
    readings.set("swim_health_score", swim.health_score)
    readings.set("dials_total", book.dials)
    readings.each("dial_failures_total", part.members.dial_failures)


def _shared_state(readings: Readings, part: SwarmPart) -> None:
    state = part.state.core.statistics()
    readings.set("crdt_authors", state.authors)
    readings.set("crdt_bans", state.bans)
    readings.set("crdt_held_bytes", state.held_bytes)
    readings.set("crdt_journal_bytes", part.state.journal_bytes)
    readings.each("crdt_records_total", state.records_total)
    readings.set("clock_skew_seconds", state.clock_skew_s)


def _trust(readings: Readings, trust: Trust) -> None:
    readings.each("trust_seen_total", trust.seen_total)
    readings.set("trust_peers", len(trust))
    readings.set("trust_peers_low", trust.below_neutral(trio.current_time()))
    for peer, weight in trust.worst(trio.current_time(), METRICS_WORST_MAX).items():
        readings.set("peer_trust_ratio", weight, peer.short)


def _exchanges(readings: Readings, view: NodeView) -> None:
    readings.each("exchanges_total", view.work.exchange_results())
    readings.observe("exchange_duration_seconds", view.exchange_duration.snapshot())
    readings.set("last_exchange_timestamp_seconds", view.last_exchange_unix_s)
    readings.each("payloads_refused_total", view.work.refused_payloads())
    match view.work:
        case Training() as training:
            _pairs(readings, training.exchanges)
            weighing_s = training.exchanges.totals.weighing_s
            readings.set("guard_seconds_total", weighing_s + training.trainer.lessor.comparing_s)
            _payload_bytes(readings, training)
            _other_kinds(readings, training.handlers)
            applications = training.trainer.applications
            readings.set("exchanges_applied_total", applications.applied)
            readings.set("exchange_staleness_steps_total", applications.staleness_steps)
            readings.one_of("standstill", *view.standstills(trio.current_time()))


def _pairs(readings: Readings, exchanges: Exchanges) -> None:
    core, totals = exchanges.core.statistics(), exchanges.totals
    readings.set("guard_weighed_total", totals.weighed)
    readings.each("guard_refused_total", totals.weighed_refusals)
    failures: Counter[str] = Counter()
    for (_, _, reason), count in core.finished_total.items():
        failures[reason] += count
    del failures[""]  # those that committed
    readings.each("exchange_failures_total", failures)
    readings.set("exchanges_half_applied_total", core.half_applied_total)
    for phase, seconds in totals.phases().items():
        readings.set("codec_seconds_total", seconds, phase.removesuffix("_s"))
    readings.set("encode_error_ratio", totals.encode_error_ratio)
    readings.set("consensus_distance_ratio", totals.distance_ratio)


def _payload_bytes(readings: Readings, training: Training) -> None:
    totals = training.exchanges.totals
    sent, received = training.handlers.round_bytes()
    readings.set("exchange_bytes_total", totals.payload_sent_bytes + sent, "sent")
    readings.set("exchange_bytes_total", totals.payload_received_bytes + received, "received")


def _other_kinds(readings: Readings, handlers: IntentHandlers) -> None:
    groups, pulls = handlers.groups, handlers.pulls
    aborted = sum(groups.runs.statistics().aborted_total.values())
    readings.set("group_means_total", groups.committed_total, "committed")
    readings.set("group_means_total", aborted, "aborted")
    readings.set("group_means_total", groups.refused_total, "refused")
    readings.set("group_rule_seconds_total", groups.rule_s)
    readings.set("pulls_total", pulls.pulled_total, "pulled")
    readings.set("pulls_total", pulls.failed_total, "failed")
    readings.set("pulls_total", pulls.given_total, "given")
    readings.set("pulls_total", pulls.declined_total, "declined")
    readings.set("log_rounds_total", handlers.log_rounds_total)


def _training(readings: Readings, view: NodeView) -> None:
    figures = view.work.figures()
    readings.set("local_steps_total", figures.step)
    readings.set("tokens_total", figures.tokens)
    readings.set("loss", figures.loss)
    readings.set("eval_loss", figures.eval_loss)
    readings.set("step_duration_seconds", figures.step_time_s)
    readings.set("snapshot_step", figures.snapshot_step)
    for name, value in figures.strategy.items():
        if _plain(name, FIGURE):
            readings.set("strategy_value", value, name)
    match view.work:
        case Training() as training:
            _worker(readings, training.trainer)
            if figures.is_up:
                furthest = training.part.swarm_step()
                readings.set("behind_steps", max(0, furthest - training.swarm_step()))
            if isinstance(training.assigner.shards, Shards):
                finished = training.assigner.shards.statistics().finished_total
                readings.set("shards_trained_total", finished)


def _worker(readings: Readings, trainer: Trainer) -> None:
    readings.set("loss_finite", trainer.is_loss_finite)
    if trainer.pauses_s:
        readings.set("step_pause_seconds", min(trainer.pauses_s), "min")
        readings.set("step_pause_seconds", statistics.median(trainer.pauses_s), "median")
        readings.set("step_pause_seconds", max(trainer.pauses_s), "max")
    readings.set("worker_restarts_total", trainer.restarts)
    readings.each("worker_failures_total", trainer.failures)
    readings.set("last_snapshot_timestamp_seconds", trainer.saved_unix_s)
    readings.set("snapshots_total", trainer.saved_total)
    readings.set("snapshot_failures_total", trainer.unsaved_total)


def _blobs(readings: Readings, held: Blobs) -> None:
    blobs = held.statistics()
    readings.set("blob_held_bytes", blobs.held_bytes)
    readings.set("blob_bytes_total", blobs.bytes_sent_total, "sent")
    readings.set("blob_bytes_total", blobs.bytes_received_total, "received")
    readings.set("blob_bytes_total", blobs.bytes_wasted_total, "wasted")


def _recipe(readings: Readings, member: Member) -> None:
    match member.progress:
        case ProgressWatch() as watch:
            readings.set("swarm_target_tokens", watch.target.horizon.target_tokens)
            readings.set("lr_factor", watch.lr_factor())


def _swarm(readings: Readings, view: NodeView, part: SwarmPart) -> None:
    """What all members say, each of itself: bounded by what the others say, and shown."""
    own_state, _ = view.state()
    self_id, own_loss = view.node.self_id, view.work.figures().eval_loss
    others = [part.peer_report(peer) for peer in part.members.live() if peer != self_id]
    members: Counter[tuple[str, str]] = Counter(
        (each.role or "unknown", each.state or "unknown") for each in others
    )
    members[view.node.role, own_state] += 1
    for role in {role for role, _ in members}:
        for state in (*STATES, "unknown"):
            readings.set("swarm_members", members[role, state], role, state)
    readings.one_of("swarm_versions")
    readings.each("swarm_versions", Counter(("same", *map(_compared, others))))
    losses = bounded_losses([loss for loss in (*_losses(others), own_loss) if loss is not None])
    if losses:
        readings.set("swarm_loss_best", min(losses))
        readings.set("swarm_loss_mean", sum(losses) / len(losses))
    totals = part.totals()
    readings.set("swarm_steps", totals.steps)
    readings.set("swarm_tokens", totals.tokens)
    readings.set("swarm_step", part.swarm_step())
    for newest in part.state.view.snapshots(trio.current_time())[:1]:
        readings.set("swarm_snapshot_step", newest.step)
        readings.set("swarm_snapshot_holders", len(newest.holders))
    mixing = view.mixing.figures
    if mixing is not None:
        readings.set("swarm_lambda2", mixing.lambda2)
        readings.set("swarm_chi1", mixing.chi1)
        readings.set("swarm_chi2", mixing.chi2)


def _losses(reports: list[PeerReport]) -> Iterator[float]:
    """Probe losses of the members that train and have one."""
    for each in reports:
        if each.role == "trainer" and each.state == "training" and "eval_loss" in each.numbers:
            yield each.numbers["eval_loss"]


def _compared(report: PeerReport) -> str:
    """Return how a peer's version stands to ours, by the numbers at its beginning."""
    theirs, ours = _numbers(report.version), _own_numbers()
    if not theirs:
        return "unknown"
    return "same" if theirs == ours else "older" if theirs < ours else "newer"


@cache
def _own_numbers() -> tuple[int, ...]:
    return _numbers(__version__)


def _numbers(version: str) -> tuple[int, ...]:
    words = re.match(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", version)
    return tuple(map(int, words[0].split("."))) if words else ()


def _plain(text: str, pattern: str) -> str:
    """Return the text if it may stand on a page, else nothing."""
    return text if re.fullmatch(pattern, text) else ""
