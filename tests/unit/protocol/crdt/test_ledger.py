"""Which records a ledger takes in, whom it lets go for room, and what is left of those."""

from __future__ import annotations

import math

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.ledger import STATE_BANS_MAX, Ledger, Verdict
from swarmnode.protocol.crdt.records import NO_HASH, Opened, open_record
from swarmnode.wire import crdt as wire
from tests.kits.crdt_world import NETWORK, WALL_UNIX_S, ToySigner, signed_record, verify_toy
from tests.unit.protocol.crdt.courier_kit import strangers, words_of_size

WE = ToySigner.make(1)
DAY_S = 86_400.0


@pytest.fixture
def ledger() -> Ledger:
    clock = HybridClock(WALL_UNIX_S, 0.0)
    return Ledger(WE.peer_id, NETWORK, clock, verify_toy, open_record)


def author(number: int) -> ToySigner:
    return ToySigner.make(1000 + number)


def peer(number: int) -> PeerId:
    return author(number).peer_id


def take(
    ledger: Ledger, opened: Opened, now: float = 0.0, heard_at: float | None = None
) -> Verdict:
    return ledger.accept(opened.signed, now, now if heard_at is None else heard_at).verdict


def leave_room_for(ledger: Ledger, n_authors: int) -> None:
    """Let authors in that are never silent and never make room, but for so many."""
    for opened in strangers()[n_authors:]:
        ledger.near.add(opened.actor.peer)
        take(ledger, opened, 0.0, 1e9)


def leave_bytes(ledger: Ledger, size_bytes: int) -> None:
    """Let others hold all but so many bytes."""
    ledger.size_bytes += limits.STATE_BYTES_MAX - size_bytes


def held_of(ledger: Ledger, *numbers: int) -> list[int]:
    return [number for number in numbers if peer(number) in ledger.chains]


def proof_of(signer: ToySigner) -> wire.Proof:
    first, second = (signed_record(signer, maxima={"step": step}) for step in (1, 2))
    return wire.Proof(first.signed, second.signed)


# --- what gets in ------------------------------------------------------------------------


def test_what_is_held_already_is_given_back_as_it_is_held(ledger: Ledger) -> None:
    opened = signed_record(author(1), counters={"steps": 3})
    judgement = ledger.accept(opened.signed, 0.0, 0.0)
    assert judgement.verdict is Verdict.ACCEPTED
    assert judgement.opened == opened
    assert judgement.changed == {"steps"}
    again = ledger.accept(opened.signed, 1.0, 1.0)
    assert (again.verdict, again.opened) == (Verdict.DUPLICATE, opened)
    assert ledger.heard_at(opened.actor) == 0.0, "any node may repeat it"


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_a_stamp_is_refused_from_a_day_ahead(ledger: Ledger, beyond_ms: int) -> None:
    ahead_s = limits.STATE_CLOCK_AHEAD_S + beyond_ms / 1000
    opened = signed_record(author(1), wall_unix_s=WALL_UNIX_S + ahead_s)
    assert take(ledger, opened) is (Verdict.FUTURE if beyond_ms else Verdict.ACCEPTED)


def test_our_own_stamps_are_taken_as_they_are(ledger: Ledger) -> None:
    assert take(ledger, signed_record(WE, wall_unix_s=WALL_UNIX_S + 9 * DAY_S)) is Verdict.ACCEPTED


@pytest.mark.parametrize("beyond_s", [0, 1])
def test_who_was_silent_for_longer_than_we_remember_stays_out(
    ledger: Ledger, beyond_s: int
) -> None:
    heard_at = 5.0 - limits.STATE_RETENTION_S - beyond_s
    verdict = take(ledger, signed_record(author(1)), 5.0, heard_at)
    assert verdict is (Verdict.EXPIRED if beyond_s else Verdict.ACCEPTED)


