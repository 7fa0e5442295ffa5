"""What a hostile member may send: shared state, failure detection and the DHT, all of it wrong.

Everything is signed by keys that an attacker can have: its own, and as many as it makes up.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import zstandard

from swarmnode import limits
from swarmnode.protocol.crdt.records import NO_HASH
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.protocol.dht.records import RecordRules
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.claims import Ed25519Notary
from swarmnode.testing.swarm import UNIX_START_S, SimNode
from swarmnode.wire import crdt, dht, swim
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed
from tests.sim.impostor import NETWORK, NOWHERE, Impostor, state_record

YEAR_S = 365 * 86_400


def made_up(number: int) -> Identity:
    """Return one of the keys that an attacker makes up."""
    return Identity.from_seed(b"made up" + number.to_bytes(25, "big"))


# --- shared state ---------------------------------------------------------------------------


def push(*records: Signed) -> crdt.Push:
    return crdt.Push(tuple(crdt.Carried(record, 0) for record in records))


def bad_state(attacker: Impostor, victim: SimNode, other: SimNode) -> Iterator[bytes]:
    """Yield messages of ``state/1``, one of each kind; ``other`` is slandered."""
    held = other.part.state.view.ledger.chains[other.peer].records
    genuine = [opened.signed for opened in held]
    newest = held[-1].record
    lie = msgspec.structs.replace(
        newest, sequence=newest.sequence + 1, registers={"state": "left"}, checkpoint=True
    )
    us, swarm_id = attacker.identity, attacker.link.swarm_id
    forged = Signed(encode_record(lie), genuine[-1].public_key, genuine[-1].signature)
    yield encode_record(push(forged))
    yield encode_record(push(Signed(encode_record(lie), us.public_key, genuine[-1].signature)))
    yield encode_record(push(state_record(us, NETWORK)))  # of another swarm
    yield encode_record(push(state_record(us, swarm_id, sequence=9, ahead_s=YEAR_S)))
    yield encode_record(push(Signed(b"\xc1", us.public_key, bytes(64))))
    large = bytes(limits.STATE_RECORD_BYTES_MAX + 1)
    yield encode_record(push(Signed(large, us.public_key, bytes(64))))
    yield encode_record(push(*genuine, *reversed(genuine)))  # replayed, in any order
    yield encode_record(crdt.Proofs((crdt.Proof(genuine[-1], genuine[-1]),)))
    yield encode_record(crdt.Proofs((crdt.Proof(genuine[-1], forged),)))
    far = crdt.Head(bytes(other.peer), 2**62, 2**62, bytes(32))
    yield encode_record(crdt.Listing("", (far,)))
    yield encode_record(crdt.Listing("", ()))
    yield encode_record(crdt.Want((crdt.Head(bytes(other.peer), 0, 0, NO_HASH),)))
    yield encode_record(crdt.Summary((crdt.Range("", 2**40, b"\xff" * 32),), 0))
    mine = victim.part.state.view.ledger.chains[victim.peer].newest.signed
    yield encode_record(push(Signed(mine.body[:-1] + b"\x00", mine.public_key, mine.signature)))
    for becomes in (push(forged), push(*genuine)):
        yield encode_record(crdt.Compressed(zstandard.compress(encode_record(becomes))))
    yield encode_record(crdt.Compressed(zstandard.compress(bytes(2**24))))
    yield b""
    yield b"\xc1" * 1000
    yield bytes(limits.REQUEST_BYTES_MAX)


def state_of_strangers(swarm_id: bytes, count: int) -> Iterator[bytes]:
    """Yield good records of keys that no node knows."""
    for number in range(count):
        yield encode_record(push(state_record(made_up(number), swarm_id)))


def two_histories(attacker: Impostor) -> Iterator[bytes]:
    """Yield the proof that its sender lies: two first records."""
    for loss in (1.0, 2.0):
        record = state_record(attacker.identity, attacker.link.swarm_id, sequence=50, loss=loss)
        yield encode_record(push(record))


# --- failure detection ----------------------------------------------------------------------


def bad_swim(attacker: Impostor, victim: SimNode, other: SimNode) -> Iterator[bytes]:
    """Yield messages of ``swim/1``, one of each kind; ``other`` shall be taken for dead."""
    own = attacker.claim()
    key = other.identity.public_key
    version = victim.part.members.detector.version_of(other.peer)
    assert version is not None
    genuine = genuine_claim(victim, other)
    accusers = tuple(bytes(made_up(number).peer_id) for number in range(4))
    accused = msgspec.structs.replace(genuine, doubt="suspect", by=accusers)
    dead = msgspec.structs.replace(genuine, doubt="dead")
    for claim in (
        swim.Claim(key, version[0], version[1] + 1, bytes(64)),
        swim.Claim(key, version[0] + 9, 0, genuine.signature),
        swim.Claim(key, version[0], version[1], genuine.signature, "left"),
        msgspec.structs.replace(attacker.claim(), key=key, epoch=77),
        accused,
        dead,
    ):
        yield encode_record(swim.Sync(False, (own, claim)))
    yield encode_record(swim.Ping(1, (own, dead)))
    yield encode_record(swim.Ack(10**9, (own,)))
    yield encode_record(swim.PingRequest(1, bytes(made_up(0).peer_id), (own,)))
    yield encode_record(swim.Nack(3))
    yield b"\x80"
    yield bytes(limits.REQUEST_BYTES_MAX)


def genuine_claim(holder: SimNode, member: SimNode) -> swim.Claim:
    """Return the newest claim of a member that a node holds."""
    found = holder.part.members.detector._table.get(member.peer)
    assert found is not None
    return found.claim


def claims_of_strangers(swarm_id: bytes, own: swim.Claim, count: int) -> Iterator[bytes]:
    """Yield good claims of members that do not exist, eight at a time."""
    claims = []
    for number in range(count):
        stranger = made_up(number)
        signature = Ed25519Notary(stranger, swarm_id).sign(1, 0, None)
        claims.append(swim.Claim(stranger.public_key, 1, 0, signature))
    for first in range(0, count, 8):
        yield encode_record(swim.Sync(False, (own, *claims[first : first + 8])))


# --- DHT ------------------------------------------------------------------------------------


def swarm_record(attacker: Impostor, **changes: object) -> dht.SwarmRecord:
    """Return the draft of a record that leads newcomers astray."""
    record = dht.SwarmRecord(
        sequence=1,
        issued_at=int(UNIX_START_S),
        ttl_s=limits.DHT_RECORD_TTL_S_MAX,
        addresses=NOWHERE,
        swarm_key=attacker.link.swarm_key,
        name=attacker.link.name,
        members=10**9,
        created_at=0,
    )
    return msgspec.structs.replace(record, **changes)


def bad_dht(attacker: Impostor, other: SimNode) -> Iterator[bytes]:
    """Yield requests of ``dht/1``, one of each kind; ``other`` shall be moved."""
    us, rules = attacker.identity, RecordRules(NETWORK)
    swarm_key = swarm_key_key(attacker.link.swarm_key)
    good = rules.sign(swarm_record(attacker), us)
    moved = encode_record(dht.PeerRecord(2**60, int(UNIX_START_S), 3600, NOWHERE))
    off = {"issued_at": int(UNIX_START_S) + YEAR_S}
    for key, record in (
        (swarm_key, Signed(good.body, other.identity.public_key, good.signature)),
        (swarm_key, RecordRules(bytes(32)).sign(swarm_record(attacker), us)),  # other network
        (swarm_key, rules.sign(swarm_record(attacker, **off), us)),
        (swarm_key, rules.sign(swarm_record(attacker, issued_at=1), us)),
        (bytes(other.peer), Signed(moved, other.identity.public_key, bytes(64))),
        (bytes(other.peer), Signed(moved, us.public_key, us.sign(rules.domain, moved))),
        (name_key("another"), good),
        (swarm_key, Signed(bytes(limits.DHT_RECORD_BYTES_MAX + 1), us.public_key, bytes(64))),
        (swarm_key, Signed(b"\xc1", us.public_key, bytes(64))),
    ):
        yield encode_record(dht.Put(1, (), key, record))
    contacts = tuple(dht.Contact(bytes(made_up(n).peer_id), NOWHERE) for n in range(20))
    yield encode_record(dht.Found(5, contacts))  # an answer that no request waits for
    yield b"\x80"
    yield bytes(limits.REQUEST_BYTES_MAX)


def records_of_strangers(attacker: Impostor, count: int) -> Iterator[bytes]:
    """Yield good records of keys that no node knows: of our swarm, its name, and themselves."""
    rules = RecordRules(NETWORK)
    for number in range(count):
        stranger = made_up(number)
        record = swarm_record(attacker)
        peer = dht.PeerRecord(1, int(UNIX_START_S), 3600, NOWHERE)
        signed = rules.sign(record, stranger)
        for key, each in (
            (swarm_key_key(record.swarm_key), signed),
            (name_key(record.name), signed),
            (bytes(stranger.peer_id), rules.sign(peer, stranger)),
        ):
            yield encode_record(dht.Put(number, (), key, each))
