"""Every core without sockets and clocks: targets of the fuzzer.

An input is a history: which peer sends what, which event of the node's own comes, how time goes
on, all of it read from bytes. What a core has named in its effects can come back in the next event.
A core fails by raising what it does not declare, by deadlines that never end, and by statistics
that it cannot give. Which event led to which effects is what a history reaches, beside the code:
its transitions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args

from msgspec import Meta

from swarmnode import limits
from swarmnode.errors import (
    ConfigError,
    LocalProtocolError,
    MalformedMessage,
    RemoteProtocolError,
)
from swarmnode.protocol import lan
from swarmnode.protocol.blobs import events as blob_events
from swarmnode.protocol.blobs.fetch import FetchCore
from swarmnode.protocol.blobs.merkle import MerkleTree, leaf_hash
from swarmnode.protocol.crdt import events as state_events
from swarmnode.protocol.crdt.records import seal
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.dht import events as dht_events
from swarmnode.protocol.dht.core import DhtConfig, DhtCore
from swarmnode.protocol.dht.records import RecordRules
from swarmnode.protocol.gossip import events as pair_events
from swarmnode.protocol.gossip import gather_events, group_events
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.gather import GatherCore
from swarmnode.protocol.gossip.gather_set import Announced, RunTerms
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.patience import Patience
from swarmnode.protocol.membership import contacts, swim_events
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.protocol.nat import reach, stun, survey
from swarmnode.protocol.relay import events as relay_events
from swarmnode.protocol.relay.accounts import Quota
from swarmnode.protocol.relay.core import RelayCore
from swarmnode.protocol.shards import events as shard_events
from swarmnode.protocol.shards.core import ShardCore
from swarmnode.protocol.uplink import Line
from swarmnode.testing.world import ToyIdentity, toy_verify
from swarmnode.testing.world_swim import SimNotary
from swarmnode.wire import crdt as state_wire
from swarmnode.wire import dht as dht_wire
from swarmnode.wire.blobs import BlobManifest
from swarmnode.wire.connect.beacon import Beacon
from swarmnode.wire.exchange.gather import Announcement
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.records import Count, Digest, Name
from swarmnode.wire.swarm import Signed
from swarmnode.wire.swim import Claim
from tests.fuzz.draw import Draw, Maker
from tests.fuzz.engine import Target, Words
from tests.fuzz.session_shell import Bytes, Local, SessionUnderTest, check_session, some_frames

NETWORK = bytes(32)
KEY = bytes(32)
GID = bytes(16)
UNIX_S = 1_800_000_000.0
START_S = 100.0
SIGNERS = [ToyIdentity.from_seed(bytes([n]) * 32) for n in range(4)]
SELF = SIGNERS[0]
# The node's own id comes last: no session is with itself, but others may name it.
PEERS = [*(each.peer_id for each in SIGNERS[1:]), SELF.peer_id]
_WAITS_S = (0.0, 0.01, 1.0, 5.0, 30.0, 100.0, 1000.0, 100_000.0)
_EVENTS_MAX = 60
# Deadlines that are due at one moment; more is a core that never lets its shell wait.
_DEADLINES_MAX = 200


@dataclass(frozen=True)
class Subject:
    """A core, and what may happen to it.

    Attributes:
        of_peers: events that others can bring about with any content.
        makers: how values of some types are made.
        check: what must hold after each event.
    """

    name: str
    make: Callable[[], Any]
    events: tuple[type, ...]
    of_peers: tuple[type, ...]
    covers: tuple[str, ...]
    makers: Mapping[Any, Maker] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda core: None

    def run(self, data: bytes, story: list[str] | None = None) -> Words:
        draw = Draw(data, self.makers, PEERS)
        core, now = self.make(), START_S
        transitions: set[str] = set()
        for _ in range(_EVENTS_MAX):
            if draw.is_over:
                break
            what = draw.below(8)
            if what == 0:
                now += draw.choose(_WAITS_S)
                name, shown = "time", f"it is {now:.2f} s"
            elif what == 1:
                due = core.next_deadline()
                now = max(now, due) if due is not None else now
                name, shown = "deadline", f"it is {now:.2f} s, when a deadline is due"
            else:
                event = draw.value(draw.choose(self.events))
                if not _may_be(event):
                    continue
                name, shown = type(event).__name__, repr(event)
                message = getattr(event, "message", None)
                name += f" {type(message).__name__}" if message is not None else ""
                name += self._feed(core, event, now)
            if story is not None:
                story.append(shown)
            effects = self._keep_time(core, now)
            for effect in effects:
                draw.learn(effect)
                if story is not None:
                    story.append(f"    -> {effect!r}")
            kinds = "+".join(sorted({type(effect).__name__ for effect in effects}))
            transitions.add(f"{name} > {kinds}")
            core.statistics()
            self.check(core)
        return frozenset(transitions)

    def _feed(self, core: Any, event: Any, now: float) -> str:
        try:
            core.handle(event, now)
        except RemoteProtocolError:
            if not isinstance(event, self.of_peers):
                raise
            return " refused"
        except (LocalProtocolError, ConfigError):
            if isinstance(event, self.of_peers):
                raise
            return " refused"
        return ""

    @staticmethod
    def _keep_time(core: Any, now: float) -> list[Any]:
        """As a shell does: what is due is done before anything else; return the effects."""
        effects: list[Any] = []
        for _ in range(_DEADLINES_MAX):
            effects += core.poll_effects()
            due = core.next_deadline()
            if due is None or due > now:
                return effects
            core.handle_deadline(now)
        raise AssertionError(f"deadlines without end: {due} is due at {now}")

    def story(self, data: bytes) -> Sequence[str]:
        lines: list[str] = []
        try:
            self.run(data, lines)
        except Exception as error:  # whatever fails is the story's end
            lines.append(f"!! {type(error).__name__}: {error}")
        return lines


def _may_be(event: Any) -> bool:
    """Whether a peer could have sent it: what the wire refuses never comes to a core."""
    message = getattr(event, "message", None)
    if message is None:
        return getattr(event, "peer", None) != SELF.peer_id or type(event).__name__ == "LanPeer"
    try:
        decode_record(encode_record(message), type(message))
    except MalformedMessage:
        return False
    return bool(event.peer != SELF.peer_id)


# --- what is signed ---------------------------------------------------------------------------


def _a_claim(draw: Draw) -> Claim:
    signer = draw.choose(SIGNERS)
    epoch, incarnation = draw.below(3), draw.below(4)
    left = "bye" if draw.below(8) == 7 else None
    signature = SimNotary(signer, toy_verify, NETWORK).sign(epoch, incarnation, left)
    by = tuple(bytes(draw.choose(PEERS)) for _ in range(draw.below(3)))
    doubt = draw.choose(("none", "suspect", "dead"))
    return Claim(signer.public_key, epoch, incarnation, signature, left, doubt, by)  # type: ignore[arg-type]


def _signed(draw: Draw, domain: str, body: bytes) -> Signed:
    signer = draw.choose(SIGNERS)
    signature = signer.sign(domain, body) if draw.below(16) != 15 else bytes(64)
    return Signed(body, signer.public_key, signature)


def _a_state_record(draw: Draw) -> Signed:
    record = state_wire.StateRecord(
        swarm_id=NETWORK,
        epoch=draw.below(3),
        sequence=draw.below(4) + 1,
        previous=draw.value(Digest),
        clock_ms=int(UNIX_S * 1000) + draw.choose((0, 1, 1000, -1000, 10**9, -(10**9))),
        clock_tick=draw.below(3),
        checkpoint=bool(draw.below(2)),
        leases=draw.value(tuple[state_wire.Lease, ...]),
        counters=draw.value(dict[Name, Count]),
        registers=draw.value(dict[Name, state_wire.RegisterValue]),
        maxima=draw.value(dict[Name, Count]),
        snapshots=draw.value(tuple[state_wire.SnapshotClaim, ...]),
        verdicts=draw.value(tuple[state_wire.PeerVerdict, ...]),
    )
    sealed = seal(record, draw.choose(SIGNERS)).signed
    draw.learn(sealed)
    return sealed


_DHT_RULES = RecordRules(NETWORK, toy_verify)


def _a_dht_record(draw: Draw) -> Signed:
    record = _a_dht_draft(draw)
    return _DHT_RULES.sign(record, draw.choose(SIGNERS))


def _a_dht_draft(draw: Draw) -> Any:
    kind = draw.choose(get_args(dht_wire.Record))
    issued_at = int(UNIX_S) + draw.choose((0, 1, -1, 10**6, -(10**6)))
    addresses = draw.value(dht_wire.Addresses)
    head = (draw.below(4), issued_at, draw.value(dht_wire.Ttl), addresses)
    if kind is dht_wire.PeerRecord:
        return kind(*head)
    if kind is dht_wire.ProviderRecord:
        return kind(*head, draw.value(Digest))
    return kind(*head, draw.value(Digest), "a", draw.below(9), int(UNIX_S))


def _a_beacon(draw: Draw) -> lan.Heard:
    if draw.below(8) == 7:
        data = draw.value(bytes)
    else:
        beacon = draw.value(Beacon)
        network = NETWORK if draw.below(8) != 7 else KEY[:31] + b"x"
        swarms = beacon.swarms[: limits.LAN_SWARMS_MAX]
        body = encode_record(Beacon(network, draw.below(3), draw.below(9), beacon.port, swarms))
        data = encode_record(_signed(draw, lan.DOMAIN, body))
    host = draw.choose(("10.0.0.1", "[fe80::1]", "169.254.1.1", "10.0.0.2"))
    return lan.Heard(data, host, bool(draw.below(8)))


def _an_announced(draw: Draw) -> Announced:
    """One that was checked, as the shell hands it on."""
    signer = draw.choose(SIGNERS)
    return _TERMS.announce(signer, draw.value(Digest))


_TERMS = RunTerms(GID, frozenset(PEERS), 100, toy_verify)


def _an_announcement(draw: Draw) -> Signed:
    return _signed(draw, "gather/1", encode_record(Announcement(GID, draw.value(Digest), 100)))


_Transaction = Annotated[bytes, Meta(min_length=12, max_length=12)]


def _a_datagram(draw: Draw) -> survey.Received:
    transaction = draw.value(_Transaction)
    host = draw.choose(("1.1.1.1", "2.2.2.2", "3.3.3.3"))
    mapped = stun.Endpoint(draw.choose(("9.9.9.9", "8.8.8.8")), 1000 + draw.below(3))
    kind = draw.below(4)
    if kind == 0:
        data = stun.encode_indication(stun.Indication(transaction))
    elif kind == 1:
        data = draw.value(bytes)
    else:
        data = stun.encode_answer(stun.Answer(transaction, mapped, draw.choose((0, 3479))))
    return survey.Received(draw.below(2), data, stun.Endpoint(host, draw.choose((3478, 3479))))


# --- cores ------------------------------------------------------------------------------------


def _rng() -> random.Random:
    return random.Random(1)


_N_CHUNKS = 5
_TREE = MerkleTree([leaf_hash(b"%d" % n) for n in range(_N_CHUNKS)])


def _a_chunk(draw: Draw) -> blob_events.ChunkArrived:
    """Mostly sound, so that the fetch goes on."""
    index, peer = draw.below(_N_CHUNKS), draw.choose(PEERS[:3])
    leaf = leaf_hash(b"%d" % index) if draw.below(8) != 7 else bytes(32)
    return blob_events.ChunkArrived(peer, index, leaf, 1, _TREE.proof(index))


def _swim() -> SwimCore:
    return SwimCore(SimNotary(SELF, toy_verify, NETWORK), 1, _rng())


def _state() -> SharedState:
    return SharedState(
        SELF, NETWORK, epoch=1, wall_unix_s=UNIX_S, now=START_S, rng=_rng(), verify=toy_verify
    )


def _dht() -> DhtCore:
    config = DhtConfig(_DHT_RULES, boot_epoch=1, unix_offset_s=UNIX_S - START_S)
    return DhtCore(SELF, config, _rng(), START_S)


def _relay() -> RelayCore:
    quota = Quota(
        reservations_max=2, reservations_per_host_max=1, circuits_max=2, circuits_per_peer_max=1,
        bytes_per_s=1000.0, peer_bytes_per_s=100.0, bytes_per_day=1e4, peer_bytes_per_day=1e3,
    )  # fmt: skip
    return RelayCore(b"s" * 32, quota, Line())


def _pairs() -> ExchangeCore:
    return ExchangeCore(SELF.peer_id, KEY, _rng(), Patience(ConductTable()))


def _lan() -> lan.LanCore:
    return lan.LanCore(
        identity=SELF,  # type: ignore[arg-type]
        network_id=NETWORK, boot=1, rng=_rng(), now=START_S,
    )  # fmt: skip


def _survey() -> survey.NatSurvey:
    servers = [stun.Endpoint(host, 3478) for host in ("1.1.1.1", "2.2.2.2", "3.3.3.3")]
    local = (stun.Endpoint("10.0.0.1", 1000), stun.Endpoint("10.0.0.1", 1001))
    return survey.NatSurvey(
        servers, local=local, token=_rng().randbytes, can_probe=True, now=START_S
    )


_HOSTS = (
    *("11.1.1.1", "12.1.1.1", "13.1.1.1", "10.0.0.1", "x"),
    *("2600::1", "2601::1", "::ffff:11.1.1.1"),
)
_P = "swarmnode.protocol"
SUBJECTS = (
    Subject(
        "swim", _swim, get_args(swim_events.Event), (swim_events.Received,),
        (f"{_P}.membership.swim:SwimCore",), {Claim: _a_claim},
    ),
    Subject(
        "crdt", _state, get_args(state_events.Event), (),
        (f"{_P}.crdt.replica:SharedState", f"{_P}.crdt.courier:Courier"),
        {Signed: _a_state_record},
    ),
    Subject(
        "dht", _dht, get_args(dht_events.Event), (dht_events.Received,),
        (f"{_P}.dht.core:DhtCore",),
        {Signed: _a_dht_record, dht_wire.Record: _a_dht_draft},
    ),
    Subject(
        "relay", _relay, get_args(relay_events.Event), (), (f"{_P}.relay.core:RelayCore",),
    ),
    Subject(
        "pairs", _pairs, get_args(pair_events.Event), (pair_events.Received,),
        (f"{_P}.gossip.exchange:ExchangeCore",),
    ),
    Subject(
        "group", lambda: GroupCore(SELF.peer_id), get_args(group_events.Event),
        (group_events.Received,),
        (f"{_P}.gossip.group:GroupCore", f"{_P}.gossip.group_run:Run"),
    ),
    Subject(
        "gather", lambda: GatherCore(SELF.peer_id, _TERMS), get_args(gather_events.Event), (),
        (f"{_P}.gossip.gather:GatherCore",),
        {Announced: _an_announced, Signed: _an_announcement},
    ),
    Subject(
        "fetch", lambda: FetchCore(BlobManifest(_N_CHUNKS, 1, _TREE.root), _rng()),
        get_args(blob_events.Event), (), (f"{_P}.blobs.fetch:FetchCore",),
        {blob_events.ChunkArrived: _a_chunk},
    ),
    Subject(
        "lan", _lan, get_args(lan.Event), (), (f"{_P}.lan:LanCore",), {lan.Heard: _a_beacon},
    ),
    Subject(
        "shards", lambda: ShardCore(SELF.peer_id, 7, 4), get_args(shard_events.Event), (),
        (f"{_P}.shards.core:ShardCore",),
    ),
    Subject(
        "contacts", lambda: contacts.ContactBook(SELF.peer_id, _rng()),
        get_args(contacts.Event), (), (f"{_P}.membership.contacts:ContactBook",),
    ),
    Subject(
        "reach", reach.ReachCore, get_args(reach.Event), (), (f"{_P}.nat.reach:ReachCore",),
        {str: lambda draw: draw.choose(_HOSTS)},
    ),
    Subject(
        "survey", _survey, (survey.Received,), (), (f"{_P}.nat.survey:NatSurvey",),
        {survey.Received: _a_datagram},
    ),
    Subject(
        "session", SessionUnderTest, (Bytes, Local), (Bytes,),
        (f"{_P}.session.core:SessionCore",), {Bytes: some_frames}, check_session,
    ),
)  # fmt: skip

TARGETS = tuple(
    Target(each.name, each.run, each.covers, story=each.story, seeds=(bytes(range(64)),))
    for each in SUBJECTS
)
