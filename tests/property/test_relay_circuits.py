"""A relay under whatever peers do in whatever order: every question and every leg gets its answer,
every piece passes or its circuit is over, and nothing is left behind."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.relay import events
from swarmnode.protocol.relay.accounts import Quota
from swarmnode.protocol.relay.core import RelayCore
from swarmnode.protocol.uplink import Line
from swarmnode.wire.connect.relay import Granted

QUOTA = Quota(
    reservations_max=3,
    circuits_max=4,
    bytes_per_s=1_000_000,
    peer_bytes_per_s=700_000,
    bytes_per_day=50_000_000,
    peer_bytes_per_day=20_000_000,
)
PEERS = [PeerId(bytes([number]) * 32) for number in range(5)]
peers = st.sampled_from(PEERS)


class RelayMachine(RuleBasedStateMachine):
    """Drives one core and keeps a simple account of what it owes."""

    def __init__(self) -> None:
        super().__init__()
        self.core = RelayCore(b"s" * 32, QUOTA, Line())
        self.now = 0.0
        self.number = 0
        self.commands: set[int] = set()
        self.offers: set[int] = set()
        self.tokens: list[bytes] = []
        self.waiting_legs: set[int] = set()
        self.open: dict[int, tuple[int, int]] = {}
        self.pieces: set[tuple[int, int]] = set()

    def settle(self) -> None:
        for effect in self.core.poll_effects():
            match effect:
                case events.Answered(command=command, answer=answer):
                    self.commands.remove(command)  # once, and only what was asked
                    if isinstance(answer, Granted):
                        self.tokens.append(answer.token)
                case events.Offer(circuit=circuit, token=token):
                    self.offers.add(circuit)
                    self.tokens.append(token)
                case events.LegRefused(leg=leg):
                    self.waiting_legs.remove(leg)
                case events.Joined(circuit=circuit, legs=legs):
                    self.waiting_legs -= set(legs)
                    self.open[circuit] = legs
                case events.Passed(circuit=circuit, side=side):
                    self.pieces.remove((circuit, side))
                case events.CircuitClosed(circuit=circuit):
                    del self.open[circuit]
                    self.pieces -= {(circuit, 0), (circuit, 1)}

    def feed(self, event: events.Event) -> None:
        self.core.handle(event, self.now)
        self.settle()

    def fresh(self) -> int:
        self.number += 1
        return self.number

    @rule(peer=peers, is_release=st.booleans())
    def reserve(self, peer: PeerId, is_release: bool) -> None:
        command = self.fresh()
        self.commands.add(command)
        self.feed(events.ReserveAsked(command, peer, "", is_release))
        assert command not in self.commands

    @rule(source=peers, wanted=peers)
    def connect(self, source: PeerId, wanted: PeerId) -> None:
        command = self.fresh()
        self.commands.add(command)
        self.feed(events.ConnectAsked(command, source, wanted))

    @precondition(lambda self: self.offers)
    @rule(data=st.data(), why=st.none() | st.just("busy"))
    def answer(self, data: st.DataObject, why: str | None) -> None:
        circuit = data.draw(st.sampled_from(sorted(self.offers)))
        self.offers.remove(circuit)
        self.feed(events.OfferAnswered(circuit, why))

    @rule(data=st.data(), peer=st.none() | peers)
    def attach(self, data: st.DataObject, peer: PeerId | None) -> None:
        token = data.draw(st.sampled_from([*self.tokens, bytes(16)]))
        leg = self.fresh()
        self.waiting_legs.add(leg)
        self.feed(events.Attached(leg, token, peer))

    @precondition(lambda self: self.waiting_legs)
    @rule(data=st.data())
    def lose_leg(self, data: st.DataObject) -> None:
        leg = data.draw(st.sampled_from(sorted(self.waiting_legs)))
        self.feed(events.LegGone(leg))
        assert leg not in self.waiting_legs

    @precondition(lambda self: self.open)
    @rule(data=st.data(), side=st.integers(0, 1), size=st.integers(1, limits.RELAY_PIECE_BYTES))
    def send(self, data: st.DataObject, side: int, size: int) -> None:
        circuit = data.draw(st.sampled_from(sorted(self.open)))
        if (circuit, side) in self.pieces or self.core.try_pass(circuit, size, self.now):
            return
        self.pieces.add((circuit, side))
        self.feed(events.Waiting(circuit, side, size))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        circuit = data.draw(st.sampled_from(sorted(self.open)))
        self.feed(events.CircuitEnded(circuit))
        assert circuit not in self.open

    @rule(peer=peers)
    def leave(self, peer: PeerId) -> None:
        self.feed(events.PeerGone(peer))

    @rule(seconds=st.floats(0.0, 200.0))
    def wait(self, seconds: float) -> None:
        self.advance(self.now + seconds)

    def advance(self, to: float) -> None:
        while (deadline := self.core.next_deadline()) is not None and deadline <= to:
            assert deadline >= self.now - 1e-3 or self.now == 0.0
            self.now = max(self.now, deadline)
            self.core.handle_deadline(self.now)
            self.settle()
            following = self.core.next_deadline()
            assert following is None or following > self.now, "it would spin"
        self.now = to

    @invariant()
    def stays_in_bounds(self) -> None:
        counts = self.core.statistics()
        assert counts.reservations <= QUOTA.reservations_max
        assert counts.circuits_open == len(self.open) <= QUOTA.circuits_max

    def teardown(self) -> None:
        self.advance(self.now + 2 * limits.RELAY_CIRCUIT_S)
        owed = [self.commands, self.waiting_legs, self.open, self.pieces]
        assert not any(owed), owed
        assert self.core.statistics().reservations == 0
        assert self.core.next_deadline() is None
        assert not self.core._tokens


TestRelayMachine = RelayMachine.TestCase
TestRelayMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
