"""What a neighbour or an author may do to us: forged, old, future, foreign, too large, twice."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LimitExceeded, LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.records import Opened, check_proof
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire import crdt as wire
from tests.kits.crdt_world import (
    NETWORK,
    WALL_UNIX_S,
    Net,
    ToySigner,
    World,
    signed_record,
    verify_toy,
)

DAY_S = 86_400.0
AUTHOR = ToySigner.make(1000)


class Pair(World):
    """We and one neighbour, which sends us what it likes."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.we, self.they = self.ids
        self.run(self.now + 1.0)
        self.messages.clear()

    @property
    def state(self) -> SharedState:
        return self.states[self.we]

    def send(self, *records: Opened, age_s: int = 0) -> None:
        self.inject(self.they, self.we, records, age_s)

    def verdicts(self) -> dict[str, int]:
        return {str(key): n for key, n in self.state.statistics().records_total.items()}

    def penalties(self) -> list[str]:
        return [e.why for e in self.seen[self.we] if isinstance(e, events.Penalise)]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def chain_of(n: int, author: ToySigner = AUTHOR, **words: Any) -> list[Opened]:
    records = [signed_record(author, 1, **words)]
    for sequence in range(2, n + 1):
        previous = records[-1].hash
        records.append(
            signed_record(author, sequence, previous=previous, counters={"steps": sequence})
        )
    return records


def with_signed(opened: Opened, **changes: bytes) -> Opened:
    return dataclasses.replace(opened, signed=msgspec.structs.replace(opened.signed, **changes))


def test_a_record_is_taken_in_passed_on_and_kept(pair: Pair) -> None:
    pair.send(*chain_of(3, leases=(wire.Lease("role", "keeper", 60),)))
    view = pair.state.view
    assert view.of(AUTHOR.peer_id, pair.now) == {"role": ("keeper",)}
    assert view.counters() == {"steps": 3}
    assert len(pair.journals[pair.we]) == 3
    assert pair.verdicts() == {"accepted": 3}
    assert not pair.penalties()


def test_a_snapshot_that_a_member_offers_is_told_to_who_looks_for_one(pair: Pair) -> None:
    offer = wire.SnapshotClaim(bytes(32), step=7, size_bytes=1, ttl_s=60)
    pair.send(signed_record(AUTHOR, snapshots=(offer,)))
    told = events.Changed(AUTHOR.peer_id, frozenset({"snapshots"}))
    assert pair.effects(pair.we, events.Changed) == [told]


@pytest.mark.parametrize(
    ("verdict", "record"),
    [
        ("forged", with_signed(signed_record(AUTHOR), signature=bytes(64))),
        ("foreign", signed_record(AUTHOR, swarm_id=bytes(32))),
        ("malformed", with_signed(signed_record(AUTHOR), body=b"\x93")),
        ("oversized", with_signed(signed_record(AUTHOR), body=bytes(9000))),
    ],
)
def test_what_no_honest_node_passes_on_is_refused_and_its_sender_penalised(
    pair: Pair, verdict: str, record: Opened
) -> None:
    before = pair.state.digest()
    pair.send(record, *chain_of(2))
    assert pair.verdicts() == {verdict: 1}, "the rest of such a message is not looked at"
    assert pair.penalties() == [f"state record: {verdict}"]
    assert pair.state.digest() == before
    assert not pair.journals[pair.we]


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    author = Identity.from_seed(bytes(32))
    opened = signed_record(author, counters={"steps": 7}, registers={"loss": 0.5})
    state = SharedState(
        Identity.from_seed(b"\x01" * 32),
        NETWORK,
        epoch=1,
        wall_unix_s=WALL_UNIX_S,
        now=0.0,
        rng=World(0, 1).rng,
    )
    state.handle(events.NeighbourUp(author.peer_id), 0.0)
    before = state.digest()
    body = opened.signed.body
    for bit in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        bad = wire.Carried(msgspec.structs.replace(opened.signed, body=bytes(flipped)), 0)
        state.handle(events.Received(author.peer_id, wire.Push((bad,))), 0.0)
    assert state.digest() == before
    assert set(state.statistics().records_total) <= {"forged", "foreign", "malformed", "future"}


