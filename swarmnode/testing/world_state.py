"""The shared state in the simulator: one part per member, and what is checked about all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.document import Delta
from swarmnode.protocol.crdt.records import Opened, Weighed, open_record
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.identity import Verify
from swarmnode.testing.world import Node, Part
from swarmnode.testing.world_dht import WORLD_UNIX_START_S
from swarmnode.wire import crdt as wire
from swarmnode.wire.crdt import Head
from swarmnode.wire.swarm import Signed

# Just before the core would renew its leases with an empty record.
WORD_S = 0.9 * limits.STATE_LEASE_S / 3
# Some seconds of what ten thousand nodes say.
_FRESH_MAX = 1024
_STATES = ("training", "paused", "waiting")


class SharedRecord(Opened):
    """A record that many replicas take in at about the same time: what it adds is made once."""

    @cached_property
    def weighed(self) -> Weighed:
        """As of any record."""
        return super().weighed

    @cached_property
    def delta(self) -> Delta:
        """As of any record."""
        return super().delta

    def forget_delta(self) -> None:
        """All have it, or nearly."""
        vars(self).pop("delta", None)


@dataclass
class Reader:
    """Opens each record once for all nodes, which saves most of the memory of a simulation."""

    _opened: WeakValueDictionary[bytes, SharedRecord] = field(default_factory=WeakValueDictionary)
    _fresh: deque[SharedRecord] = field(default_factory=deque)

    def read(self, signed: Signed, swarm_id: bytes) -> Opened:
        """As ``open_record``: an opened record is never changed, so nodes may share it."""
        opened = self._opened.get(signed.signature)
        is_same = opened is not None and (opened.signed is signed or opened.signed == signed)
        if opened is None or not is_same or opened.record.swarm_id != swarm_id:
            read = open_record(signed, swarm_id)
            opened = SharedRecord(read.signed, read.record, read.actor, read.hash)
            self._opened[signed.signature] = opened
            self._fresh.append(opened)
            if len(self._fresh) > _FRESH_MAX:
                self._fresh.popleft().forget_delta()
        return opened


@dataclass
class StateWatch:
    """What is checked of every record that gets in anywhere."""

    reader: Reader = field(default_factory=Reader)
    words: int = 0  # said by all
    records: int = 0  # taken in by all
    _bodies: dict[tuple[PeerId, tuple[int, int]], bytes] = field(default_factory=dict)

    def check_record(self, part: StatePart, record: Signed, *, is_own: bool) -> None:
        """Check that no dot is signed twice, and none taken in twice."""
        opened = self.reader.read(record, part.swarm_id)
        author, version = opened.actor.peer, opened.version
        if is_own:
            self.words += 1
            if self._bodies.setdefault((author, version), opened.hash) != opened.hash:
                part.node.world.violated("I2", part.node, f"signed two records as {version}")
        self.records += 1
        before = part.versions.get(author)
        if before is not None and before >= version:
            what = f"took in record {version} of {author.short} after {before}: a dot twice"
            part.node.world.violated("I2", part.node, what)
        part.versions[author] = version

    def check_states(self, parts: Iterable[StatePart]) -> None:
        """Check that equal version vectors mean equal bytes."""
        seen: dict[tuple[Head, ...], bytes] = {}
        for part in parts:
            digest = part.core.digest()
            if seen.setdefault(part.core.version_vector(), digest) != digest:
                what = "its state differs from another's with an equal version vector"
                part.node.world.violated("I1", part.node, what)


class StatePart(Part):
    """The shared state of one member, which says something about itself now and then."""

    service = "state"
    message_type = wire.Message
    core: SharedState

    def __init__(
        self, node: Node, swarm_id: bytes, verify: Verify, watch: StateWatch, *, as_bytes: bool
    ) -> None:
        super().__init__(node, as_bytes=as_bytes)
        self.swarm_id = swarm_id
        self.versions: dict[PeerId, tuple[int, int]] = {}  # the newest taken in of each author
        self.core = SharedState(
            node.signer,
            swarm_id,
            epoch=1,
            wall_unix_s=WORLD_UNIX_START_S + node.started_at,
            now=node.started_at,
            rng=node.rng,
            verify=verify,
            read=watch.reader.read,
        )
        self._watch = watch
        self._steps = 0
        self._words = 0

    def start(self, now: float) -> None:
        me = self.node.peer_id
        leases = {("member", str(me)): round(limits.STATE_LEASE_S), ("role", "trainer"): 300}
        leases |= {("address", address): 300 for address in self.node.addresses}
        self.core.handle(events.Update(leases=leases), now)
        self.say_after(WORD_S * self.node.rng.random())

    def receive(self, source: PeerId, message: Any, observed: str, now: float) -> None:  # noqa: ARG002
        self.core.handle(events.Received(source, message), now)

    def carry_out(self, effect: events.Effect, now: float) -> None:
        match effect:
            case events.Send(peer, message):
                self.node.send(self, peer, message, is_open=True)
            case events.Persist(record, sequence):
                self._watch.check_record(self, record, is_own=sequence is not None)
                if sequence is not None:
                    self.feed(events.Persisted(sequence), now)
            case events.Changed():
                pass
            case events.Ban() | events.Penalise() | events.KeyElsewhere():
                what = f"honest members, and yet {effect!r:.200}"
                self.node.world.violated("I3", self.node, what)

    def session(self, peer: PeerId, *, is_open: bool) -> None:
        """A session with a peer opened, or is gone."""
        event = events.NeighbourUp(peer) if is_open else events.NeighbourDown(peer)
        self.feed(event, self.node.world.now)

    def say(self) -> None:
        """Say what a node that trains says, and the next thing in a while."""
        rng, world = self.node.rng, self.node.world
        self._words += 1
        self._steps += rng.randrange(1, 500)
        update = events.Update(
            leases={("shard", str(rng.randrange(16))): rng.choice((0, 300))},
            counters={"steps": self._steps, "tokens": 4096 * self._steps},
            registers={"status": _STATES[rng.randrange(3)], "loss": round(rng.random(), 3)},
            maxima={"step": self._steps},
        )
        self.feed(update, world.now)
        world.report(self.node, "said", self._steps)
        self.say_after(WORD_S * rng.uniform(0.9, 1.0))

    def say_after(self, delay_s: float) -> None:
        """Say something then, if the node is up and has said nothing meanwhile."""
        world, n_words = self.node.world, self._words

        def say_if_silent() -> None:
            if self.node.is_up and self._words == n_words:
                self.say()

        world.at(world.now + delay_s, say_if_silent)


def have_same_state(parts: Iterable[StatePart]) -> bool:
    """Whether all have equal version vectors and equal bytes; cheap where they do not."""
    vectors: set[tuple[Head, ...]] = set()
    members = list(parts)
    for part in members:
        vectors.add(part.core.version_vector())
        if len(vectors) > 1:
            return False
    return len({part.core.digest() for part in members}) == 1
