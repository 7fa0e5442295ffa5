"""Admission on disk: which invites and lists are remembered, for how long, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.config import Paths, SwarmPaths
from swarmnode.errors import CorruptRecord, Refused
from swarmnode.protocol.admission import AdmissionState
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import (
    Invite,
    ends_at,
    make_creator_chain,
    make_invite,
    sign_revocations,
)
from swarmnode.protocol.swarm import swarm_id
from swarmnode.store.invites import (
    load_admission_state,
    load_invites,
    load_member_chain,
    load_revocations,
    revoke_invite,
    save_admission_state,
    save_invite,
    save_member_chain,
    set_admission_state_aside,
)
from swarmnode.wire.admission import Revocations
from swarmnode.wire.packing import decode_record
from swarmnode.wire.swarm import Signed
from tests.kits.other_system import BusyPath

SWARM = Identity.from_seed(bytes(32))
PEER = Identity.from_seed(b"\1" * 32).peer_id
NOW = 1_800_000_000


@pytest.fixture
def paths(tmp_path: Path) -> SwarmPaths:
    return Paths(tmp_path / "home").swarm("demo")


def invite(*, made_at: float = NOW, lasts_s: int = 3600) -> Invite:
    return make_invite(
        SWARM, role="trainer", uses=1, expires_at=NOW + lasts_s, now_unix_s=made_at, cert_days=1
    )


def listed(signed: Signed | None) -> Revocations:
    assert signed is not None
    return decode_record(signed.body, Revocations)


def a_list(sequence: int, *revoked: bytes) -> Signed:
    return sign_revocations(Revocations(swarm_id(SWARM.public_key), sequence, revoked), SWARM)


def name(number: int) -> bytes:
    return number.to_bytes(10, "big")


# --- invites --------------------------------------------------------------------------------------


def test_invites_are_listed_from_the_oldest_on(paths: SwarmPaths) -> None:
    assert load_invites(paths) == {}
    made = [invite(made_at=NOW - age_s) for age_s in (5, 0, 0, 9, 2)]
    for each in made:
        save_invite(each, paths, now_unix_s=NOW)
        save_invite(each, paths, now_unix_s=NOW)
    (paths.directory / "invites" / ".of-a-crash").touch()
    expected = sorted(
        made, key=lambda each: (each.certificate.not_before, each.identity.public_key)
    )
    assert list(load_invites(paths).items()) == [(each.id, each.certificate) for each in expected]


def test_an_invite_is_forgotten_when_nothing_made_from_it_can_count_any_more(
    paths: SwarmPaths,
) -> None:
    first, *others = [invite() for _ in range(3)]
    over_at = ends_at(first.certificate)
    save_invite(first, paths, now_unix_s=NOW)
    save_invite(others[0], paths, now_unix_s=over_at)
    assert set(load_invites(paths)) == {first.id, others[0].id}
    late = [invite(lasts_s=10**6) for _ in range(2)]
    save_invite(late[0], paths, now_unix_s=over_at + 1)
    assert set(load_invites(paths)) == {late[0].id}


def test_an_invite_that_was_revoked_is_known_until_a_list_leaves_it_out(paths: SwarmPaths) -> None:
    revoked, other, third = invite(), invite(lasts_s=10**6), invite(lasts_s=10**6)
    over_at = ends_at(revoked.certificate)
    save_invite(revoked, paths, now_unix_s=NOW)
    revoke_invite(paths, SWARM, revoked.id, NOW)
    save_invite(other, paths, now_unix_s=over_at + 1)
    assert set(load_invites(paths)) == {revoked.id, other.id}
    assert listed(revoke_invite(paths, SWARM, name(1), over_at)).revoked == (revoked.id, name(1))
    # Of what is over no list needs to speak.
    assert listed(revoke_invite(paths, SWARM, name(2), over_at + 1)).revoked == (name(1), name(2))
    save_invite(third, paths, now_unix_s=over_at + 1)
    assert set(load_invites(paths)) == {other.id, third.id}


def test_of_two_processes_that_forget_an_invite_at_once_neither_fails(
    paths: SwarmPaths,
) -> None:
    old, new = invite(), invite(lasts_s=10**6)
    save_invite(old, paths, now_unix_s=NOW)
    busy = SwarmPaths(BusyPath(paths.directory))
    save_invite(new, busy, now_unix_s=ends_at(old.certificate) + 1)
    assert set(load_invites(paths)) == {new.id}


# --- lists of revoked invites ---------------------------------------------------------------------


def test_each_list_has_a_greater_number_and_one_that_was_lost_is_outdone(paths: SwarmPaths) -> None:
    assert load_revocations(paths) is None
    numbers = []
    for number, now in enumerate((0.0, 9.9, 9.9, 10.0, 500.0, 3.0)):
        signed = revoke_invite(paths, SWARM, name(number), now)
        assert load_revocations(paths) == signed
        assert listed(signed).revoked == tuple(map(name, range(number + 1)))
        assert listed(signed).swarm_id == swarm_id(SWARM.public_key)
        numbers.append(listed(signed).sequence)
    assert numbers == [1, 9, 10, 11, 500, 501]
    assert len(list((paths.directory / "revocations").iterdir())) == 6
    assert revoke_invite(paths, SWARM, name(2), 1000.0) == signed, "it is on the list"


@pytest.mark.parametrize("seen", [6, 8])
def test_the_newest_list_counts_whether_it_was_made_here_or_seen(
    seen: int, paths: SwarmPaths
) -> None:
    own = revoke_invite(paths, SWARM, name(1), 7)
    other = a_list(seen, name(2))
    save_admission_state(AdmissionState(revocations=other), paths)
    assert load_revocations(paths) == (own if seen < 7 else other)
    following = listed(revoke_invite(paths, SWARM, name(3), 7))
    assert following.sequence == max(seen, 7) + 1
    assert following.revoked == (name(1) if seen < 7 else name(2), name(3))


def test_a_list_is_filled_to_its_last_place(paths: SwarmPaths) -> None:
    most = tuple(map(name, range(limits.REVOCATIONS_MAX)))
    save_admission_state(AdmissionState(revocations=a_list(7, *most[:-1])), paths)
    assert listed(revoke_invite(paths, SWARM, most[-1], NOW)).revoked == most
    with pytest.raises(Refused, match=f"^{limits.REVOCATIONS_MAX} invites are revoked already"):
        revoke_invite(paths, SWARM, b"one more..", NOW)


# --- what this node shows and has seen ------------------------------------------------------------


def test_a_chain_and_a_state_are_kept_each_and_replaced(paths: SwarmPaths) -> None:
    assert load_member_chain(paths) is None
    assert load_admission_state(paths) == AdmissionState()
    for number in (1, 2):
        chain = make_creator_chain(SWARM, PEER, NOW + number)
        state = AdmissionState(revocations=a_list(number))
        save_member_chain(chain, paths)
        save_admission_state(state, paths)
        assert load_member_chain(paths) == chain
        assert load_admission_state(paths) == state
    assert {path.name for path in paths.directory.iterdir()} == {"member", "admission"}


@pytest.mark.parametrize("damaged", [b"", b"\0" * 4, b"\0" * 5, b"\x8d\xef\x02\xd2\0"])
def test_what_was_not_sealed_here_is_damage(damaged: bytes, paths: SwarmPaths) -> None:
    """The second has the right checksum of nothing, the last one that of one byte."""
    save_member_chain(make_creator_chain(SWARM, PEER, NOW), paths)
    save_admission_state(AdmissionState(), paths)
    for file in ("member", "admission"):
        (paths.directory / file).write_bytes(damaged)
    with pytest.raises(CorruptRecord, match="member is damaged") as caught:
        load_member_chain(paths)
    assert caught.value.path == str(paths.directory / "member")
    with pytest.raises(CorruptRecord, match="admission is damaged") as caught:
        load_admission_state(paths)
    assert caught.value.path == str(paths.directory / "admission")


def test_a_damaged_state_is_kept_where_no_start_reads_it(paths: SwarmPaths) -> None:
    save_admission_state(AdmissionState(), paths)
    (paths.directory / "admission").write_bytes(b"damage")
    for _ in range(2):
        set_admission_state_aside(paths)
        assert load_admission_state(paths) == AdmissionState()
        assert (paths.directory / "admission.damaged").read_bytes() == b"damage"