def test_a_clock_a_year_ahead_is_refused_and_named(pair: Pair) -> None:
    pair.send(signed_record(AUTHOR, wall_unix_s=WALL_UNIX_S + 365 * DAY_S))
    assert pair.verdicts() == {"future": 1}
    assert not pair.penalties(), "the peer that passed it on may have a clock that is off"
    pair.send(signed_record(AUTHOR, wall_unix_s=WALL_UNIX_S + 0.9 * DAY_S))
    assert pair.verdicts()["accepted"] == 1


def test_our_own_clock_a_year_ahead_is_noticed_and_heals(pair: Pair) -> None:
    pair.handle(pair.we, events.ClockSet(WALL_UNIX_S + 365 * DAY_S))
    pair.update(pair.we, counters={"steps": 1})
    pair.run(pair.now + 30.0)
    other = pair.states[pair.they]
    assert other.statistics().records_total["future"] >= 1
    assert other.view.counters() == {}
    skew_s = pair.state.statistics().clock_skew_s
    assert skew_s == pytest.approx(-365 * DAY_S, abs=1)
    pair.handle(pair.we, events.ClockSet(WALL_UNIX_S))
    pair.settle()
    assert other.view.counters() == {"steps": 1}


def test_records_from_the_edge_of_the_future_do_not_drag_our_clock_there(pair: Pair) -> None:
    pair.send(signed_record(AUTHOR, wall_unix_s=WALL_UNIX_S + DAY_S - 1))
    pair.update(pair.we, counters={"steps": 1})
    ours = msgspec.msgpack.decode(pair.journals[pair.we][-1].body)
    assert ours["clock_ms"] / 1000 - WALL_UNIX_S < 60


def test_replays_change_nothing_and_are_no_sign_of_life(pair: Pair) -> None:
    records = chain_of(3, leases=(wire.Lease("role", "keeper", 60),))
    pair.send(*records)
    pair.run(pair.now + 61)
    assert pair.state.view.of(AUTHOR.peer_id, pair.now) == {}
    digest, journal = pair.state.digest(), list(pair.journals[pair.we])
    pair.send(*records)
    assert pair.verdicts()["duplicate"] == 3
    assert pair.state.view.of(AUTHOR.peer_id, pair.now) == {}
    assert (pair.state.digest(), pair.journals[pair.we]) == (digest, journal)


def test_a_lease_counts_from_when_its_author_was_heard_of_elsewhere(pair: Pair) -> None:
    lease = wire.Lease("role", "keeper", 60)
    pair.send(signed_record(AUTHOR, leases=(lease,)), age_s=50)
    assert pair.state.view.of(AUTHOR.peer_id, pair.now) == {"role": ("keeper",)}
    assert pair.state.view.of(AUTHOR.peer_id, pair.now + 11) == {}


def test_any_newer_record_renews_a_lease_and_a_later_life_ends_it(pair: Pair) -> None:
    first, second = chain_of(2, leases=(wire.Lease("role", "keeper", 60),))
    pair.send(first)
    pair.run(pair.now + 59)
    pair.send(second)
    pair.run(pair.now + 59)
    assert pair.state.view.of(AUTHOR.peer_id, pair.now) == {"role": ("keeper",)}
    pair.send(signed_record(AUTHOR, epoch=2))
    assert pair.state.view.of(AUTHOR.peer_id, pair.now) == {}
    pair.send(first)
    assert pair.verdicts()["stale"] == 1


def test_what_was_silent_for_a_week_elsewhere_does_not_come_back(pair: Pair) -> None:
    pair.send(signed_record(AUTHOR), age_s=8 * int(DAY_S))
    assert pair.verdicts() == {"expired": 1}


def test_a_gap_is_noticed_and_asked_for(pair: Pair) -> None:
    first, _, third = chain_of(3)
    pair.send(first, third)
    assert pair.verdicts() == {"accepted": 1, "gap": 1}
    wants = [m for _, _, m in pair.messages if isinstance(m, wire.Want)]
    assert [head.sequence for want in wants for head in want.heads] == [1]


