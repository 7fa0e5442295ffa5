"""Every decoder of the wire, and what else reads bytes or words of others: targets of the fuzzer.

Each is asked for more than that it reads or refuses: what it reads is written again and read again,
wherever there is a writer.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from swarmnode.errors import ConfigError, Refused, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.ipc import control
from swarmnode.protocol import extension, invites, meeting
from swarmnode.protocol.crdt import records as state_records
from swarmnode.protocol.crdt.cells import Cells
from swarmnode.protocol.crdt.document import (
    Counters,
    LeaseSet,
    Maxima,
    Registers,
    SnapshotIndex,
    Verdicts,
)
from swarmnode.protocol.dht.records import RecordRules
from swarmnode.protocol.gossip import gather_set, log_book
from swarmnode.protocol.gossip.lineages import Lineage
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat import igd, pcp, rtc_flow, stun
from swarmnode.protocol.nat.http_answer import AnswerReader, HttpAnswer, parse_head
from swarmnode.protocol.nat.tree import parse_xml
from swarmnode.protocol.session import opening
from swarmnode.protocol.shards import words
from swarmnode.protocol.swarm import Hint, open_manifest, parse_link
from swarmnode.wire import compression, frames, schema, session
from swarmnode.wire.admission import Revocations
from swarmnode.wire.connect import disguise, relay
from swarmnode.wire.exchange.gather import Announcement
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.recipe import Extension
from swarmnode.wire.swarm import Signed
from tests.fuzz.engine import Target, Words
from tests.golden.messages import EXAMPLES

NOW_UNIX_S = 1_800_000_000.0
NONCE = bytes(range(12))
GATEWAY = "192.168.1.1"
IDENTITIES = [Identity.from_seed(bytes([n + 1]) * 32) for n in range(3)]
SWARM = IDENTITIES[0]
GID = bytes(16)
NOTHING: Words = frozenset()


def accept_all(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
    """Instead of a signature: no mutation would ever find one."""


# --- records of the wire ----------------------------------------------------------------------

RECORDS = [record for family in schema.FAMILIES for record in schema.records_of(family)]


def _read_record(data: bytes) -> Words:
    """The first byte says which record the rest is to be."""
    family = list(schema.FAMILIES)[data[0] % len(schema.FAMILIES)] if data else "swim"
    members = schema.FAMILIES[family]
    # A tagged union is read as one, all others each by itself.
    kind: Any = members
    if isinstance(members, tuple):
        kind = members[(data[0] // len(schema.FAMILIES)) % len(members)] if data else members[0]
    found = decode_record(data[1:], kind)
    again = decode_record(encode_record(found), kind)
    assert encode_record(again) == encode_record(found), "written again, it is another"
    return frozenset([type(found).__name__])


def _record_seeds() -> tuple[bytes, ...]:
    seeds = []
    for example in EXAMPLES.values():
        for at, family in enumerate(schema.FAMILIES):
            kinds = schema.records_of(family)
            if type(example) in kinds:
                which = 0 if schema.is_tagged(family) else kinds.index(type(example))
                first = at + which * len(schema.FAMILIES)
                if first < 256:
                    seeds.append(bytes([first]) + encode_record(example))
    return tuple(seeds)


def _read_state(data: bytes) -> Words:
    found = compression.decode_message(data)
    again = compression.decode_message(compression.encode_message(found))
    assert encode_record(again) == encode_record(found), "written again, it is another"
    return frozenset([type(found).__name__])


def _read_frames(data: bytes) -> Words:
    """All frames of a stream of bytes, cut at the first byte's length, and what is in them."""
    size = data[0] + 1 if data else 1
    parser = frames.FrameParser()
    read = set()
    for at in range(1, len(data), size):
        for kind, _, payload in parser.feed(memoryview(data)[at : at + size]):
            payload = bytes(payload)
            read.add(frames.FrameKind(kind).name)
            match kind:
                case frames.FrameKind.HELLO:
                    session.decode_hello(payload)
                case frames.FrameKind.OPEN:
                    session.decode_open(payload)
                case frames.FrameKind.CREDIT:
                    frames.decode_credit(payload)
                case frames.FrameKind.RESET | frames.FrameKind.GOODBYE:
                    assert session.decode_reason(payload)[1].isprintable()
                case frames.FrameKind.ACK:
                    frames.decode_ack(payload)
    return frozenset(read)


