"""Who may be a member of our swarm."""

from __future__ import annotations

from swarmnode.ids import PeerId
from swarmnode.wire.membership import PeerRole, SwarmHello


class OpenGate:
    """An open swarm: everybody who says hello."""

    def __init__(self, role: PeerRole) -> None:
        self._role: PeerRole = role
        self._admitted: set[PeerId] = set()

    def hello(self) -> SwarmHello:
        """See ``members.Gate``."""
        return SwarmHello(self._role)

    def admit(self, peer: PeerId, hello: SwarmHello) -> None:  # noqa: ARG002
        """See ``members.Gate``."""
        self._admitted.add(peer)

    def is_member(self, peer: PeerId) -> bool:
        """See ``members.Gate``."""
        return peer in self._admitted
