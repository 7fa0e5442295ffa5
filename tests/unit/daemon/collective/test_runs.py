"""Runs of groups over sessions, with a cargo of a byte: what a run's end means for its tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from swarmnode.daemon.collective.runs import GroupRuns, Payload
from swarmnode.ids import PeerId
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.wire.exchange import group as wire
from tests.kits.lessor_kit import PartyNode, party

GID = bytes(16)


class ByteCargo:
    """One byte a piece; ``ends``: the run is given up while it puts the sums together."""

    def __init__(self, node: PartyNode, *, ends: bool = False) -> None:
        self.runs = GroupRuns("bytes", node.communicator())
        self.run = self.runs.run
        self.node, self.ends = node, ends
        self.outcome: events.Commit | events.Abort | None = None
        self._sums: dict[int, bytes] = {}

    def begin(self, members: Sequence[PeerId]) -> None:
        begin = events.Begin(GID, tuple(members), 2, 1.0, 5.0, 5.0, has_witnesses=True)
        self.runs.begin(begin, self, maker=self)

    async def load(self) -> float:
        return 1.0

    def use_plan(self, plan: bytes, n_pieces: int, contributors: Sequence[PeerId]) -> None:
        self._sums.clear()

    def share(self, piece: int) -> Payload:
        return [bytes([piece])]

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        return [await stream.receive_rest(1)]

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:
        """All bring the same."""

    def keep_sum(self, piece: int, payload: Payload) -> None:
        self._sums[piece] = bytes(payload[0])

    async def reduce(
        self, plan: bytes, piece: int, contributors: Sequence[PeerId], weights: Sequence[float]
    ) -> None:
        self._sums[piece] = bytes([piece])

    async def witness(self, effect: events.Witness) -> tuple[bytes, ...]:
        return (hashlib.sha256(bytes([effect.piece])).digest(),)

    def sum(self, piece: int) -> Payload:
        return [self._sums[piece]]

    async def assemble(self) -> bytes:
        whole = b"".join(self._sums[piece] for piece in sorted(self._sums))
        if self.ends:  # as at Ctrl-C, while the last of its tasks is being done
            self.runs.give_up(GID, "leaving")
        return hashlib.sha256(whole).digest()

    async def hashes(self) -> tuple[bytes, ...]:
        return tuple(hashlib.sha256(self._sums[piece]).digest() for piece in range(2))

    def committed(self, commit: events.Commit) -> None:
        self._over(commit)

    def aborted(self, abort: events.Abort) -> None:
        self._over(abort)

    def _over(self, outcome: events.Commit | events.Abort) -> None:
        self.outcome = outcome
        self._sums.clear()


async def test_both_come_to_one_result(autojump_clock) -> None:
    async with party(0.01) as made:
        one = await made.add("one", ByteCargo)
        two = await made.add("two", ByteCargo)
        for each in (one, two):
            each.begin((one.node.peer, two.node.peer))
        await made.until(lambda: one.outcome and two.outcome, 10)
        assert isinstance(one.outcome, events.Commit)
        assert one.outcome.result == two.outcome.result


async def test_of_a_run_that_ends_while_its_sums_are_put_together_no_more_is_asked(
    autojump_clock,
) -> None:
    """A node ended at Ctrl-C: it asked for hashes of what was let go."""
    async with party(0.01) as made:
        one = await made.add("one", lambda node: ByteCargo(node, ends=True))
        two = await made.add("two", ByteCargo)
        for each in (one, two):
            each.begin((one.node.peer, two.node.peer))
        await made.until(lambda: one.outcome and two.outcome, 10)
        assert isinstance(one.outcome, events.Abort)
        assert one.outcome.why == "local: leaving"
