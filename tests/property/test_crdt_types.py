"""One state machine for every type of the shared state, and the laws of a join.

The model knows of each replica only which dots it has seen; what a type must say follows
from those. Deltas arrive in any order and any number of times, whole states are merged, and
floors rise where a prefix of an actor's dots was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor, Dot
from swarmnode.protocol.crdt.cells import Cells
from swarmnode.protocol.crdt.document import (
    Counters,
    LeaseSet,
    Maxima,
    Registers,
    SnapshotIndex,
    Verdicts,
)
from swarmnode.wire.crdt import SnapshotClaim

N_REPLICAS = 3
ACTORS = [Actor(PeerId(bytes([n // 2]) * 32), n % 2 + 1) for n in range(N_REPLICAS)]
ROOTS = [bytes([n]) * 32 for n in range(2)]
TOTALS = st.integers(0, 5)


@dataclass(frozen=True)
class Kind:
    """A type, what is written to it, and how a later write is told from a further one."""

    cls: type[Cells[Any, Any]]
    keys: st.SearchStrategy[Any]
    values: st.SearchStrategy[Any]
    write: Callable[[Dot, Any, Any], Cells[Any, Any]]
    is_maximum: bool = False


def write_claim(dot: Dot, root: bytes, ttl_s: int) -> SnapshotIndex:
    return SnapshotIndex.write(dot, {root: SnapshotClaim(root, 1, 10, ttl_s, 0.5)})


NAMES = st.sampled_from(["a", "b"])
KINDS = {
    "leases": Kind(
        LeaseSet,
        st.sampled_from([("a", "x"), ("a", "y")]),
        st.sampled_from([0, 60]),
        lambda dot, key, value: LeaseSet.write(dot, {key: value}),
    ),
    "counters": Kind(Counters, NAMES, TOTALS, lambda d, k, v: Counters.write(d, {k: v}), True),
    "registers": Kind(
        Registers,
        NAMES,
        st.one_of(st.floats(-9, 9), st.sampled_from(["paused", ""])),
        lambda dot, key, value: Registers.write(dot, {key: value}),
    ),
    "maxima": Kind(Maxima, NAMES, TOTALS, lambda d, k, v: Maxima.write(d, {k: v}), True),
    "snapshots": Kind(SnapshotIndex, st.sampled_from(ROOTS), st.sampled_from([0, 60]), write_claim),
    "verdicts": Kind(
        Verdicts,
        st.sampled_from(ROOTS),
        st.sampled_from([1, 4, 5]),
        lambda dot, key, value: Verdicts.write(dot, {key: value}),
    ),
}


class TypeMachine(RuleBasedStateMachine):
    """Replicas of one type; ``kind`` is drawn first, so that every example tests one."""

    @initialize(name=st.sampled_from(sorted(KINDS)))
    def begin(self, name: str) -> None:
        self.kind = KINDS[name]
        self.states = [self.kind.cls.new() for _ in range(N_REPLICAS)]
        self.seen: list[set[Dot]] = [set() for _ in range(N_REPLICAS)]
        self.writes: dict[Dot, tuple[Any, Any, Cells[Any, Any]]] = {}

    @rule(who=st.integers(0, N_REPLICAS - 1), data=st.data())
    def write(self, who: int, data: st.DataObject) -> None:
        actor = ACTORS[who]
        dot = Dot(actor, 1 + sum(seen.actor == actor for seen in self.writes))
        assert dot not in self.writes, "a dot twice"
        key, value = data.draw(self.kind.keys), data.draw(self.kind.values)
        delta = self.kind.write(dot, key, value)
        self.writes[dot] = (key, value, delta)
        self.states[who].merge(delta)
        self.seen[who].add(dot)

    @rule(who=st.integers(0, N_REPLICAS - 1), data=st.data())
    def deliver(self, who: int, data: st.DataObject) -> None:
        if self.writes:
            dot = data.draw(st.sampled_from(sorted(self.writes)))
            self.states[who].merge(self.writes[dot][2])
            self.seen[who].add(dot)

    @rule(who=st.integers(0, N_REPLICAS - 1), other=st.integers(0, N_REPLICAS - 1))
    def merge(self, who: int, other: int) -> None:
        self.states[who].merge(self.states[other])
        self.seen[who] |= self.seen[other]

    @rule(who=st.integers(0, N_REPLICAS - 1))
    def settle(self, who: int) -> None:
        for actor in ACTORS:
            prefix = 0
            while Dot(actor, prefix + 1) in self.seen[who]:
                prefix += 1
            if prefix:
                self.states[who].settle(actor, prefix)

    @rule(who=st.integers(0, N_REPLICAS - 1), other=st.integers(0, N_REPLICAS - 1))
    def settle_and_merge(self, who: int, other: int) -> None:
        """The other one has dropped its tombstones: only its floor tells what was removed."""
        self.settle(other)
        self.merge(who, other)

    @rule(who=st.integers(0, N_REPLICAS - 1))
    def reload(self, who: int) -> None:
        self.states[who] = self.kind.cls.decode(self.states[who].encode())

    @invariant()
    def says_what_was_seen(self) -> None:
        if not hasattr(self, "kind"):
            return
        for state, seen in zip(self.states, self.seen, strict=True):
            for actor in ACTORS:
                assert state.of(actor) == self.expected(seen, actor)

    def expected(self, seen: set[Dot], actor: Actor) -> dict[Any, Any]:
        best: dict[Any, tuple[Any, Any]] = {}
        for dot in seen:
            if dot.actor != actor:
                continue
            key, value, delta = self.writes[dot]
            order = (value, dot.sequence) if self.kind.is_maximum else dot.sequence
            held = delta.of(actor).get(key)  # None: this write removed the key
            if key not in best or order > best[key][0]:
                best[key] = (order, held)
        return {key: held for key, (_, held) in best.items() if held is not None}

    def teardown(self) -> None:
        """All have seen all: all are equal, byte for byte, and hold no tombstones."""
        if not hasattr(self, "kind"):
            return
        for who in range(N_REPLICAS):
            for dot in sorted(self.writes, reverse=who % 2 == 0):
                self.states[who].merge(self.writes[dot][2])
            for actor in ACTORS:
                self.states[who].settle(actor, sum(dot.actor == actor for dot in self.writes))
        assert len({state.encode() for state in self.states}) == 1
        assert self.states[0].statistics().removed == 0


def run_machine(max_examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        TypeMachine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=checks,
        ),
    )


def test_every_type_says_what_was_seen_in_any_order() -> None:
    run_machine(150)


@pytest.mark.slow
def test_every_type_for_two_hundred_thousand_steps() -> None:
    """Run: python -m pytest -n 0 -m slow tests/property/test_crdt_types.py"""
    run_machine(4_000)


@pytest.mark.parametrize("name", ["leases", "snapshots"])
def test_what_was_removed_and_what_was_not_seen_are_told_apart(name: str) -> None:
    kind = KINDS[name]
    actor, key = ACTORS[0], ("a", "x") if name == "leases" else ROOTS[0]
    added, removed = kind.write(Dot(actor, 1), key, 60), kind.write(Dot(actor, 2), key, 0)
    late, settled, early = kind.cls.new(), kind.cls.new(), kind.cls.new()
    late.merge(added)
    for delta in (added, removed):
        settled.merge(delta)
    settled.settle(actor, 2)
    early.merge(removed)
    assert early.merge(added) == set(), "a removal that came first is remembered"
    assert early.statistics().removed == 1
    assert settled.statistics().removed == 0
    assert settled.merge(late) == set(), "seen, and removed since"
    assert late.merge(settled) == {key}, "the floor says so"
    early.merge(settled)
    assert late.encode() == settled.encode() == early.encode()


@st.composite
def states(draw: st.DrawFn, kind: Kind) -> list[Cells[Any, Any]]:
    """Return three states that saw parts of one history, in their own orders."""
    writes = []
    for sequence in range(1, draw(st.integers(1, 6)) + 1):
        actor = draw(st.sampled_from(ACTORS))
        writes.append(kind.write(Dot(actor, sequence), draw(kind.keys), draw(kind.values)))
    made = []
    for _ in range(3):
        state = kind.cls.new()
        for delta in draw(st.lists(st.sampled_from(writes), max_size=8)):
            state.merge(delta)
        made.append(state)
    return made


def joined(kind: Kind, *parts: Cells[Any, Any]) -> bytes:
    state = kind.cls.new()
    for part in parts:
        state.merge(part)
    return state.encode()


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_merge_is_commutative_associative_and_idempotent(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    a, b, c = data.draw(states(kind))
    ab, bc = (kind.cls.decode(joined(kind, *pair)) for pair in ((a, b), (b, c)))
    assert joined(kind, a, b) == joined(kind, b, a)
    assert joined(kind, ab, c) == joined(kind, a, bc)
    assert joined(kind, a, a) == a.encode()
    assert a.merge(a) == set()


@pytest.mark.parametrize("name", KINDS)
@given(data=st.binary(max_size=64))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_a_state_or_refused(name: str, data: bytes) -> None:
    cls = KINDS[name].cls
    try:
        state = cls.decode(data)
    except MalformedMessage:
        return
    assert state.encode() == data
