"""The run of the demo: real daemons through the real command line, one of them killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trio

from swarmnode.cli.demo.picture import Point, lost_at
from swarmnode.cli.demo.view import LiveView, Row
from swarmnode.cli.model.export import export_model
from swarmnode.errors import DeadlineExceeded
from swarmnode.processes.node_process import NodeProcess, free_addresses
from swarmnode.protocol.swarm import parse_link

SWARM_NAME = "demo"
# Loopback has bandwidth to spare: rounds are short, and stay so.
_ROUNDS = ("--set", "strategy.every=6", "--set", "strategy.lengthen=0")
_POLL_S = 0.5
_JOIN_AT = 0.3  # of the training time
_KILL_AT = 0.5
_DOWN_S = 2.0
_COME_BACK_S = 60.0
_START_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 10.0


@dataclass(frozen=True)
class DemoSettings:
    """What the user chose; ``work`` is where the homes of the nodes go."""

    nodes: int
    seconds: float
    data: Path | None
    out: Path
    work: Path


class DemoNode(NodeProcess):
    """One node, with what the table needs to remember of it."""

    def __init__(self, name: str, home: Path, address: str) -> None:
        super().__init__(home, address)
        self.name = name
        self.points: list[Point] = []  # its held-out losses
        # Counters of lives that a kill has ended.
        self._past_exchanges = 0
        self._past_bytes = 0

    def note(self, at_s: float) -> None:
        """Keep a new held-out loss, ``at_s`` after training began."""
        loss = self.status.get("eval_loss")
        if loss is not None and (not self.points or self.points[-1].loss != loss):
            self.points.append(Point(at_s, self.swarm_tokens, self.status["step"], loss))

    @property
    def swarm_tokens(self) -> int:
        """What the swarm has trained, as far as this node knows."""
        known: int = self.status.get("swarm_tokens", 0)
        return max(known, self.points[-1].tokens if self.points else 0)

    async def kill(self) -> None:
        """End it at once; what it counted so far is kept."""
        row = self.row()
        self._past_exchanges, self._past_bytes = row.exchanges, row.sent_bytes
        await super().kill()

    def row(self) -> Row:
        """Return its line of the table."""
        status = self.status
        return Row(
            name=self.name,
            state="down" if self.process is None else status.get("state", "starting"),
            step=status.get("step", 0),
            loss=status.get("eval_loss"),
            exchanges=self._past_exchanges + status.get("exchanges_committed", 0),
            peers=status.get("peers_connected", 0),
            sent_bytes=self._past_bytes + sum(status.get("sent_bytes", {}).values()),
        )


class DemoRun:
    """Everything that happened in one demo; :meth:`run` fills it."""

    def __init__(self, settings: DemoSettings, view: LiveView) -> None:
        self.settings = settings
        self._view = view
        addresses = free_addresses(settings.nodes)
        self.nodes = [
            DemoNode(f"n{i}", settings.work / f"node{i}", address)
            for i, address in enumerate(addresses)
        ]
        self._data = ("--data", str(settings.data)) if settings.data is not None else ()
        self._first_peer = ""  # id of the one node whose address the others are told
        self.victim = self.nodes[max(0, len(self.nodes) - 2)]
        self.killed_at_step = 0
        self.killed_at = Point(0.0, 0, 0, 0.0)
        self._began_s = 0.0
        self.rejoined_s: float | None = None
        self.joined_late_s: float | None = None
        self.newcomer_loss: float | None = None
        self.leave_s: list[float] = []

    async def run(self) -> None:
        """Create, start, train, join late, kill, restart, train on, save, export, leave.

        The others are told the swarm's name and one node to begin with; where the swarm and
        its members are they find in the DHT. The last node comes late, and begins with a
        snapshot.

        Raises:
            SwarmNodeError: a node did not do what it should; its log is in the message.
        """
        options = ("--task", "bytes-lm", *_ROUNDS, *self._data)
        link = await self.nodes[0].create(SWARM_NAME, *options)
        self._view.say(f"created a swarm: {link}")
        self._first_peer = str(parse_link(link).hints[0].peer)
        try:
            await self.nodes[0].start(SWARM_NAME, "--no-lan", *self._data)
            self._began_s = trio.current_time()
            await self._wait_until_found()
            for node in self.nodes[1:-1]:
                await self._start(node)
            await self._wait_until_training(self.nodes[:-1])
            self._view.say(f"{len(self.nodes) - 1} nodes train together; one more joins later")
            await self._train()
            await self._wait_until_training(self.nodes)  # and the node that came back just now
            await self._save()
            await self._leave()
        finally:
            for node in self.nodes:
                node.kill_if_running()

    # --- phases ---------------------------------------------------------------------------

    async def _wait_until_found(self) -> None:
        """The swarm is in the DHT once its first node takes part in it."""
        with trio.move_on_after(_START_DEADLINE_S):
            while self.nodes[0].status.get("swarm_steps") is None:
                await trio.sleep(_POLL_S)
                await self._poll()
            return
        raise DeadlineExceeded("waiting for the first node", _START_DEADLINE_S)

    async def _wait_until_training(self, nodes: list[DemoNode]) -> None:
        with trio.move_on_after(_START_DEADLINE_S):
            while not all(node.is_training for node in nodes):
                await trio.sleep(_POLL_S)
                await self._poll()
            return
        raise DeadlineExceeded("waiting for every node to train", _START_DEADLINE_S)

    async def _start(self, node: DemoNode) -> None:
        """Let a node join by the name of the swarm, knowing one node of the network."""
        bootstrap = f"{self._first_peer}@{self.nodes[0].address}"
        await node.start(SWARM_NAME, "--bootstrap", bootstrap, "--no-lan", *self._data)

    async def _train(self) -> None:
        total_s = self.settings.seconds
        begin = trio.current_time()
        kill_at_s = total_s * _KILL_AT
        joined_s: float | None = None
        restarted_s: float | None = None
        is_killed = False
        # On a slow machine a node that was killed late may need longer than is left to come back.
        while (elapsed_s := trio.current_time() - begin) < total_s or (
            self.rejoined_s is None and elapsed_s < total_s + _COME_BACK_S
        ):
            if joined_s is None and elapsed_s >= total_s * _JOIN_AT:
                await self._start(self.nodes[-1])
                joined_s = elapsed_s
            elif joined_s is not None and self.joined_late_s is None:
                self._note_newcomer(elapsed_s - joined_s)
            elif not is_killed and elapsed_s >= kill_at_s:
                await self._kill()
                is_killed = True
            elif is_killed and restarted_s is None and elapsed_s >= kill_at_s + _DOWN_S:
                await self._start(self.victim)
                restarted_s = elapsed_s
            elif restarted_s is not None and self.rejoined_s is None:
                self._note_return(elapsed_s - restarted_s)
            self._view.show(min(elapsed_s, total_s), total_s, [node.row() for node in self.nodes])
            await trio.sleep(_POLL_S)
            await self._poll()

    async def _kill(self) -> None:
        self.killed_at_step = self.victim.row().step
        at_s = trio.current_time() - self._began_s
        self.killed_at = lost_at(at_s, self.victim.swarm_tokens, self.killed_at_step)
        self.victim.points.append(self.killed_at)
        await self.victim.kill()
        self._view.say(f"killed {self.victim.name} with SIGKILL at step {self.killed_at_step}")

    def _note_newcomer(self, since_start_s: float) -> None:
        """Its first held-out loss shows whose model it began with."""
        newcomer = self.nodes[-1]
        loss = newcomer.status.get("eval_loss")
        if newcomer.is_training and loss is not None:
            self.joined_late_s, self.newcomer_loss = since_start_s, loss
            self._view.say(
                f"{newcomer.name} joined by name after {since_start_s:.1f} s and began with the"
                f" swarm's model: its first held-out loss is {loss:.3f}"
            )

    def _note_return(self, since_restart_s: float) -> None:
        """Back is: training again, and an exchange has been merged since."""
        if self.victim.is_training and self.victim.status["exchanges_applied"] > 0:
            self.rejoined_s = since_restart_s
            step = self.victim.status["step"]
            self._view.say(f"{self.victim.name} is back after {since_restart_s:.1f} s, step {step}")

    async def _save(self) -> None:
        for node in self.nodes:
            await node.ask("POST", "/snapshot")
        await self._poll()
        folder = self.settings.out / "model"
        await trio.to_thread.run_sync(export_model, self.nodes[0].paths, SWARM_NAME, folder)

    async def _leave(self) -> None:
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self._leave_one, node)

    @property
    def snapshots(self) -> list[Path]:
        """The folder of each node's snapshots; the newest one counts."""
        return [node.paths.swarm(SWARM_NAME).snapshots for node in self.nodes]

    async def _leave_one(self, node: DemoNode) -> None:
        self.leave_s.append(await node.interrupt(_STOP_DEADLINE_S))

    async def _poll(self) -> None:
        for node in self.nodes:
            await node.poll()
            node.note(trio.current_time() - self._began_s)