@pytest.mark.parametrize("where", ["same sequence", "broken link", "forked checkpoint"])
def test_two_histories_give_a_proof_that_bans_everywhere(where: str) -> None:
    world = World(4, 3)
    we, they = world.ids[:2]
    first, second = chain_of(2)
    other = signed_record(AUTHOR, 2, previous=first.hash, registers={"loss": 1.0})
    if where == "broken link":
        other = signed_record(AUTHOR, 3, previous=other.hash)
    if where == "forked checkpoint":
        other = signed_record(AUTHOR, 2, previous=first.hash, checkpoint=True)
    world.inject(they, we, [first, second])
    world.settle()
    assert all(state.view.counters() == {"steps": 2} for state in world.states.values())
    world.inject(they, we, [other])
    world.run(world.now + 1.0)
    for peer, state in world.states.items():
        (ban,) = world.effects(peer, events.Ban)
        assert isinstance(ban, events.Ban)
        assert ban.author == AUTHOR.peer_id
        assert check_proof(ban.proof, NETWORK, verify_toy) == AUTHOR.peer_id
        assert state.view.counters() == {}
    world.check_vectors()
    world.inject(they, we, [signed_record(AUTHOR, epoch=9)])
    assert world.states[we].statistics().records_total["banned"] == 1
    assert len(world.restart(we, 2).view.registers()) == 0
    assert world.states[we].statistics().bans == 1, "the journal remembers the ban"


def test_two_halves_that_were_told_different_histories_find_out() -> None:
    world = World(4, 4)
    world.net = Net(groups={peer: i % 2 for i, peer in enumerate(world.ids)})
    (first,) = chain_of(1)
    halves = [signed_record(AUTHOR, 2, previous=first.hash, maxima={"step": n}) for n in (1, 2)]
    for group, second in enumerate(halves):
        sender, receiver = [p for i, p in enumerate(world.ids) if i % 2 == group]
        world.inject(sender, receiver, [first, second])
    world.run(world.now + 30.0)
    assert {state.view.maxima()["step"] for state in world.states.values()} == {1, 2}
    world.net = Net()
    world.settle(60.0)
    assert all(state.statistics().bans == 1 for state in world.states.values())


def test_a_newcomer_learns_of_bans() -> None:
    world = World(2, 5)
    first, second = chain_of(2)
    other = signed_record(AUTHOR, 2, previous=first.hash)
    world.inject(world.ids[0], world.ids[1], [first, second, other])
    world.add(ToySigner.make(7))
    world.connect_all()
    world.settle()
    assert world.states[ToySigner.make(7).peer_id].statistics().bans == 1


def test_who_passes_on_words_of_a_banned_author_is_shown_the_proof_once_in_a_while(
    pair: Pair,
) -> None:
    first, second = chain_of(2)
    other = signed_record(AUTHOR, 2, previous=first.hash)

    def n_shown() -> int:
        return sum(
            isinstance(m, wire.Proofs) for sender, _, m in pair.messages if sender == pair.we
        )

    pair.send(first, second, other)
    for _ in range(3):
        pair.send(second)
    assert pair.verdicts()["banned"] == 3
    assert n_shown() == 1
    pair.run(pair.now + limits.STATE_RESEND_S)
    pair.send(second)
    assert n_shown() == 2, "the first may be lost"


def test_a_made_up_proof_bans_no_member_but_costs_its_sender(pair: Pair) -> None:
    first, second = chain_of(2)
    forged = with_signed(
        signed_record(AUTHOR, 2, previous=first.hash, maxima={"step": 1}), signature=bytes(64)
    )
    for one, two in ((first, second), (first, first), (second, forged)):
        proof = wire.Proof(one.signed, two.signed)
        pair.handle(pair.we, events.Received(pair.they, wire.Proofs((proof,))))
    assert pair.state.statistics().bans == 0
    assert len(pair.penalties()) == 3


def test_a_node_with_our_key_is_noticed(pair: Pair) -> None:
    pair.update(pair.we, counters={"steps": 1})
    pair.send(signed_record(pair.signers[pair.we], 1, counters={"steps": 9}))
    pair.send(signed_record(pair.signers[pair.we], 1, epoch=4))
    pair.send(signed_record(pair.signers[pair.we], 7, checkpoint=True))
    pair.send(with_signed(signed_record(pair.signers[pair.we], 8), signature=bytes(64)))
    told = pair.effects(pair.we, events.KeyElsewhere)
    assert told == [
        events.KeyElsewhere(1, 1),
        events.KeyElsewhere(4, 1),
        events.KeyElsewhere(1, 7),
    ]
    assert pair.state.view.counters() == {"steps": 1}


