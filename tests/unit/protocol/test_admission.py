"""Admission to a closed swarm: which peers get in, which do not, and the one line that says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, ConfigError, LimitExceeded, Refused
from swarmnode.ids import PeerId, encode_base32
from swarmnode.protocol.admission import Admission
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import (
    Invite,
    NotAdmitted,
    Reason,
    certificate_of,
    ends_at,
    invite_in,
    is_due_for_renewal,
    make_creator_chain,
    make_invite,
    make_member_chain,
    renewal_due_at,
    sign_revocations,
)
from swarmnode.protocol.swarm import Hint, SwarmLink, parse_link, swarm_id
from swarmnode.wire.admission import (
    Credentials,
    MemberCertificate,
    MemberChain,
    Revocations,
    Role,
)
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

DAY_S = 86_400
NOW = 1_800_000_000
SWARM = Identity.from_seed(bytes(range(32)))
OTHER_SWARM = Identity.from_seed(b"o" * 32)
NETWORK = swarm_id(SWARM.public_key)
PEERS = [Identity.from_seed(bytes([n]) * 32).peer_id for n in range(1, 9)]
PEER, OTHER = PEERS[:2]


def new_invite(
    *, role: Role = "trainer", uses: int = 1, life_s: int = 7 * DAY_S, swarm: Identity = SWARM
) -> Invite:
    return make_invite(swarm, role=role, uses=uses, expires_at=NOW + life_s, now_unix_s=NOW)


def admission() -> Admission:
    return Admission(NETWORK, SWARM.public_key)


def resigned(invite: Invite, chain: MemberChain, **changes: object) -> MemberChain:
    """What the holder of an invite's key can make: any certificate, rightly signed."""
    certificate = msgspec.structs.replace(certificate_of(chain), **changes)
    body = encode_record(certificate)
    identity = invite.identity
    return MemberChain(
        Signed(body, identity.public_key, identity.sign("member/1", body)), chain.invite
    )


def revocations(sequence: int, *invites: Invite, swarm: Identity = SWARM) -> Signed:
    record = Revocations(NETWORK, sequence, tuple(invite.id for invite in invites))
    return sign_revocations(record, swarm)


def refusal(
    book: Admission, peer: PeerId, chain: MemberChain | None, now: float = NOW
) -> NotAdmitted:
    with pytest.raises(NotAdmitted) as caught:
        book.admit(peer, chain, now)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value).encode()) <= limits.REASON_BYTES_MAX  # fits into a GOODBYE
    assert not book.is_member(peer, now)
    return caught.value


# --- links --------------------------------------------------------------------------------------


def test_an_invite_travels_in_a_link() -> None:
    made = new_invite(role="keeper", uses=3)
    hint = Hint(PEER, "[2001:db8::1]:7337")
    link = SwarmLink("demo", SWARM.public_key, (hint,), made.encode())
    read = parse_link(str(link))
    assert read == link
    found = invite_in(read)
    assert found is not None
    assert found.certificate == made.certificate
    assert found.id == made.id
    assert found.identity.seed() == made.identity.seed()
    assert len(str(link)) < 700  # fits into one QR code


def test_a_link_can_be_shown_without_its_secret() -> None:
    made = new_invite()
    link = SwarmLink("demo", SWARM.public_key, (), made.encode())
    secret = encode_base32(made.identity.seed())[:40]
    assert secret in str(link)
    for shown in (repr(link), str(link.public), repr(made), repr(invite_in(link))):
        assert secret not in shown
    assert invite_in(link.public) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text[:-40],
        lambda text: text[: text.index("&i=") + 3],
        lambda text: text[:-3] + "!!!",
        lambda text: text.replace("&i=", "&i=aa"),
    ],
)
def test_a_damaged_invite_is_not_repeated_in_the_error(spoil: Callable[[str], str]) -> None:
    made = new_invite()
    text = str(SwarmLink("demo", SWARM.public_key, (), made.encode()))
    with pytest.raises(ConfigError) as caught:
        invite_in(parse_link(spoil(text)))
    assert "the invite (i=) in the link" in str(caught.value)
    assert "copy the link whole" in str(caught.value)
    assert encode_base32(made.identity.seed())[:12] not in str(caught.value)


