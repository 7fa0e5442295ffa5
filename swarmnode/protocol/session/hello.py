"""What two nodes must agree on before they talk: version, network, identity."""

from __future__ import annotations

from swarmnode.errors import AuthenticationFailed, RemoteProtocolError, VersionMismatch
from swarmnode.ids import PeerId
from swarmnode.wire.session import GoodbyeCode, Hello, printable


class HelloRefused(Exception):
    """We refuse the peer: send GOODBYE ``code`` with the error's text, then raise the error."""

    def __init__(self, code: GoodbyeCode, error: RemoteProtocolError) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error


def check_identity(expected: PeerId | None, actual: PeerId) -> None:
    """Refuse a peer that proved another identity than the one that was dialled.

    Raises:
        HelloRefused: with an AuthenticationFailed that names both.
    """
    if expected is not None and actual != expected:
        raise HelloRefused(
            GoodbyeCode.WRONG_PEER,
            AuthenticationFailed(
                f"expected peer {expected}, but {actual} answered: the address may belong to "
                "another node now",
                peer=str(actual),
            ),
        )


def check_hello(own: Hello, theirs: Hello, *, own_id: PeerId, peer: PeerId) -> int:
    """Return the version that both sides speak.

    Raises:
        HelloRefused: another network, no common version, or the peer wants another node.
    """
    if theirs.network != own.network:
        raise HelloRefused(
            GoodbyeCode.WRONG_NETWORK,
            VersionMismatch(
                f"expected network {own.network.hex()[:16]}…, the peer belongs to "
                f"{theirs.network.hex()[:16]}…",
                peer=str(peer),
            ),
        )
    version = min(own.version_max, theirs.version_max)
    if version < max(own.version_min, theirs.version_min):
        raise HelloRefused(
            GoodbyeCode.WRONG_VERSION,
            VersionMismatch(
                f"expected protocol version {own.version_min} to {own.version_max}, "
                f"{printable(theirs.software)} speaks {theirs.version_min} to "
                f"{theirs.version_max}: update the older one",
                peer=str(peer),
            ),
        )
    if theirs.expected and theirs.expected != own_id:
        raise HelloRefused(
            GoodbyeCode.WRONG_PEER,
            AuthenticationFailed(
                f"the peer expected {PeerId(theirs.expected)}, but this node is {own_id}",
                peer=str(peer),
            ),
        )
    return version


def error_from_goodbye(code: int, reason: str, peer: PeerId) -> RemoteProtocolError:
    """Return what a GOODBYE in place of a HELLO means for us."""
    message = f"{peer.short} refused this node: {reason or 'no reason given'}"
    if code in (GoodbyeCode.WRONG_NETWORK, GoodbyeCode.WRONG_VERSION):
        return VersionMismatch(message, peer=str(peer))
    if code == GoodbyeCode.WRONG_PEER:
        return AuthenticationFailed(message, peer=str(peer))
    return RemoteProtocolError(message, peer=str(peer))
