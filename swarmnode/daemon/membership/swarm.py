"""Our part in one swarm: its gate, its members, its shared state, and what we say in it.

::

    rendezvous -> members (sessions, liveness) -> shared state (what each says)
                 ^------------- addresses --------------+
    reporter: what we say    publisher: how newcomers find us

The gate is the shell of ``protocol/admission.py``: it keeps our own certificate fresh, passes on
revocations and what else it has heard, and remembers over a restart which peer used which invite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.config import SwarmPaths
from swarmnode.daemon.discovery.composition import Composition
from swarmnode.daemon.discovery.rendezvous import SwarmRendezvous
from swarmnode.daemon.membership.members import Gate, Members, OpenGate
from swarmnode.daemon.membership.report import (
    LINE_BYTES_PER_S,
    ROLE,
    STEP_TIME_S,
    PeerReport,
    Reporter,
    SelfReport,
    TrustKeeper,
    peer_report,
    role_of,
    state_of,
)
from swarmnode.daemon.membership.shared_state import ADDRESS, StateKeeper
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.relays.address import is_relayed
from swarmnode.net.services import ScopedServices
from swarmnode.net.session import Session
from swarmnode.protocol.crdt.document import VERDICTS
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.hosts import block_of
from swarmnode.protocol.membership.swim_events import Changed, MemberState
from swarmnode.protocol.plausible import (
    bounded_times,
    claimed_step,
    mark,
    middle_of,
    total_steps,
    total_tokens,
)
from swarmnode.protocol.shards.words import REGISTERS
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.protocol.trust import NEUTRAL, Trust
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import dht as wire_dht
from swarmnode.wire.admission import Role
from swarmnode.wire.swarm import Manifest

_log = get_logger("swarmnode.daemon.membership")
_AT_WORK = ("starting", "syncing", "training", "serving", "paused")
_WITH_MODEL = ("training", "paused", "stopped", "finished")


class Partners(Protocol):
    """The members that may be partners, and how to talk to them."""

    @property
    def sessions(self) -> Mapping[PeerId, Session]:
        """With our neighbours."""

    def partners(self) -> tuple[PeerId, ...]:
        """Return the members that train, start or rest, ourselves included, in id order."""

    def active(self) -> tuple[PeerId, ...]:
        """Return those of them whose workers take steps now, ourselves only if ours does."""

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """Bring about sessions with these, the first before the others, where that costs others."""


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """Which members make exchanges, and over what: the same for every kind of them.

    Attributes:
        self_id: this node.
        key: 32 bytes that guard every exchange.
        services: of the swarm.
        live: the members alive, as the failure detector knows.
        trust: what this node makes of each of them.
    """

    self_id: PeerId
    key: bytes
    partners: Partners
    services: ScopedServices
    live: Callable[[], Collection[PeerId]]
    trust: Trust
    env: Env


@dataclass(frozen=True)
class Totals:
    """What all members together have done over all time, by their bounded words."""

    steps: int
    tokens: int


class SwarmPart:
    """What a node is in a swarm.

    Args:
        report: what there is to say of ourselves now.

    Attributes:
        self_id: this node.
        trust: what it makes of its peers.
    """

    def __init__(
        self,
        composition: Composition,
        *,
        link: SwarmLink,
        manifest: Manifest,
        paths: SwarmPaths,
        rendezvous: SwarmRendezvous,
        gate: Gate,
        report: Callable[[], SelfReport],
    ) -> None:
        self.changed = trio.Event()  # another one after each change of members or state
        self.on_partners_changed: Callable[[], None] = lambda: None
        self.manifest = manifest
        self._composition = composition
        self._rendezvous = rendezvous
        self._hints = link.hints
        self.report = report
        self.self_id = composition.identity.peer_id
        self._here_since = composition.env.monotonic()
        self._known_since: dict[PeerId, float] = {}  # of live members
        self.members = Members(
            identity=composition.identity,
            link=link,
            boot_epoch=composition.boot_epoch,
            network=composition.network,
            services=composition.services,
            gate=gate,
            resolve=self._resolve,
            env=composition.env,
        )
        self.state = StateKeeper(
            identity=composition.identity,
            swarm_id=link.swarm_id,
            boot_epoch=composition.boot_epoch,
            journal=paths.journal,
            services=self.members.services,
            env=composition.env,
        )
        self._trust_keeper = TrustKeeper(self.state, paths.trust, composition.env)
        self.trust = self._trust_keeper.book
        self.reporter = Reporter(self.state, self.self_id, report, lambda: len(self.members.live()))
        self.members.watchers += [self.state, self]
        self.state.on_changed = self._state_changed
        self.members.on_changed = self._member_changed

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until cancelled. Raises StorageError if the journal cannot be opened."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._trust_keeper.run)
            await nursery.start(self.state.run)
            await nursery.start(self.members.run)
            self._composition.network.keepers.append(self.members.keeps)
            self._composition.network.addresses_of = self.members.book.addresses_of
            self._rendezvous.on_found = self.members.found
            self._rendezvous.insider = self
            self.members.add_hints(self._hints)
            for peer, addresses in self._rendezvous.candidates.items():
                self.members.found(peer, addresses)
            self._use_stored_addresses()
            self._repeat_progress()
            nursery.start_soon(self.reporter.run)
            nursery.start_soon(self._publish)
            task_status.started()

    async def leave(self, reason: str) -> None:
        """Say goodbye: in the shared state, and to some members that pass it on."""
        if self.state.is_open:  # else no member has heard of us yet
            self.reporter.say_goodbye()
        self._rendezvous.withdraw()
        await self.members.leave(reason)

    # --- for exchanges and for people -------------------------------------------------------

    @property
    def sessions(self) -> dict[PeerId, Session]:
        """With our neighbours."""
        return self.members.sessions

    def partners(self) -> tuple[PeerId, ...]:
        """Return the members that train, start or rest, ourselves included, in id order."""
        return tuple(
            peer for peer in self.members.live() if peer == self.self_id or self._may_train(peer)
        )

    def active(self) -> tuple[PeerId, ...]:
        """Return those of them whose workers take steps now, ourselves only if ours does."""
        return tuple(peer for peer in self.partners() if state_of(self.state, peer) == "training")

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """Bring about sessions with these: see ``Partners``."""
        self.members.want(peers)

    def mergers(self) -> tuple[PeerId, ...]:
        """Return the members that have a model, also those that train no more, in id order."""
        return tuple(
            peer
            for peer in self.members.live()
            if peer == self.self_id or state_of(self.state, peer) in _WITH_MODEL
        )

    def is_in_good_standing(self, peer: PeerId) -> bool:
        """Whether a member may ask others for work: it has a model, and was here for a while."""
        now = self._composition.env.monotonic()
        enough_s = min(limits.STANDING_S, (now - self._here_since) / 2)
        return peer in self.mergers() and now - self._known_since.get(peer, now) >= enough_s

    def trust_in(self, peer: PeerId) -> float:
        """Return what a peer is worth to this node, see ``Trust.weight``."""
        return self.trust.weight(peer, self._composition.env.monotonic())

    def is_trusted(self, peer: PeerId) -> bool:
        """Whether this node thinks no less of a peer than of a stranger."""
        return self.trust_in(peer) >= NEUTRAL

    async def connect(self, peer: PeerId) -> Session:
        """Return a session with a member, dialled if need be. Raises SwarmNodeError."""
        return await self.members.connect(peer)

    def _may_train(self, peer: PeerId) -> bool:
        now = self._composition.env.monotonic()
        is_at_work = state_of(self.state, peer) in _AT_WORK
        return is_at_work and role_of(self.state, peer, now) == "trainer"

    def peer_report(self, peer: PeerId) -> PeerReport:
        """Return what a peer says of itself."""
        return peer_report(self.state, peer, self._composition.env.monotonic())

    def step_times_s(self) -> dict[PeerId, float]:
        """Return how long a local step takes, as each other member that trains now says.

        One that is far from what most say counts as less far: see ``protocol/plausible.py``.
        """
        reports = (self.peer_report(peer) for peer in self.partners())
        said = {
            report.peer: report.numbers[STEP_TIME_S]
            for report in reports
            if STEP_TIME_S in report.numbers
        }
        counted = bounded_times(said)
        return {peer: step_s for peer, step_s in counted.items() if peer != self.self_id}

    def line_rates(self) -> dict[PeerId, float]:
        """Return what the uplink of each other member carries in a second, as it says."""
        reports = (self.peer_report(peer) for peer in self.partners() if peer != self.self_id)
        return {
            report.peer: report.numbers[LINE_BYTES_PER_S]
            for report in reports
            if LINE_BYTES_PER_S in report.numbers
        }

    def swarm_step(self) -> int:
        """Return how far the swarm is, by what members say of it and most of them agree to."""
        most = self._steps_max()
        return mark(min(each, most) for each in self._marks("step"))

    def counted_step(self, said: int) -> int:
        """Return how far a claim about a snapshot counts; an absurd one, not at all.

        Honest snapshots are older than what members say now: as the median it would be the first.
        """
        middle = middle_of(min(each, self._steps_max()) for each in self._marks("step"))
        return claimed_step(said, middle) if middle else min(said, self._steps_max())

    def network_of(self, peer: PeerId) -> str:
        """Return which block of addresses a peer is seen in, "" if it is not seen."""
        address = self._composition.network.remote_address_of(peer)
        return block_of(address) if address else ""

    def swarm_tokens(self) -> int:
        """Return what the swarm has trained on: half of the training members say at least that."""
        said, live = self.state.view.marks("tokens"), self.members.live()
        if not any(peer in said for peer in live):
            return middle_of(said.values())
        return median_low(
            said.get(peer, 0)
            for peer in live
            if peer in said or self.peer_report(peer).state == "training"
        )

    def totals(self) -> Totals:
        """Return what all authors together have done, the dead included."""
        view, most, swarm_step = self.state.view, self._steps_max(), self.swarm_step()
        steps = {p: min(n, most) for p, n in view.counters_by_author("steps").items()}
        tokens = view.counters_by_author("tokens")
        return Totals(total_steps(steps, swarm_step), total_tokens(tokens, steps, swarm_step))

    def _marks(self, name: str) -> list[int]:
        """Return what live members say; before any is there, what all have said."""
        said = self.state.view.marks(name)
        live = [said[peer] for peer in self.members.live() if peer in said]
        return live or list(said.values())

    def _steps_max(self) -> int:
        """Return how many steps no member can have taken since there is the swarm."""
        age_s = max(0.0, self._composition.env.wall() - self.manifest.created_at)
        return int(limits.STEPS_PER_S_MAX * (age_s + limits.CLOCK_ALARM_S))

    def addresses_changed(self) -> None:
        """Others reach us somewhere else: peers that want to come should know at once."""
        self.reporter.say_now()

    def neighbour_up(self, session: Session) -> None:  # noqa: ARG002
        """Part of ``NeighbourWatcher``."""
        self.on_partners_changed()

    def neighbour_down(self, peer: PeerId) -> None:
        """Part of ``NeighbourWatcher``; exchanges notice by their streams."""

    # --- inside -----------------------------------------------------------------------------

    def _repeat_progress(self) -> None:
        """Our first record takes the place of all before: which shards we had trained as well."""
        said = self.state.view.registers_of(self.self_id)
        done = {name: said[name] for name in REGISTERS if name in said}
        if done:
            self.state.say(Update(registers=done))

    def _member_changed(self, changed: Changed) -> None:
        _log.info("member", peer=changed.peer.short, is_now=str(changed.state), why=changed.reason)
        if changed.state in (MemberState.DEAD, MemberState.LEFT):
            self._known_since.pop(changed.peer, None)
        else:
            self._known_since.setdefault(changed.peer, self._composition.env.monotonic())
        self._note_change()
        self.on_partners_changed()

    def _note_change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def _state_changed(self, author: PeerId, names: frozenset[str]) -> None:
        if ADDRESS in names and author != self.self_id:
            addresses = self.peer_report(author).addresses
            self.members.told(author, addresses, is_own_word=True)
            self._composition.network.on_whereabouts(author)
        if VERDICTS in names and author != self.self_id:
            self._trust_keeper.heard(author)
        self._note_change()
        if names & {"state", ROLE}:
            self.on_partners_changed()

    def _use_stored_addresses(self) -> None:
        """What the journal says about others has expired, and is the best there is."""
        for peer, addresses in self.state.stored_addresses().items():
            self.members.told(peer, addresses, is_own_word=True)

    async def _resolve(self, peer: PeerId) -> tuple[str, ...]:
        """Ask the DHT where a member is. Raises SwarmNodeError."""
        found = await self._composition.discovery.get(bytes(peer), quorum=limits.DHT_QUORUM)
        return next((each.record.addresses for each in found.records), ())

    async def _publish(self) -> None:
        """Be found in the DHT; say so again when it is no longer what we said."""
        said: tuple[tuple[str, ...], int, int] = (), 0, 0  # nothing: we are a member, at least
        # At once: a peer that asks us has found us then, even while all that we knew are gone. As
        # soon as others are met, the core says everything again.
        while True:
            addresses = self.report().addresses[: limits.DHT_ADDRESSES_MAX]
            members = len(self.members.live())
            contacts = min(
                limits.DHT_BUCKET_CONTACTS, self._composition.discovery.core.statistics().contacts
            )
            if _is_out_of_date(said, (addresses, members, contacts)):
                try:
                    await self._publish_once(addresses, members)
                    said = (addresses, members, contacts)
                except SwarmNodeError as error:
                    _log.debug("not published", why=str(error))
            await trio.sleep(limits.SWARM_REPUBLISH_S_MIN)

    async def _publish_once(self, addresses: tuple[str, ...], members: int) -> None:
        discovery = self._composition.discovery
        discovery.reachable_at(tuple(each for each in addresses if not is_relayed(each)))
        await self._rendezvous.publish(addresses, members, self.manifest.created_at)
        draft = wire_dht.PeerRecord(0, 0, limits.DHT_RECORD_TTL_S, addresses)
        await discovery.publish(bytes(self.self_id), draft)


def _is_out_of_date(
    said: tuple[tuple[str, ...], int, int], now: tuple[tuple[str, ...], int, int]
) -> bool:
    """Whether addresses, number of members or number of nodes that can store have changed."""
    (old_addresses, old_members, old_contacts), (addresses, members, contacts) = said, now
    return (
        addresses != old_addresses
        or abs(members - old_members) * 4 > old_members
        or contacts > 2 * old_contacts
    )


def make_gate(
    manifest: Manifest,
    link: SwarmLink,
    *,
    role: Role,
    self_id: PeerId,
    paths: SwarmPaths,
    env: Env,
) -> Gate:
    """Return the gate that the manifest asks for.

    Raises:
        NotAdmitted: the swarm is closed, and nothing on this disk or in the link admits us.
    """
    if manifest.admission == "open":
        return OpenGate(role)
    # Invites, certificates and their uses: most swarms are open and need none of it.
    from swarmnode.daemon.membership.admission import AdmissionGate

    return AdmissionGate(link, role=role, self_id=self_id, paths=paths, env=env)