_FRAMES = (
    session.encode_hello(session.Hello(1, 2, bytes(32), "x"))
    + session.encode_open(1, "work", session.Priority.BULK, 5)
    + frames.encode_frame(frames.FrameKind.DATA, 1, b"data")
    + frames.encode_credit(1, 9)
    + frames.encode_ack(7)
    + session.encode_reset(1, session.ResetCode.REFUSED, "no")
    + session.encode_goodbye(next(iter(session.GoodbyeCode)), "bye")
)


def _read_leg(data: bytes) -> Words:
    try:
        token = relay.decode_leg(disguise.unwrap(data))
    except IndexError:
        raise AssertionError("expected MalformedMessage") from None
    assert disguise.unwrap(disguise.wrap(relay.encode_leg(token))) == relay.encode_leg(token)
    return NOTHING


# --- signed by a key of the swarm -------------------------------------------------------------


def _signed(data: bytes, domain_of: Callable[[Signed], Any]) -> Words:
    return frozenset([type(domain_of(Signed(data, SWARM.public_key, bytes(64)))).__name__])


def _read_state_record(data: bytes) -> Words:
    return _signed(data, lambda signed: state_records.open_record(signed, bytes(32)))


def _read_dht_record(data: bytes) -> Words:
    rules = RecordRules(bytes(32), accept_all)
    return _signed(data, lambda signed: rules.open(signed, bytes(SWARM.peer_id), NOW_UNIX_S))


def _read_gathering(data: bytes) -> Words:
    members = frozenset(each.peer_id for each in IDENTITIES)
    terms = gather_set.RunTerms(GID, members, 100, accept_all)
    return frozenset([str(len(terms.read_set(data)))])


def _gathering() -> bytes:
    members = frozenset(each.peer_id for each in IDENTITIES)
    terms = gather_set.RunTerms(GID, members, 100, accept_all)
    return terms.make_set(terms.announce(each, bytes(32)) for each in IDENTITIES)


def _read_manifest(data: bytes) -> Words:
    signed = Signed(data, SWARM.public_key, SWARM.sign("manifest/1", data))
    open_manifest(signed, swarm_key=SWARM.public_key, now_unix_s=NOW_UNIX_S)
    return NOTHING


def _read_revocations(data: bytes) -> Words:
    invites.open_revocations(
        decode_record(data, Signed), network=bytes(32), swarm_key=SWARM.public_key
    )
    return NOTHING


CELLS: tuple[type[Cells[Any, Any]], ...] = (
    *(Counters, Registers, LeaseSet),
    *(Maxima, SnapshotIndex, Verdicts),
)


def _read_cells(kind: type[Cells[Any, Any]], data: bytes) -> None:
    assert kind.decode(data).encode() == data, "written again, it is another"


def _read_log(data: bytes) -> Words:
    closed = log_book.read_round(data)
    assert closed.data == data
    log_book.read_chain(b"", closed.round.number, [data, data[:-1]])
    return frozenset([str(len(closed.members))])


# --- words ------------------------------------------------------------------------------------


def _text(read: Callable[[str], Any]) -> Callable[[bytes], Words]:
    return lambda data: frozenset([type(read(data.decode("utf-8", "replace"))).__name__])


def _read_link(text: str) -> str:
    link = parse_link(text)
    assert parse_link(str(link)) == link, "written again, it is another"
    return text


def _read_hint(text: str) -> str:
    hint = Hint.parse(text)
    assert Hint.parse(str(hint)) == hint, "written again, it is another"
    return text


