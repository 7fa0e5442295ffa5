"""From a bare channel to an authenticated pair of record streams: TLS, then HELLO."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from swarmnode import __version__, limits
from swarmnode.errors import DeadlineExceeded, MalformedMessage, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, note_stall
from swarmnode.net.records import RecordReader, RecordWriter
from swarmnode.net.tls import TlsResult, shake_hands
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.opening import (
    HelloRefused,
    ResumeKeys,
    check_hello,
    check_identity,
    error_from_goodbye,
)
from swarmnode.protocol.session.records import Opener, Role, Sealer
from swarmnode.wire.frames import FrameKind, FrameParser
from swarmnode.wire.session import (
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    Hello,
    decode_hello,
    decode_reason,
    encode_goodbye,
    encode_hello,
)


@dataclass(frozen=True, slots=True)
class Link:
    """A channel whose other side is known and agrees on version and network."""

    peer: PeerId
    version: int
    theirs: Hello
    reader: RecordReader
    writer: RecordWriter
    resume: ResumeKeys


async def establish(
    channel: Channel,
    *,
    identity: Identity,
    network_id: bytes,
    role: Role,
    expected: PeerId | None,
    instance: bytes = b"",
    is_probe: bool = False,
    first_bytes: bytes = b"",
) -> Link:
    """Authenticate both sides within HANDSHAKE_S; ``first_bytes`` have been read already.

    Raises:
        AuthenticationFailed: the peer is not ``expected``, or does not want us.
        VersionMismatch: another protocol version or another network.
        DeadlineExceeded: not done in time.
        RemoteProtocolError, TransportError: the other side is no node, or went away.
    """
    own = Hello(
        version_min=PROTOCOL_VERSION_MIN,
        version_max=PROTOCOL_VERSION_MAX,
        network=network_id,
        software=f"swarmnode {__version__}",
        expected=bytes(expected or b""),
        instance=instance,
        is_probe=is_probe,
    )
    with trio.move_on_after(limits.HANDSHAKE_S):
        tls = await shake_hands(channel, identity, role, first_bytes)
        return await _agree(channel, tls, own, identity.peer_id, role, expected)
    note_stall(channel)
    raise DeadlineExceeded(f"{channel.description}: TLS handshake and HELLO", limits.HANDSHAKE_S)


async def _agree(
    channel: Channel,
    tls: TlsResult,
    own: Hello,
    own_id: PeerId,
    role: Role,
    expected: PeerId | None,
) -> Link:
    reader = RecordReader(channel, Opener(tls.secret, tls.cipher, role.other))
    writer = RecordWriter(channel, Sealer(tls.secret, tls.cipher, role))
    try:
        check_identity(expected, tls.peer)
        await writer.send_frame(encode_hello(own))
        theirs = _read_hello(await reader.receive_frame(), tls.peer)
        version = check_hello(own, theirs, own_id=own_id, peer=tls.peer)
    except HelloRefused as refusal:
        await writer.send_frame(encode_goodbye(refusal.code, str(refusal)))
        with trio.move_on_after(limits.GOODBYE_LINGER_S):
            await reader.drain()
        raise refusal.error from None
    return Link(tls.peer, version, theirs, reader, writer, ResumeKeys.of(tls.secret))


def _read_hello(plaintext: bytes, peer: PeerId) -> Hello:
    """Read the first record: one HELLO. Raises what a GOODBYE in its place means."""
    frames = list(FrameParser().feed(memoryview(plaintext)))
    if len(frames) != 1:
        raise MalformedMessage(f"{peer.short}: expected one HELLO, got {len(frames)} frames")
    kind, _, payload = frames[0]
    if kind == FrameKind.GOODBYE:
        raise error_from_goodbye(*decode_reason(bytes(payload)), peer)
    if kind != FrameKind.HELLO:
        raise RemoteProtocolError(
            f"{peer.short}: expected HELLO, got {FrameKind(kind).name}", peer=str(peer)
        )
    return decode_hello(payload)
