"""The messages that take a session to another channel; see ``protocol/session/resume.py``."""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, DeadlineExceeded, Refused
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.session import Session
from swarmnode.protocol.session.resume import (
    ASK_BYTES,
    CLAIM_BYTES,
    NONCE_BYTES,
    parse_ask,
)

Find = Callable[[bytes], Session | None]


async def resume_over(channel: Channel, session: Session, nonce: bytes) -> None:
    """Ask the peer to go on with ``session`` over ``channel``, and do so.

    The session leaves its old channel only when the peer knows it. ``nonce``: NONCE_BYTES that
    were never used.

    Raises:
        Refused: the peer does not know the session (any more).
        AuthenticationFailed, RemoteProtocolError: the other side is not the peer.
        ChannelBroken, DeadlineExceeded: nobody answers as it should.
    """
    keys, role = session.resume_keys, session.role
    with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
        await channel.send_all(memoryview(keys.ask(nonce)))
        try:
            nonces = nonce + await _receive(channel, NONCE_BYTES)
        except ChannelBroken as error:
            raise Refused(f"{session.peer.short} does not know the session any more") from error
        claim = keys.claim(role, nonces, session.suspend())
        try:
            await channel.send_all(memoryview(claim))
            theirs = await _receive(channel, CLAIM_BYTES)
            session.attach(channel, keys.check_claim(role.other, nonces, theirs))
        finally:
            session.let_go()
        return
    raise DeadlineExceeded(
        f"{channel.description}: taking the session over", limits.RESUME_HANDSHAKE_S
    )


async def serve_resume(
    channel: Channel, first_bytes: bytes, find: Find, own_nonce: bytes
) -> Session | None:
    """Answer :func:`resume_over`, of whose first message ``first_bytes`` have been read.

    Returns:
        The session, which goes on over ``channel``; None if there is none of this name.

    Raises:
        AuthenticationFailed, RemoteProtocolError: the other side is not the peer.
        ChannelBroken, DeadlineExceeded: it went away, or is too slow.
    """
    with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
        ask = first_bytes + await _receive(channel, ASK_BYTES - len(first_bytes))
        name, nonce = parse_ask(ask)
        session = find(name)
        if session is None:
            return None
        keys, role = session.resume_keys, session.role
        nonces = nonce + own_nonce
        await channel.send_all(memoryview(own_nonce))
        claim = await _receive(channel, CLAIM_BYTES)
        peer_has_bytes = keys.check_claim(role.other, nonces, claim)
        claim = keys.claim(role, nonces, session.suspend())
        try:
            await channel.send_all(memoryview(claim))
            session.attach(channel, peer_has_bytes)
        finally:
            session.let_go()
        return session
    raise DeadlineExceeded(
        f"{channel.description}: being asked for a session", limits.RESUME_HANDSHAKE_S
    )


async def _receive(channel: Channel, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    await receive_exactly(channel, memoryview(data))
    return bytes(data)
