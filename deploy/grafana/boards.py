"""The three dashboards: a swarm, its nodes, and how training goes.

Recorded series (with colons in their names) come from deploy/prometheus/rules/recording.yml.
"""

from __future__ import annotations

from panels import Board, Json, Panel, Query, Row

_SWARM = '{swarm="$swarm"}'
_NODES = '{swarm="$swarm", instance=~"$instance"}'
_RED_TO_GREEN = (("red", None), ("green", 1.0))
_UP: tuple[Json, ...] = (
    {
        "type": "value",
        "options": {
            "0": {"text": "no answer", "color": "red", "index": 0},
            "1": {"text": "up", "color": "green", "index": 1},
        },
    },
)
_ACTIVE: tuple[Json, ...] = (
    {
        "type": "value",
        "options": {
            "0": {"text": "no", "color": "transparent", "index": 0},
            "1": {"text": "yes", "color": "green", "index": 1},
        },
    },
)


def _nodes(metric: str, **labels: str) -> str:
    """Return the selector of a metric of the chosen nodes."""
    more = "".join(f', {name}="{value}"' for name, value in labels.items())
    return f'{metric}{{swarm="$swarm", instance=~"$instance"{more}}}'


def _rate(metric: str, where: str = _NODES) -> str:
    return f"rate({metric}{where}[$__rate_interval])"


def _each(metric: str, legend: str = "{{instance}}") -> tuple[Query, ...]:
    return (Query(_nodes(metric), legend),)


def _split(metric: str, label: str, where: str = _NODES) -> tuple[Query, ...]:
    """Return the rate of a counter over all chosen nodes, one line for each value of ``label``."""
    return (Query(f"sum by ({label}) ({_rate(metric, where)})", f"{{{{{label}}}}}"),)


def _stat(title: str, expr: str, unit: str = "short", **more: str) -> Panel:
    return Panel(title, (Query(expr, ""),), "stat", unit, width=4, height=4, **more)  # type: ignore[arg-type]


def _members(label: str) -> str:
    """What the node in the middle counts, by a label: one that is wrong does not show."""
    return (
        f"quantile by ({label}) (0.5, sum by ({label}, instance) (swarmnode_swarm_members{_SWARM}))"
    )