def test_an_invite_of_another_swarm_does_not_fit_the_link() -> None:
    with pytest.raises(ConfigError, match="does not belong to its swarm key"):
        Invite.decode(new_invite(swarm=OTHER_SWARM).encode(), SWARM.public_key)


def test_two_invites_do_not_make_one() -> None:
    first, second = new_invite(), new_invite()
    token = first.identity.seed() + second.encode()[32:]
    with pytest.raises(ConfigError, match="put together from two"):
        Invite.decode(token, SWARM.public_key)


# --- peers that are let in ------------------------------------------------------------------------


def test_who_has_an_invite_is_a_member_until_the_certificate_ends() -> None:
    book, chain = admission(), make_member_chain(new_invite(), PEER, NOW)
    assert not book.is_member(PEER, NOW)
    assert book.expires_at(PEER) is None
    assert book.admit(PEER, chain, NOW) == "trainer"
    ends_at = NOW + 30 * DAY_S
    assert book.expires_at(PEER) == ends_at
    assert book.is_member(PEER, ends_at - 1)
    assert not book.is_member(PEER, ends_at)
    assert not book.is_member(OTHER, NOW)


def test_a_chain_is_verified_after_it_went_over_the_wire() -> None:
    chain = make_member_chain(new_invite(), PEER, NOW)
    read = decode_record(encode_record(Credentials(chain)), Credentials)
    assert admission().admit(PEER, read.chain, NOW) == "trainer"


def test_the_holder_of_the_swarm_key_needs_no_invite() -> None:
    book = admission()
    assert book.admit(PEER, make_creator_chain(SWARM, PEER, NOW), NOW) == "trainer"
    assert book.expires_at(PEER) == NOW + 30 * DAY_S
    forged = make_creator_chain(OTHER_SWARM, OTHER, NOW)
    assert refusal(book, OTHER, forged).reason is Reason.WRONG_NETWORK


@pytest.mark.parametrize(
    ("granted", "may"),
    [
        ("trainer", {"trainer", "keeper", "relay", "monitor"}),
        ("keeper", {"keeper", "relay", "monitor"}),
        ("relay", {"relay", "monitor"}),
        ("monitor", {"monitor"}),
    ],
)
def test_a_role_includes_the_ones_after_it(granted: Role, may: set[Role]) -> None:
    made = new_invite(role=granted)
    chain = make_member_chain(made, PEER, NOW)
    roles: tuple[Role, ...] = ("trainer", "keeper", "relay", "monitor")
    for role in roles:
        if role in may:
            assert admission().admit(PEER, chain, NOW, role=role) == role
            assert certificate_of(make_member_chain(made, PEER, NOW, role=role)).role == role
            continue
        with pytest.raises(NotAdmitted, match=f"grants the role {granted}, not {role}"):
            admission().admit(PEER, chain, NOW, role=role)
        with pytest.raises(NotAdmitted, match=f"ask for an invite with --role {role}"):
            make_member_chain(made, PEER, NOW, role=role)


# --- peers that are not ---------------------------------------------------------------------------


def test_a_closed_swarm_wants_a_certificate() -> None:
    error = refusal(admission(), PEER, None)
    assert error.reason is Reason.MISSING
    assert "it must join with an invite link" in str(error)
    assert isinstance(error, Refused)
    assert error.exit_code == 4


def test_a_certificate_is_for_one_peer() -> None:
    error = refusal(admission(), OTHER, make_member_chain(new_invite(), PEER, NOW))
    assert error.reason is Reason.WRONG_PEER
    assert PEER.short in str(error)


def test_an_expired_certificate_is_refused() -> None:
    chain = make_member_chain(new_invite(), PEER, NOW)
    error = refusal(admission(), PEER, chain, NOW + 32 * DAY_S)
    assert error.reason is Reason.EXPIRED
    assert "expired 2.0 days ago" in str(error)


