"""Nodes with a log over virtual sessions, each with a worker that publishes one record a round."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import trio

from swarmnode.daemon.collective.log import Log
from swarmnode.ipc.records import Records
from tests.kits.lessor_kit import FakeLessor, Party, PartyNode, intent, party


class Writer:
    """A node with a log, and a worker that keeps what it is told.

    Like the strategies that use it, the worker publishes once in each round that it knows of.
    """

    def __init__(
        self, node: PartyNode, log_round: int = 0, step_s: float = 0.05, *, head: bytes = b""
    ) -> None:
        self.node = node
        self.step_s = step_s
        self.first = self.log_round = log_round
        self._head = head
        self.rounds: list[Records] = []
        self.published = 0
        self.halts: list[str] = []
        self.lessor = FakeLessor(np.zeros(1, np.float32))
        self.may_publish = True
        self.records_max = 10**9
        self.log = Log(
            node.communicator(), lessor=self.lessor, tell=self.tell, halted=self.halts.append
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.log.run)
            self.log.worker_ready(self.log_round, self._head)
            nursery.start_soon(self.work)
            task_status.started()

    async def work(self) -> None:
        last = -1
        while True:
            await trio.sleep(self.step_s)
            due = self.log_round != last and self.published < self.records_max
            if self.may_publish and due:
                last = self.log_round
                self.publish()

    def publish(self) -> None:
        self.published += 1
        record = self.published.to_bytes(4, "big") + bytes(self.node.peer[:4])
        request = intent(self.published, "log", round=self.log_round, record=record, views=())
        self.log.intent_posted(request)

    async def tell(self, message: Records) -> None:
        await trio.lowlevel.checkpoint()
        if message.round == self.log_round:
            self.rounds.append(message)
            self.log_round += 1

    def restart_worker(self, log_round: int) -> None:
        """The worker dies, and comes up with an older model."""
        self.log.worker_gone()
        self.rounds = self.rounds[: log_round - self.first]
        self.log_round = log_round
        self.log.worker_ready(log_round)

    def by_number(self) -> dict[int, Records]:
        return {records.round: records for records in self.rounds}


def check_agreement(*writers: Writer) -> int:
    """Check that no round is different anywhere, and no record twice; return how many there are."""
    agreed: dict[int, Records] = {}
    for writer in writers:
        numbers = [records.round for records in writer.rounds]
        assert numbers == list(range(writer.first, writer.first + len(numbers)))
        for number, records in writer.by_number().items():
            assert agreed.setdefault(number, records) == records, f"round {number} differs"
            authors = [record.author for record in records.records]
            assert authors == sorted(set(authors))
    seen = [(r.author, r.payload) for records in agreed.values() for r in records.records]
    assert len(seen) == len(set(seen)), "a record is in two rounds"
    return len(agreed)


@asynccontextmanager
async def writers(
    n: int, delay_s: float = 0.01, step_s: float = 0.05
) -> AsyncIterator[tuple[Party, list[Writer]]]:
    async with party(delay_s) as made:
        found = []
        for number in range(n):
            writer: Writer = await made.add(f"w{number}", lambda node: Writer(node, step_s=step_s))
            found.append(writer)
        yield made, found


async def join(made: Party, name: str, log_round: int = 0, head: bytes = b"") -> Writer:
    """Add a node whose model holds all rounds before ``log_round``, the last of this digest."""
    writer: Writer = await made.add(name, lambda node: Writer(node, log_round, head=head))
    for node in made.up:
        assert node.peer in made.alive
    return writer


def everybody_changed(all_of_them: list[Writer]) -> None:
    for writer in all_of_them:
        writer.log.partners_changed()


def part(made: Party, few: list[Writer], many: list[Writer]) -> None:
    """Let two parts of the network lose each other, as their failure detectors see at once."""
    for side, others in ((few, many), (many, few)):
        seen = {w.node.peer for w in side}
        for writer in side:
            writer.node.partners = lambda seen=seen: tuple(sorted(seen))  # type: ignore[method-assign]
        for one in side:
            for two in others:
                made.network.cut(one.node.name, two.node.name)
    everybody_changed(few + many)


async def rejoin(made: Party, few: list[Writer], many: list[Writer]) -> None:
    for one in few:
        for two in many:
            await one.node.dial(two.node.peer, two.node.address)
    for writer in few + many:
        writer.node.partners = PartyNode.partners.__get__(writer.node)  # type: ignore[method-assign]
    everybody_changed(few + many)
