"""``swarmnode simulate``: boot a swarm, let a profile's faults loose on it, count what works.

::

    boot (all join within BOOT_S) -> settle -> publish -> faults and gets -> last checks

A profile says how long that lasts and what goes wrong meanwhile. What a get is for is a record
that another node published before; it succeeds if it finds that record. Gets of nodes that die
meanwhile do not count, nor do those made while the network is cut.

All nodes share one DHT and are spread over swarms (world_swarm.py), where they detect failures
and say something about themselves every 80 to 90 seconds. What is measured::

    membership_converged_s  from the last change (the last boot or kill, or the healing of a
                            partition) until every member of every swarm holds exactly those
                            for live that are up
    state_converged_s       from the last words (every member says something within one second:
                            when a partition heals, else when the faults end) until all
                            members of each swarm have equal version vectors and equal bytes

Both to a second, and null if it took longer than ``GIVE_UP_S``. What is promised all along, and
counted in ``violations``::

    I1   equal version vectors mean equal bytes
    I2   no dot is signed twice, or taken in twice
    I3   no honest member is banned, or punished
    I7   a lookup lets out only records that belong to its key
    I8   buckets within limits; lookups sorted, within log2 N + 3 rounds
    I9   incarnations never fall
    I12  in calm no live member is declared dead by more than 0.1 % of probes
    I14  every command is answered once
    R4   members agree, and states are equal, as soon as the profile says
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from swarmnode.errors import ConfigError
from swarmnode.protocol.dht.keys import blob_key
from swarmnode.protocol.dht.records import RecordRules
from swarmnode.protocol.identity import Identity, verify
from swarmnode.testing.net_model import PROFILES
from swarmnode.testing.world import Node, Part, ToyIdentity, World, toy_verify
from swarmnode.testing.world_dht import Answer, DhtPart, DhtWatch, blob_number, holder_of
from swarmnode.testing.world_swarm import LAST_WORDS_S, Stopwatch, Swarms
from swarmnode.wire import dht as wire

BOOT_S = 60.0
SETTLE_S = 60.0
ANSWER_S = 60.0  # at the end: every command must be answered by then
GIVE_UP_S = 120.0  # no run waits any longer for members to agree
_ENTRY_NODES = 8  # that links name
_HINTS = 3
_RECORDS_MAX = 200
_GETS_MAX = 1000
_CHECK_S = 300.0
_NETWORK_ID = bytes(range(32))


@dataclass(frozen=True)
class Result:
    """What ``swarmnode simulate --json`` prints; the module says what is measured."""

    nodes: int
    profile: str
    seed: int
    swarms: int
    members_per_swarm: int
    nated: float
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
        members_max: the largest swarm; None: as the profile says.
        real: real signatures, and messages as bytes. One seed in ten should be.
    """

    def __init__(
        self,
        nodes: int,
        profile: str,
        seed: int,
        *,
        members_max: int | None = None,
        real: bool = False,
    ) -> None:
        if profile not in PROFILES:
            raise ConfigError(f"expected a profile of {', '.join(PROFILES)}, got {profile!r}")
        if nodes < 2:
            raise ConfigError(f"a simulation has at least 2 nodes, not {nodes}")
        if members_max is not None and members_max < 2:
            raise ConfigError(f"a swarm has at least 2 members, not {members_max}")
        self.profile = PROFILES[profile]
        if members_max is not None:
            self.profile = replace(self.profile, members_max=members_max)
        self.n_nodes = nodes
        self.watch = DhtWatch()
        self.found: list[bool] = []
        self.replicas: list[int] = []
        self._real = real
        self._rules = RecordRules(_NETWORK_ID, verify if real else toy_verify)
        self._rng = random.Random(f"workload/{seed}")
        make_signer = Identity.from_seed if real else ToyIdentity.from_seed
        self.world = World(seed, self.profile.weather, make_signer, self._make_parts)
        self.swarms = Swarms(
            self.world, nodes, self.profile.members_max, self._rules.verify, as_bytes=real
        )
        self.membership = Stopwatch(self.world, self.swarms.members_agree, GIVE_UP_S)
        self.state = Stopwatch(self.world, self.swarms.states_are_equal, GIVE_UP_S)
        self._last_change = 0.0  # when a node is to come or go for the last time
        self._entries: list[wire.Contact] = []
        self._authors: dict[bytes, Node] = {}  # blob to the node that published it

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
            world.at(at, lambda number=number: self._publish(number))
        for number in range(n_gets):
            world.at(faults_from + profile.faults_s * number / n_gets, self._get)
        self._plan_faults(faults_from, end)
        for number in range(1, math.ceil(end / _CHECK_S)):
            world.at(number * _CHECK_S, self._check)
        world.run(end + max(ANSWER_S, profile.membership_s, profile.state_s))
        self._check()
        self._check_end()

    # --- nodes --------------------------------------------------------------------------

    def _make_parts(self, node: Node) -> list[Part]:
        """Make the cores of a node: the one place to add another kind."""
        hints = tuple(self._rng.sample(self._entries, min(_HINTS, len(self._entries))))
        parts: list[Part] = [DhtPart(node, self._rules, self.watch, hints, as_bytes=self._real)]
        return parts + self.swarms.make_parts(node)

    def _boot_all(self) -> None:
        for number in range(self.n_nodes):
            is_entry = number < min(_ENTRY_NODES, self.n_nodes)
            at = 0.0 if is_entry else BOOT_S * self._rng.random()
            self._last_change = max(self._last_change, at)
            self.world.at(at, lambda is_entry=is_entry: self._boot(is_entry=is_entry))

    def _boot(self, *, is_entry: bool = False) -> None:
        is_nated = not is_entry and self._rng.random() < self.profile.nated
        is_unaware = is_nated and self._rng.random() < self.profile.unaware
        node = self.world.boot(is_nated=is_nated, is_unaware=is_unaware)
        self.swarms.join(node)
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
            world.at(self._cut_from, self._cut)
            world.at(self._cut_from + profile.cut_s, self._heal)
        else:
            world.at(end, self._end_words)
        if profile.grey:
            world.at(start, self._turn_grey)
        count = round(profile.replaced_per_h * self.n_nodes * (end - start) / 3600.0)
        changes = sorted(self._rng.uniform(start, end) for _ in range(count))
        for at in changes:
            world.at(at, self._replace)
        if not profile.cut_s:
            last = changes[-1] if changes else self._last_change
            world.at(last, lambda: self.membership.start(last))

    def _is_cut(self) -> bool:
        if not self.profile.cut_s:
            return False
        return self._cut_from <= self.world.now < self._cut_until

    def _cut(self) -> None:
        self.world.network.split()
        self.swarms.cut()

    def _heal(self) -> None:
        self.world.network.heal()
        self.membership.start(self.world.now)
        self._end_words()

    def _end_words(self) -> None:
        self.swarms.say_last_words()
        now = self.world.now
        self.world.at(now + LAST_WORDS_S, lambda: self.state.start(now))

    def _turn_grey(self) -> None:
        for node in self.world.up.values():
            dht_of(node).is_grey = self._rng.random() < self.profile.grey

    def _replace(self) -> None:
        """Replace the younger of two: a node that has been there for long stays longer."""
        up, rng = self.world.up, self._rng
        numbers = list(up)[_ENTRY_NODES:] or list(up)
        victim = up[max(rng.choice(numbers), rng.choice(numbers))]
        self.swarms.lose(victim)
        self.world.kill(victim)
        self._boot()

    # --- checks -------------------------------------------------------------------------

    def _check(self) -> None:
        self.watch.check_tables(self.world.up.values())
        self.swarms.check_states()

    def _check_end(self) -> None:
        profile, world = self.profile, self.world
        for node in world.up.values():
            if dht_of(node).unanswered():
                world.violated("I14", node, f"a command got no answer within {ANSWER_S:g} s")
        any_node = next(iter(world.up.values()))
        for what, took_s, limit_s in (
            ("members agreed", self.membership.took_s, profile.membership_s),
            ("states were equal", self.state.took_s, profile.state_s),
        ):
            if took_s is None or took_s > limit_s:
                after = "never" if took_s is None else f"after {took_s:g} s"
                world.violated("R4", any_node, f"{what} {after}, not within {limit_s:g} s")
        share = self.swarms.false_death_share()
        if share > profile.false_deaths:
            what = f"live members were declared dead by {share:.2%} of probes"
            world.violated("I12", any_node, what)


