"""Who is let in, who may take a session over, and what is kept to be sent again."""

from __future__ import annotations

import hmac
import itertools

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, RemoteProtocolError, VersionMismatch
from swarmnode.ids import PeerId
from swarmnode.protocol.session.opening import (
    ASK_BYTES,
    CLAIM_BYTES,
    MAGIC,
    NAME_BYTES,
    NONCE_BYTES,
    URGENT_BYTES_MAX,
    HelloRefused,
    ResumeKeys,
    Unacknowledged,
    check_hello,
    check_identity,
    error_from_goodbye,
    parse_ask,
)
from swarmnode.protocol.session.records import Role
from swarmnode.wire.session import GoodbyeCode, Hello

OWN, PEER = PeerId(b"o" * 32), PeerId(b"p" * 32)
NETWORK = b"n" * 32


def hello(
    version_min: int, version_max: int, *, network: bytes = NETWORK, expected: bytes = b""
) -> Hello:
    return Hello(version_min, version_max, network, "test", expected)


# --- HELLO -------------------------------------------------------------------------------------


def test_the_peer_that_was_dialled_or_any_if_none_was_is_let_in() -> None:
    check_identity(None, PEER)
    check_identity(PEER, PEER)
    with pytest.raises(HelloRefused, match=r"but .* answered") as refused:
        check_identity(OWN, PEER)
    assert refused.value.code is GoodbyeCode.WRONG_PEER
    assert isinstance(refused.value.error, AuthenticationFailed)
    assert str(refused.value) == str(refused.value.error), "which is what the peer is told"


@pytest.mark.parametrize(
    ("own", "theirs", "version"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 4), (1, 2), 2), ((3, 3), (1, 9), 3)],
)
def test_the_newest_version_that_both_speak_is_spoken(
    own: tuple[int, int], theirs: tuple[int, int], version: int
) -> None:
    said = hello(*theirs, expected=OWN)
    assert check_hello(hello(*own), said, own_id=OWN, peer=PEER) == version
    assert check_hello(hello(*own), hello(*theirs), own_id=OWN, peer=PEER) == version


@pytest.mark.parametrize(
    ("theirs", "code"),
    [
        (hello(1, 1), GoodbyeCode.WRONG_VERSION),
        (hello(4, 9), GoodbyeCode.WRONG_VERSION),
        (hello(2, 3, network=b"m" * 32), GoodbyeCode.WRONG_NETWORK),
        (hello(2, 3, expected=PEER), GoodbyeCode.WRONG_PEER),
    ],
)
def test_who_speaks_otherwise_or_means_another_node_is_told_so(
    theirs: Hello, code: GoodbyeCode
) -> None:
    with pytest.raises(HelloRefused) as refused:
        check_hello(hello(2, 3), theirs, own_id=OWN, peer=PEER)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (GoodbyeCode.WRONG_NETWORK, VersionMismatch),
        (GoodbyeCode.WRONG_VERSION, VersionMismatch),
        (GoodbyeCode.WRONG_PEER, AuthenticationFailed),
        (GoodbyeCode.DONE, RemoteProtocolError),
        (99, RemoteProtocolError),
    ],
)
def test_a_goodbye_in_place_of_a_hello_is_the_error_that_it_names(
    code: int, error: type[RemoteProtocolError]
) -> None:
    found = error_from_goodbye(code, "a reason", PEER)
    assert type(found) is error
    assert str(found).endswith("refused this node: a reason")
    assert "no reason given" in str(error_from_goodbye(code, "", PEER))


# --- resumption --------------------------------------------------------------------------------


def test_name_and_proof_follow_from_the_secret_as_published() -> None:
    secret, nonces = bytes(range(32)), bytes(2 * NONCE_BYTES)
    octets = HKDFExpand(SHA256(), NAME_BYTES + 32, b"swarmnode/1 resume").derive(secret)
    keys = ResumeKeys.of(secret)
    assert (keys.name, keys.key) == (octets[:NAME_BYTES], octets[NAME_BYTES:])
    ask = keys.ask(b"o" * NONCE_BYTES)
    assert ask == MAGIC + keys.name + b"o" * NONCE_BYTES
    assert len(ask) == ASK_BYTES
    assert parse_ask(ask) == (keys.name, b"o" * NONCE_BYTES)
    offset = (2**40 + 7).to_bytes(8, "big")
    claim = keys.claim(Role.SERVER, nonces, 2**40 + 7)
    assert claim == offset + hmac.digest(keys.key, b"server" + nonces + offset, "sha256")
    assert len(claim) == CLAIM_BYTES


def test_each_role_has_the_other_one_as_its_peer() -> None:
    assert [role.other for role in (Role.CLIENT, Role.SERVER)] == [Role.SERVER, Role.CLIENT]


# --- what is kept ------------------------------------------------------------------------------

TURN = 100_000
RESERVE = 32 * URGENT_BYTES_MAX  # stays free beside a turn
WANTED = TURN + RESERVE


