"""An open swarm admits every peer that says hello; closed ones are in ``test_admission``."""

from __future__ import annotations

from swarmnode.daemon.membership.members import OpenGate
from swarmnode.ids import PeerId
from swarmnode.wire.admission import Credentials
from swarmnode.wire.membership import SwarmHello

PEER, OTHER = PeerId(b"p" * 32), PeerId(b"o" * 32)


def test_an_open_swarm_admits_every_node() -> None:
    gate = OpenGate("monitor")
    assert gate.is_open
    assert gate.hello() == SwarmHello("monitor", Credentials(None))
    assert not gate.is_member(PEER)
    gate.admit(PEER, SwarmHello("keeper", Credentials(None)))
    gate.refresh()
    assert gate.is_member(PEER)
    assert not gate.is_member(OTHER)
