"""What every transport does with a channel that a peer opened."""

from __future__ import annotations

import logging

from swarmnode.errors import DeadlineExceeded, ProtocolError, Refused, TransportError
from swarmnode.net.channel import Admission, Channel, ChannelHandler, aclose_forcefully

_log = logging.getLogger("swarmnode.accept")


async def run_accepted(
    channel: Channel, handle_channel: ChannelHandler, admit: Admission | None
) -> None:
    """Run the handler on ``channel`` if it is admitted, then close it.

    Strangers may send anything: what they can provoke ends here, with one line.
    """
    try:
        if admit is None or admit():
            await handle_channel(channel)
        else:
            _log.debug("%s: not admitted", channel.description)  # the caller knows, and counts
    except (TransportError, ProtocolError, DeadlineExceeded, Refused) as error:
        _log.info("%s: %s", channel.description, error)
    finally:
        await aclose_forcefully(channel)