def test_what_is_refused_anyhow_costs_no_look_at_its_signature(ledger: Ledger) -> None:
    leave_room_for(ledger, 1)
    take(ledger, signed_record(author(1), 5, checkpoint=True))
    ledger.ban(proof_of(author(2)))
    day_ahead = WALL_UNIX_S + limits.STATE_CLOCK_AHEAD_S + 1
    long_ago = -limits.STATE_RETENTION_S - 1
    found = []
    for opened, heard_at in (
        (signed_record(author(2)), 0.0),
        (signed_record(author(1), 4), 0.0),
        (signed_record(author(3)), 0.0),
        (signed_record(author(1), 6), long_ago),
        (signed_record(author(1), 6, wall_unix_s=day_ahead), 0.0),
        (signed_record(author(1), 6), 0.0),
    ):
        signed = opened.signed
        forged = type(signed)(signed.body, signed.public_key, bytes(64))
        found.append(ledger.accept(forged, 0.0, heard_at).verdict)
    assert found == [
        Verdict.BANNED,
        Verdict.STALE,
        Verdict.FULL,
        Verdict.EXPIRED,
        Verdict.FUTURE,
        Verdict.FORGED,
    ]


def test_before_the_checkpoint_is_stale_and_at_it_a_contradiction(ledger: Ledger) -> None:
    take(ledger, signed_record(author(1), 5, checkpoint=True))
    assert take(ledger, signed_record(author(1), 4)) is Verdict.STALE
    other = signed_record(author(1), 5, checkpoint=True, counters={"steps": 1})
    judgement = ledger.accept(other.signed, 0.0, 0.0)
    assert judgement.verdict is Verdict.EQUIVOCATION
    assert judgement.proof is not None
    assert judgement.proof.second == other.signed
    assert ledger.ban(judgement.proof) == (peer(1), frozenset())


def test_a_chain_goes_on_with_the_next_record_or_a_checkpoint(ledger: Ledger) -> None:
    first = signed_record(author(1), 1)
    assert take(ledger, signed_record(author(1), 2, previous=first.hash)) is Verdict.GAP
    assert take(ledger, first) is Verdict.ACCEPTED
    assert take(ledger, signed_record(author(1), 3)) is Verdict.GAP
    assert take(ledger, signed_record(author(1), 2, previous=first.hash)) is Verdict.ACCEPTED
    assert take(ledger, signed_record(author(1), 9, checkpoint=True)) is Verdict.ACCEPTED
    assert take(ledger, signed_record(author(1), 1, epoch=2, checkpoint=False)) is Verdict.GAP
    assert take(ledger, signed_record(author(1), 1, epoch=2)) is Verdict.ACCEPTED
    assert take(ledger, signed_record(author(1), 10, checkpoint=True)) is Verdict.STALE
    assert [head.epoch for head in ledger.version_vector()] == [2]