def dht_of(node: Node) -> DhtPart:
    """Return a node's DHT."""
    part = node.parts["dht"]
    assert isinstance(part, DhtPart)
    return part


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Do not look for garbage: there are millions of objects, and none in cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_simulation(
    nodes: int,
    profile: str,
    seed: int,
    *,
    members_max: int | None = None,
    real: bool | None = None,
) -> tuple[Result, list[str]]:
    """Run one simulation to its end.

    Args:
        members_max: the largest swarm; None: as the profile says.
        real: real signatures and bytes; None: in one seed of ten.

    Returns:
        The figures, and a line for every promise that was broken.
    """
    started = time.process_time()
    is_real = seed % 10 == 0 if real is None else real
    simulation = Simulation(nodes, profile, seed, members_max=members_max, real=is_real)
    with _no_garbage():
        simulation.run()
    world, found = simulation.world, simulation.found
    result = Result(
        nodes=nodes,
        profile=profile,
        seed=seed,
        swarms=len(simulation.swarms.all),
        members_per_swarm=-(-nodes // len(simulation.swarms.all)),
        nated=simulation.profile.nated,
        digest=world.digest(),
        lookup_success=sum(found) / len(found) if found else 0.0,
        hops_p50=simulation.watch.hops_p50(),
        violations=len(world.violations),
        membership_converged_s=simulation.membership.took_s,
        state_converged_s=simulation.state.took_s,
        virtual_s=world.now,
        cpu_s=round(time.process_time() - started, 3),
    )
    return result, world.violations