class Ring:
    """A ring, and where in its memory it gives room."""

    def __init__(self, n_bytes: int) -> None:
        self._memory = bytearray(n_bytes)
        self.kept = Unacknowledged(memoryview(self._memory), TURN)

    def keep(self, n_bytes: int) -> None:
        """Keep so much, in turns."""
        while n_bytes:
            part = min(n_bytes, TURN)
            assert self.kept.room() is not None
            assert len(self.kept.keep(part)) == part
            n_bytes -= part

    def room_at(self) -> int | None:
        """Return where in the memory the next turn would be sealed."""
        return self._place_of(self.kept.room(), TURN)

    def urgent_room_at(self) -> int | None:
        return self._place_of(self.kept.urgent_room(), URGENT_BYTES_MAX)

    def _place_of(self, room: memoryview | None, n_bytes: int) -> int | None:
        if room is None:
            return None
        assert len(room) == n_bytes
        room[0] = 1  # all of the memory is zeros
        place = self._memory.index(1)
        room[0] = 0
        return place


def test_where_nothing_is_kept_the_ring_begins_anew() -> None:
    ring = Ring(2 * WANTED)
    assert ring.room_at() == 0
    assert ring.kept.spare() == [(0, 2 * WANTED)]
    ring.keep(10)
    assert ring.room_at() == 10
    assert ring.kept.spare() == [(0, 0), (10, 2 * WANTED)]
    ring.kept.acknowledge(9)
    assert ring.kept.acknowledged_bytes == 0, "turns are kept whole"
    ring.kept.acknowledge(10)
    assert (ring.kept.sent_bytes, ring.kept.acknowledged_bytes) == (10, 10)
    assert ring.room_at() == 0
    assert ring.kept.spare() == [(0, 2 * WANTED)]


@pytest.mark.parametrize(("last", "is_room"), [(5, True), (6, False)])
def test_a_turn_needs_its_reserve_beside_it_before_the_end(last: int, is_room: bool) -> None:
    ring = Ring(2 * WANTED + 5)
    ring.keep(WANTED)
    ring.keep(last)
    assert ring.room_at() == (WANTED + last if is_room else None)
    assert ring.urgent_room_at() == WANTED + last, "few bytes always fit"


@pytest.mark.parametrize(("first", "place"), [(WANTED - 1, None), (WANTED, 0), (WANTED + 1, 0)])
def test_at_the_end_it_starts_over_once_there_is_room_for_a_turn(
    first: int, place: int | None
) -> None:
    ring = Ring(2 * WANTED + 1)
    ring.keep(first)
    ring.keep(3)
    assert ring.room_at() is None
    ring.kept.acknowledge(first)
    assert ring.room_at() == place
    assert ring.kept.acknowledged_bytes == first


@pytest.mark.parametrize("missing", [0, 1])
def test_before_the_end_it_starts_over_when_a_peer_has_room_to_wait_with_its_word(
    missing: int,
) -> None:
    first = WANTED + limits.ACK_EVERY_BYTES - missing
    ring = Ring(3 * WANTED + limits.ACK_EVERY_BYTES)
    ring.keep(first)
    ring.keep(3)
    ring.kept.acknowledge(first)
    assert ring.room_at() == (first + 3 if missing else 0)


@pytest.mark.parametrize("missing", [0, 1])
def test_what_is_kept_behind_is_never_run_into(missing: int) -> None:
    ring = Ring(2 * WANTED + 2)
    ring.keep(WANTED + 2)
    ring.keep(3)
    ring.kept.acknowledge(WANTED + 2)
    assert ring.room_at() == 0
    ring.keep(2 + missing)
    assert ring.kept.spare() == [(2 + missing, WANTED + 2)]
    assert ring.room_at() == (None if missing else 2)


def test_a_ring_that_is_full_to_the_byte_has_room_for_nothing() -> None:
    first = WANTED + URGENT_BYTES_MAX
    ring = Ring(WANTED + first)
    ring.keep(first)
    ring.keep(3)
    ring.kept.acknowledge(first)
    ring.keep(TURN)
    for _ in range(1 + RESERVE // URGENT_BYTES_MAX):
        assert ring.urgent_room_at() is not None
        ring.kept.keep(URGENT_BYTES_MAX)
    assert sum(end - start for start, end in ring.kept.spare()) == 0
    assert ring.urgent_room_at() is None
    assert ring.room_at() is None


def test_what_is_sent_again_begins_in_the_midst_of_a_turn_if_need_be() -> None:
    ring = Ring(2 * WANTED)
    sent = b""
    for number, n_bytes in enumerate((10, 20, 30)):
        room = ring.kept.room()
        assert room is not None
        data = bytes([number]) * n_bytes
        room[:n_bytes] = data
        assert ring.kept.keep(n_bytes) == data
        sent += data
    assert [bytes(piece) for piece in ring.kept.since(0)] == [
        sent[start:end] for start, end in itertools.pairwise((0, 10, 30, 60))
    ]
    assert b"".join(ring.kept.since(12)) == sent[12:]
    assert ring.kept.acknowledged_bytes == 10
    assert ring.kept.since(60) == []
    assert ring.kept.since(60) == []
    with pytest.raises(RemoteProtocolError, match="had 60 bytes, now it says 59"):
        ring.kept.since(59)
    with pytest.raises(RemoteProtocolError, match="up to 60 bytes, got 61"):
        ring.kept.since(61)
