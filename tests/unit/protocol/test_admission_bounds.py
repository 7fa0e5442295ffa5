"""Admission to the second, to the byte and to the last place, and what is kept and forgotten."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError, LimitExceeded, MalformedMessage
from swarmnode.protocol.admission import Admission, AdmissionState, UseLedger
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import (
    Invite,
    NotAdmitted,
    Reason,
    VerifiedChain,
    certificate_of,
    ends_at,
    invite_in,
    make_creator_chain,
    make_invite,
    make_member_chain,
    open_revocations,
    sign_revocations,
    verify_chain,
)
from swarmnode.protocol.swarm import SwarmLink, swarm_id
from swarmnode.wire.admission import MemberCertificate, MemberChain, Revocations
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed

DAY_S = 86_400
NOW = 1_800_000_000
SWARM = Identity.from_seed(bytes(range(32)))
OTHER_SWARM = Identity.from_seed(b"o" * 32)
NETWORK = swarm_id(SWARM.public_key)
PEERS = sorted(Identity.from_seed(bytes([n]) * 32).peer_id for n in range(1, 9))
PEER, OTHER = PEERS[:2]


def new_invite(*, uses: int = 1, life_s: int = 7 * DAY_S, cert_days: int = 30) -> Invite:
    return make_invite(
        SWARM,
        role="trainer",
        uses=uses,
        expires_at=NOW + life_s,
        now_unix_s=NOW,
        cert_days=cert_days,
    )


def admission(state: AdmissionState | None = None) -> Admission:
    return Admission(NETWORK, SWARM.public_key, state)


def signed_by(signer: Identity, certificate: MemberCertificate, chain: MemberChain) -> MemberChain:
    body = encode_record(certificate)
    return MemberChain(Signed(body, signer.public_key, signer.sign("member/1", body)), chain.invite)


def changed(signer: Identity, chain: MemberChain, **changes: object) -> MemberChain:
    """What the holder of a key can make of a certificate."""
    return signed_by(signer, msgspec.structs.replace(certificate_of(chain), **changes), chain)


def verified(chain: MemberChain) -> VerifiedChain:
    return verify_chain(chain, network=NETWORK, swarm_key=SWARM.public_key)


def reason(book: Admission, chain: MemberChain, now: float = NOW) -> Reason:
    with pytest.raises(NotAdmitted) as caught:
        book.admit(PEER, chain, now)
    return caught.value.reason


# --- invites and certificates --------------------------------------------------------------------


def test_an_invite_ends_a_certificate_s_life_after_the_last_that_it_may_make() -> None:
    made = new_invite(cert_days=3)
    assert ends_at(made.certificate) == NOW + (7 + 3) * DAY_S
    last = make_member_chain(made, PEER, NOW + 7 * DAY_S)
    assert verified(last).ends_at == certificate_of(last).not_after == ends_at(made.certificate)
    with pytest.raises(NotAdmitted):
        make_member_chain(made, PEER, NOW + 7 * DAY_S + 0.5)


def test_what_the_swarm_s_key_made_is_named_by_no_invite_and_ends_by_itself() -> None:
    chain = make_creator_chain(SWARM, PEER, NOW + 0.9)
    certificate = certificate_of(chain)
    assert (certificate.joined_at, certificate.not_before) == (NOW, NOW)
    found = verified(chain)
    assert (found.invite_id, found.peer) == (b"", PEER)
    assert found.ends_at == NOW + limits.MEMBER_CERTIFICATE_DAYS_MAX * DAY_S
    made = new_invite()
    assert verified(make_member_chain(made, PEER, NOW)).invite_id == made.id


def test_an_invite_of_the_right_key_for_another_swarm_is_put_together_from_two() -> None:
    made = new_invite()
    body = encode_record(msgspec.structs.replace(made.certificate, swarm_id=bytes(32)))
    signed = Signed(body, SWARM.public_key, SWARM.sign("invite/1", body))
    with pytest.raises(ConfigError, match="put together from two"):
        Invite.decode(Invite(made.certificate, signed, made.identity).encode(), SWARM.public_key)


def test_a_link_without_an_invite_has_none() -> None:
    assert invite_in(SwarmLink("demo", SWARM.public_key)) is None


def test_a_member_of_this_swarm_with_an_invite_of_another_is_refused() -> None:
    made = new_invite()
    foreign = make_invite(OTHER_SWARM, role="trainer", uses=1, expires_at=2 * NOW, now_unix_s=NOW)
    chain = make_member_chain(foreign, PEER, NOW)
    mixed = changed(foreign.identity, chain, swarm_id=NETWORK)
    assert reason(admission(), mixed) is Reason.WRONG_NETWORK
    own = make_member_chain(made, PEER, NOW)
    elsewhere = changed(made.identity, own, swarm_id=swarm_id(OTHER_SWARM.public_key))
    assert reason(admission(), elsewhere) is Reason.WRONG_NETWORK


@pytest.mark.parametrize(
    ("changes", "is_allowed"),
    [
        ({"not_after": NOW + 1}, True),
        ({"not_after": NOW}, False),
        ({"not_after": NOW + 3 * DAY_S}, True),
        ({"not_after": NOW + 3 * DAY_S + 1}, False),
        ({"not_before": NOW + 1, "joined_at": NOW + 1}, True),
        ({"not_before": NOW + 1, "joined_at": NOW + 2}, False),
        ({"joined_at": NOW}, True),
        ({"joined_at": NOW - 1}, False),
        ({"not_before": NOW + 2 * DAY_S}, True),
        ({"not_before": NOW + 2 * DAY_S + 1}, False),
    ],
)
def test_a_certificate_may_be_all_that_its_invite_allows_and_no_second_more(
    changes: dict[str, int], is_allowed: bool
) -> None:
    made = new_invite(life_s=2 * DAY_S, cert_days=3)
    chain = changed(made.identity, make_member_chain(made, PEER, NOW), **changes)
    if is_allowed:
        assert verified(chain).peer == PEER
    else:
        assert reason(admission(), chain) is Reason.BEYOND_INVITE


def test_what_the_swarm_s_key_makes_lives_for_a_certificate_s_time_at_most() -> None:
    longest = make_creator_chain(SWARM, PEER, NOW)
    end = certificate_of(longest).not_after
    assert admission().admit(PEER, longest, NOW) == "trainer"
    longer = changed(SWARM, longest, not_after=end + 1)
    assert reason(admission(), longer) is Reason.BEYOND_INVITE


class Longer(MemberCertificate, frozen=True):
    """With a field that a newer version may add."""

    note: str = ""


def with_body_of(n_bytes: int) -> MemberChain:
    made = new_invite()
    chain = make_member_chain(made, PEER, NOW)
    fields = msgspec.structs.asdict(certificate_of(chain))
    with_some = len(encode_record(Longer(**fields, note="n" * 256)))
    note = "n" * (256 + n_bytes - with_some)
    longer = signed_by(made.identity, Longer(**fields, note=note), chain)
    assert len(longer.member.body) == n_bytes
    return longer


def test_a_certificate_has_so_many_bytes_and_no_more() -> None:
    most = limits.CERTIFICATE_BYTES_MAX
    assert admission().admit(PEER, with_body_of(most), NOW) == "trainer"
    assert reason(admission(), with_body_of(most + 1)) is Reason.MALFORMED


def test_revocations_have_so_many_bytes_and_no_more() -> None:
    signed = sign_revocations(Revocations(NETWORK, 1, ()), SWARM)
    for n_bytes, error in (
        (limits.REVOCATIONS_BYTES_MAX, MalformedMessage),
        (limits.REVOCATIONS_BYTES_MAX + 1, LimitExceeded),
    ):
        spoiled = msgspec.structs.replace(signed, body=bytes(n_bytes))
        with pytest.raises(error):
            open_revocations(spoiled, network=NETWORK, swarm_key=SWARM.public_key)


def test_a_certificate_may_begin_as_late_as_clocks_are_wrong() -> None:
    made = new_invite()
    last = NOW + limits.ADMISSION_CLOCK_SKEW_S
    assert admission().admit(PEER, make_member_chain(made, PEER, last), NOW) == "trainer"
    late = make_member_chain(made, PEER, last + 1)
    assert reason(admission(), late) is Reason.NOT_YET_VALID


def test_a_certificate_ends_at_its_second() -> None:
    chain = make_member_chain(new_invite(), PEER, NOW)
    end = certificate_of(chain).not_after
    assert admission().admit(PEER, chain, end - 1) == "trainer"
    assert reason(admission(), chain, end) is Reason.EXPIRED


# --- uses ----------------------------------------------------------------------------------------


def test_what_has_ended_is_a_use_until_its_invite_is_dead() -> None:
    made = new_invite()
    chain, end = make_member_chain(made, PEER, NOW), ends_at(made.certificate)
    for now, n_uses in ((end, 1), (end + 1, 0)):
        book = admission()
        assert reason(book, chain, now) is Reason.EXPIRED
        assert (len(book.state().claims), book.changes) == (n_uses, n_uses)


def test_of_two_that_joined_at_once_the_smaller_id_has_the_use() -> None:
    made = new_invite()
    chains = {peer: make_member_chain(made, peer, NOW) for peer in (PEER, OTHER)}
    for order in ((PEER, OTHER), (OTHER, PEER)):
        book = admission()
        book.hear([chains[peer] for peer in order], NOW)
        assert [book.is_member(peer, NOW) for peer in (PEER, OTHER)] == [True, False]


def test_of_several_uses_the_latest_goes() -> None:
    book, made = admission(), new_invite(uses=2)
    for peer, joined_at in ((PEERS[0], NOW + 9), (PEERS[1], NOW + 5), (PEERS[2], NOW + 7)):
        book.admit(peer, make_member_chain(made, peer, joined_at), NOW + 20)
    assert [book.is_member(peer, NOW + 20) for peer in PEERS[:3]] == [False, True, True]


def test_a_peer_joined_when_the_earliest_of_its_certificates_says() -> None:
    made, ledger = new_invite(), UseLedger()
    for joined_at in (NOW + 9, NOW + 5, NOW + 7):
        assert ledger.claim(verified(make_member_chain(made, PEER, joined_at)), NOW + 20)
    (claim,) = ledger
    assert (claim.joined_at, claim.date) == (NOW + 5, NOW + 5)
    assert claim.verified.certificate.not_after == NOW + 9 + 30 * DAY_S, "the one for longest"
    assert [*ledger.claims_of(PEER)] == [claim]
    assert [*ledger.claims_of(OTHER)] == []
    assert ledger.find(claim.verified) is claim
    assert ledger.find(verified(make_member_chain(new_invite(), PEER, NOW))) is None


def test_who_was_away_for_longer_than_dates_are_believed_is_a_newcomer_again() -> None:
    ledger = UseLedger()
    for now, since in (
        (NOW, NOW),
        (NOW + limits.ADMISSION_BACKDATE_S, NOW),
        (NOW + 2 * limits.ADMISSION_BACKDATE_S + 1, NOW + 2 * limits.ADMISSION_BACKDATE_S + 1),
        (NOW, NOW),  # its clock was set back by as much
    ):
        ledger.watch(now)
        assert (ledger.since_unix_s, ledger.watched_until_unix_s) == (since, now)


def test_from_the_second_on_at_which_a_node_has_watched_for_long_it_believes_no_older_date() -> (
    None
):
    made, back = new_invite(uses=2), limits.ADMISSION_BACKDATE_S
    for watched_s, earliest in ((back - 1, 0), (back, NOW)):
        ledger = UseLedger(NOW, NOW)
        chain = verified(make_member_chain(made, PEER, NOW))
        assert ledger.claim(chain, NOW + watched_s + 0.5 * (watched_s < back))
        (claim,) = ledger
        assert claim.earliest == earliest


def test_to_hear_to_admit_and_to_be_asked_is_to_be_awake() -> None:
    chain = make_member_chain(new_invite(), PEER, NOW)
    calls: list[Callable[[Admission, float], object]] = [
        lambda book, now: book.hear([], now),
        lambda book, now: book.is_member(PEER, now),
        lambda book, now: book.admit(PEER, chain, now),
    ]
    for call in calls:
        book = admission()
        for day in range(4):
            now = NOW + day * limits.ADMISSION_BACKDATE_S
            call(book, now)
        state = book.state()
        assert (state.since_unix_s, state.watched_until_unix_s) == (NOW, now)


# --- what is passed on, and what is kept ----------------------------------------------------------


def test_a_new_node_keeps_nothing() -> None:
    book = admission()
    assert book.changes == 0
    assert book.state() == AdmissionState(0.0, 0.0, None, ())
    shown = book.credentials(None)
    assert (shown.chain, shown.revocations, shown.heard) == (None, None, ())


def test_the_revocations_are_shown_to_peers_and_counted_as_one_change() -> None:
    book, signed = admission(), sign_revocations(Revocations(NETWORK, 1, ()), SWARM)
    assert book.take_revocations(signed)
    assert not book.take_revocations(signed)
    assert (book.credentials(None).revocations, book.revocations) == (signed, signed)
    assert book.changes == 1
    older = sign_revocations(Revocations(NETWORK, 2, ()), SWARM)
    assert book.take_revocations(older)
    assert not book.take_revocations(signed)
    assert book.changes == 2


def test_what_was_kept_wrongly_is_left_out_and_the_rest_is_taken() -> None:
    book, made = admission(), new_invite(uses=2)
    for peer in (PEER, OTHER):
        book.admit(peer, make_member_chain(made, peer, NOW), NOW)
    state = book.state()
    bad = msgspec.structs.replace(state.claims[0].chain.member, signature=bytes(64))
    spoiled = MemberChain(bad, made.signed)
    claims = (msgspec.structs.replace(state.claims[0], chain=spoiled), state.claims[1])
    broken = Signed(b"\xc1", SWARM.public_key, bytes(64))
    again = admission(msgspec.structs.replace(state, claims=claims, revocations=broken))
    assert [again.is_member(peer, NOW) for peer in (PEER, OTHER)] == [False, True]
    assert again.revocations is None
    assert again.changes == 0
