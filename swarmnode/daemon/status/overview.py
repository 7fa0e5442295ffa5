"""The swarm as this node sees it, for the dashboard and ``swarmnode top``.

Read from the shared state and from this node's own sessions, so that every node has the whole
view. What other members say of themselves is shown as their word: names come from sets that we
know, text is cut, and lists have an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.daemon.exchange.history import letters_of, observed_rates
from swarmnode.daemon.status.phases import Member
from swarmnode.ids import PeerId
from swarmnode.protocol.connectivity import tally

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import SwarmPart
    from swarmnode.daemon.status.phases import PeerView
    from swarmnode.daemon.status.view import NodeStatus, NodeView

_GONE = ("dead", "left")
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


class OwnView(msgspec.Struct, frozen=True):
    """What the page shows of the node that serves it; no addresses and no paths of files."""

    swarm: str
    task: str
    strategy: str
    codec: str
    numel: int
    peer: str
    role: str
    state: str
    reason: str
    alarm: str
    connectivity: str
    connectivity_why: str
    bootstraps: Mapping[str, int]  # addresses that it was given, by what comes of them
    can_pause: bool
    version: str
    uptime_s: float
    device: str
    step: int
    tokens: int
    step_time_s: float | None
    loss: float | None
    eval_loss: float | None
    exchanges_committed: int
    exchanges_aborted: int
    exchanges_declined: int
    exchanges_in_doubt: int
    sent_bytes: int
    received_bytes: int
    worker_restarts: int
    snapshot_step: int | None
    node_name: str = ""
    # All that left and came over the line, by what it was for.
    line_sent_bytes: Mapping[str, int] = {}
    line_received_bytes: Mapping[str, int] = {}


class MemberView(msgspec.Struct, frozen=True):
    """One member; the first of all is this node."""

    peer: str
    name: str  # the letters by which a person tells it apart
    is_self: bool
    role: str
    alive: str  # alive, suspect, dead, left, or unknown
    state: str
    path: str  # of our connection: direct, punched-tcp, rtc, relay, other; "" without one
    rtt_s: float | None
    step: int
    tokens: int
    eval_loss: float | None
    version: str
    node_name: str = ""  # what it says that it is called; ``name`` tells it from one of that name
    trust: float | None = None  # what the node that serves the page makes of it


class ExchangeEdge(msgspec.Struct, frozen=True):
    """Two members that say that they exchange, by their place in ``members``."""

    one: int
    other: int
    per_hour: float


class SnapshotView(msgspec.Struct, frozen=True):
    """A snapshot, and the names of some members that hold it."""

    root: str
    step: int
    size_bytes: int
    loss: float | None
    n_holders: int
    holders: tuple[str, ...]


class Moment(Protocol):
    """What the outlook looks back at."""

    @property
    def unix_s(self) -> float:
        """When it was."""

    @property
    def members(self) -> int:
        """How many were here."""

    @property
    def tokens(self) -> int:
        """Of all members; 0: not known."""


class Outlook(msgspec.Struct, frozen=True):
    """How the swarm as a whole goes on, from what this node saw since it started."""

    target_tokens: int  # 0: it has no end
    tokens_per_day: float | None  # None: not known yet
    members_max: int
    end_unix_s: float | None  # at this rate; None: there is no end, or it is not known


class Overview(msgspec.Struct, frozen=True):
    """Everything at one moment.

    Attributes:
        members: capped; this node, then those that are here, then those that have gone.
        members_known: how many there are without the cap.
        members_alive: this node included.
        others_steps: of members that are not in ``members``, such as those of long ago.
    """

    unix_s: float
    node: OwnView
    members: tuple[MemberView, ...]
    members_known: int
    members_alive: int
    swarm_loss: float | None
    swarm_steps: int
    swarm_tokens: int
    others_steps: int
    others_tokens: int
    edges: tuple[ExchangeEdge, ...]
    snapshots: tuple[SnapshotView, ...]
    outlook: Outlook | None = None


def overview_of(view: NodeView, now: float, unix_s: float, past: Sequence[Moment] = ()) -> Overview:
    """Return the overview; ``now`` is monotonic. Cost: O(members + samples)."""
    status = view.node_status(now)
    peers = sorted(view.peers(), key=lambda each: (each.alive in _GONE, not each.connected))
    shown = [
        _own_member(status),
        *(_member(peer) for peer in peers if peer.peer != status.peer),
    ][: limits.DASHBOARD_MEMBERS_MAX]
    # Our own counts are ahead of what we last said of them.
    steps, tokens = sum(each.step for each in shown), sum(each.tokens for each in shown)
    swarm_steps = max(steps, status.swarm_steps)
    swarm_tokens = max(tokens, status.swarm_tokens)
    edges: tuple[ExchangeEdge, ...] = ()
    snapshots: tuple[SnapshotView, ...] = ()
    match view.membership:
        case Member(part=part):
            edges, snapshots = _edges(view, part, shown), _snapshots(part, now)
    return Overview(
        unix_s=unix_s,
        node=_own_view(view, status),
        members=tuple(shown),
        members_known=len({status.peer, *(peer.peer for peer in peers)}),
        members_alive=status.peers_alive + 1,
        swarm_loss=status.swarm_loss,
        swarm_steps=swarm_steps,
        swarm_tokens=swarm_tokens,
        others_steps=swarm_steps - steps,
        others_tokens=swarm_tokens - tokens,
        edges=edges,
        snapshots=snapshots,
        outlook=outlook_of(past, swarm_tokens, status.target_tokens, unix_s),
    )


def _own_view(view: NodeView, status: NodeStatus) -> OwnView:
    terms = view.membership.terms
    return OwnView(
        swarm=status.swarm,
        task=terms.task,
        strategy=terms.strategy,
        codec=status.codec,
        numel=terms.numel,
        peer=status.peer,
        role=status.role,
        state=status.state,
        reason=_cut(status.reason),
        alarm=_cut(status.alarm),
        connectivity=status.connectivity.state,
        connectivity_why=_cut(status.connectivity.why),
        bootstraps=tally(status.bootstraps),
        can_pause=view.work.has_worker and not view.is_leaving,
        version=status.version,
        uptime_s=status.uptime_s,
        device=status.device,
        step=status.step,
        tokens=status.tokens,
        step_time_s=status.step_time_s,
        loss=status.loss,
        eval_loss=status.eval_loss,
        exchanges_committed=status.exchanges_committed,
        exchanges_aborted=status.exchanges_aborted,
        exchanges_declined=status.exchanges_declined,
        exchanges_in_doubt=status.exchanges_in_doubt,
        sent_bytes=sum(status.sent_bytes.values()),
        received_bytes=sum(status.received_bytes.values()),
        worker_restarts=status.worker_restarts,
        snapshot_step=status.snapshot_step,
        node_name=status.node_name,
        line_sent_bytes=status.line_sent_bytes,
        line_received_bytes=status.line_received_bytes,
    )


def outlook_of(past: Sequence[Moment], tokens: int, target_tokens: int, unix_s: float) -> Outlook:
    """Return what follows from the last DASHBOARD_OUTLOOK_S, or as much as there is."""
    known = [
        one for one in past if one.tokens and unix_s - one.unix_s <= limits.DASHBOARD_OUTLOOK_S
    ]
    per_s, end_unix_s = 0.0, None
    took_s = known[-1].unix_s - known[0].unix_s if known else 0.0
    if took_s > 0:
        # Members that left long ago are forgotten with their tokens: no rate is below 0.
        per_s = max(0, known[-1].tokens - known[0].tokens) / took_s
    left = max(0, target_tokens - tokens)
    if target_tokens and (per_s > 0 or not left):
        end_unix_s = unix_s + (left / per_s if left else 0)
    return Outlook(
        target_tokens=target_tokens,
        tokens_per_day=per_s * _DAY_S if took_s > 0 else None,
        members_max=max((one.members for one in past), default=0),
        end_unix_s=end_unix_s,
    )


def _own_member(status: NodeStatus) -> MemberView:
    return MemberView(
        peer=status.peer,
        name=letters_of(PeerId.parse(status.peer)),
        is_self=True,
        role=status.role,
        alive="alive",
        state=status.state,
        path="",
        rtt_s=None,
        step=status.step,
        tokens=status.tokens,
        eval_loss=status.eval_loss,
        version=status.version,
        node_name=status.node_name,
    )


def _member(peer: PeerView) -> MemberView:
    return MemberView(
        peer=peer.peer,
        name=letters_of(PeerId.parse(peer.peer)),
        is_self=False,
        role=peer.role,
        alive=peer.alive,
        state=peer.state,
        path=peer.path if peer.connected else "",
        rtt_s=peer.rtt_s if peer.connected else None,
        step=peer.step,
        tokens=peer.tokens,
        eval_loss=peer.eval_loss,
        version=_cut(peer.version, limits.DASHBOARD_VERSION_CHARACTERS_MAX),
        node_name=peer.name,
        trust=peer.trust,
    )


def _edges(
    view: NodeView, part: SwarmPart, shown: Sequence[MemberView]
) -> tuple[ExchangeEdge, ...]:
    """Return which members say that they exchange with which, the busiest first."""
    places = {PeerId.parse(member.peer): place for place, member in enumerate(shown)}
    said: Mapping[PeerId, str] = {
        **{peer: part.peer_report(peer).met for peer in places},
        view.node.self_id: view.meetings.said(trio.current_time()) or "",
    }
    ids = sorted(said)
    rates = observed_rates(said)
    busiest = sorted(rates.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        ExchangeEdge(places[ids[one]], places[ids[other]], rate * _HOUR_S)
        for (one, other), rate in busiest[: limits.DASHBOARD_EDGES_MAX]
    )


def _snapshots(part: SwarmPart, now: float) -> tuple[SnapshotView, ...]:
    newest = part.state.view.snapshots(now)[: limits.DASHBOARD_SNAPSHOTS_MAX]
    return tuple(
        SnapshotView(
            root=entry.root.hex()[:12],
            step=entry.step,
            size_bytes=entry.size_bytes,
            loss=entry.loss,
            n_holders=len(entry.holders),
            holders=tuple(map(letters_of, entry.holders[: limits.DASHBOARD_HOLDERS_MAX])),
        )
        for entry in newest
    )


def _cut(text: str, characters_max: int = limits.DASHBOARD_TEXT_CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else text[:characters_max] + "…"