def _read_lineage(text: str) -> None:
    lineage = Lineage.parse(text)
    assert lineage is None or Lineage.parse(lineage.said) is not None


def _read_shard(text: str) -> None:
    shard = words.read_element(text)
    if shard is not None:
        assert words.read_element(shard.element) == shard
    progress = words.read_progress("shards.0", text)
    if progress is not None:
        assert words.read_progress("shards.0", words.write_progress(*progress)) == progress


def _read_stun(data: bytes) -> Words:
    """As it came; if it is refused, with the length in its head made right as well.

    Two lengths have to fit each other before an attribute is looked at.
    """
    with contextlib.suppress(RemoteProtocolError):
        return frozenset([type(stun.decode_stun(data)).__name__])
    n_bytes = max(0, len(data) - 20) % 2**16
    fitting = data[:2] + n_bytes.to_bytes(2, "big") + data[4:]
    return frozenset([f"fitting {type(stun.decode_stun(fitting)).__name__}"])


def _plain(*reads: Callable[[bytes], Any]) -> Callable[[bytes], Words]:
    """The first byte says which of these reads the rest."""

    def run(data: bytes) -> Words:
        which = data[0] % len(reads) if data else 0
        return frozenset([f"{which} {type(reads[which](data[1:])).__name__}"])

    return run


def _encoded(which: int, *payloads: bytes) -> tuple[bytes, ...]:
    return tuple(bytes([which]) + payload for payload in payloads)


_AT = igd.RouterUrl(GATEWAY, 5000, "/root.xml")
_WAN = b"urn:schemas-upnp-org:service:WANIPConnection:1"
_LINK = f"swarm:a?k={'a' * 51}q&b=sn1{'a' * 52}@10.0.0.1:7337"
_DECLARED = (RemoteProtocolError, Refused)
_NAT = "swarmnode.protocol.nat"

