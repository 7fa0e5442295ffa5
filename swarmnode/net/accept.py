"""What every transport does with a channel that a peer opened."""

from __future__ import annotations

import logging

from swarmnode.errors import DeadlineExceeded, ProtocolError, Refused, TransportError
from swarmnode.net.channel import Channel, ChannelHandler, aclose_forcefully

_log = logging.getLogger("swarmnode.accept")


async def run_accepted(channel: Channel, handle_channel: ChannelHandler) -> None:
    """Run the handler on ``channel``, then close it.

    Strangers may send anything: what they can provoke ends here, with one line.
    """
    try:
        await handle_channel(channel)
    except (TransportError, ProtocolError, DeadlineExceeded, Refused) as error:
        _log.info("%s: %s", channel.description, error)
    finally:
        await aclose_forcefully(channel)
