"""Golden bytes of wire records: an example of each, and its bytes for ever.

``messages.json`` maps the name of an example to the hex of its encoding. Vectors
are only ever added: when a record gains a field, its old example keeps its bytes
(they must still be read) and moves to PAST, and a new example joins EXAMPLES.

To add a record: one line in EXAMPLES, then ``python -m tests.golden.messages --add``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from swarmnode.wire import (
    admission,
    blobs,
    crdt,
    dht,
    environment,
    meeting,
    membership,
    metrics,
    recipe,
    schema,
    session,
    swarm,
    swim,
)
from swarmnode.wire.connect import beacon, nat, punch, reach, relay, signal
from swarmnode.wire.exchange import finalize, gather, gossip, group, log, pull
from swarmnode.wire.packing import encode_record

VECTORS = Path(__file__).with_name("messages.json")

_XID = bytes(range(16))
_KEY = bytes(range(32))
_SIGNED = swarm.Signed(body=b"\x80", public_key=_KEY, signature=bytes(64))
_DIAL = ("192.0.2.1:4001", "[2001:db8::1]:4001")

# What a frame holds, and the frame: other versions of the library write it in other bytes.
UNPACKED = crdt.Push(tuple(crdt.Carried(_SIGNED, age_s) for age_s in range(8)))
_FRAME = bytes.fromhex(
    "28b52ffd609f034d0400a40683a174a470757368a77265636f7264739882a683a4626f6479c40180"
    "aa7075626c69635f6b6579c420000102030405060708090a0b0c0d0e0f101112131415161718191a"
    "1b1c1d1e1fa97369676e6174757265c44000a56167655f730001020304050607a46d6f7265c20900"
    "0d40490350d700146b004a1a80ba0650ac4131d40ec4c9b343b103"
)

_CANDIDATES = (
    nat.RtcCandidate("host", bytes([192, 0, 2, 1]), 50_123),
    nat.RtcCandidate("srflx", bytes([203, 0, 113, 9]), 1024),
    nat.RtcCandidate("host", bytes.fromhex("20010db8000000000000000000000001"), 65_535),
)

_CLAIM = swim.Claim(_KEY, epoch=7, incarnation=2, signature=bytes(64))
_SUSPECT = swim.Claim(_KEY, 7, 2, bytes(64), doubt="suspect", by=(_KEY, bytes(32)))
_CHAIN = admission.MemberChain(_SIGNED, _SIGNED)
_BLOB = blobs.BlobManifest(size_bytes=200_000_000, chunk_bytes=2**20, root=_KEY)

# "family/example" to a record that is encoded to exactly the recorded bytes.
EXAMPLES: dict[str, msgspec.Struct] = {
    "admission/invite": admission.InviteCertificate(
        _KEY, _KEY, "trainer", 5, 1_800_000_000, 1_800_604_800, 30
    ),
    "admission/member": admission.MemberCertificate(
        _KEY, _KEY, "keeper", 1_800_000_000, 1_800_000_060, 1_802_592_060
    ),
    "admission/chain": _CHAIN,
    "admission/chain-of-the-creator": admission.MemberChain(_SIGNED),
    "admission/revocations": admission.Revocations(_KEY, 1_800_000_000, (_KEY[:10],)),
    "admission/credentials": admission.Credentials(_CHAIN, _SIGNED, (_CHAIN,)),
    "admission/credentials-none": admission.Credentials(None),
    "beacon/silent-on-swarms": beacon.Beacon(_KEY, 1_800_000_000_000, 1, 7337, ()),
    "beacon/two-swarms": beacon.Beacon(
        network_id=_KEY,
        boot=1_800_000_000_000,
        sequence=41,
        port=7337,
        swarms=(
            beacon.LanSwarm("tiny-lm", _KEY, 12, 1_700_000_000),
            beacon.LanSwarm("digits", bytes(32), 1, 0),
        ),
    ),
    "crdt/summary": crdt.Summary((crdt.Range("", 3, _KEY),), 1_800_000_000_000),
    "crdt/listing": crdt.Listing("a7", (crdt.Head(_KEY, 7, 41, _KEY),)),
    "crdt/listing-empty": crdt.Listing("", ()),
    "crdt/want": crdt.Want((crdt.Head(_KEY, 7, 0, bytes(32)),)),
    "crdt/push": crdt.Push((crdt.Carried(_SIGNED, 3),)),
    "crdt/push-more": crdt.Push((crdt.Carried(_SIGNED, 3), crdt.Carried(_SIGNED, 0)), more=True),
    "crdt/proofs": crdt.Proofs((crdt.Proof(_SIGNED, _SIGNED),)),
    "crdt/zstd": crdt.Compressed(_FRAME),
    "crdt-record/sign-of-life": crdt.StateRecord(_KEY, 7, 41, _KEY, 1_800_000_000_000),
    "crdt-record/checkpoint": crdt.StateRecord(
        swarm_id=_KEY,
        epoch=7,
        sequence=42,
        previous=_KEY,
        clock_ms=1_800_000_000_000,
        clock_tick=3,
        checkpoint=True,
        leases=(crdt.Lease("address", "tcp://192.0.2.1:4001", 300),),
        counters={"steps": 4100, "tokens": 268_697_600},
        registers={"loss": 2.5, "state": "training"},
        maxima={"step": 4100},
        snapshots=(crdt.SnapshotClaim(_KEY, 4000, 1_444_000, 300, 2.5),),
    ),
    "crdt-record/verdicts": crdt.StateRecord(
        swarm_id=_KEY,
        epoch=7,
        sequence=43,
        previous=_KEY,
        clock_ms=1_800_000_000_000,
        verdicts=(crdt.PeerVerdict(_KEY, 2), crdt.PeerVerdict(bytes(32), 5)),
    ),
    "dht/ping": dht.Ping(1, _DIAL),
    "dht/pong": dht.Pong(1),
    "dht/find": dht.Find(2, (), _KEY),
    "dht/find-records": dht.Find(3, _DIAL, _KEY, wants_records=True),
    "dht/found": dht.Found(2, (dht.Contact(_KEY, _DIAL),)),
    "dht/found-records": dht.Found(3, (), (_SIGNED,)),
    "dht/put": dht.Put(4, _DIAL, _KEY, _SIGNED),
    "dht/stored": dht.Stored(4, "held"),
    "dht-record/peer": dht.PeerRecord(2**32 + 1, 1_800_000_000, 7200, _DIAL),
    "dht-record/swarm": dht.SwarmRecord(
        2**32 + 2, 1_800_000_000, 7200, (), _KEY, "tiny-lm", 12, 1_700_000_000
    ),
    "dht-record/provider": dht.ProviderRecord(2**32 + 3, 1_800_000_000, 86_400, _DIAL, _KEY),
    "gossip/offer": gossip.Offer(_XID, _KEY, "model", 3, 41, 17, 4100, 268_697_600),
    "gossip/offer-of-a-difference": gossip.Offer(
        _XID, _KEY, "outer", 3, 41, 17, 4100, 268_697_600, 65_600.0, _KEY
    ),
    "gossip/accept": gossip.Accept(_XID, 40, 4000, 2**40),
    "gossip/busy": gossip.Busy(_XID, "incompatible: here it is 9 chunks"),
    "gossip/chunk-first": gossip.Chunk(_XID, 0),
    "gossip/chunk-last": gossip.Chunk(_XID, 65_535),
    "gossip/ready": gossip.Ready(_XID, 17),
    "gossip/ready-for-a-decision": gossip.Ready(_XID, 17, 1.5),
    "gossip/commit": gossip.Commit(_XID),
    "gossip/abort": gossip.Abort(_XID, "local: not finite"),
    "gossip/status-query": gossip.StatusQuery(_XID),
    "gossip/status-query-numbered": gossip.StatusQuery(_XID, 3, 1.5),
    "gossip/status-reply-committed": gossip.StatusReply(_XID, "committed"),
    "gossip/status-reply-aborted": gossip.StatusReply(_XID, "aborted"),
    "gossip/status-reply-pending": gossip.StatusReply(_XID, "pending"),
    "gossip/status-reply-numbered": gossip.StatusReply(_XID, "pending", 3),
    "gossip/status-reply-unknown": gossip.StatusReply(_XID, "unknown"),
    "metrics/request": metrics.MetricsRequest(),
    "metrics/snapshot-empty": metrics.MetricsSnapshot(()),
    "metrics/snapshot": metrics.MetricsSnapshot(
        (
            metrics.MetricFamily("loss", (metrics.MetricSample((), 0.5),)),
            metrics.MetricFamily("sent_bytes_total", (metrics.MetricSample(("tensor",), 1e12),)),
        ),
        (metrics.MetricHistogram("exchange_duration_seconds", (1, 0, 3), 2.25),),
    ),
    "nat/rtc-offer": nat.RtcOffer("Xz1+", "p" * 22, _KEY, _CANDIDATES[:2]),
    "nat/rtc-answer": nat.RtcAnswer("ab/9", "q" * 22, _KEY, _CANDIDATES, offer=bytes(32)),
    "nat/probe-request": nat.ProbeRequest(50_123, _XID[:12]),
    "reach/dial-back": reach.DialBack(4001),
    "reach/dialled-back": reach.DialledBack("192.0.2.1:4001", False, "nobody listens there"),
    "reach/seen-at": reach.SeenAt("192.0.2.1:50123"),
    "reach/where-am-i": reach.WhereAmI(),
    "relay/accepted": relay.Accepted(),
    "relay/connect": relay.Connect(_KEY),
    "relay/granted": relay.Granted(_XID, 1_250_000),
    "relay/incoming": relay.Incoming(_XID, _KEY),
    "relay/granted-as-tls": relay.Granted(_XID, 1_250_000, as_tls=True),
    "relay/incoming-as-tls": relay.Incoming(_XID, _KEY, as_tls=True),
    "relay/place-lost": relay.PlaceLost("64 reservations from your address"),
    "relay/refusal": relay.Refusal("quota", "your share of bytes is used up", 3600),
    "relay/release": relay.Release(),
    "relay/reserve": relay.Reserve(),
    "relay/reserved": relay.Reserved(3600),
    "relay/reserved-busy": relay.Reserved(3600, load=75, circuits=4),
    "signal/carry": signal.Carry(_KEY, _SIGNED),
    "signal/deliver": signal.Deliver("192.0.2.1:50123", _SIGNED),
    "signal/taken": signal.Taken("192.0.2.2:50123"),
    "signal-body/punch": signal.Signal(_KEY, "punch-offer", 1_800_000_000_000, _XID, b"\x80"),
    "punch/offer": punch.PunchOffer(_XID, (punch.PunchAddress(bytes(range(4)), 7337),)),
    "punch/answer": punch.PunchAnswer(
        _KEY, (punch.PunchAddress(bytes(range(4)), 40_000), punch.PunchAddress(_XID, 7337))
    ),
    "punch/go": punch.PunchGo(_KEY, 120),
    "session/hello": session.Hello(1, 1, _KEY, "swarmnode/0.1.0", _KEY, b"i" * 16, False),
    "membership/swarm-hello": membership.SwarmHello("trainer", admission.Credentials(None)),
    "membership/swarm-hello-worked": membership.SwarmHello(
        "trainer", admission.Credentials(None), work=bytes(range(8))
    ),
    "gather/have": gather.Have(_XID, (_KEY, bytes(32))),
    "gather/have-own": gather.Have(_XID, (_KEY,), _SIGNED),
    "gather/fetch": gather.Fetch(_XID, _KEY),
    "gather/given": gather.GatherGiven(86),
    "gather/not-given": gather.NotGiven(is_busy=True),
    "gather-set/announcement": gather.Announcement(_XID, _KEY, 86),
    "gather-set/share": gather.GatherShare(_SIGNED),
    "gather-set/set": gather.GatherSet(_XID, (_SIGNED,)),
    "group/enlist": group.Enlist(_XID, True),
    "group/enlist-of-a-lineage": group.Enlist(_XID, True, 1234, 2),
    "group/flush": group.Flush(_XID, (_KEY, bytes(32)), ()),
    "group/flush-prepared": group.Flush(_XID, (_KEY,), (_KEY, bytes(32)), True),
    "group/want": group.Want(_XID, _XID, (0, 3), (15,)),
    "group/share": group.Share(_XID, 3, 6400.0),
    "group/share-of-plan": group.Share(_XID, 63, 6400.0, _XID),
    "group/sum": group.Sum(_XID, _XID, 3),
    "group/prepared": group.Prepared(_XID, _XID, _KEY),
    "group/prepared-as-witness": group.Prepared(_XID, _XID, _KEY, (_KEY, bytes(32))),
    "group/finished": group.Finished(_XID, _XID, _KEY),
    "group/leave": group.Leave(_XID, "local: not finite"),
    "log/entry": log.LogEntry(_KEY, 7, b"\x85"),
    "log/round": log.LogRound(8, _KEY, (bytes(32), _KEY), (log.LogEntry(_KEY, 7, b"\x85"),)),
    "log/share": log.LogShare(b"\x85", 7),
    "log/share-of-nothing-but-bound": log.LogShare(None, 0, 2, b"\x84"),
    "log/ask": log.LogAsk(8, 512),
    "log/give": log.LogGive(9, 0, _KEY, bytes(32), (b"\x84",)),
    "pull/pull": pull.Pull(_KEY, "catch-up", 0, 7, 1000, 5, 6400, 6400.0, _XID),
    "pull/given": pull.Given(6, 7000, 1.0, _XID),
    "pull/declined": pull.Declined("no-wish: nothing to give of catch-up 0"),
    "finalize/prepare": finalize.Prepare(_XID, "variance-corrected"),
    "finalize/merge": finalize.Merge(
        _XID, 0, (finalize.Participant(_KEY, 1.0), finalize.Participant(_KEY[::-1], 4096.0))
    ),
    "finalize/done": finalize.Done(_XID),
    "finalize-answer/prepared": finalize.Prepared(numel=640, step=41, tokens=4096),
    "finalize-answer/merged": finalize.Merged(_KEY, contributors=2, loss=1.5, own_loss=1.75),
    "swim/ping": swim.Ping(41, (_CLAIM, _SUSPECT)),
    "swim/ack": swim.Ack(41, (swim.Claim(_KEY, 7, 2, bytes(64), left="battery low"),)),
    "swim/ping-request": swim.PingRequest(42, _KEY, ()),
    "swim/nack": swim.Nack(42),
    "swim/sync": swim.Sync(True, (_CLAIM, swim.Claim(_KEY, 7, 2, bytes(64), doubt="dead"))),
    "swim/sync-digest": swim.Sync(True, (_CLAIM,), bytes(16)),
    "blobs/holding-query": blobs.HoldingQuery(_KEY),
    "blobs/holding": blobs.Holding(_KEY, _BLOB, b"\xff\x03"),
    "blobs/holding-nothing": blobs.Holding(_KEY, None),
    "blobs/chunk-request": blobs.ChunkRequest(_KEY, 190),
    "blobs/chunk": blobs.ChunkHeader(_KEY, 190, (_KEY, bytes(32))),
    "blobs/refusal": blobs.ChunkRefusal(_KEY, 190, "busy"),
    "swarm/signed": _SIGNED,
    "swarm/manifest": swarm.Manifest(
        name="tiny-lm",
        swarm_key=_KEY,
        task="bytes-lm",
        task_version=1,
        task_config={"layers": 2, "width": 64, "text": {"source": "built-in"}},
        numel=123_456,
        layout_hash=_KEY,
        data_hash=b"",
        strategy="pair-average",
        strategy_settings={"every_steps": 20},
        codec="Q8B64",
        seed=1,
        admission="open",
        min_version="0.1.0",
        created_at=1_700_000_000,
        expires_at=0,
    ),
    "swarm/manifest-packaged": swarm.Manifest(
        name="circles",
        swarm_key=_KEY,
        task="circle",
        task_version=2,
        task_config={"hidden": 64},
        numel=4_417,
        layout_hash=_KEY,
        data_hash=_KEY,
        strategy="streaming",
        strategy_settings={"every": 32},
        codec="E3M0",
        seed=7,
        admission="closed",
        min_version="0.1.0",
        created_at=1_700_000_000,
        expires_at=1_800_000_000,
        strategy_version=2,
        topology="ring",
        task_package="swarmnode-circle",
        task_package_version="1.2.0",
        own_data=True,
    ),
    "swarm/manifest-with-recipe": swarm.Manifest(
        name="thousand",
        swarm_key=_KEY,
        task="bytes-lm",
        task_version=1,
        task_config={"layers": 2},
        numel=123_456,
        layout_hash=_KEY,
        data_hash=_KEY,
        strategy="streaming",
        strategy_settings={"every": 16},
        codec="E3M0",
        seed=3,
        admission="open",
        min_version="0.1.0",
        created_at=1_700_000_000,
        expires_at=0,
        recipe=recipe.Recipe(
            schedule="cosine",
            warmup_tokens=102_400,
            decay_share=0.2,
            lr_final=0.05,
            members_exponent=0.86,
            members_max=8,
            clip_norm=1.0,
            batches_per_step=2,
            weight_decay=0.1,
            ema_share=0.05,
            target_tokens=300_000_000,
        ),
    ),
    "swarm/manifest-with-probe": swarm.Manifest(
        name="thousand",
        swarm_key=_KEY,
        task="bytes-lm",
        task_version=1,
        task_config={},
        numel=123_456,
        layout_hash=_KEY,
        data_hash=_KEY,
        strategy="pair-average",
        strategy_settings={"every": 16},
        codec="Q8B64",
        seed=3,
        admission="open",
        min_version="0.1.0",
        created_at=1_700_000_000,
        expires_at=0,
        probe_hash=bytes(range(32)),
    ),
    "recipe/extension": recipe.Extension(target_tokens=400_000_000, resumed_tokens=300_000_000),
    "swarm/manifest-with-grant": swarm.Manifest(
        name="tiny-lm",
        swarm_key=_KEY,
        task="bytes-lm",
        task_version=1,
        task_config={},
        numel=123_456,
        layout_hash=_KEY,
        data_hash=b"",
        strategy="streaming",
        strategy_settings={},
        codec="Q8B64",
        seed=1,
        admission="open",
        min_version="0.1.0",
        created_at=1_700_000_000,
        expires_at=0,
        grant=_KEY * 3,
    ),
    "meeting/item": meeting.MeetingItem(
        "tiny-lm", _KEY, _KEY * 3, 1_700_000_060, 12, 1_700_000_000, (_KEY,), ("192.0.2.1:7337",)
    ),
    "meeting/item-of-none": meeting.MeetingItem("tiny-lm", _KEY, _KEY * 3, 0, 0, 0),
    "swarm/manifest-with-environment": swarm.Manifest(
        name="circles",
        swarm_key=_KEY,
        task="circle",
        task_version=1,
        task_config={},
        numel=4_417,
        layout_hash=_KEY,
        data_hash=_KEY,
        strategy="streaming",
        strategy_settings={},
        codec="E3M0",
        seed=7,
        admission="open",
        min_version="0.1.0",
        created_at=1_700_000_000,
        expires_at=0,
        task_package="swarmnode-circle",
        task_package_version="1.2.0",
        environment=environment.Environment(
            packages=(
                environment.PinnedPackage("swarmnode-circle", "1.2.0", (_KEY,)),
                environment.PinnedPackage("geometry", "3", (_KEY, bytes(32))),
            ),
            extras=("fast",),
            index="lab",
            data=environment.DataReference("url", "https://192.0.2.1/a.csv", "", _KEY, 1_000),
            memory_bytes=400_000_000,
            disk_bytes=20_000_000,
        ),
    ),
    "swarm/manifest-request": swarm.ManifestRequest(_KEY),
    "swarm/manifest-reply": swarm.ManifestReply(_SIGNED),
}

# Examples of former shapes: encoding them gives other bytes now, reading theirs gives them.
PAST: dict[str, msgspec.Struct] = {}


def load_vectors() -> dict[str, bytes]:
    """Return the recorded bytes by the name of their example."""
    recorded = json.loads(VECTORS.read_text(encoding="utf-8")) if VECTORS.exists() else {}
    return {name: bytes.fromhex(text) for name, text in recorded.items()}


def decoder_of(name: str) -> Any:
    """Return what the other side passes to ``decode_record`` for this example."""
    family = name.partition("/")[0]
    known = EXAMPLES.get(name) or PAST[name]
    return schema.FAMILIES[family] if schema.is_tagged(family) else type(known)


def add_missing() -> list[str]:
    """Record what has no vector yet; return the names. What is recorded stays as it is."""
    vectors = load_vectors()
    added = [name for name in EXAMPLES if name not in vectors]
    vectors |= {name: encode_record(EXAMPLES[name]) for name in added}
    text = json.dumps({name: data.hex() for name, data in vectors.items()}, indent=1)
    VECTORS.write_text(text + "\n", encoding="utf-8")
    return added


if __name__ == "__main__":
    if sys.argv[1:] != ["--add"]:
        sys.exit("usage: python -m tests.golden.messages --add")
    sys.stdout.write("".join(f"{name}\n" for name in add_missing()))
