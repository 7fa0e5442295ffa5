"""When a courier pushes and compares, to whom, and what it answers."""

from __future__ import annotations

import math

import pytest

from swarmnode import limits
from swarmnode.protocol.crdt.courier import STATE_PUSHES_PER_ANSWER_MAX
from swarmnode.protocol.crdt.records import NO_HASH, Opened
from swarmnode.wire import crdt as wire
from tests.kits.crdt_world import WALL_UNIX_S, signed_record
from tests.unit.protocol.crdt.courier_kit import (
    EARLIER_PEER,
    PEERS,
    WE,
    Post,
    make_post,
    record_of,
    words_of_size,
)

NOTHING = wire.Range("", 0, bytes(32))
WALL_MS = int(WALL_UNIX_S * 1000)


@pytest.fixture
def post() -> Post:
    return make_post()


def head_of(opened: Opened, **changes: object) -> wire.Head:
    fields = {name: getattr(opened.head, name) for name in wire.Head.__struct_fields__}
    return wire.Head(**(fields | changes))


# --- time --------------------------------------------------------------------------------


def test_with_no_neighbour_and_nothing_fresh_there_is_nothing_to_wait_for(post: Post) -> None:
    assert post.courier.next_deadline() == math.inf
    post.courier.handle_deadline(1e9)
    assert post.sent() == []


@pytest.mark.parametrize(("share", "times"), [(0.0, 0.75), (1.0, 1.25)])
def test_comparing_is_spread_a_quarter_around_its_interval(
    post: Post, share: float, times: float
) -> None:
    post.draws.share = share
    post.meet(PEERS[0], now=100.0)
    due = 100.0 + times * limits.STATE_SYNC_INTERVAL_S
    assert post.courier.next_deadline() == due
    post.courier.handle_deadline(due - 0.001)
    assert post.sent() == []
    post.courier.handle_deadline(due)
    assert post.sent() == [(PEERS[0], wire.Summary((NOTHING,), WALL_MS + int(due * 1000)))]
    assert post.courier.next_deadline() == due + times * limits.STATE_SYNC_INTERVAL_S


def test_one_neighbour_of_all_is_compared_with_at_a_time(post: Post) -> None:
    post.meet(*PEERS[:3])
    post.courier.handle_deadline(post.courier.next_deadline())
    assert [peer for peer, _ in post.sent()] == [PEERS[2]]


def test_a_neighbour_that_comes_later_puts_off_no_comparison(post: Post) -> None:
    post.meet(PEERS[0], now=0.0)
    due = post.courier.next_deadline()
    post.meet(PEERS[1], now=5.0)
    assert post.courier.next_deadline() == due
    post.courier.down(PEERS[1])
    assert post.courier.next_deadline() == due
    post.courier.down(PEERS[1])  # once more
    post.courier.down(PEERS[0])
    assert post.courier.next_deadline() == math.inf


def test_of_two_new_neighbours_the_one_with_the_smaller_id_begins_to_compare(post: Post) -> None:
    opened = post.hold(record_of(1))
    post.courier.up(EARLIER_PEER, 2.0)
    assert post.sent() == []
    post.courier.up(PEERS[0], 2.0)
    ours = post.ledger.index.digest("")
    assert ours.n_heads == 1
    assert post.sent() == [(PEERS[0], wire.Summary((ours,), WALL_MS + 2000))]
    assert post.courier.messages == {"summary": 1}
    assert opened.actor.peer in post.ledger.chains


# --- fresh records -----------------------------------------------------------------------


def test_our_own_record_waits_for_others_of_the_same_moment(post: Post) -> None:
    post.meet(PEERS[0])
    own = post.hold(signed_record(WE))
    post.courier.publish(own, 1.0)
    due = 1.0 + limits.STATE_PUSH_DELAY_S
    assert post.courier.next_deadline() == due
    other = post.hold(record_of(1))
    post.courier.publish(other, 1.01)
    assert post.courier.next_deadline() == due, "the first decides"
    post.courier.handle_deadline(due - 0.001)
    assert post.sent() == []
    post.courier.handle_deadline(due)
    assert post.pushed() == [(PEERS[0], [own, other])]
    assert post.courier.records_sent == 2
    assert post.courier.messages == {"summary": 1, "push": 1}
    assert post.courier.next_deadline() > due + 1.0, "nothing is fresh any more"


