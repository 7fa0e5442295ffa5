"""Whoever dies, lies or is silent: all get every message that an honest member has."""

import random
from functools import partial

import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, MalformedMessage
from swarmnode.protocol.gossip import gather_events as events
from swarmnode.protocol.gossip.gather import GatherCore
from swarmnode.testing.gather_world import GATHER_ID, GatherWorld
from swarmnode.wire.exchange.gather import Have
from swarmnode.wire.packing import decode_record, encode_record


def held(member):
    return {each.author for each in member.core.held()}


@pytest.mark.parametrize("n", [2, 4, 8, 20, 32])
@pytest.mark.parametrize("seed", range(5))
def test_every_member_gets_every_message(n, seed):
    world = GatherWorld(n, seed)
    world.publish_all()
    world.run()
    assert all(len(held(member)) == n for member in world.members)


def test_twenty_members_send_their_own_message_and_a_fair_share_of_the_others():
    """1 MB messages: on average each sends as much as it receives, 19 MB, whatever is done."""
    world = GatherWorld(20, 1, size_bytes=10**6)
    world.publish_all()
    world.run()
    fair_bytes = 10**6 + 18 * 10**6
    assert max(member.sent_bytes for member in world.members) <= 1.5 * fair_bytes
    assert sum(member.sent_bytes for member in world.members) <= 1.05 * 20 * fair_bytes
    # At 10 MB/s that is 1.9 s of every uplink.
    assert max(member.done_at for member in world.members) < 6.0


def test_a_slow_author_is_helped_by_members_that_have_its_message():
    world = GatherWorld(20, 2, size_bytes=10**6)
    world.members[0].rate = 2.5e5  # 4 s a message: alone it would take 76 s
    world.publish_all()
    world.run()
    assert max(member.done_at for member in world.members) < 50.0
    assert world.members[0].sent_bytes < 12 * 10**6


def test_small_messages_come_from_their_authors_alone():
    world = GatherWorld(8, 3, size_bytes=5000)
    world.publish_all()
    world.run()
    assert {member.sent_bytes for member in world.members} == {7 * 5000}


