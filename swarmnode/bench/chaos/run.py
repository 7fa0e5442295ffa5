"""A swarm of real nodes, the faults that hit them, and what is seen of all of it.

The nodes begin together and train a small task. Each then has its series of faults (``plan.py``),
and is to be back from one before the next: training, with an exchange merged since. The first
node's processes are stopped and their worker killed, but its daemon is never ended, so that one
life is as long as the run. When the time is over all are mended, come to rest, and leave; what
they have written is compared (``findings.py``).
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from swarmnode.bench.chaos import findings, world
from swarmnode.bench.chaos.node import SITE, ChaosNode, ended, is_spent
from swarmnode.bench.chaos.plan import (
    ENDING,
    LASTING,
    NETWORK,
    REJOINING,
    SMALL,
    WEARING,
    WEIGHTS,
    Fault,
    Kind,
    kinds_of,
    network_faults,
    node_faults,
)
from swarmnode.errors import ConfigError, SwarmNodeError, WorkerError
from swarmnode.processes import children
from swarmnode.processes.stopping import run_async
from swarmnode.store.files import make_private_dir, read_history, write_atomic

# Each by which the others are tried too, with what makes it meet every second or so.
STRATEGIES = {
    "streaming": ("strategy.every=200",),
    "noloco": ("strategy.every=200",),
    "pair-average": ("strategy.every=200",),
    "a2cid2": ("strategy.rate=0.02",),
    "diloco": ("strategy.every=500",),
    "sparse": ("strategy.every=500", "strategy.kept=256"),
    "one-byte": ("strategy.lr=0.005",),
    "dadao": (),  # its pace follows from that of its exchanges
}
_SYNTHETIC = ("synthetic", "batch=8", "lr=0.0005")
_TASK = (*_SYNTHETIC, "dim=2048")
_TASKS = {
    "one-byte": (*_SYNTHETIC, "dim=64"),  # a step is noisy in proportion to the parameters
    "dadao": ("least-squares", "dim=64"),  # proven for convex ones only
}
# Six nodes share a machine with whatever else it does.
_SETTINGS = b"""\
network = "%s"
lan = false
threads = 1
cpu_percent = 10
"""
# A test asks no DHT and no DNS of the world. Older versions do not know the setting.
_APART = b'rendezvous = ["link", "contacts"]\n'
SECONDS_MIN = 30.0  # for each strategy
_START_S = 300.0
_BACK_S = 180.0
_SETTLE_S = 60.0
_ORPHAN_S = 20.0
_STARTS_MAX = 3  # of a node that ends by itself
_WHY_CHARACTERS_MAX = 300
_LOOK_S = 0.25
_WATCH_S = 5.0
_SAID_BYTES_MAX = 64 * 2**20

Say = Callable[[str], None]
Said = AsyncIterator[str]
Entry = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What was asked for; ``other``: the Python of another version, "" for none."""

    seed: int
    minutes: float
    nodes: int
    strategies: tuple[str, ...]
    other: str


def run_chaos(settings: Settings, say: Say) -> dict[str, Any]:
    """Return the figures of all strategies together; the minutes are shared among them.

    Raises:
        SwarmNodeError: the swarm did not even begin.
    """
    if settings.other and shutil.which(settings.other) is None:
        raise ConfigError(f"--other: expected a Python with swarmnode, got {settings.other!r}")
    place = world.open_world(settings.nodes)
    left_out = dict(place.left_out)
    if not settings.other:
        left_out["upgrade"] = "no --other PYTHON of another version"
    seconds = settings.minutes * 60 / len(settings.strategies)
    seen = []
    for strategy in settings.strategies:
        with _folder() as folder, ExitStack() as stack:
            if "full-disk" not in left_out:
                stack.enter_context(world.small_disk(folder / f"n{SMALL}"))
            stack.callback(children.end_children)
            chaos = _Chaos(folder, place, settings, strategy, seconds, say)
            chaos.kinds -= left_out.keys()
            run_async(chaos.run)
            seen.append(chaos.evidence)
            if findings.judge(chaos.evidence).violations:
                say(f"what the nodes wrote is kept in {keep_words(folder)}")
    return findings.outcome(settings.seed, settings.minutes, seen, left_out)


