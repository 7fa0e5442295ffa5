"""The messages that take a session to another channel; see ``protocol/session/opening.py``."""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, DeadlineExceeded, Overloaded, Refused
from swarmnode.net.channel import Channel, receive_exactly
from swarmnode.net.session import Session
from swarmnode.protocol.session.opening import (
    ASK_BYTES,
    BUSY_NONCE,
    CLAIM_BYTES,
    NONCE_BYTES,
    UNKNOWN_NONCE,
    parse_ask,
)

Find = Callable[[bytes, bool], Session | None]


async def resume_over(channel: Channel, session: Session, nonce: bytes) -> None:
    """Ask the peer to go on with ``session`` over ``channel``, and do so.

    The session leaves its old channel only when the peer knows it. One asking at a time: what the
    peer is told of one would not be true any more after another. ``nonce``: NONCE_BYTES that were
    never used.

    Raises:
        Refused: the peer does not know the session (any more).
        Overloaded: the peer itself is asking just now.
        AuthenticationFailed, RemoteProtocolError: the other side is not the peer.
        ChannelBroken, DeadlineExceeded: no peer answers as it should.
    """
    keys, role, resumed_before = session.resume_keys, session.role, session.resumed
    with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
        await channel.send_all(memoryview(keys.ask(nonce)))
        nonces = nonce + await _receive_nonce(channel, session)
        _check_is_current(session, resumed_before)
        claim = keys.claim(role, nonces, session.suspend())
        try:
            await channel.send_all(memoryview(claim))
            theirs = await _receive(channel, CLAIM_BYTES)
            received_bytes = keys.check_claim(role.other, nonces, theirs)
            session.attach(channel, received_bytes, resumed_before)
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

    Args:
        find: returns the session of a name. It raises Overloaded while we ask for this session
            ourselves, if that is what counts. It is called again when the asker has proven to be
            the peer (its second argument), for we may have begun to meanwhile.
        own_nonce: NONCE_BYTES that were never used.

    Returns:
        The session, which goes on over ``channel``; None if there is none of this name.

    Raises:
        Overloaded: as ``find`` says.
        AuthenticationFailed, RemoteProtocolError: the other side is not the peer.
        ChannelBroken, DeadlineExceeded: it went away, or is too slow.
    """
    with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
        name, nonce = parse_ask(first_bytes + await _receive(channel, ASK_BYTES - len(first_bytes)))
        try:
            session = find(name, False)
        except Overloaded:
            await channel.send_all(memoryview(BUSY_NONCE))
            raise
        if session is None:
            await channel.send_all(memoryview(UNKNOWN_NONCE))
            return None
        keys, role, resumed_before = session.resume_keys, session.role, session.resumed
        nonces = nonce + own_nonce
        await channel.send_all(memoryview(own_nonce))
        theirs = await _receive(channel, CLAIM_BYTES)
        received_bytes = keys.check_claim(role.other, nonces, theirs)
        find(name, True)
        _check_is_current(session, resumed_before)
        claim = keys.claim(role, nonces, session.suspend())
        try:
            await channel.send_all(memoryview(claim))
            session.attach(channel, received_bytes, resumed_before)
        finally:
            session.let_go()
        return session
    raise DeadlineExceeded(
        f"{channel.description}: being asked for a session", limits.RESUME_HANDSHAKE_S
    )


def _check_is_current(session: Session, resumed_before: int) -> None:
    """Raise ChannelBroken if the session has found another channel while two agreed on this one."""
    if session.resumed != resumed_before:
        raise ChannelBroken("the session has gone on over another channel meanwhile")


async def _receive_nonce(channel: Channel, session: Session) -> bytes:
    nonce = await _receive(channel, NONCE_BYTES)
    if nonce == UNKNOWN_NONCE:
        raise Refused(f"{session.peer.short} does not know the session any more")
    if nonce == BUSY_NONCE:
        raise Overloaded(f"{session.peer.short} is asking for the session itself")
    return nonce


async def _receive(channel: Channel, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    await receive_exactly(channel, memoryview(data))
    return bytes(data)
