"""All that hear the same certificates agree on the members, and no damaged token is read."""

from __future__ import annotations

import functools
import random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.admission import Admission
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import (
    Invite,
    NotAdmitted,
    invite_in,
    make_creator_chain,
    make_invite,
    make_member_chain,
)
from swarmnode.protocol.swarm import parse_link, swarm_id
from swarmnode.wire.admission import MemberChain

DAY_S = 86_400
HOUR_S = 3600
NOW = 1_800_000_000
SWARM = Identity.from_seed(bytes(range(32)))
NETWORK = swarm_id(SWARM.public_key)
PEERS = tuple(Identity.from_seed(bytes([n]) * 32).peer_id for n in range(1, 9))
WATCHER = PEERS[-1]

# Which of the first seven peers joined how many hours after the invite; some more than once.
claims = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=12)
uses_max = st.integers(1, 4)


@functools.cache
def invite_for(uses: int) -> Invite:
    return make_invite(
        SWARM, role="trainer", uses=uses, expires_at=NOW + 90 * DAY_S, now_unix_s=NOW
    )


@functools.cache
def chain_of(uses: int, peer: PeerId, joined_at: int) -> MemberChain:
    return make_member_chain(invite_for(uses), peer, joined_at)


def watching_since(now: int) -> Admission:
    book = Admission(NETWORK, SWARM.public_key)
    book.admit(WATCHER, make_creator_chain(SWARM, WATCHER, now), now)
    return book


def members(book: Admission, now: int) -> set[PeerId]:
    return {peer for peer in PEERS[:-1] if book.is_member(peer, now)}


def expected(found: list[tuple[int, int]], uses: int) -> set[PeerId]:
    """The rule in one line: of each peer its first date, and of those the smallest."""
    first: dict[PeerId, int] = {}
    for number, hour in found:
        first[PEERS[number]] = min(hour, first.get(PEERS[number], hour))
    return set(sorted(first, key=lambda peer: (first[peer], peer))[:uses])


@given(claims, uses_max, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_newcomers_agree_in_any_order(
    found: list[tuple[int, int]], uses: int, rng: random.Random
) -> None:
    now = NOW + DAY_S
    for _ in range(3):
        book = watching_since(now)
        for number, hour in rng.sample(found, k=len(found)):
            chain = chain_of(uses, PEERS[number], NOW + hour * HOUR_S)
            book.hear([chain] * rng.randint(1, 2), now + rng.randint(0, 60))
        assert members(book, now) == expected(found, uses)


@given(claims, uses_max, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_veterans_agree_if_news_comes_within_a_day(
    found: list[tuple[int, int]], uses: int, rng: random.Random
) -> None:
    """Each hears of every claim at another time, but less than a day after it was made."""
    begin = NOW + 5 * DAY_S  # when the first may join, long after the members began to watch
    for _ in range(3):
        book = watching_since(NOW)
        for day in range(6):  # awake all the time
            book.is_member(WATCHER, NOW + day * DAY_S)
        arrivals = sorted((hour + rng.uniform(0, 23.9), number, hour) for number, hour in found)
        for at, number, hour in arrivals:
            chain = chain_of(uses, PEERS[number], begin + hour * HOUR_S)
            book.hear([chain], begin + int(at * HOUR_S))
        assert members(book, begin + 2 * DAY_S) == expected(found, uses)


@given(st.integers(1, 4), st.integers(0, 20), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_members_of_a_day_do_not_lose_their_place(
    uses: int, claimed_day: int, rng: random.Random
) -> None:
    """Whatever date an attacker with the same link claims."""
    book = watching_since(NOW)
    for day in range(2, 20):
        for peer in PEERS[:uses]:
            book.hear([chain_of(uses, peer, NOW + 2 * DAY_S)], NOW + day * DAY_S)
    attackers = rng.sample(PEERS[uses:-1], k=3)
    book.hear(
        [chain_of(uses, peer, NOW + claimed_day * DAY_S) for peer in attackers], NOW + 20 * DAY_S
    )
    assert members(book, NOW + 20 * DAY_S) == set(PEERS[:uses])


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_a_flipped_bit_anywhere_spoils_an_invite(bit: int) -> None:
    with pytest.raises(ConfigError):
        Invite.decode(flip(invite_for(1).encode(), bit), SWARM.public_key)


@given(st.binary(max_size=400))
@example(b"")
@example(bytes(96))
def test_no_token_but_a_signed_one_is_read(token: bytes) -> None:
    with pytest.raises(ConfigError):
        Invite.decode(token, SWARM.public_key)


@given(st.text(max_size=60))
def test_any_text_after_i_is_an_invite_or_an_error(text: str) -> None:
    link = "swarm:demo?k=" + "a" * 52 + "&i="
    with pytest.raises(ConfigError):
        invite_in(parse_link(link + text))


@given(st.integers(0, 10_000), st.sampled_from(["body", "signature", "public_key"]), st.booleans())
@settings(deadline=None)
def test_a_flipped_bit_anywhere_spoils_a_chain(bit: int, part: str, is_invite: bool) -> None:
    chain = chain_of(1, PEERS[0], NOW)
    signed = chain.invite if is_invite else chain.member
    assert signed is not None
    broken = msgspec.structs.replace(signed, **{part: flip(getattr(signed, part), bit)})
    forged = MemberChain(chain.member, broken) if is_invite else MemberChain(broken, chain.invite)
    book = Admission(NETWORK, SWARM.public_key)
    with pytest.raises(NotAdmitted):
        book.admit(PEERS[0], forged, NOW)
    assert book.state().claims == ()