@pytest.mark.parametrize("seed", range(60))
def test_members_die_words_are_lost_links_are_cut(seed):
    """Each live member gives what it holds to all live members, once all know the set."""
    rng = random.Random(seed)
    n = rng.randrange(4, 13)
    world = GatherWorld(n, seed, size_bytes=rng.choice([10**4, 10**6]), loss=0.2)
    world.publish_all()
    for member in rng.sample(world.members, rng.randrange(n // 2)):
        world.at(rng.uniform(0, 4), partial(world.kill, member))
    one, two, three = rng.sample(world.members, 3)
    world.at(rng.uniform(0, 2), partial(world.cut, one, two))
    world.run(until=8.0)
    maker = next(each for each in world.survivors if each not in (one, two))
    entries = maker.core.held()
    world.settle_all(entries)
    world.run()
    for member in world.survivors:
        # One whose link to the maker and to an author is cut may lack what only these two have.
        assert held(member) >= {each.author for each in entries} - {one.peer_id, two.peer_id}
    assert three is not None


@pytest.mark.parametrize("seed", range(20))
def test_silent_and_lying_members_keep_back_their_own_message_only(seed):
    rng = random.Random(seed)
    world = GatherWorld(8, seed)
    silent, lying = rng.sample(world.members, 2)
    silent.is_silent = lying.is_lying = True
    world.publish_all()
    world.run(until=120.0)
    bad = {silent.peer_id, lying.peer_id}
    for member in world.members:
        assert held(member) >= set(world.by_id) - bad


def test_an_author_that_shows_two_messages_gives_one_of_them_to_each_until_the_set_is_known():
    world = GatherWorld(5, 1)
    liar, first, *others = world.members
    one = world.publish(liar, b"one")
    two = world.terms.announce(liar.identity, bytes(32))
    first.feed(events.Announce(two))
    world.run()
    assert first.core.known() == (two,)
    world.settle_all((one,))
    world.run()
    assert all(member.core.is_held(one.digest) for member in world.members)
    assert not first.core.is_held(two.digest)
    assert others[0].core.known() == (one,)


def test_what_is_not_in_the_set_is_not_fetched():
    world = GatherWorld(4, 1)
    member, *others = world.members
    announced = [
        world.terms.announce(each.identity, bytes([i]) * 32) for i, each in enumerate(others)
    ]
    for each in announced:
        member.feed(events.Announce(each))
    assert len(member.running) == 3
    member.feed(events.Settled((announced[0],)))
    assert {digest for _, digest in member.running} == {announced[0].digest}
    assert [each.digest for each in member.core.known()] == [announced[0].digest]


def test_a_peer_that_gave_wrong_bytes_is_asked_for_nothing_any_more():
    world = GatherWorld(4, 1)
    core = GatherCore(world.members[0].peer_id, world.terms)
    liar = world.members[1]
    announced = world.terms.announce(liar.identity, bytes(32))
    core.handle(events.Announce(announced), 0.0)
    core.poll_effects()
    core.handle(events.NotGiven(liar.peer_id, announced.digest, is_wrong=True), 1.0)
    core.handle_deadline(1.0 + limits.GATHER_RETRY_S)
    assert core.poll_effects() == []
    other = world.members[2].peer_id
    core.handle(events.Heard(other, Have(GATHER_ID, (announced.digest,))), 3.0)
    assert core.poll_effects() == [events.Fetch(other, announced)]


def test_of_holders_that_gave_as_much_the_author_is_asked():
    world = GatherWorld(4, 1)
    core = GatherCore(world.members[0].peer_id, world.terms)
    *_, other, author = sorted(world.members[1:], key=lambda each: each.peer_id)
    announced = world.terms.announce(author.identity, bytes(32))
    core.handle(events.Announce(announced), 0.0)
    core.handle(events.Heard(other.peer_id, Have(GATHER_ID, (announced.digest,))), 0.0)
    for holder in (author.peer_id, other.peer_id):
        assert core.poll_effects() == [events.Fetch(holder, announced)]
        core.handle(events.NotGiven(holder, announced.digest, is_wrong=False), 1.0)
    core.handle_deadline(1.0 + limits.GATHER_RETRY_S)
    assert core.poll_effects() == [events.Fetch(author.peer_id, announced)]


def test_of_two_that_are_asked_the_later_is_told_that_it_is_not_needed():
    world = GatherWorld(4, 1)
    core = GatherCore(world.members[0].peer_id, world.terms)
    author, other = (each.peer_id for each in world.members[1:3])
    announced = world.terms.announce(world.members[1].identity, bytes(32))
    core.handle(events.Announce(announced), 0.0)
    core.handle(events.Heard(other, Have(GATHER_ID, (announced.digest,))), 0.0)
    assert core.poll_effects() == [events.Fetch(author, announced)]
    core.handle_deadline(limits.GATHER_HEDGE_S)
    assert core.poll_effects() == [events.Fetch(other, announced)]
    core.handle(events.Arrived(other, announced.digest), limits.GATHER_HEDGE_S + 1)
    assert core.poll_effects() == [
        events.Cancel(author, announced.digest),
        events.Held(announced.digest),
    ]


def test_what_came_within_a_moment_is_told_at_once_at_its_end():
    world = GatherWorld(4, 1, size_bytes=limits.GATHER_SPREAD_BYTES_MIN)
    core = GatherCore(world.members[0].peer_id, world.terms)
    digests = []
    for at, member in enumerate(world.members[1:3]):
        announced = world.terms.announce(member.identity, bytes(32))
        core.handle(events.Announce(announced), 10.0)
        core.handle(events.Arrived(member.peer_id, announced.digest), 10.0 + at / 10)
        digests.append(announced.digest)
    core.poll_effects()
    core.handle_deadline(10.0 + limits.GATHER_TELL_S - 0.01)
    assert core.poll_effects() == []
    core.handle_deadline(10.0 + limits.GATHER_TELL_S)
    told = [each for each in core.poll_effects() if isinstance(each, events.Tell)]
    assert [each.message.digests for each in told] == [tuple(digests)] * 3


def test_one_word_has_room_for_all_that_came_be_it_two_messages_of_each_author():
    world = GatherWorld(limits.GATHER_MEMBERS_MAX, 1, size_bytes=limits.GATHER_SPREAD_BYTES_MIN)
    me, *authors = world.members
    core = GatherCore(me.peer_id, world.terms)
    shown, counting = (
        [world.terms.announce(each.identity, each.peer_id[:16] + content) for each in authors]
        for content in (b"1" * 16, b"2" * 16)
    )
    for announced in shown:
        core.handle(events.Announce(announced), 0.0)
    for announced in shown:
        core.handle(events.Arrived(announced.author, announced.digest), 0.0)
    core.handle(events.Settled(tuple(counting)), 0.0)
    for announced in counting:
        core.handle(events.Arrived(announced.author, announced.digest), 0.0)
    core.poll_effects()
    core.handle_deadline(limits.GATHER_TELL_S)
    told = [each.message for each in core.poll_effects() if isinstance(each, events.Tell)]
    assert decode_record(encode_record(told[0]), Have) == told[0]
    assert told[0].digests == tuple(each.digest for each in (*shown, *counting))


def test_strangers_and_digests_that_are_not_known_make_no_difference():
    world = GatherWorld(3, 1)
    core = world.members[0].core
    stranger = GatherWorld(5, 9).members[4].peer_id
    many = tuple(bytes([i]) * 32 for i in range(2 * limits.GATHER_MEMBERS_MAX))
    core.handle(events.Heard(stranger, Have(GATHER_ID, many)), 0.0)
    core.handle(events.Heard(world.members[1].peer_id, Have(GATHER_ID, many)), 0.0)
    assert core.poll_effects() == []
    assert core.next_deadline() is None


# --- sets ----------------------------------------------------------------------------------------


def test_a_set_is_the_same_bytes_whichever_member_makes_it_and_is_read_by_all():
    world = GatherWorld(4, 1)
    announced = [
        world.terms.announce(m.identity, bytes([i]) * 32) for i, m in enumerate(world.members)
    ]
    data = world.terms.make_set(announced)
    assert world.terms.make_set(reversed(announced)) == data
    entries = world.terms.read_set(data)
    assert sorted(announced, key=lambda each: each.author) == list(entries)
    assert world.terms.read_set(data, entries) == entries


def test_a_set_that_is_not_right_is_refused():
    world, other = GatherWorld(4, 1), GatherWorld(5, 1)
    terms = world.terms
    one, two = (terms.announce(world.members[i].identity, bytes([i]) * 32) for i in (0, 1))
    twice = terms.announce(world.members[0].identity, b"2" * 32)
    stranger = other.terms.announce(other.members[4].identity, bytes(32))
    forged = type(one.signed)(one.signed.body, one.signed.public_key, bytes(64))
    cases = [
        (terms.make_set([one, twice]), MalformedMessage),
        (terms.make_set([one, stranger]), MalformedMessage),
        (terms.make_set([one, two]) + b"\0", MalformedMessage),
        (b"\x80", MalformedMessage),
        (terms.make_set([type(one)(one.author, one.digest, 1, forged)]), AuthenticationFailed),
    ]
    for data, error in cases:
        with pytest.raises(error):
            terms.read_set(data)


def test_an_announcement_counts_in_its_own_run_and_size_only():
    world = GatherWorld(2, 1)
    signer = world.members[0].identity
    for gid, size_bytes in ((b"1" * 16, 10**6), (GATHER_ID, 10**6 + 1)):
        terms = type(world.terms)(gid, world.terms.members, size_bytes, world.terms.verify)
        with pytest.raises(MalformedMessage, match="expected a message of 1000000 bytes for this"):
            world.terms.read(terms.announce(signer, bytes(32)).signed)


@pytest.mark.parametrize("seed", range(200))
def test_bytes_of_a_set_with_faults_are_refused_or_read_as_what_was_signed(seed):
    rng = random.Random(seed)
    world = GatherWorld(3, 1)
    announced = [
        world.terms.announce(m.identity, bytes([i]) * 32) for i, m in enumerate(world.members)
    ]
    data = bytearray(world.terms.make_set(announced))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        entries = world.terms.read_set(bytes(data))
    except (MalformedMessage, AuthenticationFailed):
        return
    assert set(entries) <= set(announced)
