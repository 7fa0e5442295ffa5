"""What goes into the core of a gathering and what comes out of it; see ``gather.py``."""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.gather_set import Announced
from swarmnode.wire.exchange.gather import Have

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Publish:
    """The own message is here, and signed."""

    announced: Announced


@dataclass(frozen=True)
class Announce:
    """A member has signed this, as its share of the run says: it is worth fetching."""

    announced: Announced


@dataclass(frozen=True)
class Heard:
    """What an authenticated peer says. ``announced``: its announcement, checked, if it has one."""

    peer: PeerId
    message: Have
    announced: Announced | None = None


@dataclass(frozen=True)
class Settled:
    """The set is known: these messages are wanted, and no others."""

    entries: tuple[Announced, ...]


@dataclass(frozen=True)
class Arrived:
    """``peer`` gave a message whole, and it has the right SHA-256."""

    peer: PeerId
    digest: bytes


@dataclass(frozen=True)
class NotGiven:
    """A fetch has come to nothing. ``is_wrong``: other bytes came, which no honest peer sends."""

    peer: PeerId
    digest: bytes
    is_wrong: bool = False


@dataclass(frozen=True)
class Lost:
    """The session with this peer ended, or it is known to be dead."""

    peer: PeerId


Event = Publish | Announce | Heard | Settled | Arrived | NotGiven | Lost


# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """Send a word; nothing depends on its arrival."""

    peer: PeerId
    message: Have


@dataclass(frozen=True)
class Fetch:
    """Ask a peer for a message; Arrived or NotGiven follows, unless it is cancelled."""

    peer: PeerId
    announced: Announced


@dataclass(frozen=True)
class Cancel:
    """This fetch is of no use any more."""

    peer: PeerId
    digest: bytes


@dataclass(frozen=True)
class Held:
    """A message is held now: what waits for it may go on."""

    digest: bytes


@dataclass(frozen=True)
class Forget:
    """A message is no part of the set: its bytes are not needed any more, if they are here."""

    digest: bytes


Effect = Tell | Fetch | Cancel | Held | Forget
