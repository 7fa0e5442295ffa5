"""What a replica does about each event, and when it wants to be called again."""

from __future__ import annotations

import hashlib
import random

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.cells import CellStatistics
from swarmnode.protocol.crdt.records import Opened
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.wire import crdt as wire
from swarmnode.wire.packing import decode_record
from tests.kits.crdt_world import NETWORK, WALL_UNIX_S, ToySigner, signed_record, verify_toy
from tests.unit.protocol.crdt.courier_kit import strangers

WE = ToySigner.make(1)
NEAR, FAR = sorted(ToySigner.make(number).peer_id for number in (2, 3))
AUTHOR = ToySigner.make(1000)


def make_state(epoch: int = 1) -> SharedState:
    return SharedState(
        WE,
        NETWORK,
        epoch=epoch,
        wall_unix_s=WALL_UNIX_S,
        now=0.0,
        rng=random.Random(1),
        verify=verify_toy,
    )


@pytest.fixture
def state() -> SharedState:
    """Return one with one neighbour, and nothing under way."""
    state = make_state()
    meet(state, NEAR)
    return state


def meet(state: SharedState, peer: PeerId, now: float = 0.0) -> None:
    state.handle(events.NeighbourUp(peer), now)
    state.poll_effects()


def receive(
    state: SharedState, *records: Opened, now: float = 0.0, age_s: int = 0, more: bool = False
) -> list[events.Effect]:
    """Let the neighbour send these; return what came of it."""
    carried = tuple(wire.Carried(opened.signed, age_s) for opened in records)
    state.handle(events.Received(NEAR, wire.Push(carried, more=more)), now)
    return state.poll_effects()


def say(state: SharedState, now: float = 0.0, **words: object) -> wire.StateRecord:
    """Say something and let the disk have it; return the record."""
    state.handle(events.Update(**words), now)  # type: ignore[arg-type]
    return written(state, now)


def written(state: SharedState, now: float) -> wire.StateRecord:
    (persist,) = [e for e in state.poll_effects() if isinstance(e, events.Persist)]
    assert persist.sequence is not None
    state.handle(events.Persisted(persist.sequence), now)
    state.poll_effects()
    return decode_record(persist.record.body, wire.StateRecord)


def changed(effects: list[events.Effect]) -> list[tuple[PeerId, set[str]]]:
    return [(e.author, {*e.names}) for e in effects if isinstance(e, events.Changed)]


def sent(effects: list[events.Effect]) -> list[tuple[PeerId, wire.Message]]:
    return [(e.peer, e.message) for e in effects if isinstance(e, events.Send)]


# --- our own words -----------------------------------------------------------------------


def test_one_that_knows_no_peer_and_says_nothing_waits_for_nothing() -> None:
    state = make_state()
    assert state.next_deadline() is None
    state.handle_deadline(1e9)
    assert state.poll_effects() == []


def test_what_we_say_counts_here_when_it_is_on_disk() -> None:
    state = make_state()
    state.handle(events.Update(counters={"steps": 1}), 1.0)
    (persist,) = state.poll_effects()
    assert isinstance(persist, events.Persist)
    assert persist.sequence == 1
    assert state.next_deadline() is None
    state.handle(events.Persisted(1), 2.0)
    assert state.poll_effects() == [events.Changed(WE.peer_id, frozenset({"steps"}))]
    assert state.next_deadline() == 2.0 + limits.STATE_PUSH_DELAY_S


def test_a_sign_of_life_is_given_at_a_third_of_the_shortest_lease() -> None:
    state = make_state()
    say(state, 2.0, leases={("role", "keeper"): 90})
    state.handle_deadline(3.0)
    assert state.next_deadline() == 2.0 + 90 / 3
    state.handle_deadline(31.999)
    assert state.poll_effects() == []
    state.handle_deadline(32.0)
    retired_at = 2.0 + limits.STATE_RETENTION_S
    assert state.next_deadline() == retired_at, "the next is due after this one is on disk"
    record = written(state, 40.0)
    assert (record.sequence, record.leases, record.checkpoint) == (2, (), False)
    state.handle_deadline(41.0)
    assert state.next_deadline() == 40.0 + 90 / 3