@pytest.mark.parametrize(
    ("share", "delay_s"), [(0.0, limits.STATE_PUSH_DELAY_S), (1.0, limits.STATE_PASS_ON_S)]
)
def test_among_few_a_record_of_another_is_passed_on_a_while_later(
    post: Post, share: float, delay_s: float
) -> None:
    post.meet(*PEERS[: limits.STATE_FEW_NEIGHBOURS])
    post.draws.share = share
    post.courier.publish(post.hold(record_of(1)), 1.0)
    assert post.courier.next_deadline() == pytest.approx(1.0 + delay_s)


def test_among_many_a_record_of_another_is_passed_on_at_once(post: Post) -> None:
    post.meet(*PEERS[: limits.STATE_FEW_NEIGHBOURS + 1])
    post.draws.share = 1.0
    post.courier.publish(post.hold(record_of(1)), 1.0)
    assert post.courier.next_deadline() == 1.0 + limits.STATE_PUSH_DELAY_S


def test_a_record_of_ours_is_not_held_up_by_one_that_is_passed_on(post: Post) -> None:
    post.meet(PEERS[0])
    post.draws.share = 1.0
    post.courier.publish(post.hold(record_of(1)), 1.0)
    post.courier.publish(post.hold(signed_record(WE)), 1.1)
    assert post.courier.next_deadline() == pytest.approx(1.1 + limits.STATE_PUSH_DELAY_S)


def test_a_full_message_of_fresh_records_waits_for_no_more(post: Post) -> None:
    post.meet(PEERS[0])
    n_records = limits.STATE_RECORDS_PER_MESSAGE_MAX
    *most, last = [post.hold(record_of(number)) for number in range(n_records)]
    for opened in most:
        post.courier.publish(opened, 1.0)
    assert post.sent() == []
    post.courier.publish(last, 1.0)
    assert post.pushed() == [(PEERS[0], [*most, last])]


def test_a_fresh_record_is_told_to_as_many_random_neighbours_as_the_fanout(post: Post) -> None:
    peers = PEERS[: limits.STATE_FEW_NEIGHBOURS + 4]
    post.meet(*peers)
    own = post.hold(signed_record(WE))
    post.courier.publish(own, 1.0)
    post.courier.handle_deadline(2.0)
    told = [peer for peer, records in post.pushed() if records == [own]]
    assert len({*told}) == len(told) == limits.STATE_PUSH_FANOUT
    assert {*told} <= {*peers}
    post.courier.publish(own, 3.0)
    post.courier.handle_deadline(4.0)
    assert {peer for peer, _ in post.pushed()} == {*peers} - {*told}, "none is told twice"


def test_who_told_us_of_a_record_is_not_told_and_gets_the_others(post: Post) -> None:
    post.meet(*PEERS[:2])
    known, fresh = post.hold(record_of(1)), post.hold(record_of(2))
    post.courier.received(PEERS[0], known, 1.0)
    post.courier.publish(known, 1.0)
    post.courier.publish(fresh, 1.0)
    post.courier.handle_deadline(2.0)
    assert sorted(post.pushed()) == [(PEERS[0], [fresh]), (PEERS[1], [known, fresh])]


@pytest.mark.parametrize("n_told", [limits.STATE_TOLD_ENOUGH - 1, limits.STATE_TOLD_ENOUGH])
def test_what_enough_of_few_neighbours_have_told_us_all_have_heard(post: Post, n_told: int) -> None:
    peers = PEERS[: limits.STATE_FEW_NEIGHBOURS]
    post.meet(*peers)
    opened = post.hold(record_of(1))
    for peer in peers[:n_told]:
        post.courier.received(peer, opened, 1.0)
    post.courier.publish(opened, 1.0)
    post.courier.handle_deadline(2.0)
    others = {*peers[n_told:]} if n_told < limits.STATE_TOLD_ENOUGH else set()
    assert {peer for peer, _ in post.pushed()} == others


def test_among_many_neighbours_two_that_tell_us_are_not_all(post: Post) -> None:
    peers = PEERS[: limits.STATE_FEW_NEIGHBOURS + 1]
    post.meet(*peers)
    opened = post.hold(record_of(1))
    for peer in peers[: limits.STATE_TOLD_ENOUGH]:
        post.courier.received(peer, opened, 1.0)
    post.courier.publish(opened, 1.0)
    post.courier.handle_deadline(2.0)
    assert {peer for peer, _ in post.pushed()} == {*peers[limits.STATE_TOLD_ENOUGH :]}


