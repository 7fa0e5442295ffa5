"""From a channel to an open session with the peer at its other end."""

from __future__ import annotations

import trio

from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully
from swarmnode.net.handlers import Handlers
from swarmnode.net.handshake import establish
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role


async def run_session(
    channel: Channel,
    *,
    identity: Identity,
    network_id: bytes,
    services: Services,
    role: Role,
    expected: PeerId | None = None,
    instance: bytes = b"",
    is_probe: bool = False,
    first_bytes: bytes = b"",
    task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Authenticate the peer on ``channel`` and run the session until it is over.

    ``nursery.start`` gives the open Session. The channel is closed in any case, and no task
    is left. The dialler is the CLIENT and should know which peer it ``expected``; with a
    simultaneous open the smaller peer id is the SERVER. ``instance`` and ``is_probe`` are
    what the HELLO says of us. ``first_bytes``: TLS_HEADER_BYTES that have been read already.

    Raises:
        AuthenticationFailed, VersionMismatch, DeadlineExceeded, RemoteProtocolError,
        TransportError: no session came about. What ends an open session is not raised
        but kept as ``Session.close_cause``.
    """
    try:
        link = await establish(
            channel,
            identity=identity,
            network_id=network_id,
            role=role,
            expected=expected,
            instance=instance,
            is_probe=is_probe,
            first_bytes=first_bytes,
        )
        session = Session(
            link, channel, role, services.traffic, lambda session: Handlers(session, services)
        )
        await session.run(task_status)
    finally:
        await aclose_forcefully(channel)
