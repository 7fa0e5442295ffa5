"""The DHT in the simulator: one part per node, and what is checked about all of them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.core import DhtConfig, DhtCore
from swarmnode.protocol.dht.keys import AddressGroups, blob_key, number_of
from swarmnode.protocol.dht.records import OpenRecord, RecordRules, keys_of
from swarmnode.testing.world import Node, Part
from swarmnode.wire import dht as wire

WORLD_UNIX_START_S = 1_800_000_000.0

_GROUPS_KEPT = 65_536  # as many addresses as a simulation has nodes, dead ones included

Answer = events.PeersFound | events.RecordsFound | events.Published | events.Refused


@dataclass
class DhtWatch:
    """What happened to lookups, and what was broken."""

    hops: list[int] = field(default_factory=list)
    commands: int = 0
    answers: int = 0
    # All nodes share them: one cache for each held more memory than its table.
    groups: AddressGroups = field(default_factory=lambda: AddressGroups(kept=_GROUPS_KEPT))

    def hops_p50(self) -> float:
        """Median length of the ways to the closest peers."""
        ordered = sorted(self.hops)
        return float(ordered[len(ordered) // 2]) if ordered else 0.0

    def check_found(
        self, node: Node, found: events.PeersFound | events.RecordsFound, n_nodes: int
    ) -> None:
        """Check a finished lookup: sorted, no contact twice, not ourselves, few rounds."""
        self.hops.append(found.hops)
        target = number_of(found.key)
        distances = [number_of(contact.peer) ^ target for contact in found.contacts]
        if any(one >= other for one, other in pairwise(distances)):
            node.world.violated("I8", node, "a lookup's result is not sorted, or has one twice")
        if number_of(node.peer_id) ^ target in distances:
            node.world.violated("I8", node, "a lookup found its own node")
        rounds_max = math.ceil(math.log2(max(2, n_nodes))) + 3
        if found.rounds > rounds_max:
            what = f"a lookup took {found.rounds} rounds, more than {rounds_max}"
            node.world.violated("I8", node, what)

    def check_records(self, node: Node, found: events.RecordsFound) -> None:
        """Check that what came out of a lookup was worth letting out."""
        for opened in found.records:
            author = PeerId.from_public_key(opened.signed.public_key)
            if opened.author != author or found.key not in keys_of(opened.record, author):
                node.world.violated("I7", node, "a record that does not belong to its key")

    def check_tables(self, nodes: Iterable[Node]) -> None:
        """Check every routing table against what it promises."""
        for node in nodes:
            part = node.parts["dht"]
            assert isinstance(part, DhtPart)
            for what in broken_promises(part.core):
                node.world.violated("I8", node, what)


def broken_promises(core: DhtCore) -> list[str]:
    """Return what is wrong with a routing table; nothing, one hopes."""
    found: list[str] = []
    own = number_of(core.self_id)
    in_table: Counter[str] = Counter()
    for index, bucket in core.table.buckets().items():
        if len(bucket.entries) > limits.DHT_BUCKET_CONTACTS:
            found.append(f"bucket {index} has {len(bucket.entries)} contacts")
        if any((entry.number ^ own).bit_length() - 1 != index for entry in bucket.entries):
            found.append(f"bucket {index} has contacts of another, or ourselves")
        groups = Counter(entry.group for entry in bucket.entries if entry.group is not None)
        if any(count > limits.DHT_GROUP_BUCKET_MAX for count in groups.values()):
            found.append(f"bucket {index} has too many of one network")
        in_table.update(groups)
    if any(count > limits.DHT_GROUP_TABLE_MAX for count in in_table.values()):
        found.append("the table has too many of one network")
    return found


class DhtPart(Part):
    """A DHT core; ``hints`` are the contacts that its link names."""

    service = "dht"
    message_type = wire.Message
    core: DhtCore

    def __init__(
        self,
        node: Node,
        rules: RecordRules,
        watch: DhtWatch,
        hints: tuple[wire.Contact, ...],
        *,
        as_bytes: bool,
    ) -> None:
        super().__init__(node, as_bytes=as_bytes)
        config = DhtConfig(rules, 1, WORLD_UNIX_START_S, watch.groups)
        self.core = DhtCore(node.signer, config, node.rng, node.started_at)
        self.bootstrapped_at: float | None = None
        self.is_grey = False  # accepts requests, and does not answer them
        self._watch = watch
        self._hints = hints
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._last_command = 0

    def start(self, now: float) -> None:
        self.core.handle(events.Reachable(self.node.addresses), now)
        self.core.handle(events.Discovered(self._hints), now)

    def receive(self, source: PeerId, message: Any, observed: str, now: float) -> None:
        if self.is_grey and isinstance(message, wire.Request):
            return
        self.core.handle(events.Received(source, message, observed), now)

    def carry_out(self, effect: events.Effect, now: float) -> None:
        match effect:
            case events.Send(peer, _, message, anew):
                self.node.send(self, peer, message, anew=anew)
            case events.Bootstrapped():
                self.bootstrapped_at = now
                self.node.world.report(self.node, "bootstrapped", effect.contacts)
            case _:
                self._answered(effect)

    # --- commands -----------------------------------------------------------------------

    def get(self, key: bytes, then: Callable[[Answer], None], *, quorum: int = 0) -> None:
        """Collect the records under a key."""
        self._command(events.GetRecords(self._number(then), key, quorum))

    def find(self, key: bytes, then: Callable[[Answer], None]) -> None:
        """Find the peers closest to a key."""
        self._command(events.FindPeers(self._number(then), key))

    def provide(self, blob: bytes, then: Callable[[Answer], None]) -> None:
        """Publish that this node has a blob."""
        draft = wire.ProviderRecord(0, 0, limits.DHT_RECORD_TTL_S, self.node.addresses, blob)
        self._command(events.Publish(self._number(then), blob_key(blob), draft))

    def unanswered(self) -> int:
        """Return how many commands wait for their answer."""
        return len(self._waiting)

    def _number(self, then: Callable[[Answer], None]) -> int:
        self._last_command += 1
        self._waiting[self._last_command] = then
        return self._last_command

    def _command(self, command: events.Command) -> None:
        self._watch.commands += 1
        self.feed(command, self.node.world.now)

    def _answered(self, answer: Answer) -> None:
        world = self.node.world
        then = self._waiting.pop(answer.command, None)
        if then is None:
            world.violated("I14", self.node, f"command {answer.command} was answered twice")
            return
        self._watch.answers += 1
        match answer:
            case events.PeersFound() | events.RecordsFound():
                self._watch.check_found(self.node, answer, len(world.up))
                if isinstance(answer, events.RecordsFound):
                    self._watch.check_records(self.node, answer)
                world.report(self.node, "found", answer.hops, answer.rounds, answer.asked)
            case events.Published(replicas=replicas):
                world.report(self.node, "published", replicas)
        then(answer)


def blob_number(number: int) -> bytes:
    """Return the digest of a blob that the workload invents."""
    return hashlib.sha256(b"blob %d" % number).digest()


def holder_of(found: Answer, author: PeerId) -> OpenRecord | None:
    """Return the record of one author in an answer."""
    if not isinstance(found, events.RecordsFound):
        return None
    return next((each for each in found.records if each.author == author), None)
