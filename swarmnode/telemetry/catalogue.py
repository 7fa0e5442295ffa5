"""Every metric of a node: names, kinds, help texts and labels. Nothing else names one.

Rendering (``exposition.py``), the snapshots of other nodes (``readings.py``), the reference, rules
and dashboards all follow :data:`FAMILIES`: a metric that is not here does not exist, and the
values of its labels are these and no others.

Names: prefix ``swarmnode_``, base units, ``_total`` for counters, ``_info`` for facts, timestamps
instead of ages. A counter counts since the process started and is there from the start with 0,
for every known value of its label: an alert on a rate needs the first sample. A gauge whose
value is not known is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from swarmnode import limits
from swarmnode.protocol.connectivity import BOOTSTRAP_STATES
from swarmnode.protocol.connectivity import STATES as CONNECTIVITIES
from swarmnode.telemetry.metrics import (
    BLOB_DIRECTIONS,
    CODEC_PHASES,
    CRDT_VERDICTS,
    DHT_REJECTIONS,
    DIAL_FAILURES,
    DIRECTIONS,
    EXCHANGE_FAILURES,
    EXCHANGE_RESULTS,
    EXCHANGE_SECONDS_BOUNDS,
    GROUP_RESULTS,
    GUARD_REASONS,
    LINE_DIRECTIONS,
    LOG_LEVELS,
    MEMBER_STATES,
    PATHS,
    PAUSE_REASONS,
    PLANES,
    PROCESSES,
    PULL_RESULTS,
    PURPOSES,
    REFUSED_KINDS,
    RELAY_REFUSALS,
    SEEN_OF_PEERS,
    STANDSTILLS,
    STATES,
    STATISTICS,
    SWARM_ROLES,
    SWARM_STATES,
    THROTTLES,
    VERSIONS,
    WORKER_FAILURES,
)
from swarmnode.telemetry.nat import MAPPERS, NAT_KINDS, REACHABLE, RESULTS, WAYS_TRIED

# A series each: the nearest neighbours tell what the rest would.
_METRICS_NEIGHBOURS_MAX = 32
METRICS_WORST_MAX = 5  # members that a node thinks little of, by name

Kind = Literal["gauge", "counter", "histogram", "info"]
PREFIX: Final = "swarmnode_"


@dataclass(frozen=True)
class Label:
    """A label: either all its values are known, or they match ``pattern`` as a whole."""

    name: str
    values: tuple[str, ...] = ()
    pattern: str = ""

    def __post_init__(self) -> None:
        assert bool(self.values) != bool(self.pattern), self.name

    def allows(self, value: str) -> bool:
        """Whether ``value`` may stand on a page."""
        return value in self.values if self.values else bool(re.fullmatch(self.pattern, value))


@dataclass(frozen=True)
class Family:
    """One metric.

    Attributes:
        name: as a rule or a dashboard writes it; that of a histogram without ``_bucket``.
        labels: without ``le`` of a histogram.
        samples_max: for a family with a label whose values are not known beforehand.
        bounds: of a histogram's buckets, inclusive, without the last, ``+Inf``.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    samples_max: int = 1
    bounds: tuple[float, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Whether all combinations of labels are known beforehand."""
        return all(label.values for label in self.labels)

    @property
    def is_of_peers(self) -> bool:
        """Whether its labels are peers, known or not, and nothing else."""
        return all(label.pattern == SHORT_ID for label in self.labels)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels of its series, without ``le``."""
        return tuple(label.name for label in self.labels)


# What text of another node must look like to be shown.
VERSION = r"[0-9][0-9A-Za-z.+-]{0,31}"
WORD = r"[a-z0-9][a-z0-9_:.-]{0,31}"
NAME = r"[a-z0-9][a-z0-9._-]{0,63}"  # of a swarm, as in its manifest
FIGURE = r"[a-z][a-z0-9_]{0,39}"
GPU = r"[0-9]{1,2}"
NODE_NAME = rf"[\w .+-]{{1,{limits.NODE_NAME_CHARACTERS_MAX}}}"  # of its owner's choice
SHORT_ID = r"sn1[a-z2-7]{9}"


def _gauge(name: str, text: str, *labels: Label, most: int = 1) -> Family:
    return Family(PREFIX + name, "gauge", text, labels, most)


def _counter(name: str, text: str, *labels: Label) -> Family:
    return Family(PREFIX + name, "counter", text, labels)


def _info(name: str, text: str, /, **patterns: str) -> Family:
    labels = tuple(Label(key, pattern=f"({pattern})?") for key, pattern in patterns.items())
    return Family(PREFIX + name, "info", text, labels)


_gpu = Label("gpu", pattern=GPU)

FAMILIES: Final[tuple[Family, ...]] = (
    # --- the node --------------------------------------------------------------------------------
    _info(
        "build_info",
        "Version of swarmnode and what it runs on; always 1.",
        version=VERSION,
        python=VERSION,
        torch=VERSION,
        native_isa=WORD,
    ),
    _info(
        "node_info",
        "What this node is, and where it takes part; always 1.",
        peer=SHORT_ID,
        swarm=NAME,
        role=WORD,
        device=WORD,
        strategy=NAME,
        name=NODE_NAME,
    ),
    _gauge("start_timestamp_seconds", "Unix time at which the daemon started."),
    _gauge("state", "1 for the state it is in, else 0.", Label("state", STATES)),
    _gauge(
        "paused",
        "1 for each reason why it does not train just now; 'none' if nothing holds it.",
        Label("reason", PAUSE_REASONS),
    ),
    _counter(
        "worker_restarts_total", "Times the training process was started again after a failure."
    ),
    _counter(
        "worker_failures_total",
        "Ends of the training process that were not asked for, by what it said of them.",
        Label("reason", WORKER_FAILURES),
    ),
    _counter(
        "log_messages_total", "Lines written to the daemon's log.", Label("level", LOG_LEVELS)
    ),
    # --- the machine -----------------------------------------------------------------------------
    _counter("cpu_seconds_total", "CPU time used.", Label("process", PROCESSES)),
    _gauge("resident_memory_bytes", "Memory that is not swapped out.", Label("process", PROCESSES)),
    _gauge(
        "gpu_utilization_ratio",
        "Share of the time in which the GPU was busy, whichever program used it.",
        _gpu,
        most=limits.METRICS_GPUS_MAX,
    ),
    _gauge(
        "gpu_memory_used_bytes",
        "Memory of the GPU in use, by whomever.",
        _gpu,
        most=limits.METRICS_GPUS_MAX,
    ),
    _gauge("gpu_memory_size_bytes", "Memory of the GPU.", _gpu, most=limits.METRICS_GPUS_MAX),
    _gauge(
        "gpu_temperature_celsius",
        "Temperature of the GPU.",
        _gpu,
        most=limits.METRICS_GPUS_MAX,
    ),
    _gauge("disk_free_bytes", "Room left to this user where the node keeps what it owns."),
    _gauge("disk_size_bytes", "Size of that disk."),
    _gauge(
        "clock_skew_seconds",
        "Median of the neighbours' clocks minus that of this machine.",
    ),
    # --- limits ----------------------------------------------------------------------------------
    _gauge(
        "limit_bytes_per_second",
        "What the owner lets the node use of the line; absent without a limit.",
        Label("direction", LINE_DIRECTIONS),
    ),
    _gauge("quota_bytes", "Bytes that the owner allows a month; absent without a quota."),
    _gauge("quota_used_bytes", "Bytes of this month that count for the quota."),
    _counter(
        "throttled_seconds_total",
        "Time held back or paused for a limit, by the limit.",
        Label("reason", THROTTLES),
    ),
    _counter(
        "line_bytes_total",
        "Bytes over the line, headers of TCP and IP included, by what they were for.",
        Label("direction", LINE_DIRECTIONS),
        Label("purpose", PURPOSES),
    ),
    # --- peers and connections -------------------------------------------------------------------
    _gauge(
        "peers",
        "Other members of the swarm, as the failure detector sees them.",
        Label("state", MEMBER_STATES),
    ),
    _gauge("connections", "Open sessions by the way they take.", Label("path", PATHS)),
    _counter("dials_total", "Attempts to reach a member without a session."),
    _counter("dial_failures_total", "Those that failed, by why.", Label("reason", DIAL_FAILURES)),
    _counter(
        "connection_attempts_total",
        "Attempts to open a connection, by the way tried and how it ended.",
        Label("path", WAYS_TRIED),
        Label("result", RESULTS),
    ),
    _counter(
        "connections_refused_total", "Connections of others that were not taken, for any reason."
    ),
    _counter("sessions_resumed_total", "Sessions that went on over another connection."),
    _counter("sent_bytes_total", "Bytes sent to peers.", Label("plane", PLANES)),
    _counter("received_bytes_total", "Bytes received from peers.", Label("plane", PLANES)),
    _gauge(
        "rtt_seconds",
        "Round trip of the open sessions: the best, the middle and the worst one.",
        Label("statistic", STATISTICS),
    ),
    _gauge(
        "peer_rtt_seconds",
        "Round trip of a session; of the first few neighbours only.",
        Label("peer", pattern=SHORT_ID),
        most=_METRICS_NEIGHBOURS_MAX,
    ),
    # --- NAT, relay ------------------------------------------------------------------------------
    _gauge(
        "connectivity",
        "1 for how this node reaches others just now.",
        Label("state", CONNECTIVITIES),
    ),
    _gauge(
        "bootstraps",
        "Addresses that this node was given, by what comes of them.",
        Label("state", BOOTSTRAP_STATES),
    ),
    _gauge("nat", "1 for the kind of NAT that this node is behind.", Label("kind", NAT_KINDS)),
    _gauge(
        "reachable",
        "1 for whether others reach its port from outside.",
        Label("answer", REACHABLE),
    ),
    _gauge("port_mapping", "1 for how its router forwards the port.", Label("method", MAPPERS)),
    _gauge("relays_held", "Relays that hold a place for this node."),
    _gauge("relay_reservations", "Nodes that this one holds a place for, as a relay."),
    _gauge("relay_circuits", "Connections that it relays for others now."),
    _counter("relayed_connections_total", "Connections that it has relayed for others."),
    _counter("relayed_bytes_total", "Bytes that it has relayed for others."),
    _counter(
        "relay_refused_total",
        "What it refused as a relay, by why.",
        Label("reason", RELAY_REFUSALS),
    ),
    # --- DHT -------------------------------------------------------------------------------------
    _gauge("dht_contacts", "Nodes in the routing table."),
    _gauge("dht_records", "Records held for others."),
    _gauge("dht_bootstrapped", "1 once it has found its place among the others, else 0."),
    _counter("dht_requests_total", "Questions asked."),
    _counter("dht_requests_unanswered_total", "Those that were not answered in time."),
    _counter(
        "dht_records_rejected_total", "Records not taken, by why.", Label("reason", DHT_REJECTIONS)
    ),
    # --- failure detector ------------------------------------------------------------------------
    _counter("swim_probes_total", "Members asked whether they are there."),
    _counter("swim_probe_failures_total", "Those that did not answer, nor a helper for them."),
    _counter("swim_suspicions_total", "Members that came under suspicion."),
    _counter("swim_deaths_total", "Members that were given up."),
    _counter(
        "swim_stalls_total",
        "Times this process was held up so long that it trusts no verdict of its own.",
    ),
    _gauge("swim_health_score", "0 if it is prompt itself; the higher, the more patient it is."),
    # --- shared state ----------------------------------------------------------------------------
    _gauge("crdt_authors", "Nodes whose records it holds."),
    _gauge("crdt_bans", "Authors whose records it takes no more."),
    _gauge("crdt_held_bytes", "Size of the records it holds."),
    _gauge("crdt_journal_bytes", "Size of the journal on disk."),
    _counter(
        "crdt_records_total", "Records received, by verdict.", Label("verdict", CRDT_VERDICTS)
    ),
    # --- exchanges -------------------------------------------------------------------------------
    _counter(
        "exchanges_total",
        "Exchanges with a partner and means of a group, by how they ended.",
        Label("result", EXCHANGE_RESULTS),
    ),
    _counter(
        "exchange_failures_total",
        "Those with a partner that came to nothing, by why.",
        Label("reason", EXCHANGE_FAILURES),
    ),
    Family(
        PREFIX + "exchange_duration_seconds",
        "histogram",
        "Time from the offer of an exchange, or the start of a mean, to its end, if it committed.",
        bounds=EXCHANGE_SECONDS_BOUNDS,
    ),
    _counter(
        "exchange_bytes_total",
        "Payload of exchanges that committed, and of groups.",
        Label("direction", DIRECTIONS),
    ),
    _counter("exchanges_applied_total", "Committed exchanges that the worker has merged."),
    _counter(
        "exchange_staleness_steps_total",
        "Steps that the worker took between giving and merging, over all that it has merged.",
    ),
    _counter(
        "exchanges_half_applied_total",
        "Exchanges that only one side may have merged: never, unless something is badly wrong.",
    ),
    _counter(
        "payloads_refused_total",
        "Payloads of others that were implausibly large beside this node's own, and do not count.",
        Label("kind", REFUSED_KINDS),
    ),
    _counter(
        "guard_weighed_total",
        "Models of others that the worker has weighed in pairs, before they counted.",
    ),
    _counter(
        "guard_refused_total",
        "Models that it refused after weighing them, by why; the exchange counts on neither side.",
        Label("reason", GUARD_REASONS),
    ),
    _counter("guard_seconds_total", "Time that the worker took for weighing, and not for steps."),
    _counter(
        "group_rule_seconds_total",
        "CPU time of the daemon for what a rule of group means takes more than their mean.",
    ),
    _counter(
        "trust_seen_total",
        "Contacts with members in which this node has measured something, by what that was.",
        Label("seen", SEEN_OF_PEERS),
    ),
    _gauge("trust_peers", "Peers of which something is remembered, see threat-model.md."),
    _gauge("trust_peers_low", "Those of which so little is thought that this node says so."),
    _gauge(
        "peer_trust_ratio",
        "What a member is worth to this node, of the few worst only; 0.5 is a stranger.",
        Label("peer", pattern=SHORT_ID),
        most=METRICS_WORST_MAX,
    ),
    _gauge("last_exchange_timestamp_seconds", "Unix time of the last committed exchange."),
    _counter(
        "group_means_total", "Means of a group, by how they ended.", Label("result", GROUP_RESULTS)
    ),
    _counter(
        "pulls_total",
        "Fragments asked of others and given to them, by how that ended.",
        Label("result", PULL_RESULTS),
    ),
    _counter("log_rounds_total", "Rounds of the log closed or fetched."),
    _gauge(
        "standstill",
        "1 for what of the training together stands still while the node trains, else 0.",
        Label("kind", STANDSTILLS),
    ),
    _counter(
        "codec_seconds_total", "Time spent on tensors for the wire.", Label("phase", CODEC_PHASES)
    ),
    _gauge(
        "encode_error_ratio",
        "What the codec lost of the last exchange: norm of the error by norm of the values.",
    ),
    _gauge(
        "consensus_distance_ratio",
        "How far this node's model and its last partner's were apart: norm of half the difference"
        " by norm of the mean, estimated from a sample.",
    ),
    # --- training --------------------------------------------------------------------------------
    _counter("local_steps_total", "Optimizer steps taken here."),
    _counter("tokens_total", "Tokens (or samples) trained on."),
    _gauge("step_duration_seconds", "Running mean of one optimizer step, without waiting."),
    _gauge(
        "step_pause_seconds",
        "How long views, merges and weighing held up a step, of the last thousand that waited for"
        " one: the shortest, the middle and the longest.",
        Label("statistic", STATISTICS),
    ),
    _gauge("loss", "Running mean of the training loss."),
    _gauge("eval_loss", "Loss on the public probe set of the task."),
    _gauge("loss_finite", "0 if the loss is no number any more, 1 if it is; absent before any."),
    _gauge("behind_steps", "Steps between the swarm's furthest model and this node's."),
    _counter("shards_trained_total", "Shards of the data trained to their end."),
    _gauge(
        "strategy_value",
        "The strategy's own figures by name.",
        Label("name", pattern=FIGURE),
        most=limits.STRATEGY_FIGURES_MAX,
    ),
    # --- snapshots -------------------------------------------------------------------------------
    _gauge("last_snapshot_timestamp_seconds", "Unix time of the last snapshot written here."),
    _gauge("snapshot_step", "Step of that snapshot."),
    _counter("snapshots_total", "Snapshots written."),
    _counter("snapshot_failures_total", "Snapshots that could not be written."),
    _gauge("blob_held_bytes", "Size of the snapshots held for others."),
    _counter("blob_bytes_total", "Bytes of snapshots moved.", Label("direction", BLOB_DIRECTIONS)),
    # --- the swarm, as the shared state says -----------------------------------------------------
    _gauge(
        "swarm_members",
        "Live members of the swarm, this node among them, by what they say of themselves.",
        Label("role", SWARM_ROLES),
        Label("state", SWARM_STATES),
    ),
    _gauge(
        "swarm_versions",
        "Live members by their version of swarmnode compared with this node's.",
        Label("version", VERSIONS),
    ),
    _gauge("swarm_steps", "Steps of all members together, over all time."),
    _gauge("swarm_tokens", "Tokens (or samples) of all members together, over all time."),
    _gauge("swarm_target_tokens", "Where training ends, where the recipe says that; else 0."),
    _gauge("lr_factor", "What the swarm's recipe multiplies the task's learning rate by now."),
    _gauge("swarm_step", "How far the furthest model is."),
    _gauge("swarm_loss_best", "Lowest probe loss that a member who trains says it has."),
    _gauge("swarm_loss_mean", "Mean probe loss of the members who train."),
    _gauge("swarm_snapshot_step", "Step of the newest snapshot that a member holds."),
    _gauge("swarm_snapshot_holders", "How many hold it."),
    _gauge(
        "swarm_lambda2",
        "Second smallest eigenvalue of the Laplacian of the swarm's exchanges, per second.",
    ),
    _gauge(
        "swarm_chi1",
        "Seconds of the slowest mixing, 1 / lambda2; infinite if the swarm is in parts.",
    ),
    _gauge(
        "swarm_chi2",
        "Half the largest effective resistance of an edge of the swarm's exchanges, seconds.",
    ),
)

BY_NAME: Final = {family.name: family for family in FAMILIES}