def test_a_clock_may_be_a_day_ahead_and_no_more() -> None:
    made = new_invite(life_s=30 * DAY_S)
    admission().admit(PEER, make_member_chain(made, PEER, NOW + DAY_S), NOW)
    ahead = make_member_chain(made, PEER, NOW + 3 * DAY_S)
    error = refusal(admission(), PEER, ahead)
    assert error.reason is Reason.NOT_YET_VALID
    assert "begins in 3.0 days: check the clocks" in str(error)


def test_a_joiner_whose_clock_is_behind_makes_a_valid_certificate() -> None:
    chain = make_member_chain(new_invite(), PEER, 0.0)
    assert admission().admit(PEER, chain, NOW) == "trainer"


def test_the_network_must_be_ours() -> None:
    chain = make_member_chain(new_invite(swarm=OTHER_SWARM), PEER, NOW)
    error = refusal(admission(), PEER, chain)
    assert error.reason is Reason.WRONG_NETWORK
    assert "for another swarm" in str(error)


def test_every_signature_of_the_chain_is_checked() -> None:
    made, chain = new_invite(), make_member_chain(new_invite(), PEER, NOW)
    assert chain.invite is not None
    stranger = Identity.from_seed(b"s" * 32)
    own_invite = Signed(
        chain.invite.body, stranger.public_key, stranger.sign("invite/1", chain.invite.body)
    )
    bad = msgspec.structs.replace(chain.member, signature=bytes(64))
    for forged in (
        MemberChain(chain.member, own_invite),  # an invite that a stranger signed
        MemberChain(chain.member, made.signed),  # a member of another invite
        MemberChain(chain.member, None),  # an invite's key as if it were the swarm's
        MemberChain(bad, chain.invite),
    ):
        assert refusal(admission(), PEER, forged).reason is Reason.FORGED


def test_a_signature_counts_for_one_purpose() -> None:
    made = new_invite()
    certificate = certificate_of(make_member_chain(made, PEER, NOW))
    body = encode_record(certificate)
    signed = Signed(body, made.identity.public_key, made.identity.sign("invite/1", body))
    forged = MemberChain(signed, made.signed)
    assert refusal(admission(), PEER, forged).reason is Reason.FORGED


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc1", bytes(10_000)])
def test_what_is_no_certificate_is_malformed(body: bytes) -> None:
    made = new_invite()
    signed = Signed(body, made.identity.public_key, made.identity.sign("member/1", body))
    chain = MemberChain(signed, made.signed)
    assert refusal(admission(), PEER, chain).reason is Reason.MALFORMED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"not_after": NOW + 31 * DAY_S}, "its life is 31.0 days, at most 30"),
        ({"not_after": NOW - 1}, "its life is"),
        ({"joined_at": NOW + 1}, "joined after its certificate began"),
        ({"joined_at": NOW - 1}, "joined before the invite was made"),
        ({"not_before": NOW + 8 * DAY_S, "not_after": NOW + 9 * DAY_S}, "after the invite had"),
        ({"role": "trainer"}, "ask for an invite with --role trainer"),
    ],
)
def test_a_certificate_gives_no_more_than_its_invite(
    changes: dict[str, object], expected: str
) -> None:
    made = new_invite(role="keeper")
    chain = resigned(made, make_member_chain(made, PEER, NOW), **changes)
    assert expected in str(refusal(admission(), PEER, chain, NOW + 8 * DAY_S))


def test_nothing_made_from_an_invite_outlives_it_by_more_than_a_certificate() -> None:
    made = new_invite()
    last = NOW + 7 * DAY_S
    chain = make_member_chain(made, PEER, last)
    assert certificate_of(chain).not_after == last + 30 * DAY_S
    with pytest.raises(NotAdmitted, match=r"expired 1\.0 days ago: ask its sender") as caught:
        make_member_chain(made, PEER, last + DAY_S)
    assert caught.value.reason is Reason.EXPIRED


# --- renewal --------------------------------------------------------------------------------------