def test_what_a_ban_took_away_is_not_passed_on(post: Post) -> None:
    post.meet(PEERS[0])
    gone, kept = post.hold(record_of(1)), post.hold(record_of(2))
    post.courier.publish(gone, 1.0)
    post.courier.publish(kept, 1.0)
    other = signed_record_beside(gone)
    post.ledger.ban(wire.Proof(gone.signed, other.signed))
    post.courier.handle_deadline(2.0)
    assert post.pushed() == [(PEERS[0], [kept])]


def signed_record_beside(opened: Opened) -> Opened:
    """Return another record with the number of the first of this author (of 1001)."""
    other = record_of(1, maxima={"step": 9})
    assert (other.actor, other.sequence) == (opened.actor, opened.sequence)
    return other


def hold_messages(post: Post, n_messages: int, beyond_bytes: int) -> list[list[Opened]]:
    """Take in records that fill so many messages, and the last of each by so many bytes too much.

    Return them by message.
    """
    room_bytes = limits.STATE_PUSH_BYTES_MAX
    n_most = room_bytes // 3000
    last_bytes = room_bytes - n_most * 3000 + beyond_bytes
    words = [words_of_size(3000)] * n_most + [words_of_size(last_bytes)]
    batches: list[list[Opened]] = []
    for message in range(n_messages):
        numbers = range(100 * message, 100 * message + len(words))
        records = [record_of(n, **said) for n, said in zip(numbers, words, strict=True)]
        batches.append([post.hold(opened) for opened in records])
    assert sum(opened.size_bytes for opened in batches[0]) == room_bytes + beyond_bytes
    return batches


@pytest.mark.parametrize("beyond_bytes", [0, 1])
def test_fresh_records_fill_a_message_to_the_byte(post: Post, beyond_bytes: int) -> None:
    post.meet(PEERS[0])
    batches = hold_messages(post, 2, beyond_bytes)
    for opened in [each for batch in batches for each in batch]:
        post.courier.publish(opened, 1.0)
    post.courier.handle_deadline(2.0)
    sent = [batch for _, batch in post.pushed()]
    if beyond_bytes:
        assert sent[0] == batches[0][:-1]
    else:
        assert sent == batches


def test_a_record_says_for_how_many_whole_seconds_its_author_was_silent(post: Post) -> None:
    post.meet(PEERS[0])
    late, early = record_of(1), record_of(2)
    post.hold(late, heard_at=-5.5)
    post.hold(early, heard_at=3.0, now=0.0)  # its carrier's clock ran ahead
    post.courier.publish(late, 1.0)
    post.courier.publish(early, 1.0)
    post.courier.handle_deadline(2.0)
    ((_, message),) = post.sent()
    assert isinstance(message, wire.Push)
    assert message.records == (wire.Carried(late.signed, 7), wire.Carried(early.signed, 0))


# --- answers -----------------------------------------------------------------------------


def test_a_summary_that_is_ours_too_is_not_answered_but_tells_the_time(post: Post) -> None:
    post.meet(PEERS[0])
    post.hold(record_of(1))
    same = post.ledger.index.digest("")
    post.courier.answer_summary(PEERS[0], wire.Summary((same,), WALL_MS + 4500), 3.0)
    assert post.sent() == []
    assert post.courier.neighbours[PEERS[0]].clock_skew_s == 1.5


def test_each_range_that_differs_is_listed_if_it_is_short(post: Post) -> None:
    post.meet(PEERS[0])
    n_heads = limits.STATE_LISTING_HEADS
    for number in range(n_heads):
        post.hold(record_of(number))
    other = wire.Range("", 1, bytes(32))
    post.courier.answer_summary(PEERS[0], wire.Summary((other,), WALL_MS), 0.0)
    assert post.sent() == [(PEERS[0], wire.Listing("", tuple(post.ledger.index.heads(""))))]
    post.hold(record_of(n_heads))
    post.courier.answer_summary(PEERS[0], wire.Summary((other,), WALL_MS), 7.0)
    parts = post.ledger.index.split("")
    assert len(parts) == 16
    assert post.sent() == [(PEERS[0], wire.Summary(parts, WALL_MS + 7000))]