def test_a_clock_that_is_set_makes_us_say_everything_by_the_new_one(state: SharedState) -> None:
    state.handle(events.ClockSet(WALL_UNIX_S + 5.0), 1.0)
    assert state.poll_effects() == [], "nothing was said by the old one"
    say(state, 2.0, counters={"steps": 1})
    state.handle(events.ClockSet(WALL_UNIX_S + 100.0), 3.0)
    record = written(state, 3.0)
    assert (record.checkpoint, record.counters) == (True, {"steps": 1})
    assert record.clock_ms == int((WALL_UNIX_S + 100.0) * 1000)


# --- the journal -------------------------------------------------------------------------


def test_a_journal_is_read_before_anything_else_and_by_a_later_life_only() -> None:
    own = signed_record(WE, epoch=3, counters={"steps": 1})
    for epoch in (2, 3):
        with pytest.raises(LocalProtocolError, match=f"boot epoch {epoch} is not after 3"):
            make_state(epoch).handle(events.Restored((own.signed,)), 0.0)
    state = make_state(4)
    state.handle(events.Restored((own.signed,)), 0.0)
    assert state.poll_effects() == [], "what a journal holds is not written again"
    assert say(state, maxima={"step": 1}).counters == {"steps": 1}
    with pytest.raises(LocalProtocolError, match="before everything else"):
        state.handle(events.Restored((own.signed,)), 0.0)


def test_a_journal_gives_back_records_and_bans_and_counts_them() -> None:
    first, other = (signed_record(AUTHOR, maxima={"step": step}) for step in (1, 2))
    kept = signed_record(ToySigner.make(1001), counters={"steps": 1})
    journal = (first.signed, other.signed, kept.signed, kept.signed)
    state = make_state()
    state.handle(events.Restored(journal), 50.0)
    held = state.statistics()
    assert held.records_total == {"accepted": 2, "equivocation": 1, "duplicate": 1}
    assert (held.bans, held.authors) == (1, 1)
    assert list(state.journal_records()) == [first.signed, other.signed, kept.signed]


def test_who_was_away_takes_no_author_for_silent_that_spoke_a_moment_ago() -> None:
    state = make_state()
    opened = signed_record(AUTHOR, wall_unix_s=WALL_UNIX_S, registers={"state": "x"})
    state.handle(events.Restored((opened.signed,)), 10.0)
    state.handle_deadline(limits.STATE_RETENTION_S - 0.001)
    assert state.statistics().authors == 1
    state.handle_deadline(limits.STATE_RETENTION_S)
    assert state.statistics().authors == 0


# --- records of others -------------------------------------------------------------------


def test_a_record_that_is_taken_in_is_kept_told_and_passed_on() -> None:
    state = make_state()
    for peer in (NEAR, FAR):
        meet(state, peer)
    opened = signed_record(AUTHOR, counters={"steps": 1})
    effects = receive(state, opened)
    assert effects == [
        events.Persist(opened.signed),
        events.Changed(AUTHOR.peer_id, frozenset({"steps"})),
    ]
    state.handle_deadline(limits.STATE_PASS_ON_S)
    push = wire.Push((wire.Carried(opened.signed, 0),))
    assert sent(state.poll_effects()) == [(FAR, push)]
    held = state.statistics()
    assert held.records_sent_total == 1
    assert held.messages_total == {"summary": sum(WE.peer_id < peer for peer in (NEAR, FAR))} | {
        "push": 1
    }


def test_a_record_without_words_tells_of_no_change(state: SharedState) -> None:
    assert changed(receive(state, signed_record(AUTHOR))) == []


