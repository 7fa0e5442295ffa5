"""``swarmnode simulate``: boot a swarm, let a profile's faults loose on it, count what works.

::

    boot (all join within BOOT_S) -> settle -> publish -> faults and gets -> last checks

A profile says how long that lasts and what goes wrong meanwhile. What a get is for is a record
that somebody published before; it succeeds if it finds that record. Gets of nodes that die
meanwhile do not count, nor do those made while the network is cut.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import asdict, dataclass

from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import blob_key
from swarmnode.protocol.dht.records import RecordRules
from swarmnode.protocol.identity import Identity, verify
from swarmnode.testing.net_model import Weather
from swarmnode.testing.toy_keys import ToyIdentity, toy_verify
from swarmnode.testing.world import Node, Part, World
from swarmnode.testing.world_dht import Answer, DhtPart, DhtWatch, blob_number, holder_of
from swarmnode.testing.world_swim import SwimPart, is_agreed
from swarmnode.wire import dht as wire

BOOT_S = 60.0
SETTLE_S = 60.0
ANSWER_S = 60.0  # at the end: every command must be answered by then
MEMBERSHIP_S = 30.0  # after a partition: members must agree again by then
# The swarm within the network. A member probes another every two seconds, so sixty of them
# take part in as much as the DHT of a few hundred.
_MEMBERS_MAX = 60
_ENTRY_NODES = 8  # that links name
_HINTS = 3
_RECORDS_MAX = 200
_GETS_MAX = 1000
_CHECK_S = 300.0
_NETWORK_ID = bytes(range(32))
CLEAR = Weather()


@dataclass(frozen=True)
class Profile:
    """What a run is like.

    Attributes:
        faults_s: how long gets and faults go on.
        replaced_per_h: share of the nodes that vanish and are replaced by new ones.
        cut_s: how long the network is in two halves, from a quarter of ``faults_s`` on.
        healed_s: after that, how long until gets must work again.
        grey: share of the nodes that stop answering when the faults begin.
        nated: share of nodes that nobody can dial.
        unaware: share of those that name an address all the same.
    """

    faults_s: float
    weather: Weather = CLEAR
    replaced_per_h: float = 0.0
    cut_s: float = 0.0
    healed_s: float = 60.0
    grey: float = 0.0
    nated: float = 0.2
    unaware: float = 0.2


PROFILES = {
    "calm": Profile(600.0),
    "churn": Profile(3600.0, Weather(loss=0.001), replaced_per_h=0.3),
    "partition": Profile(720.0, cut_s=300.0),
    "lossy": Profile(600.0, Weather(loss=0.1, stall=0.02)),
    "grey": Profile(600.0, grey=0.6),
}


@dataclass(frozen=True)
class Result:
    """What ``swarmnode simulate --json`` prints; None where no core of that kind takes part."""

    nodes: int
    seed: int
    digest: str
    lookup_success: float
    hops_p50: float
    violations: int
    membership_converged_s: float | None
    state_converged_s: float | None
    virtual_s: float
    cpu_s: float

    def as_json(self) -> dict[str, object]:
        """Return it with its fields in order."""
        return asdict(self)


class Simulation:
    """One run; see the module's text.

    Args:
        real: real signatures, and messages as bytes. One seed in ten should be.
    """

    def __init__(self, nodes: int, profile: str, seed: int, *, real: bool = False) -> None:
        if profile not in PROFILES:
            raise ConfigError(f"expected a profile of {', '.join(PROFILES)}, got {profile!r}")
        if nodes < 2:
            raise ConfigError(f"a simulation has at least 2 nodes, not {nodes}")
        self.profile = PROFILES[profile]
        self.n_nodes = nodes
        self.watch = DhtWatch()
        self.found: list[bool] = []
        self.replicas: list[int] = []
        # What other parts than the DHT measure, by the name of the result's field.
        self.measured_s: dict[str, float] = {}
        self._real = real
        self._rules = RecordRules(_NETWORK_ID, verify if real else toy_verify)
        self._rng = random.Random(f"workload/{seed}")
        make_signer = Identity.from_seed if real else ToyIdentity.from_seed
        self.world = World(seed, self.profile.weather, make_signer, self._make_parts)
        self._entries: list[wire.Contact] = []
        self._authors: dict[bytes, Node] = {}  # blob to who published it

    def run(self) -> None:
        """Let it all happen."""
        world, profile = self.world, self.profile
        self._boot_all()
        published_from = BOOT_S + SETTLE_S
        faults_from = published_from + SETTLE_S
        end = faults_from + profile.faults_s
        n_records, n_gets = min(self.n_nodes, _RECORDS_MAX), min(2 * self.n_nodes, _GETS_MAX)
        for number in range(n_records):
            at = published_from + SETTLE_S / 2 * number / n_records
            world.at(at, lambda number=number: self._publish(number))  # type: ignore[misc]
        for number in range(n_gets):
            world.at(faults_from + profile.faults_s * number / n_gets, self._get)
        self._plan_faults(faults_from, end)
        for number in range(1, math.ceil(end / _CHECK_S)):
            world.at(number * _CHECK_S, self._check_tables)
        world.run(end + ANSWER_S)
        self._check_tables()
        for node in world.up.values():
            if dht_of(node).unanswered():
                world.violated("I14", node, f"a command got no answer within {ANSWER_S:g} s")

    # --- nodes --------------------------------------------------------------------------

    def _make_parts(self, node: Node) -> list[Part]:
        """Make the cores of a node: the one place to add another kind."""
        hints = tuple(self._rng.sample(self._entries, min(_HINTS, len(self._entries))))
        parts: list[Part] = [DhtPart(node, self._rules, self.watch, hints, as_bytes=self._real)]
        if self.profile.cut_s and node.number < _MEMBERS_MAX:
            seeds = tuple(PeerId(contact.peer) for contact in hints)
            parts.append(SwimPart(node, self._rules.verify, seeds))
        return parts

    def _boot_all(self) -> None:
        for number in range(self.n_nodes):
            is_entry = number < min(_ENTRY_NODES, self.n_nodes)
            at = 0.0 if is_entry else BOOT_S * self._rng.random()
            self.world.at(at, lambda is_entry=is_entry: self._boot(is_entry=is_entry))  # type: ignore[misc]

    def _boot(self, *, is_entry: bool = False) -> None:
        is_nated = not is_entry and self._rng.random() < self.profile.nated
        is_unaware = is_nated and self._rng.random() < self.profile.unaware
        node = self.world.boot(is_nated=is_nated, is_unaware=is_unaware)
        if is_entry:
            self._entries.append(wire.Contact(bytes(node.peer_id), node.addresses))

    # --- workload -----------------------------------------------------------------------

    def _settled(self) -> Node | None:
        """Return a node that can be expected to find what there is."""
        up = self.world.up
        numbers = list(up)
        for _ in range(20):
            node = up[numbers[self._rng.randrange(len(numbers))]]
            dht = dht_of(node)
            if dht.bootstrapped_at is not None and not dht.is_grey:
                return node
        return None

    def _publish(self, number: int) -> None:
        node = self._settled()
        if node is None:
            return
        blob = blob_number(number)
        self._authors[blob] = node
        dht_of(node).provide(blob, self._published)

    def _published(self, answer: Answer) -> None:
        self.replicas.append(getattr(answer, "replicas", 0))

    def _get(self) -> None:
        node = self._settled()
        if node is None or not self._authors or self._is_cut():
            return
        blob = self._rng.choice(list(self._authors))
        author = self._authors[blob].peer_id
        dht_of(node).get(
            blob_key(blob), lambda answer: self.found.append(holder_of(answer, author) is not None)
        )

    # --- faults -------------------------------------------------------------------------

    def _plan_faults(self, start: float, end: float) -> None:
        profile, world = self.profile, self.world
        if profile.cut_s:
            self._cut_from = start + profile.faults_s / 4
            self._cut_until = self._cut_from + profile.cut_s + profile.healed_s
            world.at(self._cut_from, world.network.split)
            world.at(self._cut_from + profile.cut_s, self._heal)
        if profile.grey:
            world.at(start, self._turn_grey)
        if profile.replaced_per_h:
            count = round(profile.replaced_per_h * self.n_nodes * (end - start) / 3600.0)
            for at in sorted(self._rng.uniform(start, end) for _ in range(count)):
                world.at(at, self._replace)

    def _is_cut(self) -> bool:
        if not self.profile.cut_s:
            return False
        return self._cut_from <= self.world.now < self._cut_until

    def _heal(self) -> None:
        self.world.network.heal()
        self._watch_membership(self.world.now)

    def _watch_membership(self, healed_at: float) -> None:
        """Note when all members agree again; whether that is soon enough."""
        now = self.world.now
        if is_agreed(self.world.up.values()):
            self.measured_s["membership_converged_s"] = now - healed_at
        elif now - healed_at >= MEMBERSHIP_S:
            node = next(iter(self.world.up.values()))
            what = f"members do not agree {MEMBERSHIP_S:g} s after the network healed"
            self.world.violated("R4", node, what)
        else:
            self.world.at(now + 1.0, lambda: self._watch_membership(healed_at))

    def _turn_grey(self) -> None:
        for node in self.world.up.values():
            dht_of(node).is_grey = self._rng.random() < self.profile.grey

    def _replace(self) -> None:
        """Replace the younger of two: who has been there for long stays longer."""
        up, rng = self.world.up, self._rng
        numbers = list(up)[_ENTRY_NODES:] or list(up)
        victim = up[max(rng.choice(numbers), rng.choice(numbers))]
        self.world.kill(victim)
        self._boot()

    # --- checks -------------------------------------------------------------------------

    def _check_tables(self) -> None:
        self.watch.check_tables(self.world.up.values())


def dht_of(node: Node) -> DhtPart:
    """Return a node's DHT."""
    part = node.parts["dht"]
    assert isinstance(part, DhtPart)
    return part


def run_simulation(
    nodes: int, profile: str, seed: int, *, real: bool | None = None
) -> tuple[Result, list[str]]:
    """Run one simulation to its end.

    Args:
        real: real signatures and bytes; None: in one seed of ten.

    Returns:
        The figures, and a line for every promise that was broken.
    """
    started = time.process_time()
    simulation = Simulation(nodes, profile, seed, real=seed % 10 == 0 if real is None else real)
    simulation.run()
    world, found = simulation.world, simulation.found
    result = Result(
        nodes=nodes,
        seed=seed,
        digest=world.digest(),
        lookup_success=sum(found) / len(found) if found else 0.0,
        hops_p50=simulation.watch.hops_p50(),
        violations=len(world.violations),
        membership_converged_s=simulation.measured_s.get("membership_converged_s"),
        state_converged_s=simulation.measured_s.get("state_converged_s"),
        virtual_s=world.now,
        cpu_s=round(time.process_time() - started, 3),
    )
    return result, world.violations