def test_equal_ranges_of_a_summary_do_not_hide_those_that_differ(post: Post) -> None:
    post.meet(PEERS[0])
    opened = post.hold(record_of(1))
    digit = bytes(opened.actor.peer).hex()[0]
    parts = [post.ledger.index.digest(each) for each in "0123456789abcdef"]
    ours = parts.index(post.ledger.index.digest(digit))
    parts[ours] = wire.Range(digit, 2, bytes(32))
    parts.append(parts.pop(ours))  # the one that differs comes last
    post.courier.answer_summary(PEERS[0], wire.Summary(tuple(parts), WALL_MS), 0.0)
    assert post.sent() == [(PEERS[0], wire.Listing(digit, (opened.head,)))]


def test_who_has_nothing_in_a_range_is_sent_all_of_it_at_once(post: Post) -> None:
    post.meet(PEERS[0])
    opened = post.hold(record_of(1))
    post.courier.answer_summary(PEERS[0], wire.Summary((NOTHING,), WALL_MS), 0.0)
    assert post.pushed() == [(PEERS[0], [opened])]


def test_what_is_fresh_goes_out_before_a_summary_is_answered(post: Post) -> None:
    post.meet(PEERS[0])
    opened = post.hold(record_of(1))
    post.courier.publish(opened, 0.0)
    post.courier.answer_summary(PEERS[0], wire.Summary((NOTHING,), WALL_MS), 0.0)
    assert post.pushed() == [(PEERS[0], [opened])], "and once"


def test_of_a_listing_what_they_lack_is_sent_and_what_we_lack_is_asked_for(post: Post) -> None:
    post.meet(PEERS[0])
    equal, newer, only_ours = (post.hold(record_of(number)) for number in range(3))
    second = post.hold(record_of(1, 2, previous=newer.hash))
    behind = post.hold(record_of(3))
    ahead = record_of(3, 2, previous=behind.hash)
    unknown = record_of(4, 1)
    heads = (equal.head, newer.head, ahead.head, unknown.head)
    post.courier.answer_listing(PEERS[0], wire.Listing("", heads), 1.0)
    (_, want), (_, push) = post.sent()
    assert isinstance(want, wire.Want)
    unheard = wire.Head(bytes(unknown.actor.peer), 0, 0, NO_HASH)
    assert {*want.heads} == {behind.head, unheard}
    assert isinstance(push, wire.Push)
    assert {each.record.body for each in push.records} == {
        second.signed.body,
        only_ours.signed.body,
    }


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_who_knows_no_record_of_an_author_is_sent_all_of_any_life(post: Post, epoch: int) -> None:
    post.meet(PEERS[0])
    first = post.hold(record_of(1, epoch=epoch))
    second = post.hold(record_of(1, 2, epoch=epoch, previous=first.hash))
    post.courier.answer_listing(PEERS[0], wire.Listing("", ()), 1.0)
    assert post.pushed() == [(PEERS[0], [first, second])]


def test_a_listing_is_compared_with_what_we_have_in_its_range_only(post: Post) -> None:
    post.meet(PEERS[0])
    records = [post.hold(record_of(number)) for number in range(6)]
    digit = bytes(records[0].actor.peer).hex()[0]
    inside = [each for each in records if bytes(each.actor.peer).hex()[0] == digit]
    assert len(inside) < len(records)
    post.courier.answer_listing(PEERS[0], wire.Listing(digit, ()), 1.0)
    ((_, sent),) = post.pushed()
    assert {each.hash for each in sent} == {each.hash for each in inside}


def test_what_is_on_its_way_is_not_sent_once_more_until_it_may_be_lost(post: Post) -> None:
    post.meet(PEERS[0])
    opened = post.hold(record_of(1))
    listing = wire.Listing("", ())
    post.courier.answer_listing(PEERS[0], listing, 1.0)
    assert post.pushed() == [(PEERS[0], [opened])]
    post.courier.answer_listing(PEERS[0], listing, 1.0 + limits.STATE_RESEND_S - 0.001)
    assert post.sent() == []
    post.courier.answer_listing(PEERS[0], listing, 1.0 + limits.STATE_RESEND_S)
    assert post.pushed() == [(PEERS[0], [opened])]


def test_two_histories_of_one_length_are_shown_so_that_they_are_seen(post: Post) -> None:
    post.meet(PEERS[0])
    opened = post.hold(record_of(1))
    fork = head_of(opened, hash=b"f" * 32)
    post.courier.answer_listing(PEERS[0], wire.Listing("", (fork,)), 1.0)
    assert post.pushed() == [(PEERS[0], [opened])]