def test_who_sends_what_we_know_is_not_sent_it(state: SharedState) -> None:
    opened = signed_record(AUTHOR, 5, checkpoint=True)
    meet(state, FAR)
    state.handle(events.Received(FAR, wire.Push((wire.Carried(opened.signed, 0),))), 0.0)
    receive(state, opened)
    state.handle_deadline(limits.STATE_PASS_ON_S)
    assert sent(state.poll_effects()) == []


def test_who_says_that_there_is_more_is_asked_again(state: SharedState) -> None:
    opened = signed_record(AUTHOR)
    assert sent(receive(state, opened)) == []
    asked = sent(receive(state, opened, more=True, now=2.0))
    ((peer, summary),) = asked
    assert isinstance(summary, wire.Summary)
    assert peer == NEAR
    assert [(each.prefix, each.n_heads) for each in summary.ranges] == [("", 1)]
    assert summary.clock_ms == int((WALL_UNIX_S + 2.0) * 1000)


def test_for_records_that_do_not_follow_one_question_is_asked(state: SharedState) -> None:
    others = [ToySigner.make(1000 + number) for number in range(2)]
    records = [signed_record(each, sequence) for each in others for sequence in (4, 5)]
    ((peer, want),) = sent(receive(state, *records))
    assert peer == NEAR
    assert isinstance(want, wire.Want)
    assert [PeerId(head.peer) for head in want.heads] == [each.peer_id for each in others]


def test_who_passes_on_a_bad_record_is_penalised_and_the_rest_not_read(state: SharedState) -> None:
    foreign = signed_record(AUTHOR, swarm_id=bytes(32))
    effects = receive(state, signed_record(ToySigner.make(1001)), foreign, signed_record(AUTHOR))
    assert effects[1:] == [events.Penalise(NEAR, "state record: foreign")]
    assert state.statistics().records_total == {"accepted": 1, "foreign": 1}


def test_a_ban_is_kept_told_and_proved_to_every_neighbour(state: SharedState) -> None:
    meet(state, FAR)
    first, other = (signed_record(AUTHOR, maxima={"step": step}) for step in (1, 2))
    receive(state, first)
    proof = wire.Proof(first.signed, other.signed)
    assert receive(state, other) == [
        events.Ban(AUTHOR.peer_id, proof),
        events.Persist(first.signed),
        events.Persist(other.signed),
        events.Changed(AUTHOR.peer_id, frozenset({"step"})),
        events.Send(NEAR, wire.Proofs((proof,))),
        events.Send(FAR, wire.Proofs((proof,))),
    ]
    state.handle(events.Received(FAR, wire.Proofs((proof,))), 1.0)
    assert state.poll_effects() == [], "we know"


def test_what_an_author_said_that_is_let_go_is_told_as_changed(state: SharedState) -> None:
    receive(state, signed_record(AUTHOR, counters={"steps": 1}))
    state.handle(events.NeighbourDown(NEAR), 1.0)
    state.poll_effects()
    due = limits.STATE_RETENTION_S
    state.handle_deadline(2.0)
    assert state.next_deadline() == due
    state.handle_deadline(due - 0.001)
    assert state.poll_effects() == []
    state.handle_deadline(due)
    assert state.poll_effects() == [events.Changed(AUTHOR.peer_id, frozenset({"steps"}))]
    assert state.next_deadline() is None


@pytest.mark.parametrize("is_near", [True, False])
def test_a_neighbour_gets_room_while_its_session_is_open(is_near: bool) -> None:
    state = make_state()
    state.handle(events.Restored(tuple(each.signed for each in strangers())), 0.0)
    meet(state, NEAR)
    meet(state, AUTHOR.peer_id)
    if not is_near:
        state.handle(events.NeighbourDown(AUTHOR.peer_id), 0.0)
    receive(state, signed_record(AUTHOR, counters={"steps": 1}))
    assert state.view.counters() == ({"steps": 1} if is_near else {})
    assert state.statistics().authors == limits.STATE_AUTHORS_MAX