TARGETS = (
    Target(
        "records", _read_record, ("swarmnode.wire.packing:decode_record",), _DECLARED,
        seeds=_record_seeds(),
        tree_at=1,
    ),
    Target(
        "state", _read_state, ("swarmnode.wire.compression:decode_message",), _DECLARED,
        seeds=tuple(
            compression.encode_message(example)  # type: ignore[arg-type]
            for example in EXAMPLES.values()
            if type(example).__module__ == "swarmnode.wire.crdt"
            and type(example) in schema.records_of("crdt")
        ),
        tree_at=0,
    ),
    Target(
        "frames", _read_frames,
        (
            "swarmnode.wire.frames:decode_credit", "swarmnode.wire.frames:decode_ack",
            "swarmnode.wire.session:decode_hello", "swarmnode.wire.session:decode_open",
            "swarmnode.wire.session:decode_reason",
        ),
        _DECLARED,
        seeds=(b"\xff" + _FRAMES, b"\0" + _FRAMES),
    ),
    Target(
        "leg", _read_leg, ("swarmnode.wire.connect.relay:decode_leg",), _DECLARED,
        seeds=(disguise.wrap(relay.encode_leg(bytes(relay.TOKEN_BYTES))),),
    ),
    Target(
        "state-record", _read_state_record,
        ("swarmnode.protocol.crdt.records:open_record",), _DECLARED,
        seeds=tuple(
            encode_record(each) for each in EXAMPLES.values()
            if type(each).__name__ == "StateRecord"
        ),
        tree_at=0,
    ),
    Target(
        "dht-record", _read_dht_record, (), _DECLARED,
        seeds=tuple(
            encode_record(each) for each in EXAMPLES.values()
            if type(each) in schema.records_of("dht-record")
        ),
        tree_at=0,
    ),
    Target(
        "gathering", _read_gathering, ("swarmnode.protocol.gossip.gather_set:read_set",), _DECLARED,
        seeds=(
            _gathering(),
            encode_record(Announcement(GID, bytes(32), 100)),
        ),
        tree_at=0,
    ),
    Target(
        "manifest", _read_manifest, ("swarmnode.protocol.swarm:open_manifest",),
        (*_DECLARED, ConfigError),
        seeds=tuple(
            encode_record(each) for each in EXAMPLES.values() if type(each).__name__ == "Manifest"
        ),
        tree_at=0,
    ),
    Target(
        "revocations", _read_revocations,
        ("swarmnode.protocol.invites:open_revocations",), _DECLARED,
        seeds=(
            encode_record(invites.sign_revocations(Revocations(bytes(32), 1, (bytes(16),)), SWARM)),
        ),
        tree_at=0,
    ),
    Target(
        "log", _read_log,
        (
            "swarmnode.protocol.gossip.log_book:read_round",
            "swarmnode.protocol.gossip.log_book:read_chain",
        ),
        _DECLARED,
        seeds=tuple(
            encode_record(each) for each in EXAMPLES.values() if type(each).__name__ == "LogRound"
        ),
        tree_at=0,
    ),
    Target(
        "cells",
        _plain(*(lambda data, kind=kind: _read_cells(kind, data) for kind in CELLS)),
        (), _DECLARED, tree_at=1,
        seeds=tuple(bytes([n]) + kind.new().encode() for n, kind in enumerate(CELLS)),
    ),
    Target(
        "worker",
        _plain(control.decode_to_worker, control.decode_from_worker),
        (), _DECLARED,
        seeds=(b"\0\x81\xa1t\xa4stop", b"\1\x81\xa1t\xa4stop"),
        tree_at=1,
    ),
    Target(
        "invite", _plain(lambda data: invites.Invite.decode(data, SWARM.public_key)),
        (), (ConfigError, RemoteProtocolError),
    ),
    Target(
        "meeting",
        _plain(
            lambda data: meeting.decode_item(data, NOW_UNIX_S),
            lambda data: meeting.open_grant(data, "a", SWARM.public_key),
            lambda data: meeting.read_txt(data.decode("utf-8", "replace").split("\n"), "", b""),
            lambda data: extension.open_extension(data.decode("latin-1"), SWARM.public_key),
            opening.parse_ask,
        ),
        (
            "swarmnode.protocol.meeting:decode_item", "swarmnode.protocol.meeting:open_grant",
            "swarmnode.protocol.meeting:read_txt",
            "swarmnode.protocol.extension:open_extension",
            "swarmnode.protocol.session.opening:parse_ask",
        ),
        _DECLARED,
        seeds=(
            *_encoded(0, *(encode_record(each) for each in EXAMPLES.values()
                           if type(each).__name__ == "MeetingItem")),
            *_encoded(1, meeting.make_grant("a", SWARM, IDENTITIES[1].public_key)),
            *_encoded(2, _LINK.encode() + b"\nsn1" + b"a" * 52 + b"@10.0.0.1:1"),
            *_encoded(3, *(
                extension.sign_extension(each, SWARM).encode()
                for each in EXAMPLES.values() if isinstance(each, Extension)
            )),
        ),
    ),
    Target(
        "entries",
        _text(lambda text: meeting.read_entries(text, "a" * 52, NOW_UNIX_S)),
        ("swarmnode.protocol.meeting:read_entries",), (*_DECLARED, ConfigError),
        seeds=(meeting.sign_entries([Hint(SWARM.peer_id, "1.2.3.4:5")], 2**32, SWARM).encode(),),
    ),
    Target(
        "link", _text(_read_link), ("swarmnode.protocol.swarm:parse_link",), (ConfigError,),
        seeds=(_LINK.encode(),), words=(b"&k=", b"&b=", b"&i=", b"%", b"@", b"[", b"&z=", b"&x="),
    ),
    Target("hint", _text(_read_hint), (), (ConfigError,),
           seeds=(b"sn1" + b"a" * 52 + b"@10.0.0.1:7337",)),
    Target("peer-id", _text(lambda text: str(PeerId.parse(text))), (), (ConfigError,),
           seeds=(str(SWARM.peer_id).encode(),)),
    Target(
        "words", lambda data: _text(_read_lineage)(data) | _text(_read_shard)(data),
        (
            "swarmnode.protocol.shards.words:read_element",
            "swarmnode.protocol.shards.words:read_progress",
        ),
        seeds=(b"5:00ab12,34cd56", b"3/17", b"4:ff"),
    ),
    Target(
        "credit", _text(rtc_flow.decode_credit), (f"{_NAT}.rtc_flow:decode_credit",), _DECLARED,
        seeds=(b"credit 5", b"end"),
    ),
    Target(
        "stun", _read_stun, (f"{_NAT}.stun:decode_stun",), _DECLARED,
        seeds=(
            stun.encode_question(stun.Question(bytes(12))),
            bytes.fromhex("0101000c2112a442") + bytes(12)
            + bytes.fromhex("002000080001a1472112a443"),
        ),
    ),
    Target(
        "router",
        _plain(
            lambda data: pcp.decode_pcp_map(data, NONCE, 7337),
            pcp.decode_natpmp_address,
            lambda data: pcp.decode_natpmp_map(data, 7337),
            lambda data: igd.decode_found(data, GATEWAY),
            parse_head,
            lambda data: AnswerReader().feed(data),
            parse_xml,
            lambda data: igd.parse_description(data, _AT),
            lambda data: igd.decode_external_address(
                igd.decode_action(HttpAnswer(200, {}, data), "GetExternalIPAddress")
            ),
            lambda data: igd.RouterUrl.parse(data.decode("latin-1"), GATEWAY),
        ),
        (
            f"{_NAT}.pcp:decode_pcp_map", f"{_NAT}.pcp:decode_natpmp_address",
            f"{_NAT}.pcp:decode_natpmp_map", f"{_NAT}.igd:decode_found",
            f"{_NAT}.http_answer:parse_head", f"{_NAT}.tree:parse_xml",
            f"{_NAT}.igd:parse_description", f"{_NAT}.igd:decode_action",
            f"{_NAT}.igd:decode_external_address",
        ),
        _DECLARED,
        seeds=(
            *_encoded(0, struct.pack("!BBBBII12x", 2, 0x81, 0, 0, 60, 77) + NONCE
                      + struct.pack("!B3xHH", 6, 7337, 80) + bytes(10) + b"\xff\xff"
                      + IPv4Address("11.1.1.1").packed),
            *_encoded(1, struct.pack("!BBHI4s", 0, 128, 0, 77, bytes(4))),
            *_encoded(2, struct.pack("!BBHIHHI", 0, 130, 0, 77, 7337, 80, 60)),
            *_encoded(3, b"HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:"
                      b"InternetGatewayDevice:1\r\nLOCATION: http://192.168.1.1:5000/r\r\n\r\n"),
            *_encoded(4, b"HTTP/1.1 200 OK\r\nServer: x"),
            *_encoded(5, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0"
                      b"\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"),
            *_encoded(6, b"<a><b>text</b></a>", b"<a>&amp;&#65;<![CDATA[x]]></a>"),
            *_encoded(7, b"<root><URLBase>http://192.168.1.1:5000/</URLBase><device><serviceList>"
                      b"<service><serviceType>" + _WAN + b"</serviceType><controlURL>/c"
                      b"</controlURL></service></serviceList></device></root>"),
            *_encoded(8, b"<e><b><GetExternalIPAddressResponse><NewExternalIPAddress>1.2.3.4"
                      b"</NewExternalIPAddress></GetExternalIPAddressResponse></b></e>",
                      b"<e><b><Fault><errorCode>718</errorCode></Fault></b></e>"),
            *_encoded(9, b"http://192.168.1.1:5000/a?b"),
        ),
        words=(b"\r\n", b"chunked", b"<!DOCTYPE", b"&lt;", b"]]>", b"HTTP/1.1", b"//", b":"),
    ),
)  # fmt: skip