SWARM = Board(
    "swarmnode-swarm",
    "Swarm",
    (
        Row(
            "Now",
            (
                Panel(
                    "Nodes that answer",
                    (
                        Query(
                            f"swarm:swarmnode_up:sum{_SWARM} / swarm:swarmnode_up:count{_SWARM}",
                            "",
                        ),
                    ),
                    "stat",
                    "percentunit",
                    width=4,
                    height=4,
                    steps=(("red", None), ("orange", 0.7), ("green", 0.9)),
                    help="Of the members that the asked node lists.",
                ),
                _stat("Members", f"swarm:swarmnode_swarm_members:median{_SWARM}"),
                _stat("Tokens a second", f"swarm:swarmnode_tokens:rate5m{_SWARM}"),
                _stat("Step", f"max(swarmnode_swarm_step{_SWARM})"),
                _stat("Probe loss, best", f"min(swarmnode_swarm_loss_best{_SWARM})"),
                _stat(
                    "Holders of the newest snapshot",
                    f"quantile(0.5, swarmnode_swarm_snapshot_holders{_SWARM})",
                ),
                Panel(
                    "Alerts",
                    (Query('ALERTS{swarm="$swarm", alertstate="firing"}', ""),),
                    "table",
                    width=24,
                    height=5,
                ),
            ),
        ),
        Row(
            "Members",
            (
                Panel(
                    "Nodes that answer",
                    (Query('up{job="swarmnode", swarm="$swarm"}'),),
                    "state-timeline",
                    width=12,
                    height=9,
                    mappings=_UP,
                    steps=_RED_TO_GREEN,
                ),
                Panel(
                    "Members by state",
                    (Query(_members("state"), "{{state}}"),),
                    width=6,
                    height=9,
                    is_stacked=True,
                    help="As the node in the middle counts them.",
                ),
                Panel(
                    "Members by role",
                    (Query(_members("role"), "{{role}}"),),
                    width=6,
                    height=9,
                    is_stacked=True,
                ),
                Panel(
                    "Nodes",
                    (
                        Query(f"swarmnode_node_info{_SWARM}"),
                        Query(f"swarmnode_build_info{_SWARM}"),
                    ),
                    "table",
                    width=24,
                    height=9,
                ),
            ),
        ),
        Row(
            "Progress",
            (
                Panel(
                    "Probe loss",
                    (
                        Query(f"quantile(0.5, swarmnode_eval_loss{_SWARM})", "median"),
                        Query(f"min(swarmnode_eval_loss{_SWARM})", "best"),
                        Query(f"max(swarmnode_eval_loss{_SWARM})", "worst"),
                    ),
                    width=8,
                    is_log=True,
                ),
                Panel(
                    "Tokens a second",
                    (Query(f"instance:swarmnode_tokens:rate5m{_SWARM}"),),
                    is_stacked=True,
                ),
                Panel(
                    "Tokens, over all time",
                    (Query(f"max(swarmnode_swarm_tokens{_SWARM})", "tokens"),),
                    help="The sum of what members sign for, whoever is still there.",
                ),
                Panel(
                    "Exchanges a second",
                    _split("swarmnode_exchanges_total", "result", _SWARM),
                    is_stacked=True,
                ),
                Panel(
                    "Mixing time",
                    (Query(f"quantile(0.5, swarmnode_swarm_chi1{_SWARM})", "1 / λ₂"),),
                    unit="s",
                    is_log=True,
                    help="How long news takes through the graph of exchanges; infinite if the "
                    "swarm is in parts.",
                ),
                Panel(
                    "Snapshot behind the swarm",
                    (
                        Query(
                            f"max(swarmnode_swarm_step{_SWARM})"
                            f" - max(swarmnode_swarm_snapshot_step{_SWARM})",
                            "steps",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Network",
            (
                Panel(
                    "Sent",
                    _split("swarmnode_sent_bytes_total", "plane", _SWARM),
                    unit="Bps",
                    is_stacked=True,
                ),
                Panel(
                    "Connections by path",
                    (Query(f"sum by (path) (swarmnode_connections{_SWARM})", "{{path}}"),),
                    is_stacked=True,
                    help="Each one is counted by both of its ends.",
                ),
                Panel(
                    "Relayed for others",
                    (Query(_rate("swarmnode_relayed_bytes_total", _SWARM)),),
                    unit="Bps",
                    is_stacked=True,
                ),
                Panel(
                    "Versions",
                    (Query(f"count by (version) (swarmnode_build_info{_SWARM})", "{{version}}"),),
                    is_stacked=True,
                ),
                Panel(
                    "Shared state",
                    (Query(f"max(swarmnode_crdt_held_bytes{_SWARM})", "largest"),),
                    unit="bytes",
                ),
                Panel(
                    "Scrape, 95th percentile",
                    (Query(f"swarm:swarmnode_scrape_duration_seconds:p95{_SWARM}", "p95"),),
                    unit="s",
                    help="Through the asked node to the member and back.",
                ),
            ),
        ),
    ),
)

NODE = Board(
    "swarmnode-node",
    "Node",
    (
        Row(
            "What it does, and why",
            (
                Panel(
                    "State",
                    (Query(f"{_nodes('swarmnode_state')} == 1", "{{instance}} {{state}}"),),
                    "state-timeline",
                    width=12,
                    mappings=_ACTIVE,
                ),
                Panel(
                    "Held back by",
                    (
                        Query(
                            'swarmnode_paused{swarm="$swarm", instance=~"$instance", '
                            'reason!="none"} == 1',
                            "{{instance}} {{reason}}",
                        ),
                    ),
                    "state-timeline",
                    width=12,
                    mappings=_ACTIVE,
                ),
                Panel(
                    "Time held back",
                    _split("swarmnode_throttled_seconds_total", "reason"),
                    unit="percentunit",
                    help="Share of the time, by the limit that holds.",
                ),
                Panel(
                    "Running since",
                    (Query(f"{_nodes('swarmnode_start_timestamp_seconds')} * 1000"),),
                    "stat",
                    "dateTimeFromNow",
                ),
                Panel(
                    "Log lines",
                    (
                        Query(
                            "sum by (level) (rate(swarmnode_log_messages_total"
                            '{swarm="$swarm", instance=~"$instance", level=~"warning|error"}'
                            "[$__rate_interval]))",
                            "{{level}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Machine",
            (
                Panel(
                    "CPU",
                    (Query(_rate("swarmnode_cpu_seconds_total"), "{{instance}} {{process}}"),),
                    help="Cores in use.",
                ),
                Panel(
                    "Memory",
                    _each("swarmnode_resident_memory_bytes", "{{instance}} {{process}}"),
                    unit="bytes",
                ),
                Panel(
                    "Disk free",
                    (
                        Query(
                            f"{_nodes('swarmnode_disk_free_bytes')}"
                            f" / {_nodes('swarmnode_disk_size_bytes')}"
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "GPU",
                    _each("swarmnode_gpu_utilization_ratio", "{{instance}} {{gpu}}"),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "GPU memory",
                    (
                        Query(
                            f"{_nodes('swarmnode_gpu_memory_used_bytes')}"
                            f" / {_nodes('swarmnode_gpu_memory_size_bytes')}",
                            "{{instance}} {{gpu}}",
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "GPU temperature",
                    _each("swarmnode_gpu_temperature_celsius", "{{instance}} {{gpu}}"),
                    unit="celsius",
                ),
                Panel(
                    "Starts of the training process",
                    (
                        Query(
                            f"increase({_nodes('swarmnode_worker_restarts_total')}[1h])",
                            "{{instance}}",
                        ),
                    ),
                    help="Within an hour, after a failure.",
                ),
                Panel(
                    "Why it failed",
                    _split("swarmnode_worker_failures_total", "reason"),
                ),
                Panel("Clock", _each("swarmnode_clock_skew_seconds"), unit="s"),
            ),
        ),
        Row(
            "Line",
            (
                Panel("Sent", _split("swarmnode_sent_bytes_total", "plane"), unit="Bps"),
                Panel("Received", _split("swarmnode_received_bytes_total", "plane"), unit="Bps"),
                Panel(
                    "Limits, and the month's quota used",
                    (
                        *_each("swarmnode_limit_bytes_per_second", "{{instance}} {{direction}}"),
                        Query(
                            f"{_nodes('swarmnode_quota_used_bytes')}"
                            f" / {_nodes('swarmnode_quota_bytes')}",
                            "{{instance}} quota used, as a share",
                        ),
                    ),
                ),
                Panel(
                    "Connections by path",
                    (Query(f"sum by (path) ({_nodes('swarmnode_connections')})", "{{path}}"),),
                    is_stacked=True,
                ),
                Panel(
                    "Round trips",
                    _each("swarmnode_rtt_seconds", "{{instance}} {{statistic}}"),
                    unit="s",
                    is_log=True,
                ),
                Panel(
                    "Round trips by neighbour",
                    _each("swarmnode_peer_rtt_seconds", "{{instance}} → {{peer}}"),
                    unit="s",
                    is_log=True,
                ),
                Panel("Dials that failed", _split("swarmnode_dial_failures_total", "reason")),
                Panel(
                    "Ways tried",
                    (
                        Query(
                            "sum by (path, result)"
                            f" ({_rate('swarmnode_connection_attempts_total')})",
                            "{{path}} {{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Connection",
                    (Query(f"{_nodes('swarmnode_connectivity')} == 1", "{{instance}} {{state}}"),),
                    "state-timeline",
                    mappings=_ACTIVE,
                    help="How each reaches others: direct, punched, relayed, local (this machine "
                    "and its LAN only) or alone. `swarmnode netcheck` says why.",
                ),
                Panel(
                    "Behind",
                    (
                        Query(f"{_nodes('swarmnode_nat')} == 1", "{{instance}} {{kind}}"),
                        Query(
                            f"{_nodes('swarmnode_reachable')} == 1",
                            "{{instance}} reachable: {{answer}}",
                        ),
                        Query(
                            f"{_nodes('swarmnode_port_mapping')} == 1",
                            "{{instance}} mapped: {{method}}",
                        ),
                    ),
                    "state-timeline",
                    mappings=_ACTIVE,
                ),
                Panel(
                    "As a relay",
                    (
                        *_each("swarmnode_relay_reservations", "{{instance}} places"),
                        *_each("swarmnode_relay_circuits", "{{instance}} connections"),
                    ),
                ),
                Panel("Refused as a relay", _split("swarmnode_relay_refused_total", "reason")),
                Panel(
                    "Sessions resumed",
                    (Query(_rate("swarmnode_sessions_resumed_total")),),
                ),
            ),
        ),
        Row(
            "Protocols",
            (
                Panel("DHT: nodes in the table", _each("swarmnode_dht_contacts")),
                Panel(
                    "DHT: unanswered",
                    (
                        Query(
                            f"{_rate('swarmnode_dht_requests_unanswered_total')}"
                            f" / {_rate('swarmnode_dht_requests_total')}"
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel("DHT: rejected", _split("swarmnode_dht_records_rejected_total", "reason")),
                Panel(
                    "Peers by state",
                    (Query(f"sum by (state) ({_nodes('swarmnode_peers')})", "{{state}}"),),
                ),
                Panel(
                    "Failure detector: unanswered",
                    (
                        Query(
                            f"{_rate('swarmnode_swim_probe_failures_total')}"
                            f" / {_rate('swarmnode_swim_probes_total')}"
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Failure detector: own health",
                    _each("swarmnode_swim_health_score"),
                    help="0 is prompt; the higher, the more patient it is with others.",
                ),
                Panel("State: held", _each("swarmnode_crdt_held_bytes"), unit="bytes"),
                Panel("State: records", _split("swarmnode_crdt_records_total", "verdict")),
                Panel(
                    "State: authors",
                    (
                        *_each("swarmnode_crdt_authors", "{{instance}} taken"),
                        *_each("swarmnode_crdt_bans", "{{instance}} banned"),
                    ),
                ),
            ),
        ),
    ),
    has_instances=True,
)

TRAINING = Board(
    "swarmnode-training",
    "Training",
    (
        Row(
            "Loss",
            (
                Panel(
                    "Probe loss",
                    _each("swarmnode_eval_loss"),
                    width=12,
                    height=10,
                    is_log=True,
                    help="On the same public probe set everywhere.",
                ),
                Panel(
                    "Training loss",
                    _each("swarmnode_loss"),
                    width=12,
                    height=10,
                    is_log=True,
                    help="Each node on its own data.",
                ),
            ),
        ),
        Row(
            "Speed",
            (
                Panel(
                    "Steps a second",
                    (Query(f"instance:swarmnode_local_steps:rate5m{_NODES}"),),
                ),
                Panel("Tokens a second", (Query(f"instance:swarmnode_tokens:rate5m{_NODES}"),)),
                Panel("One step", _each("swarmnode_step_duration_seconds"), unit="s"),
                Panel("Behind the furthest model", _each("swarmnode_behind_steps"), unit="short"),
                Panel(
                    "Shards trained",
                    (Query(_rate("swarmnode_shards_trained_total")),),
                ),
            ),
        ),
        Row(
            "Exchanges",
            (
                Panel(
                    "How they end",
                    _split("swarmnode_exchanges_total", "result"),
                    is_stacked=True,
                ),
                Panel("Why they fail", _split("swarmnode_exchange_failures_total", "reason")),
                Panel(
                    "Failures",
                    (Query(f"instance:swarmnode_exchange_failures:ratio_rate30m{_NODES}"),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Duration",
                    tuple(
                        Query(
                            f"histogram_quantile({share}, sum by (le) "
                            f"({_rate('swarmnode_exchange_duration_seconds_bucket')}))",
                            name,
                        )
                        for share, name in ((0.5, "median"), (0.95, "p95"))
                    ),
                    unit="s",
                ),
                Panel(
                    "Since the last one",
                    (Query(f"time() - {_nodes('swarmnode_last_exchange_timestamp_seconds')}"),),
                    unit="s",
                ),
                Panel(
                    "Staleness",
                    (Query(f"instance:swarmnode_exchange_staleness_steps:mean30m{_NODES}"),),
                    help="Steps that the worker takes between giving and merging.",
                ),
                Panel("Payload", _split("swarmnode_exchange_bytes_total", "direction"), unit="Bps"),
                Panel(
                    "Codecs", _split("swarmnode_codec_seconds_total", "phase"), unit="percentunit"
                ),
                Panel(
                    "Lost in encoding", _each("swarmnode_encode_error_ratio"), unit="percentunit"
                ),
                Panel("Means of groups", _split("swarmnode_group_means_total", "result")),
                Panel("Fragments asked and given", _split("swarmnode_pulls_total", "result")),
                Panel("Rounds of the log", (Query(_rate("swarmnode_log_rounds_total")),)),
            ),
        ),
        Row(
            "Trust",
            (
                Panel(
                    "What was seen of members",
                    _split("swarmnode_trust_seen_total", "seen"),
                    is_stacked=True,
                    help="Contacts in which a node measured something itself: useful ones, and why "
                    "others were not.",
                ),
                Panel(
                    "Trusted less than a stranger",
                    _each("swarmnode_peer_trust_ratio", "{{instance}} → {{peer}}"),
                    maximum=0.5,
                    help="The worst few of each node. A member at 0.25 is met in an eighth of the "
                    "rounds; below, groups leave it out.",
                ),
                Panel(
                    "How many of them",
                    (
                        *_each("swarmnode_trust_peers_low", "{{instance}} less than a stranger"),
                        *_each("swarmnode_trust_peers", "{{instance}} known at all"),
                    ),
                ),
                Panel(
                    "Models refused, by why",
                    _split("swarmnode_guard_refused_total", "reason"),
                    help="After they were weighed; the exchange counts on neither side.",
                ),
                Panel(
                    "Share of models refused",
                    (
                        Query(
                            f"sum by (instance) ({_rate('swarmnode_guard_refused_total')})"
                            f" / {_rate('swarmnode_guard_weighed_total')}"
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                    help="Of honest members at most a quarter, while they learn most.",
                ),
                Panel(
                    "Too large to count",
                    _split("swarmnode_payloads_refused_total", "kind"),
                ),
                Panel(
                    "Time for weighing",
                    (
                        Query(_rate("swarmnode_guard_seconds_total"), "{{instance}} worker"),
                        Query(_rate("swarmnode_group_rule_seconds_total"), "{{instance}} daemon"),
                    ),
                    unit="percentunit",
                    help="Of a worker the share of time that is not for steps; of a daemon CPU.",
                ),
            ),
        ),
        Row(
            "Consensus and snapshots",
            (
                Panel(
                    "Distance to the last partner",
                    _each("swarmnode_consensus_distance_ratio"),
                    unit="percentunit",
                    is_log=True,
                ),
                Panel(
                    "The strategy's own figures",
                    _each("swarmnode_strategy_value", "{{instance}} {{name}}"),
                ),
                Panel(
                    "Age of the last snapshot",
                    (Query(f"time() - {_nodes('swarmnode_last_snapshot_timestamp_seconds')}"),),
                    unit="s",
                ),
                Panel(
                    "Snapshots that failed",
                    (Query(f"increase({_nodes('swarmnode_snapshot_failures_total')}[1h])"),),
                ),
                Panel("Held for others", _each("swarmnode_blob_held_bytes"), unit="bytes"),
                Panel(
                    "Snapshots moved", _split("swarmnode_blob_bytes_total", "direction"), unit="Bps"
                ),
            ),
        ),
    ),
    has_instances=True,
)

BOARDS = (SWARM, NODE, TRAINING)