def test_what_we_say_after_a_record_is_stamped_after_it(state: SharedState) -> None:
    opened = signed_record(AUTHOR, wall_unix_s=WALL_UNIX_S + 3600.0)
    receive(state, opened)
    record = say(state, 1.0, counters={"steps": 1})
    assert (record.clock_ms, record.clock_tick) == (opened.stamp.wall_ms, opened.stamp.tick + 1)


def test_a_neighbour_whose_session_is_gone_is_not_heard(state: SharedState) -> None:
    state.handle(events.NeighbourDown(NEAR), 0.0)
    assert receive(state, signed_record(AUTHOR)) == []
    assert state.statistics().records_total == {}


# --- our name ----------------------------------------------------------------------------


def test_an_earlier_life_of_ours_is_carried_on_once(state: SharedState) -> None:
    state = make_state(2)
    meet(state, NEAR)
    say(state, counters={"tokens": 1})
    earlier = signed_record(WE, epoch=1, counters={"steps": 5}, maxima={"step": 5})
    effects = receive(state, earlier)
    (persist,) = effects
    assert isinstance(persist, events.Persist)
    record = decode_record(persist.record.body, wire.StateRecord)
    assert record.checkpoint
    assert (record.counters, record.maxima) == ({"steps": 5, "tokens": 1}, {"step": 5})
    assert persist.sequence is not None
    state.handle(events.Persisted(persist.sequence), 1.0)
    state.poll_effects()
    assert receive(state, earlier) == [], "a replay makes us sign nothing"


def test_a_proof_about_us_that_proves_nothing_costs_its_sender(state: SharedState) -> None:
    say(state, counters={"steps": 1})
    ours = next(state.journal_records())
    state.handle(events.Received(NEAR, wire.Proofs((wire.Proof(ours, ours),))), 1.0)
    (penalty,) = state.poll_effects()
    assert isinstance(penalty, events.Penalise)
    assert penalty.peer == NEAR
    assert "do not contradict each other" in penalty.why


def test_an_author_that_went_for_a_record_without_room_is_told_as_changed() -> None:
    state = make_state()
    journal = [each.signed for each in strangers()[1:]]
    words = {f"r{number:02}": "x" * 200 for number in range(15)}
    large = signed_record(AUTHOR, registers=words)
    silent = signed_record(ToySigner.make(1001), counters={"steps": 1})
    state.handle(events.Restored((silent.signed, *journal)), 0.0)
    meet(state, NEAR)
    state.view.ledger.size_bytes = limits.STATE_BYTES_MAX  # of records of others
    state.view.ledger.chains[silent.actor.peer].heard_at = -limits.STATE_SILENT_S
    effects = receive(state, large, now=1.0)
    assert effects == [events.Changed(AUTHOR.peer_id, frozenset({"steps"}))]
    assert state.statistics().records_total["full"] == 1


def test_a_record_of_ours_that_we_hold_is_no_news_and_another_one_is(state: SharedState) -> None:
    say(state, counters={"steps": 1})
    first = state.version_vector()[0]
    second = signed_record(WE, 2, previous=first.hash)
    assert receive(state, second) == [events.KeyElsewhere(1, 2)]
    ours = next(state.journal_records())
    push = wire.Push((wire.Carried(ours, 0),))
    state.handle(events.Received(NEAR, push), 1.0)
    assert state.poll_effects() == []
    fork = signed_record(WE, 1, counters={"steps": 2})
    assert receive(state, fork) == [events.KeyElsewhere(1, 1)]
    assert receive(state, signed_record(WE, 1, epoch=2)) == [events.KeyElsewhere(2, 1)]


# --- what is shown -----------------------------------------------------------------------


