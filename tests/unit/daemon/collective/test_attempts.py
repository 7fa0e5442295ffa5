"""Attempts at a mean: members meet in the highest, and a liar moves no member far."""

from __future__ import annotations

from swarmnode.daemon.collective.rounds import Attempts, FirstMean
from swarmnode.ids import PeerId
from swarmnode.wire.exchange.group import Enlist
from tests.kits.lessor_kit import KEY, intent


def call(attempts: Attempts) -> Enlist:
    return Enlist(attempts.gid, True, attempts.intent.lineage, attempts.number)


def test_all_members_behind_the_same_mean_name_the_next_alike() -> None:
    one = Attempts(KEY, intent(round=3, lineage=7, base_version=b"v7"))
    two = Attempts(KEY, intent(round=9, lineage=7, base_version=b"v7"))
    assert one.gid == two.gid
    other = Attempts(KEY, intent(round=3, lineage=7, base_version=b"w7"))
    assert other.gid != one.gid


def test_what_ended_in_vain_gets_another_name_until_another_mean_is_wanted() -> None:
    attempts = Attempts(KEY, intent(lineage=7, base_version=b"v7"))
    names = [attempts.gid]
    for _ in range(3):
        attempts.failed()
        attempts.post(intent(lineage=7, base_version=b"v7"))
        names.append(attempts.gid)
    assert len(set(names)) == 4
    attempts.post(intent(lineage=8, base_version=b"v8"))
    assert attempts.number == 0
    attempts.failed()
    attempts.post(intent(lineage=8, base_version=b"v8", fragment=1))
    assert attempts.number == 0


def test_a_call_to_a_later_attempt_is_followed_and_no_other() -> None:
    one, two = (Attempts(KEY, intent(lineage=7, base_version=b"v7")) for _ in range(2))
    early = call(two)
    for _ in range(40):
        two.failed()
    assert one.follow(call(two))
    assert one.gid == two.gid
    assert not one.follow(call(two))
    assert not one.follow(early)
    assert not one.follow(Enlist(bytes(16), True, 7, 99)), "its name says something else"
    assert not one.follow(Enlist(two.gid, True, 7, 99))
    far = Attempts(KEY, two.intent, number=2**63 - 1)
    assert not one.follow(call(far)), "no message holds what comes after it"


def test_who_lacks_means_is_known_by_what_it_says() -> None:
    one, two = (
        Attempts(KEY, intent(lineage=count, base_version=b"v%d" % count)) for count in (7, 5)
    )
    one.post(one.intent)
    two.post(two.intent)
    assert one.is_ahead_of(call(two))
    assert not two.is_ahead_of(call(one))
    same = call(one)
    assert not one.is_ahead_of(same)
    one.committed()
    assert one.is_ahead_of(same)
    assert not one.is_ahead_of(Enlist(bytes(16), True)), "of no lineage"


def test_calls_begin_the_wait_anew_a_few_times_only() -> None:
    attempts = Attempts(KEY, intent(lineage=7, base_version=b"v7"))
    liar = Attempts(KEY, intent(lineage=7, base_version=b"v7"))
    followed = 0
    for _ in range(20):
        liar.failed()
        followed += attempts.follow(call(liar))
    assert followed == 4
    attempts.post(intent(lineage=7, base_version=b"v7"))
    assert attempts.follow(call(liar))


def test_half_of_all_members_that_are_there_bring_the_others_forward() -> None:
    attempts = Attempts(KEY, intent(lineage=7, base_version=b"v7"))
    one, two, own, last = (PeerId(bytes([i]) * 32) for i in range(4))
    present = {one, two, own, last}
    now, later = Enlist(attempts.gid, True, 7, 0), Enlist(attempts.gid, True, 8, 0)
    assert not attempts.is_called(one, now, present)
    assert not attempts.is_called(one, now, present), "the same member again"
    assert not attempts.is_called(two, later, present), "it stands behind another mean"
    assert not attempts.is_called(PeerId(bytes(32)[:-1] + b"x"), now, present)
    assert attempts.is_called(two, now, present)
    assert attempts.is_called(one, now, present - {two, last}), "half of those that are left"
    attempts.post(intent(lineage=7, base_version=b"v7"))
    assert not attempts.is_called(last, now, present), "the next round begins with no caller"


def test_half_of_the_others_make_known_that_there_was_a_first_mean() -> None:
    one, two, own, last, gone = (PeerId(bytes([i]) * 32) for i in range(5))
    members = {one, two, own, last}
    first = FirstMean()
    assert not first.claimed(one, members)
    assert not first.claimed(one, members), "the same member again"
    assert not first.claimed(gone, members)
    assert not first.claimed(gone, {own}), "there is no other who could know"
    assert not first.claimed(one, members), "of those before none is left"
    assert first.claimed(two, members)
    assert first.is_made
    assert not first.claimed(last, members), "it is known already"