def test_a_node_with_our_key_is_noticed_before_we_have_said_anything(pair: Pair) -> None:
    pair.send(signed_record(pair.signers[pair.we], 1, counters={"steps": 9}))
    assert pair.effects(pair.we, events.KeyElsewhere) == [events.KeyElsewhere(1, 1)]
    assert pair.state.view.counters() == {}


@pytest.mark.parametrize("is_theirs_first", [True, False])
def test_a_proof_that_our_key_is_used_elsewhere_tells_us_and_bans_no_one(
    pair: Pair, is_theirs_first: bool
) -> None:
    pair.update(pair.we, counters={"steps": 1})
    (ours,) = pair.journals[pair.we]
    theirs = signed_record(pair.signers[pair.we], 1, counters={"steps": 9}).signed
    both = (theirs, ours) if is_theirs_first else (ours, theirs)
    pair.handle(pair.we, events.Received(pair.they, wire.Proofs((wire.Proof(*both),))))
    assert pair.effects(pair.we, events.KeyElsewhere) == [events.KeyElsewhere(1, 1)]
    assert pair.state.statistics().bans == 0
    assert not pair.penalties()


def test_who_asks_for_what_follows_a_record_that_we_lack_is_sent_nothing(pair: Pair) -> None:
    pair.send(*chain_of(2))
    ahead = wire.Head(bytes(AUTHOR.peer_id), 1, 5, bytes(32))
    pair.messages.clear()
    pair.handle(pair.we, events.Received(pair.they, wire.Want((ahead,))))
    assert not pair.messages
    assert not pair.penalties()


def test_who_tells_us_once_more_what_we_know_has_it_and_is_not_told() -> None:
    world = World(3, 6)
    world.run(world.now + 1.0)
    we, one, two = world.ids
    (record,) = chain_of(1)
    for each in (one, two):
        world.inject(each, we, [record])
    world.run(world.now + limits.STATE_PASS_ON_S)
    assert world.states[we].statistics().records_total == {"accepted": 1, "duplicate": 1}
    assert not [link for link in world.sent if link[0] == we]


def test_our_own_records_that_come_back_are_nothing_new(pair: Pair) -> None:
    pair.update(pair.we, counters={"steps": 1})
    (record,) = pair.journals[pair.we]
    push = wire.Push((wire.Carried(record, 0),))
    pair.handle(pair.we, events.Received(pair.they, push))
    assert not pair.effects(pair.we, events.KeyElsewhere)


def test_an_author_that_never_checkpoints_stops_counting(pair: Pair) -> None:
    records = [signed_record(AUTHOR)]
    for sequence in range(2, 40):
        text = {"state": "x" * 200, "mood": "y" * 256, "song": "z" * 256}
        records.append(signed_record(AUTHOR, sequence, previous=records[-1].hash, registers=text))
    pair.send(*records)
    held = pair.state.statistics()
    assert held.held_bytes <= limits.STATE_AUTHOR_BYTES_MAX
    assert pair.verdicts()["author-full"] == 1
    pair.send(signed_record(AUTHOR, 60, checkpoint=True, counters={"steps": 1}))
    assert pair.state.view.counters() == {"steps": 1}