@pytest.mark.parametrize("beyond_bytes", [0, 1])
def test_a_chain_is_full_to_the_byte(ledger: Ledger, beyond_bytes: int) -> None:
    newest = signed_record(author(1))
    left_bytes = limits.STATE_AUTHOR_BYTES_MAX - newest.size_bytes + beyond_bytes
    verdicts = [take(ledger, newest)]
    sizes = [2000] * (left_bytes // 2000 - 1)
    for size_bytes in [*sizes, left_bytes - sum(sizes)]:
        words = words_of_size(size_bytes, sequence=2)
        newest = signed_record(author(1), newest.sequence + 1, previous=newest.hash, **words)
        assert newest.size_bytes == size_bytes
        verdicts.append(take(ledger, newest))
    *before, last = verdicts
    assert {*before} == {Verdict.ACCEPTED}
    assert last is (Verdict.AUTHOR_FULL if beyond_bytes else Verdict.ACCEPTED)


def test_what_a_later_life_does_not_say_is_told_as_changed(ledger: Ledger) -> None:
    take(ledger, signed_record(author(1), counters={"steps": 3}))
    later = signed_record(author(1), epoch=2, maxima={"step": 1})
    assert ledger.accept(later.signed, 0.0, 0.0).changed == {"steps", "step"}
    assert ledger.size_bytes == later.size_bytes
    assert list(ledger.records()) == [later]


def test_a_record_that_came_by_way_of_a_slow_node_makes_no_author_older(ledger: Ledger) -> None:
    first = signed_record(author(1))
    take(ledger, first, 10.0, 9.0)
    take(ledger, signed_record(author(1), 2, previous=first.hash), 10.0, 4.0)
    assert ledger.heard_at(first.actor) == 9.0
    third = signed_record(author(1), 9, checkpoint=True)
    take(ledger, third, 12.0, 11.0)
    assert ledger.heard_at(first.actor) == 11.0


# --- room --------------------------------------------------------------------------------


@pytest.mark.parametrize("spare_bytes", [0, -1])
def test_a_ledger_is_full_to_the_byte(ledger: Ledger, spare_bytes: int) -> None:
    one, two = signed_record(author(1)), signed_record(author(2))
    leave_bytes(ledger, one.size_bytes + two.size_bytes + spare_bytes)
    assert take(ledger, one) is Verdict.ACCEPTED
    assert take(ledger, two) is (Verdict.FULL if spare_bytes else Verdict.ACCEPTED)
    left_bytes = two.size_bytes + spare_bytes if spare_bytes else 0
    assert ledger.size_bytes == limits.STATE_BYTES_MAX - left_bytes


def test_a_ledger_holds_so_many_authors_and_lets_those_go_on(ledger: Ledger) -> None:
    leave_room_for(ledger, 2)
    first = signed_record(author(1))
    assert take(ledger, first) is Verdict.ACCEPTED
    assert take(ledger, signed_record(author(2))) is Verdict.ACCEPTED
    assert take(ledger, signed_record(author(3))) is Verdict.FULL
    assert take(ledger, signed_record(author(1), 2, previous=first.hash)) is Verdict.ACCEPTED


@pytest.mark.parametrize("beyond_s", [0, 1])
def test_who_was_silent_for_long_makes_room(ledger: Ledger, beyond_s: int) -> None:
    leave_room_for(ledger, 3)
    for number, heard_at in ((1, 20.0), (2, 10.0), (3, 30.0)):
        take(ledger, signed_record(author(number), counters={f"n{number}": 1}), 30.0, heard_at)
    now = 10.0 + limits.STATE_SILENT_S + beyond_s
    judgement = ledger.accept(signed_record(author(4)).signed, now, now)
    assert judgement.verdict is (Verdict.ACCEPTED if beyond_s else Verdict.FULL)
    assert held_of(ledger, 1, 2, 3, 4) == ([1, 3, 4] if beyond_s else [1, 2, 3])
    assert judgement.changed == ({"n2"} if beyond_s else set())


def test_the_longest_silent_goes_even_if_another_was_held_for_longer(ledger: Ledger) -> None:
    """An author that was the longest silent and has spoken again is not let go for it."""
    leave_room_for(ledger, 2)
    first = signed_record(author(1))
    take(ledger, first, 0.0)
    take(ledger, signed_record(author(2)), 100.0)
    take(ledger, signed_record(author(1), 2, previous=first.hash), 200.0)
    now = 100.0 + limits.STATE_SILENT_S
    assert take(ledger, signed_record(author(3)), now) is Verdict.FULL
    assert take(ledger, signed_record(author(3)), now + 1.0) is Verdict.ACCEPTED
    assert held_of(ledger, 1, 2, 3) == [1, 3]


def test_an_author_that_is_refused_is_let_go_no_later_for_it(ledger: Ledger) -> None:
    silent = signed_record(author(1))
    take(ledger, silent, 0.0)
    now = 2 * limits.STATE_SILENT_S
    other = signed_record(author(2))
    take(ledger, other, now)
    leave_bytes(ledger, ledger.size_bytes)
    assert take(ledger, signed_record(author(1), 2, previous=silent.hash), now) is Verdict.FULL
    assert ledger.next_retirement() == limits.STATE_RETENTION_S
    assert take(ledger, signed_record(author(3)), now) is Verdict.ACCEPTED, "in its place"
    assert {*ledger.chains} == {peer(2), peer(3)}


def test_an_author_does_not_make_room_for_itself(ledger: Ledger) -> None:
    first = signed_record(author(1))
    leave_bytes(ledger, first.size_bytes)
    take(ledger, first, 0.0)
    second = signed_record(author(1), 2, previous=first.hash)
    assert take(ledger, second, 2 * limits.STATE_SILENT_S) is Verdict.FULL
    assert {*ledger.chains} == {peer(1)}


def test_for_a_neighbour_the_youngest_stranger_goes_and_no_other_neighbour(
    ledger: Ledger,
) -> None:
    leave_room_for(ledger, 3)
    ledger.near.update({peer(3), peer(4), peer(5), peer(6)})
    for number in (1, 2, 3):
        take(ledger, signed_record(author(number)))
    assert take(ledger, signed_record(author(9))) is Verdict.FULL, "a stranger gets no room so"
    held = []
    for number in (4, 5, 6):
        verdict = take(ledger, signed_record(author(number)))
        held.append((verdict, held_of(ledger, *range(1, 7))))
    assert held == [
        (Verdict.ACCEPTED, [1, 3, 4]),
        (Verdict.ACCEPTED, [3, 4, 5]),
        (Verdict.FULL, [3, 4, 5]),
    ]


def test_as_many_go_as_one_large_record_needs(ledger: Ledger) -> None:
    small = [signed_record(author(number), maxima={f"m{number}": 1}) for number in range(3)]
    large = signed_record(author(9), registers={"state": "x" * 200})
    assert large.size_bytes < 2 * small[0].size_bytes
    leave_bytes(ledger, sum(each.size_bytes for each in small))
    for each in small:
        take(ledger, each, 0.0)
    now = 1.0 + limits.STATE_SILENT_S
    judgement = ledger.accept(large.signed, now, now)
    assert judgement.verdict is Verdict.ACCEPTED
    assert judgement.changed == {"m0", "m1", "state"}
    gone_bytes = small[0].size_bytes + small[1].size_bytes
    assert ledger.size_bytes == limits.STATE_BYTES_MAX - gone_bytes + large.size_bytes


def test_what_went_for_a_record_that_still_finds_no_room_is_told(ledger: Ledger) -> None:
    small = [signed_record(author(number), maxima={f"m{number}": 1}) for number in range(2)]
    large = signed_record(author(9), registers={"state": "x" * 200})
    leave_bytes(ledger, sum(each.size_bytes for each in small))
    now = 1.0 + limits.STATE_SILENT_S
    take(ledger, small[0], 0.0)
    take(ledger, small[1], now)
    judgement = ledger.accept(large.signed, now, now)
    assert (judgement.verdict, {*judgement.changed}) == (Verdict.FULL, {"m0"})
    assert held_of(ledger, 0, 1, 9) == [1]


# --- letting go --------------------------------------------------------------------------


def test_authors_are_let_go_at_the_end_of_what_we_remember(ledger: Ledger) -> None:
    assert ledger.next_retirement() == math.inf
    assert ledger.retire_silent(1e9) == []
    take(ledger, signed_record(author(1), counters={"steps": 1}), 20.0, 10.0)
    take(ledger, signed_record(author(2)), 20.0, 5.0)
    take(ledger, signed_record(author(3)), 20.0, 20.0)
    due = 5.0 + limits.STATE_RETENTION_S
    assert ledger.next_retirement() == due
    assert ledger.retire_silent(due - 0.001) == []
    assert ledger.retire_silent(due) == [(peer(2), frozenset())]
    assert ledger.next_retirement() == due + 5.0
    assert ledger.retire_silent(due + 5.0) == [(peer(1), frozenset({"steps"}))]
    assert ledger.retire_silent(due + 15.0) == [(peer(3), frozenset())]
    assert ledger.next_retirement() == math.inf
    assert ledger.size_bytes == 0


def test_of_a_retired_author_we_know_how_far_it_was_and_ask_for_all_of_it(ledger: Ledger) -> None:
    opened = signed_record(author(1), 4, checkpoint=True, epoch=3)
    take(ledger, opened, 0.0)
    assert ledger.wanted(peer(1)) == opened.head
    before = ledger.index.digest("")
    ledger.retire_silent(limits.STATE_RETENTION_S)
    assert ledger.index.digest("") == before, "so no node that has it sees a difference"
    assert ledger.head(peer(1)) == opened.head
    assert ledger.wanted(peer(1)) == wire.Head(bytes(peer(1)), 3, 0, NO_HASH)
    assert ledger.version_vector() == ()
    now = limits.STATE_RETENTION_S
    assert take(ledger, opened, now) is Verdict.STALE
    later = signed_record(author(1), 5, checkpoint=True, epoch=3)
    assert take(ledger, later, now) is Verdict.ACCEPTED
    assert ledger.version_vector() == (later.head,)
    assert ledger.head(peer(2)) == wire.Head(bytes(peer(2)), 0, 0, NO_HASH)


def test_of_many_retired_authors_the_latest_are_known(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_RETIRED_MAX", 2)
    for number in (1, 2, 3):
        take(ledger, signed_record(author(number)), float(number))
    ledger.retire_silent(2.0 + limits.STATE_RETENTION_S)
    assert [ledger.head(peer(number)).sequence for number in (1, 2)] == [1, 1]
    ledger.retire_silent(3.0 + limits.STATE_RETENTION_S)
    assert [ledger.head(peer(number)).sequence for number in (1, 2, 3)] == [0, 1, 1]
    assert ledger.version_vector() == ()


@pytest.mark.parametrize("retired", [False, True])
def test_a_banned_author_is_held_no_more_and_stands_at_the_end_of_time(
    ledger: Ledger, retired: bool
) -> None:
    take(ledger, signed_record(author(1), counters={"steps": 1}))
    take(ledger, signed_record(author(2), counters={"tokens": 1}))
    if retired:
        ledger.retire_silent(limits.STATE_RETENTION_S)
    assert ledger.ban(proof_of(author(1))) == (peer(1), frozenset() if retired else {"steps"})
    last = 2**63 - 1
    end = wire.Head(bytes(peer(1)), last, last, NO_HASH)
    assert ledger.head(peer(1)) == end
    assert end in ledger.version_vector()
    assert ledger.ban(proof_of(author(1))) is None
    assert take(ledger, signed_record(author(1), epoch=9)) is Verdict.BANNED
    assert peer(1) not in ledger.chains


def test_of_many_bans_the_latest_are_kept(ledger: Ledger) -> None:
    for number in range(STATE_BANS_MAX):
        ledger.ban(proof_of(author(number)))
    assert len(ledger.bans) == STATE_BANS_MAX
    ledger.ban(proof_of(author(STATE_BANS_MAX)))
    assert {peer(number) for number in range(1, STATE_BANS_MAX + 1)} == {*ledger.bans}
    assert ledger.head(peer(0)).sequence == 0
    assert len(ledger.version_vector()) == STATE_BANS_MAX
    assert take(ledger, signed_record(author(0))) is Verdict.ACCEPTED


def test_after_a_restart_an_author_was_heard_of_when_it_says_that_it_spoke(ledger: Ledger) -> None:
    ages_s = {1: 30.5, 2: -60.0, 3: limits.STATE_LEASE_S_MAX + 9.0, 4: limits.STATE_LEASE_S_MAX}
    for number, age_s in ages_s.items():
        take(ledger, signed_record(author(number), wall_unix_s=WALL_UNIX_S + 7.0 - age_s), 7.0)
    ledger.go_by_stamps(7.0)
    heard_at = {number: ledger.chains[peer(number)].heard_at for number in ages_s}
    longest_ago = 7.0 - limits.STATE_LEASE_S_MAX
    assert heard_at == {1: -23.5, 2: 7.0, 3: longest_ago, 4: longest_ago}