def test_a_certificate_is_renewed_after_two_thirds_of_its_life() -> None:
    made = new_invite(life_s=300 * DAY_S)
    first = make_member_chain(made, PEER, NOW)
    assert renewal_due_at(first) == NOW + 20 * DAY_S
    assert not is_due_for_renewal(first, NOW + 20 * DAY_S - 1)
    assert is_due_for_renewal(first, NOW + 20 * DAY_S)
    second = make_member_chain(made, PEER, NOW + 20 * DAY_S, previous=first)
    assert certificate_of(second).joined_at == NOW
    book = admission()
    book.admit(PEER, first, NOW)
    book.admit(PEER, second, NOW + 20 * DAY_S)
    assert book.expires_at(PEER) == NOW + 50 * DAY_S
    book.hear([first], NOW + 21 * DAY_S)  # a member still passes the old one on
    assert book.expires_at(PEER) == NOW + 50 * DAY_S


def test_a_new_invite_begins_a_new_membership() -> None:
    first = make_member_chain(new_invite(), PEER, NOW)
    second = make_member_chain(new_invite(), PEER, NOW + DAY_S, previous=first)
    assert certificate_of(second).joined_at == NOW + DAY_S


# --- uses -----------------------------------------------------------------------------------------


def test_one_more_than_the_uses_is_refused_and_renewals_are_not() -> None:
    book, made = admission(), new_invite(uses=2)
    for peer in PEERS[:2]:
        book.admit(peer, make_member_chain(made, peer, NOW), NOW)
    late = make_member_chain(made, PEERS[2], NOW + 1)
    error = refusal(book, PEERS[2], late, NOW + 1)
    assert error.reason is Reason.USED_UP
    assert f"invite {encode_base32(made.id)} is for 2 peer(s)" in str(error)
    assert book.admit(PEER, make_member_chain(made, PEER, NOW + 2), NOW + 2) == "trainer"


def test_who_came_first_has_it_even_if_heard_of_later() -> None:
    book, made = admission(), new_invite()
    book.admit(PEER, make_member_chain(made, PEER, NOW + 60), NOW + 60)
    n_changes = book.changes
    book.admit(OTHER, make_member_chain(made, OTHER, NOW + 30), NOW + 90)
    assert book.changes == n_changes + 1
    assert book.is_member(OTHER, NOW + 90)
    assert not book.is_member(PEER, NOW + 90)