def test_a_full_swarm_keeps_its_members_and_lets_neighbours_in(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_AUTHORS_MAX", 10)
    authors = [ToySigner.make(2000 + n) for n in range(30)]
    for author in authors:
        pair.send(signed_record(author))
    assert pair.state.statistics().authors == 10
    assert pair.verdicts() == {"accepted": 10, "full": 20}
    pair.update(pair.they, counters={"steps": 1})
    pair.run(pair.now + 1.0)
    assert pair.state.view.counters_of(pair.they) == {"steps": 1}
    assert pair.state.statistics().authors == 10
    held = {PeerId(head.peer) for head in pair.state.version_vector()}
    assert {author.peer_id for author in authors[:9]} <= held, "the youngest stranger went"


def test_the_silent_make_room_and_do_not_come_back_as_they_were(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_AUTHORS_MAX", 2)
    old, new = ToySigner.make(501), ToySigner.make(502)
    pair.update(pair.we, counters={"steps": 1})
    pair.send(signed_record(old, counters={"steps": 10}))
    pair.run(pair.now + limits.STATE_SILENT_S + 1)
    pair.send(signed_record(new, counters={"steps": 100}))
    assert pair.state.view.counters() == {"steps": 101}
    pair.send(signed_record(old, counters={"steps": 10}))
    assert pair.verdicts() == {"accepted": 2, "stale": 1}
    assert old.peer_id not in {head.peer for head in pair.state.version_vector()}


def test_a_swarm_s_bytes_are_capped(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_BYTES_MAX", 20_000)
    for number in range(200):
        author = ToySigner.make(3000 + number)
        pair.send(signed_record(author, registers={"state": "x" * 200}))
    assert pair.state.statistics().held_bytes <= 20_000
    assert pair.verdicts()["full"] > 100


def test_the_long_silent_are_let_go_everywhere_without_quarrel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STATE_RETENTION_S", 7200.0)
    world = World(2, 9)
    (record,) = chain_of(1)
    world.inject(world.ids[0], world.ids[1], [record])
    world.settle()
    world.run(world.now + limits.STATE_RETENTION_S + 30.0)
    assert all(not state.version_vector() for state in world.states.values())
    world.messages.clear()
    world.run(world.now + 60.0)
    assert {type(message) for _, _, message in world.messages} == {wire.Summary}


def flood(n_records: int) -> Pair:
    """Records from so many random keys, in full messages."""
    pair = Pair()
    batch: list[Opened] = []
    for number in range(n_records):
        batch.append(signed_record(ToySigner.make(10_000 + number)))
        if len(batch) == limits.STATE_RECORDS_PER_MESSAGE_MAX:
            pair.send(*batch)
            batch = []
            pair.messages.clear()
            pair.journals[pair.we].clear()
    return pair


def check_capped(pair: Pair) -> None:
    held = pair.state.statistics()
    assert held.authors == limits.STATE_AUTHORS_MAX
    assert held.held_bytes <= limits.STATE_BYTES_MAX
    assert sum(1 for _ in pair.state.journal_records()) == limits.STATE_AUTHORS_MAX


def test_ten_thousand_records_from_random_keys_fill_the_cap_and_no_more() -> None:
    check_capped(flood(10_240))


@pytest.mark.slow
def test_a_million_records_from_random_keys_keep_memory_capped() -> None:
    """Run: python -m pytest -n 0 -m slow tests/unit/protocol/test_crdt_hostile.py"""
    tracemalloc.start()
    pair = flood(20_480)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert before < 64 * limits.MIB
    check_capped(pair)
    check_capped(flood(1_000_000 // 512 * 512))


def test_unknown_neighbours_are_not_heard(pair: Pair) -> None:
    pair.inject(AUTHOR.peer_id, pair.we, chain_of(1))
    assert pair.verdicts() == {}


def test_we_refuse_to_say_what_no_member_would_read(pair: Pair) -> None:
    pair.update(pair.we, counters={"steps": 1})
    before = pair.state.digest()
    many = {("address", f"{n}" * 250): 60 for n in range(60)}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"leases": many}, "8192 bytes"),
        ({"leases": {("Role", "x"): 60}}, "would not read"),
        ({"registers": {"loss": float("inf")}}, "would not read"),
        ({"counters": {f"c{n}": 1 for n in range(17)}}, "would not read"),
    ]
    for words, match in cases:
        with pytest.raises(LocalProtocolError, match=match):
            pair.update(pair.we, **words)
    assert pair.state.digest() == before


def test_an_epoch_that_was_used_is_refused(pair: Pair) -> None:
    pair.update(pair.we, counters={"steps": 1})
    with pytest.raises(LocalProtocolError, match="count it up"):
        pair.restart(pair.we, 1)


def test_real_signatures_work_the_same() -> None:
    world = World(3, 1, real=True)
    for peer in world.ids:
        world.update(peer, counters={"steps": 5}, leases={("member", str(peer)): 60})
    world.settle()
    for state in world.states.values():
        assert state.view.counters() == {"steps": 15}
        assert state.view.members(world.now) == tuple(world.ids)
    opened = signed_record(Identity.from_seed(bytes(32)))
    with pytest.raises(AuthenticationFailed):
        verify(
            opened.signed.public_key,
            "other/1",
            opened.signed.body,
            opened.signed.signature,
            what="x",
        )


def test_a_record_that_is_too_large_is_not_even_signed() -> None:
    leases = tuple(wire.Lease("role", f"{n:03}" + "x" * 200, 60) for n in range(60))
    with pytest.raises(LimitExceeded, match="at most 8192 bytes"):
        signed_record(AUTHOR, leases=leases)