def test_a_neighbour_is_asked_once_for_the_same_until_the_answer_may_be_lost(post: Post) -> None:
    post.meet(PEERS[0])
    opened = post.hold(record_of(1))
    author = opened.actor.peer
    post.courier.ask(PEERS[0], [author], 1.0)
    assert post.sent() == [(PEERS[0], wire.Want((opened.head,)))]
    post.courier.ask(PEERS[0], [author], 2.0)
    assert post.sent() == []
    stranger = record_of(2).actor.peer
    post.courier.ask(PEERS[0], [author, stranger], 2.0)
    unheard = wire.Head(bytes(stranger), 0, 0, NO_HASH)
    assert post.sent() == [(PEERS[0], wire.Want((unheard,)))]


def test_a_ban_is_proved_to_who_asks_for_its_author(post: Post) -> None:
    post.meet(PEERS[0])
    first = post.hold(record_of(1))
    kept = post.hold(record_of(2))
    proof = wire.Proof(first.signed, signed_record_beside(first).signed)
    post.ledger.ban(proof)
    heads = [wire.Head(bytes(each.actor.peer), 0, 0, NO_HASH) for each in (first, kept)]
    post.courier.send_newer(PEERS[0], heads, 1.0)
    proofs, push = post.sent()
    assert proofs == (PEERS[0], wire.Proofs((proof,)))
    assert isinstance(push[1], wire.Push), "and the others get what they ask for"
    post.courier.tell_ban(PEERS[0], first.actor.peer, 1.0 + limits.STATE_RESEND_S - 0.001)
    assert post.sent() == []
    post.courier.tell_ban(PEERS[0], first.actor.peer, 1.0 + limits.STATE_RESEND_S)
    assert post.sent() == [proofs]


def test_what_a_neighbour_was_answered_is_not_pushed_to_it_as_fresh(post: Post) -> None:
    post.meet(PEERS[0])
    first = post.hold(record_of(1))
    second = post.hold(record_of(1, 2, previous=first.hash))
    unheard = wire.Head(bytes(first.actor.peer), 0, 0, NO_HASH)
    post.courier.send_newer(PEERS[0], [unheard], 1.0)
    assert post.pushed() == [(PEERS[0], [first, second])]
    post.courier.publish(second, 1.0)
    post.courier.handle_deadline(2.0)
    assert post.sent() == []


def answer_in_batches(post: Post, records: list[Opened]) -> list[tuple[list[bytes], bool]]:
    """Ask for all of these; return the bodies of each message, and whether it says ask again."""
    heads = [wire.Head(bytes(each.actor.peer), 0, 0, NO_HASH) for each in records]
    post.courier.send_newer(PEERS[0], heads, 1.0)
    batches = []
    for _, message in post.sent():
        assert isinstance(message, wire.Push)
        batches.append(([each.record.body for each in message.records], message.more))
    return batches


@pytest.mark.parametrize("beyond_bytes", [0, 1])
def test_an_answer_fills_its_messages_to_the_byte(post: Post, beyond_bytes: int) -> None:
    post.meet(PEERS[0])
    held = hold_messages(post, 2, beyond_bytes)
    batches = [[each.signed.body for each in batch] for batch in held]
    sent = answer_in_batches(post, [each for batch in held for each in batch])
    assert not any(more for _, more in sent)
    if beyond_bytes:
        assert sent[0][0] == batches[0][:-1]
    else:
        assert [bodies for bodies, _ in sent] == batches


def test_an_answer_fills_its_messages_to_the_last_record(post: Post) -> None:
    post.meet(PEERS[0])
    n_records = limits.STATE_RECORDS_PER_MESSAGE_MAX
    records = [post.hold(record_of(number)) for number in range(2 * n_records + 1)]
    sizes = [len(bodies) for bodies, _ in answer_in_batches(post, records)]
    assert sizes == [n_records, n_records, 1]


@pytest.mark.parametrize("n_more", [0, 1])
def test_the_last_message_of_a_long_answer_says_that_there_is_more(post: Post, n_more: int) -> None:
    post.meet(PEERS[0])
    held = hold_messages(post, STATE_PUSHES_PER_ANSWER_MAX, 0)
    records = [each for batch in held for each in batch]
    records += [post.hold(record_of(number)) for number in range(5000, 5000 + n_more)]
    sent = answer_in_batches(post, records)
    assert len(sent) == STATE_PUSHES_PER_ANSWER_MAX
    *before, last = sent
    assert not any(more for _, more in before)
    assert last[1] is (n_more == 1)
    assert post.courier.records_sent == len(records) - n_more