def test_a_date_of_less_than_a_day_ago_is_believed_by_members_that_have_been_watching() -> None:
    book, made = admission(), new_invite()
    for day in range(4):
        book.is_member(PEER, NOW + day * DAY_S)
    later = NOW + 3 * DAY_S
    book.admit(PEER, make_member_chain(made, PEER, later), later)
    book.admit(OTHER, make_member_chain(made, OTHER, later - DAY_S // 2), later + 60)
    assert book.is_member(OTHER, later + 60)
    assert not book.is_member(PEER, later + 60)


def test_an_old_date_is_not_believed_by_members_that_have_been_watching() -> None:
    book, made = admission(), new_invite(life_s=60 * DAY_S)
    book.admit(PEERS[2], make_creator_chain(SWARM, PEERS[2], NOW), NOW)  # begins to watch
    for day in range(20):
        book.is_member(PEERS[2], NOW + day * DAY_S)
        if day >= 2:
            book.hear([make_member_chain(made, PEER, NOW + 2 * DAY_S)], NOW + day * DAY_S)
    later = NOW + 20 * DAY_S
    back_dated = resigned(
        made, make_member_chain(made, OTHER, later), joined_at=NOW, not_before=later
    )
    assert refusal(book, OTHER, back_dated, later).reason is Reason.USED_UP
    newcomer = admission()  # it can know no better
    assert newcomer.admit(OTHER, back_dated, later) == "trainer"


def test_a_use_stays_one_when_its_certificate_has_ended() -> None:
    made = new_invite(life_s=60 * DAY_S)
    veteran, newcomer = admission(), admission()
    veteran.admit(PEER, make_member_chain(made, PEER, NOW), NOW)
    later = NOW + 40 * DAY_S
    newcomer.hear(veteran.credentials(None).heard, later)
    for book in (veteran, newcomer):
        assert not book.is_member(PEER, later)
        late = make_member_chain(made, OTHER, later)
        assert refusal(book, OTHER, late, later).reason is Reason.USED_UP


def test_a_restart_gives_no_member_a_second_chance() -> None:
    book, made, revoked = admission(), new_invite(), new_invite()
    book.admit(PEER, make_member_chain(made, PEER, NOW), NOW)
    book.take_revocations(revocations(1, revoked))
    again = Admission(NETWORK, SWARM.public_key, book.state())
    assert again.state() == book.state()
    assert again.is_member(PEER, NOW)
    assert again.expires_at(PEER) == book.expires_at(PEER)
    late = make_member_chain(made, OTHER, NOW + 1)
    assert refusal(again, OTHER, late, NOW + 1).reason is Reason.USED_UP
    chain = make_member_chain(revoked, OTHER, NOW)
    assert refusal(again, OTHER, chain).reason is Reason.REVOKED


def test_what_another_swarm_has_kept_is_not_believed() -> None:
    book, made = admission(), new_invite()
    book.admit(PEER, make_member_chain(made, PEER, NOW), NOW)
    book.take_revocations(revocations(1, made))
    stranger = Admission(swarm_id(OTHER_SWARM.public_key), OTHER_SWARM.public_key, book.state())
    assert stranger.revocations is None
    assert not stranger.is_member(PEER, NOW)


def test_members_take_turns_in_being_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CREDENTIALS_HEARD_MAX", 3)
    book, made = admission(), new_invite(uses=8)
    for peer in PEERS:
        book.admit(peer, make_member_chain(made, peer, NOW), NOW)
    newcomer, own = admission(), make_member_chain(made, PEER, NOW)
    turns = [book.credentials(own) for _ in range(4)]
    for turn in turns:
        newcomer.hear(turn.heard, NOW)
    assert all(newcomer.is_member(peer, NOW) for peer in PEERS)
    assert {turn.chain for turn in turns} == {own}
    said = [
        [PEERS.index(PeerId(certificate_of(each).peer)) for each in turn.heard] for turn in turns
    ]
    assert said == [[0, 1, 2], [3, 4, 5], [6, 7], [0, 1, 2]]
    newcomer = admission()
    newcomer.hear([make_member_chain(made, peer, NOW) for peer in PEERS], NOW)
    assert sum(newcomer.is_member(peer, NOW) for peer in PEERS) == 3, "no more than may be said"


def test_the_largest_credentials_fit_into_one_message() -> None:
    made = new_invite()
    chain = make_member_chain(made, PEER, NOW)
    assert chain.invite is not None
    body = bytes(limits.CERTIFICATE_BYTES_MAX)
    largest = MemberChain(replace_body(chain.member, body), replace_body(chain.invite, body))
    listed = Signed(bytes(limits.REVOCATIONS_BYTES_MAX), SWARM.public_key, bytes(64))
    record = Credentials(largest, listed, (largest,) * limits.CREDENTIALS_HEARD_MAX)
    assert len(encode_record(record)) <= limits.MESSAGE_BYTES_MAX
    many = Revocations(NETWORK, 2**63 - 1, (bytes(10),) * limits.REVOCATIONS_MAX)
    assert len(encode_record(many)) <= limits.REVOCATIONS_BYTES_MAX


def replace_body(signed: Signed, body: bytes) -> Signed:
    return msgspec.structs.replace(signed, body=body)


def test_members_are_bounded_and_ended_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADMISSION_MEMBERS_MAX", 2)
    book, made = admission(), new_invite(uses=8)
    for peer in PEERS[:2]:
        book.admit(peer, make_member_chain(made, peer, NOW), NOW)
    error = refusal(book, PEERS[2], make_member_chain(made, PEERS[2], NOW))
    assert error.reason is Reason.NO_ROOM
    book.admit(PEER, make_member_chain(made, PEER, NOW + 1), NOW + 1)  # a renewal needs none
    end = ends_at(made.certificate)
    error = refusal(book, PEERS[2], make_creator_chain(SWARM, PEERS[2], end), end)
    assert error.reason is Reason.NO_ROOM, "they are members until then"
    later = end + 1
    book.admit(PEERS[2], make_creator_chain(SWARM, PEERS[2], later), later)
    assert len(book.state().claims) == 1
    book, longer = admission(), new_invite(uses=2, life_s=300 * DAY_S)
    book.admit(PEERS[0], make_member_chain(made, PEERS[0], NOW), NOW)
    for peer, now in ((PEERS[1], NOW), (PEERS[3], later)):
        book.admit(peer, make_member_chain(longer, peer, now), now)
    kept = {certificate_of(claim.chain).peer for claim in book.state().claims}
    assert kept == {PEERS[1], PEERS[3]}, "an invite that goes on keeps its members"


# --- revocation -----------------------------------------------------------------------------------


def test_revoking_an_invite_ends_what_was_made_from_it() -> None:
    book, made, good = admission(), new_invite(), new_invite()
    chain = make_member_chain(made, PEER, NOW)
    book.admit(PEER, chain, NOW)
    book.admit(OTHER, make_member_chain(good, OTHER, NOW), NOW)
    n_changes = book.changes
    assert book.take_revocations(revocations(1, made))
    assert book.changes == n_changes + 1
    assert not book.is_member(PEER, NOW)
    assert book.expires_at(PEER) is None
    assert book.is_member(OTHER, NOW)
    error = refusal(book, PEER, chain)
    assert error.reason is Reason.REVOKED
    assert encode_base32(made.id) in str(error)
    # ... and another invite lets the same peer in again.
    assert book.admit(PEER, make_member_chain(new_invite(), PEER, NOW), NOW) == "trainer"


def test_the_newest_list_counts_in_any_order() -> None:
    first, second = new_invite(), new_invite()
    lists = [revocations(5, first), revocations(7, second), revocations(7, first, second)]
    kept = set()
    for order in (lists, lists[::-1], [lists[1], lists[0], lists[2]]):
        book = admission()
        taken = [book.take_revocations(signed) for signed in order]
        assert taken[0]
        assert not book.take_revocations(order[0])
        assert book.revocations is not None
        kept.add(book.revocations.body)
    assert len(kept) == 1
    assert kept < {lists[1].body, lists[2].body}


def test_no_other_key_can_revoke() -> None:
    book, made = admission(), new_invite()
    with pytest.raises(AuthenticationFailed, match="another key has signed"):
        book.take_revocations(revocations(1, made, swarm=OTHER_SWARM))
    signed = revocations(1, made)
    with pytest.raises(AuthenticationFailed, match="signature does not match"):
        book.take_revocations(msgspec.structs.replace(signed, signature=bytes(64)))
    elsewhere = sign_revocations(Revocations(bytes(32), 1, ()), SWARM)
    with pytest.raises(AuthenticationFailed, match="for another swarm"):
        book.take_revocations(elsewhere)
    with pytest.raises(LimitExceeded):
        book.take_revocations(replace_body(signed, bytes(5000)))
    assert book.revocations is None


def test_what_others_pass_on_wrongly_is_skipped() -> None:
    book, made = admission(), new_invite(uses=2)
    good = make_member_chain(made, PEER, NOW)
    wrong = MemberChain(replace_body(good.member, b"\xc1"), good.invite)
    stranger = make_member_chain(new_invite(swarm=OTHER_SWARM), OTHER, NOW)
    book.hear([wrong, stranger, good], NOW)
    assert book.is_member(PEER, NOW)
    assert book.changes == 1


def test_a_certificate_names_fields_that_a_newer_version_may_add() -> None:
    """Unknown fields are signed with the rest, and ignored."""

    class Newer(MemberCertificate, frozen=True):
        note: str = "hello"

    made = new_invite()
    old = certificate_of(make_member_chain(made, PEER, NOW))
    body = encode_record(Newer(**msgspec.structs.asdict(old)))
    signed = Signed(body, made.identity.public_key, made.identity.sign("member/1", body))
    assert admission().admit(PEER, MemberChain(signed, made.signed), NOW) == "trainer"


def test_replacing_hints_keeps_the_invite() -> None:
    link = SwarmLink("demo", SWARM.public_key, (), new_invite().encode())
    assert replace(link, hints=(Hint(PEER, "h:1"),)).invite == link.invite