def keep_words(folder: Path) -> Path:
    """Copy logs and histories of all nodes to where they stay; return that folder."""
    kept = folder.with_name(f"{folder.name}-kept")
    for path in (*folder.glob("*/daemon.log"), *folder.glob("*/exchanges.jsonl*")):
        (kept / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept / path.parent.name / path.name)
    return kept


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="swarmnode-chaos-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Chaos:
    """One swarm in its world."""

    def __init__(
        self,
        folder: Path,
        place: world.World,
        settings: Settings,
        strategy: str,
        seconds: float,
        say: Say,
    ) -> None:
        self._settings, self._strategy, self._seconds = settings, strategy, seconds
        self._world, self._say = place, say
        self._seed = f"{settings.seed}/{strategy}"  # each meets faults of its own
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        self._folder = folder
        self.nodes = [
            ChaosNode(number, folder / f"n{number}", place, site)
            for number in range(settings.nodes)
        ]
        self.kinds: set[Kind] = {*WEIGHTS, *NETWORK}
        self.evidence = findings.Evidence()
        self._link = ""
        self._begun_at = self._until = 0.0
        self._healed_at = 0.0  # when the network was whole again
        self._is_cut = False
        self._busy: set[int] = set()  # nodes that stand still, or are down

    async def run(self) -> None:
        """Start all, let the faults come, end all; afterwards ``evidence`` is complete."""
        try:
            await self._start()
            self._begun_at = trio.current_time()
            self._until = self._begun_at + self._seconds
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch)
                async with trio.open_nursery() as series:
                    series.start_soon(self._hit_network)
                    for node in self.nodes:
                        series.start_soon(self._hit_again, node)
                await self._settle()
                watching.cancel_scope.cancel()
            await self._leave()
            self._collect()
        finally:
            for node in self.nodes:
                node.kill_if_running()

    # --- begin and end --------------------------------------------------------------------

    async def _start(self) -> None:
        settings = _SETTINGS % f"chaos-{os.getpid()}".encode()
        settings += b"" if self._settings.other else _APART
        for node in self.nodes:
            make_private_dir(node.home)
            write_atomic(node.home / "config.toml", settings)
        first = self.nodes[0]
        chosen = STRATEGIES.get(self._strategy, ())
        task, *numbers = _TASKS.get(self._strategy, _TASK)
        options = [f"--task={task}", *(f"--set={each}" for each in (*numbers, *chosen))]
        # What a newer version writes about a swarm may be more than an older one understands.
        own, first.python = first.python, self._settings.other or first.python
        self._link = await first.create("chaos", "--strategy", self._strategy, *options)
        first.python = own
        for node in self.nodes:
            await node.start(self._link)
        with trio.move_on_after(_START_S):
            while not all([await node.look() and node.is_training for node in self.nodes]):
                for node in self.nodes:
                    if not node.is_running:
                        raise node.failure()
                await trio.sleep(1.0)
            self._say(f"{len(self.nodes)} nodes train by {self._strategy}")
            return
        raise WorkerError(f"not all nodes train after {_START_S:.0f} s")

    async def _settle(self) -> None:
        """Wait until all train and say what has become of the steps that were heard of."""
        for node in self.nodes:
            if not await self._is_back(node, set(), -1):
                self.evidence.mishaps.append(f"n{node.number} does not train at the end")
        with trio.move_on_after(_SETTLE_S):
            while True:
                await self._hear()
                last = self.evidence.heard_last
                if all(last.get(p, 0) >= n for p, n in self.evidence.heard.items()):
                    break
                await trio.sleep(1.0)
        for node in self.nodes:  # what runs is completed, and nothing new begins
            await node.answer("POST", "/pause", _BACK_S)
        await trio.sleep(_WATCH_S)
        for node in self.nodes:
            await node.look()

    async def _leave(self) -> None:
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self._end_one, node)
        with trio.move_on_after(_ORPHAN_S):
            while children.running():  # noqa: ASYNC110 -- of other processes
                await trio.sleep(_LOOK_S)
        self.evidence.orphans += [f"{pid}: {_command(pid)}" for pid in children.running()]

    async def _end_one(self, node: ChaosNode) -> None:
        try:
            await node.end()
        except SwarmNodeError as error:
            self.evidence.mishaps.append(str(error))

    def _collect(self) -> None:
        found = self.evidence
        for node in self.nodes:
            found.histories[node.peer] = list(read_history(node.paths.history))
            found.lives += node.lives.values()
            for log in (node.home / "daemon.log", node.paths.swarm("chaos").worker_log):
                if log.exists():
                    text = log.read_bytes()[-_SAID_BYTES_MAX:].decode(errors="replace")
                    found.logs[f"n{node.number}/{log.name}"] = text

    # --- watching -------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            now = trio.current_time()
            for node in self.nodes:
                node.sample(now)
            await self._hear()
            await trio.sleep(_WATCH_S)

    async def _hear(self) -> None:
        """Note how many steps each node has heard of each other."""
        last: dict[str, int] = {}
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                if node.is_running and node.number not in self._busy:
                    nursery.start_soon(self._hear_one, node, last)
        self.evidence.heard_last = last
        for peer, steps in last.items():
            self.evidence.heard[peer] = max(steps, self.evidence.heard.get(peer, 0))

    async def _hear_one(self, node: ChaosNode, into: dict[str, int]) -> None:
        for each in await node.answer("GET", "/peers") or ():
            into[each["peer"]] = max(each["step"], into.get(each["peer"], 0))

    # --- faults ---------------------------------------------------------------------------

    async def _hit_again(self, node: ChaosNode) -> None:
        kinds = kinds_of(node.number, self.kinds)
        for fault in node_faults(self._seed, node.number, self._seconds, kinds):
            if not await self._is_due(fault):
                return
            is_worn = fault.kind in WEARING and node.number == LASTING
            if is_worn and is_spent(node.lives.values(), trio.current_time()):
                self._say(f"no {fault.kind} of n{node.number}: it would give up on its worker")
                continue
            await self._hit_node(node, fault)

    async def _is_due(self, fault: Fault) -> bool:
        """Wait for a fault; False if the run would be over before it is."""
        await trio.sleep_until(min(self._until, trio.current_time() + fault.after_s))
        return trio.current_time() + fault.lasts_s < self._until

    async def _hit_node(self, node: ChaosNode, fault: Fault) -> None:
        entry = self._begin(fault)
        before = {node.worker_pid, 0}
        if fault.kind in REJOINING or fault.kind.startswith("stop"):
            self.evidence.hit.add(node.peer)
        said = [await node.promise()] if fault.saves and fault.kind in REJOINING else []
        try:
            said += [each async for each in _ACTIONS[fault.kind](self, node, fault)]
        except SwarmNodeError as error:
            self._mishap(f"{fault.kind} of n{node.number}: {error}")
        self._end(entry, "; ".join(said))
        is_anew, since = fault.kind in REJOINING, trio.current_time()
        merged = 0 if fault.kind in ENDING else await self._merged_now(node)
        if await self._is_back(node, before if is_anew else set(), merged):
            entry["rejoin_s"] = round(trio.current_time() - max(since, self._healed_at), 2)
            entry["is_beside_another"] = self._healed_at > since
            entry["torch_s"] = round(node.torch_s(node.worker_pid), 2) if is_anew else 0.0
            self._say(f"n{node.number} is back from {fault.kind} after {entry['rejoin_s']:.1f} s")
        else:
            self._mishap(f"n{node.number} was not back {_BACK_S:.0f} s after {fault.kind}")

    async def _merged_now(self, node: ChaosNode) -> int:
        await node.look()
        return node.merged

    async def _is_back(self, node: ChaosNode, not_pids: set[int], merged: int) -> bool:
        """Wait until a node trains, and has merged more than that; start it if it is down."""
        until, first, starts = trio.current_time() + _BACK_S, True, _STARTS_MAX
        while trio.current_time() < max(until, self._healed_at + _BACK_S) or self._is_cut:
            if not node.is_running:
                why = str(node.failure())[:_WHY_CHARACTERS_MAX]
                self._mishap(f"n{node.number} is down: {why}")
                if (starts := starts - 1) == 0:
                    return False
                await node.start(self._link)
                merged = 0
            if await node.look() and node.is_training and node.worker_pid not in not_pids:
                if first and not_pids and node.promised_step:
                    promised, node.promised_step = node.promised_step, 0
                    self.evidence.promises.append((f"n{node.number}", promised, node.begun_step()))
                first = False
                if node.merged > merged or merged < 0:
                    return True
            await trio.sleep(_LOOK_S)
        return False

    async def _hit_network(self) -> None:
        kinds, n_nodes = self.kinds & NETWORK.keys(), len(self.nodes)
        for fault in network_faults(self._seed, n_nodes, self._seconds, kinds):
            if not await self._is_due(fault):
                return
            entry = self._begin(fault)
            self._is_cut = True
            try:
                if fault.kind == "partition":
                    await self._world.cut(fault.nodes)
                    said = "heard nothing of the others"
                elif fault.kind == "broken-link":
                    await self._world.part(*fault.nodes)
                    said = "heard nothing of each other"
                else:
                    await self._world.lose(fault.nodes[0], fault.force)
                    said = f"lost {fault.force:.0%} of its packets"
                await trio.sleep(fault.lasts_s)
                await self._world.heal(fault.nodes)
            finally:
                self._is_cut, self._healed_at = False, trio.current_time()
            self._end(entry, said)

    def _begin(self, fault: Fault) -> Entry:
        now_s = trio.current_time() - self._begun_at
        entry: Entry = {
            "kind": fault.kind,
            "strategy": self._strategy,
            "nodes": [f"n{node}" for node in fault.nodes],
            "began_s": round(now_s, 2),
            "ended_s": None,
            "did": "",
            "rejoin_s": None,
            "is_beside_another": False,
            "torch_s": 0.0,
        }
        self.evidence.faults.append(entry)
        self._say(f"{now_s:6.1f} s  {fault.kind} of {', '.join(entry['nodes'])}")
        return entry

    def _end(self, entry: Entry, did: str) -> None:
        entry["ended_s"] = round(trio.current_time() - self._begun_at, 2)
        entry["did"] = did

    def _mishap(self, what: str) -> None:
        self.evidence.mishaps.append(what)
        self._say(f"! {what}")

    # --- one action for each kind; each yields what it did ---------------------------------

    async def _kill_daemon(self, node: ChaosNode, fault: Fault) -> Said:
        worker = await node.kill_daemon()
        await trio.sleep(fault.lasts_s)
        await node.start(self._link)
        if not await ended(worker):
            self.evidence.orphans.append(f"{worker}: a worker of n{node.number} without a daemon")
        yield f"killed the daemon, started again after {fault.lasts_s:.1f} s"

    async def _kill_worker(self, node: ChaosNode, fault: Fault) -> Said:  # noqa: ARG002
        node.send(signal.SIGKILL, [node.worker_pid])
        await trio.lowlevel.checkpoint()
        yield "killed the worker"

    async def _kill_both(self, node: ChaosNode, fault: Fault) -> Said:
        await node.kill()
        await trio.sleep(fault.lasts_s)
        await node.start(self._link)
        yield f"killed daemon and worker, started again after {fault.lasts_s:.1f} s"

    async def _restart(self, node: ChaosNode, fault: Fault) -> Said:
        yield await node.end()
        await trio.sleep(fault.lasts_s)
        await node.start(self._link)

    async def _upgrade(self, node: ChaosNode, fault: Fault) -> Said:
        own, node.python = node.python, self._settings.other
        try:
            yield await node.end()
            await node.start(self._link)
            if not await self._is_back(node, {0}, 0):
                self._mishap(f"n{node.number} does not train by the other version")
            yield f"trained as version {node.status.get('version')} by {node.python}"
            await trio.sleep(fault.lasts_s)
            yield await node.end()
        finally:
            node.python = own
        await node.start(self._link)

    async def _stop(self, node: ChaosNode, fault: Fault) -> Said:
        daemon = node.daemon_pid() if fault.kind != "stop-worker" else 0
        worker = node.worker_pid if fault.kind != "stop-daemon" else 0
        self._busy.add(node.number)
        node.send(signal.SIGSTOP, [daemon, worker])
        try:
            await trio.sleep(fault.lasts_s)
        finally:
            node.send(signal.SIGCONT, [worker, daemon])
            self._busy.discard(node.number)
        yield "stood still"

    async def _full_disk(self, node: ChaosNode, fault: Fault) -> Said:
        self.evidence.incomplete.add(node.peer)
        filled_bytes = await trio.to_thread.run_sync(world.fill, node.home)
        await trio.sleep(fault.lasts_s)
        yield f"no space, {filled_bytes / 1e6:.0f} MB of ballast: {await self._alarm(node)}"
        world.empty(node.home)

    async def _read_only_home(self, node: ChaosNode, fault: Fault) -> Said:
        pid = node.daemon_pid()
        world.forbid_writing(pid, node.home)
        await trio.sleep(fault.lasts_s)
        yield f"could not write: {await self._alarm(node)}"
        world.allow_writing(pid, node.home)

    async def _clock_jump(self, node: ChaosNode, fault: Fault) -> Said:
        node.set_clock(fault.force)
        await trio.sleep(fault.lasts_s)
        node.set_clock(0.0)
        yield f"its wall clock was {fault.force:+.1f} s off"

    async def _alarm(self, node: ChaosNode) -> str:
        await node.look()
        return node.status.get("alarm") or "no alarm"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "it has just ended"


_ACTIONS: Mapping[Kind, Callable[[_Chaos, ChaosNode, Fault], Said]] = {
    "kill-daemon": _Chaos._kill_daemon,
    "kill-worker": _Chaos._kill_worker,
    "kill-both": _Chaos._kill_both,
    "restart": _Chaos._restart,
    "upgrade": _Chaos._upgrade,
    "stop-daemon": _Chaos._stop,
    "stop-worker": _Chaos._stop,
    "stop-both": _Chaos._stop,
    "full-disk": _Chaos._full_disk,
    "read-only-home": _Chaos._read_only_home,
    "clock-jump": _Chaos._clock_jump,
}
