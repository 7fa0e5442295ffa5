"""The types of the shared state one by one, and what a document says has changed."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.actors import Actor, Dot
from swarmnode.protocol.crdt.cells import CellStatistics
from swarmnode.protocol.crdt.document import (
    Counters,
    Delta,
    Document,
    LeaseSet,
    Maxima,
    Registers,
    SnapshotEntry,
    SnapshotIndex,
    Verdicts,
    is_safe,
)
from swarmnode.wire import crdt as wire
from tests.kits.crdt_world import ToySigner, signed_record

PEERS = sorted(ToySigner.make(number).peer_id for number in range(3))
A, B, C = (Actor(peer, 1) for peer in PEERS)
LATER_A = Actor(PEERS[0], 2)
SIGNER = ToySigner.make(1000)


def leases(actor: Actor, sequence: int, **ttl_s: int) -> LeaseSet:
    """Return a write of elements of one set."""
    written = {("role", element): each for element, each in ttl_s.items()}
    return LeaseSet.write(Dot(actor, sequence), written)


def roles(state: LeaseSet, actor: Actor = A) -> set[str]:
    return {element for _, element in state.of(actor)}


# --- cells -------------------------------------------------------------------------------


def test_a_later_write_takes_the_place_of_an_earlier_one() -> None:
    state = Registers.new()
    assert state.merge(Registers.write(Dot(A, 2), {"loss": 2.0, "state": "x"})) == {"loss", "state"}
    assert state.merge(Registers.write(Dot(A, 1), {"loss": 9.0})) == set()
    assert state.merge(Registers.write(Dot(A, 3), {"loss": 1.0})) == {"loss"}
    assert state.of(A) == {"loss": 1.0, "state": "x"}
    assert state.of(B) == {}


@pytest.mark.parametrize("is_greater_first", [True, False])
def test_of_two_writes_with_one_number_all_keep_the_greater(is_greater_first: bool) -> None:
    writes = [Registers.write(Dot(A, 1), {"state": text}) for text in ("b", "a")]
    state = Registers.new()
    for each in writes if is_greater_first else reversed(writes):
        state.merge(each)
    assert state.of(A) == {"state": "b"}
    removed, kept = leases(A, 1, keeper=0), leases(A, 1, keeper=60)
    both = LeaseSet.new()
    for lease in (kept, removed) if is_greater_first else (removed, kept):
        both.merge(lease)
    assert roles(both) == {"keeper"}


def test_a_write_of_nothing_is_an_empty_state() -> None:
    assert Counters.write(Dot(A, 1), {}).statistics() == CellStatistics(0, 0, 0)
    state = Counters.new()
    state.merge(Counters.write(Dot(A, 1), {}))
    assert state.statistics() == CellStatistics(0, 0, 0)


def test_what_was_removed_is_dropped_as_soon_as_all_before_it_is_seen() -> None:
    state = leases(A, 1, keeper=60, prober=60)
    assert state.merge(leases(A, 3, keeper=0)) == {("role", "keeper")}
    state.merge(leases(A, 5, prober=0))
    assert state.statistics() == CellStatistics(1, 2, 2)
    state.settle(A, 2)
    assert state.statistics() == CellStatistics(1, 2, 2)
    state.settle(A, 3)
    assert state.statistics() == CellStatistics(1, 1, 1)
    state.settle(A, 4)
    assert state.statistics() == CellStatistics(1, 1, 1)
    state.settle(A, 5)
    assert state.statistics() == CellStatistics(1, 0, 0)
    delta = leases(A, 1, keeper=0)
    delta.settle(A, 1)
    assert delta.statistics() == CellStatistics(1, 0, 0)


def test_a_floor_does_not_sink() -> None:
    state = leases(A, 1, keeper=60)
    state.settle(A, 4)
    state.settle(A, 2)
    assert state.merge(leases(A, 4, prober=60)) == set(), "it was seen, and removed"
    assert state.merge(leases(A, 5, prober=60)) == {("role", "prober")}
    assert state.merge(leases(A, 6, relay=0)) == {("role", "relay")}
    state.settle(A, 3)
    assert roles(state) == {"keeper", "prober"}


def test_what_the_other_side_saw_and_no_longer_has_is_dropped() -> None:
    mine, theirs = leases(A, 1, keeper=60), leases(A, 2, prober=60)
    mine.merge(leases(A, 3, relay=60))
    mine.merge(leases(B, 1, keeper=60))
    theirs.settle(A, 2)
    assert mine.merge(theirs) == {("role", "keeper"), ("role", "prober")}
    assert roles(mine) == {"relay", "prober"}
    assert roles(mine, B) == {"keeper"}
    nothing = LeaseSet.new()
    nothing.settle(A, 3)
    assert mine.merge(nothing) == {("role", "relay"), ("role", "prober")}
    assert mine.statistics() == CellStatistics(2, 1, 0)
    assert mine.merge(mine) == set()


def test_of_a_forgotten_actor_nothing_is_left_to_go_by() -> None:
    state = leases(A, 3, keeper=60, prober=0)
    state.settle(A, 2)
    assert state.forget(A) == {("role", "keeper"), ("role", "prober")}
    assert state.encode() == LeaseSet.new().encode()
    assert state.forget(A) == set()
    assert state.merge(leases(A, 1, keeper=60)) == {("role", "keeper")}


def test_a_state_is_written_row_by_row_in_order_and_read_back() -> None:
    state = leases(B, 2, prober=60, keeper=30)
    state.merge(leases(A, 7, keeper=0))
    state.settle(B, 2)
    rows = msgpack.unpackb(state.encode())
    assert rows == [
        [bytes(A.peer), 1, 0, [[["role", "keeper"], 7, None]]],
        [bytes(B.peer), 1, 2, [[["role", "keeper"], 2, 30], [["role", "prober"], 2, 60]]],
    ]
    again = LeaseSet.decode(state.encode())
    assert again.encode() == state.encode()
    assert again.merge(leases(B, 2, relay=60)) == set(), "its floor came along"
    again.settle(A, 7)
    assert again.statistics() == CellStatistics(2, 2, 0), "and what is to be dropped is known"
    rows.reverse()
    with pytest.raises(MalformedMessage, match="not in canonical form"):
        LeaseSet.decode(msgpack.packb(rows))
    with pytest.raises(MalformedMessage, match="expected the state of a LeaseSet"):
        LeaseSet.decode(b"\x93")


# --- types -------------------------------------------------------------------------------


def test_totals_are_summed_over_the_newest_life_of_each_peer() -> None:
    state = Counters.new()
    for actor, steps in ((LATER_A, 3), (A, 50), (B, 4)):
        state.merge(Counters.write(Dot(actor, 1), {"steps": steps}))
    state.merge(Counters.write(Dot(A, 2), {"tokens": 7}))
    state.merge(Counters.write(Dot(Actor(PEERS[2], 0), 1), {"tokens": 2, "none": 0}))
    assert state.value() == {"steps": 7, "tokens": 9, "none": 0}


@pytest.mark.parametrize("cls", [Counters, Maxima])
def test_a_total_never_falls(cls: type[Counters | Maxima]) -> None:
    state = cls.write(Dot(A, 1), {"steps": 5})
    assert state.merge(cls.write(Dot(A, 2), {"steps": 4})) == set()
    assert state.of(A) == {"steps": 5}
    assert state.merge(cls.write(Dot(A, 3), {"steps": 5})) == {"steps"}, "said once more"
    assert state.merge(cls.write(Dot(A, 2), {"steps": 5})) == set()
    assert state.merge(cls.write(Dot(A, 2), {"steps": 6})) == {"steps"}
    assert state.of(A) == {"steps": 6}


def test_the_swarm_is_as_far_as_the_furthest_says() -> None:
    state = Maxima.write(Dot(A, 1), {"step": 5, "round": 1})
    state.merge(Maxima.write(Dot(B, 1), {"step": 9}))
    state.merge(Maxima.write(Dot(C, 1), {"step": 7, "zero": 0}))
    assert state.value() == {"step": 9, "round": 1, "zero": 0}


def test_a_register_is_read_in_the_newest_life() -> None:
    state = Registers.write(Dot(LATER_A, 1), {"state": "training"})
    state.merge(Registers.write(Dot(A, 9), {"loss": 1.0}))
    state.merge(Registers.write(Dot(B, 1), {"loss": 2.0}))
    assert state.value() == {PEERS[0]: {"state": "training"}, PEERS[1]: {"loss": 2.0}}


def test_a_lease_ends_when_its_author_was_silent_for_so_long() -> None:
    state = leases(A, 1, keeper=60, prober=30)
    state.merge(leases(B, 1, keeper=60, relay=0))
    heard_at = {A: 10.0, B: 20.0}.__getitem__
    assert state.value(heard_at, 39.9) == {
        "role": {"keeper": {PEERS[0], PEERS[1]}, "prober": {PEERS[0]}}
    }
    assert state.value(heard_at, 40.0) == {"role": {"keeper": {PEERS[0], PEERS[1]}}}
    assert state.value(heard_at, 70.0) == {"role": {"keeper": {PEERS[1]}}}
    assert state.value(heard_at, 80.0) == {}
    assert {*state.said()} == {
        (A, ("role", "keeper")),
        (A, ("role", "prober")),
        (B, ("role", "keeper")),
    }


def claim(number: int, step: int, **others: object) -> wire.SnapshotClaim:
    fields: dict[str, object] = {"size_bytes": 5, "ttl_s": 60} | others
    return wire.SnapshotClaim(bytes([number]) * 32, step, **fields)  # type: ignore[arg-type]


def held(actor: Actor, *claims: wire.SnapshotClaim) -> SnapshotIndex:
    return SnapshotIndex.write(Dot(actor, 1), {each.root: each for each in claims})


def test_snapshots_are_listed_by_step_then_by_how_many_hold_them_then_by_name() -> None:
    state = SnapshotIndex.new()
    for delta in (
        held(A, claim(4, 10, loss=1.0), claim(3, 10), claim(1, 20), claim(5, 9)),
        held(B, claim(4, 10, loss=2.0), claim(2, 10, ttl_s=0)),
        held(C, claim(2, 10), claim(5, 9, size_bytes=6)),
    ):
        state.merge(delta)

    def heard_at(actor: Actor) -> float:
        return 0.0 if actor == B else 100.0

    def entry(number: int, step: int, *holders: PeerId, **others: object) -> SnapshotEntry:
        fields: dict[str, object] = {"size_bytes": 5, "loss": None} | others
        return SnapshotEntry(bytes([number]) * 32, step, holders=holders, **fields)  # type: ignore[arg-type]

    a, b, c = PEERS
    assert state.value(heard_at, 59.0) == (
        entry(1, 20, a),
        entry(4, 10, a, b, loss=1.0),
        entry(2, 10, c),
        entry(3, 10, a),
        entry(5, 9, a),
        entry(5, 9, c, size_bytes=6),
    )
    assert entry(4, 10, a, loss=1.0) in state.value(heard_at, 60.0)
    assert state.value(heard_at, 160.0) == ()


@pytest.mark.parametrize("n_holders", [limits.SNAPSHOT_REPLICAS - 1, limits.SNAPSHOT_REPLICAS])
@pytest.mark.parametrize("is_behind", [False, True])
def test_steps_are_safe_if_enough_hold_a_snapshot_that_is_nearly_as_far(
    n_holders: int, is_behind: bool
) -> None:
    far = int(limits.SNAPSHOT_NEW_SHARE * 1000)
    assert far == limits.SNAPSHOT_NEW_SHARE * 1000
    others = SnapshotEntry(bytes(32), 1000, 5, None, tuple(PEERS[:1]))
    holders = tuple(ToySigner.make(number).peer_id for number in range(n_holders))
    near = SnapshotEntry(bytes(32), far - is_behind, 5, None, holders)
    expected = n_holders == limits.SNAPSHOT_REPLICAS and not is_behind
    assert is_safe([others, near], 1000) is expected


def test_a_neutral_verdict_takes_one_back() -> None:
    neutral = limits.STATE_VERDICT_NEUTRAL
    state = Verdicts.write(Dot(A, 1), {b"v" * 32: neutral - 1, b"w" * 32: 0})
    assert state.of(A) == {b"v" * 32: neutral - 1, b"w" * 32: 0}
    state.merge(Verdicts.write(Dot(A, 2), {b"v" * 32: neutral}))
    assert state.of(A) == {b"w" * 32: 0}


# --- the document ------------------------------------------------------------------------

WORDS: dict[str, tuple[Any, Any]] = {  # what is said, and then said otherwise
    "leases": ((wire.Lease("role", "x", 60),), (wire.Lease("role", "x", 30),)),
    "counters": ({"steps": 1}, {"steps": 2}),
    "registers": ({"loss": 1.0}, {"loss": 2.0}),
    "maxima": ({"step": 1}, {"step": 2}),
    "snapshots": ((claim(1, 1),), (claim(1, 2),)),
    "verdicts": ((wire.PeerVerdict(b"v" * 32, 1),), (wire.PeerVerdict(b"v" * 32, 2),)),
}
NAMES = {"leases": "role", "counters": "steps", "registers": "loss", "maxima": "step"}


@pytest.mark.parametrize("kind", WORDS)
def test_a_document_names_what_a_record_changed(kind: str) -> None:
    name = NAMES.get(kind, kind)
    said, otherwise = WORDS[kind]
    document = Document()
    first = signed_record(SIGNER, **{kind: said})
    second = signed_record(SIGNER, 2, **{kind: otherwise})
    third = signed_record(SIGNER, 3, checkpoint=True, registers={"state": "x"})
    assert document.apply(first.delta) == {name}
    assert document.apply(second.delta) == {name}
    assert document.apply(first.delta) == {name}, "a checkpoint says all anew"
    assert document.parts()[kind].statistics() == CellStatistics(1, 1, 0)
    assert document.apply(third.delta) == {name, "state"}
    cells = {kind: each.cells for kind, each in document.statistics().items()}
    assert cells == dict.fromkeys(WORDS, 0) | {"registers": 1}
    assert document.forget(third.actor) == {"state"}
    assert document.canonical() == Document().canonical()


@pytest.mark.parametrize("kind", ["counters", "maxima"])
def test_a_total_that_would_fall_changes_nothing(kind: str) -> None:
    early, late = WORDS[kind]
    document = Document()
    document.apply(signed_record(SIGNER, **{kind: late}).delta)
    assert document.apply(signed_record(SIGNER, 2, **{kind: early}).delta) == set()


def test_what_was_seen_already_changes_nothing() -> None:
    document = Document()
    early, late = ({kind: said[n] for kind, said in WORDS.items()} for n in (0, 1))
    document.apply(signed_record(SIGNER, 5, checkpoint=True, **late).delta)
    assert document.apply(signed_record(SIGNER, 4, **early).delta) == set()


def test_a_record_without_words_settles_what_was_removed_before() -> None:
    actor = Actor(SIGNER.peer_id, 1)
    document = Document()
    lease = (wire.Lease("role", "x", 60),)
    document.apply(Delta.of(actor, signed_record(SIGNER, leases=lease).record))
    assert document.leases.statistics() == CellStatistics(1, 1, 0)
    removed = (wire.Lease("role", "x", 0),)
    document.apply(Delta.of(actor, signed_record(SIGNER, 2, leases=removed).record))
    assert document.leases.statistics() == CellStatistics(1, 0, 0)
    settled = {name: each.actors for name, each in document.statistics().items()}
    assert settled == dict.fromkeys(WORDS, 1), "every type knows how far its author is"