def test_sizes_and_counts_are_told(state: SharedState) -> None:
    empty = make_state().statistics()
    assert (empty.authors, empty.neighbours, empty.held_bytes, empty.own_sequence) == (0, 0, 0, 0)
    assert empty.clock_skew_s is None
    opened = signed_record(AUTHOR, counters={"steps": 1, "tokens": 2})
    receive(state, opened)
    say(state, counters={"steps": 1})
    held = state.statistics()
    own_bytes = held.held_bytes - opened.size_bytes
    assert own_bytes == len([*state.journal_records()][1].body) + 128
    assert (held.authors, held.bans, held.neighbours, held.own_sequence) == (2, 0, 1, 1)
    assert held.types["counters"] == CellStatistics(2, 3, 0)
    assert held.types["leases"] == CellStatistics(2, 0, 0)
    assert held.records_total == {"accepted": 1}
    assert state.digest() == hashlib.sha256(state.canonical()).digest()


@pytest.mark.parametrize(
    ("ahead_s", "middle_s"), [([4], 4), ([9, 4], 4), ([-1, 9, 4], 4), ([30, -1, 9, 4], 4)]
)
def test_of_an_even_number_of_clocks_the_nearer_one_to_ours_is_the_middle(
    ahead_s: list[int], middle_s: int
) -> None:
    state = make_state()
    meet(state, ToySigner.make(99).peer_id)  # says nothing of its clock
    nothing = wire.Range("", 0, bytes(32))
    for number, ahead in enumerate(ahead_s):
        peer = ToySigner.make(10 + number).peer_id
        meet(state, peer)
        said = wire.Summary((nothing,), int(WALL_UNIX_S + ahead) * 1000)
        state.handle(events.Received(peer, said), 0.0)
    assert state.statistics().clock_skew_s == middle_s


def test_a_view_reads_what_each_author_says() -> None:
    state = make_state()
    meet(state, NEAR)
    other = ToySigner.make(1001)
    one, two = AUTHOR.peer_id, other.peer_id
    lease = (
        wire.Lease("member", str(one), 60),
        wire.Lease("role", "relay", 60),
        wire.Lease("role", "keeper", 30),
        wire.Lease("member", str(two), 60),  # none vouches for another
    )
    verdict = (wire.PeerVerdict(bytes(two), 1),)
    receive(
        state,
        signed_record(
            AUTHOR,
            leases=lease,
            counters={"steps": 3, "none": 0},
            maxima={"step": 4, "none": 0},
            registers={"loss": 1.0},
            verdicts=verdict,
        ),
        signed_record(other, counters={"steps": 4}, maxima={"step": 2}),
    )
    view = state.view
    assert view.members(0.0) == (one,)
    assert view.members(60.0) == ()
    assert view.of(one, 29.9) == {
        "member": tuple(sorted((str(one), str(two)))),
        "role": ("keeper", "relay"),
    }
    assert view.elements_of(one, "role", 29.9) == ("keeper", "relay")
    assert view.elements_of(one, "role", 30.0) == ("relay",)
    assert view.elements_of(one, "role", 60.0) == ()
    assert view.elements_of(FAR, "role", 0.0) == ()
    assert view.of(FAR, 0.0) == {}
    assert view.sets(0.0)["role"] == {"keeper": {one}, "relay": {one}}
    assert view.counters() == {"steps": 7, "none": 0}
    assert (view.counters_of(two), view.counters_of(FAR)) == ({"steps": 4}, {})
    assert view.counters_by_author("steps") == {one: 3, two: 4}
    assert view.counters_by_author("none") == {}
    assert view.marks("step") == {one: 4, two: 2}
    assert view.marks("none") == {}
    assert view.maxima() == {"step": 4, "none": 0}
    assert view.registers() == {one: {"loss": 1.0}}
    assert (view.registers_of(one), view.registers_of(FAR)) == ({"loss": 1.0}, {})
    assert (view.verdicts_of(one), view.verdicts_of(FAR)) == ({two: 1}, {})
    assert view.snapshots(0.0) == ()
