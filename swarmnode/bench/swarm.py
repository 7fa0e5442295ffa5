"""``swarmnode bench swarm``: real daemons that find each other, and what their DHT costs.

Every node is a process with a home of its own, in the role of a monitor, so that no torch is
loaded and no worker runs. All but the first know its address only, from the link; the local
network is not asked. In order:

1. all start at once; until each node knows all others;
2. nothing happens for a while: memory and CPU time of an idle node;
3. a fresh node joins, several times: from the start of its process, and from when it listens,
   until it knows all others, which is: each is alive and has said what it does;
4. the shared state of all is compared, until it is the same everywhere;
5. one more node of the swarm runs in this process and asks the DHT, one operation after the
   other: *put* publishes a record of its own; *get* asks where a member is, and believes
   ``DHT_QUORUM`` holders; *get_all* collects the records of all k closest.
"""

from __future__ import annotations

import math
import os
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from swarmnode import limits
from swarmnode.bench.kit import SWARM, run_in_folder, swarm_identity, write_manifest
from swarmnode.config import NodeConfig
from swarmnode.daemon.app.node import Node, TrainingChoice
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.worker.process import start_worker_process
from swarmnode.env import real_env
from swarmnode.errors import DeadlineExceeded, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.tcp import TcpTransport
from swarmnode.processes.node_process import NodeProcess, free_addresses
from swarmnode.protocol.dht.keys import blob_key
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.store.keys import load_or_create_identity
from swarmnode.wire import dht as wire

_SETTINGS = b'role = "monitor"\nlan = false\nmetrics = "off"\ndashboard = "off"\n'
_SETTLE_DEADLINE_S = 180.0
_STOP_DEADLINE_S = 10.0
_CALM_S = 5.0  # until the first searches of the DHT are over
_PUBLISHED = limits.DHT_BLOBS_PER_AUTHOR_MAX  # published over and over; no holder keeps more


@dataclass(frozen=True)
class _Plan:
    """What is to be measured."""

    n_nodes: int
    fresh_nodes: int
    operations: int
    idle_s: float


def run_swarm_bench(
    *, n_nodes: int = 32, fresh_nodes: int = 3, operations: int = 200, idle_s: float = 20.0
) -> dict[str, Any]:
    """Measure and return medians; times of the DHT are in ms, others in seconds.

    Raises:
        SwarmNodeError: a node failed, or they did not find each other in time.
    """
    return run_in_folder(_measure, _Plan(n_nodes, fresh_nodes, operations, idle_s))


def format_swarm_bench(result: dict[str, Any]) -> str:
    """Return the figures as lines for a person."""
    lines = [
        f"{result['nodes']} daemons know each other   {result['settled_s']:6.1f} s after the"
        " first was started",
        f"a fresh one knows all         {result['fresh_from_start_s']:6.2f} s after its start,"
        f" {result['fresh_from_listening_s']:.2f} s after it listens",
    ]
    for name in ("get", "get_all", "put"):
        lines.append(
            f"DHT {name:<8}                {result[name + '_p50_ms']:6.2f} ms median,"
            f" {result[name + '_p99_ms']:.2f} ms p99,"
            f" {result[name + '_cpu_ms']:.1f} ms CPU of the whole swarm"
        )
    same = "is" if result["state_equal"] else "IS NOT"
    lines += [
        f"memory of a node             {result['rss_mb_p50']:6.1f} MB median,"
        f" {result['rss_mb_max']:.1f} MB the largest",
        f"CPU of an idle node          {result['idle_cpu_share']:6.2%} of a core",
        f"the shared state {same} the same on all of them",
    ]
    return "\n".join(lines)


async def _measure(folder: Path, plan: _Plan) -> dict[str, Any]:
    addresses = free_addresses(plan.n_nodes)
    homes = [folder / str(number) for number in range(plan.n_nodes)]
    link = _prepare(homes, addresses[0])
    nodes = [NodeProcess(*each) for each in zip(homes, addresses, strict=True)]
    try:
        settled_s = await _start_all(nodes, link)
        await trio.sleep(_CALM_S)
        idle_cpu_share = await _cpu_share(nodes, plan.idle_s)
        fresh = [
            await _join_fresh(folder / f"fresh-{number}", link, nodes)
            for number in range(plan.fresh_nodes)
        ]
        result = {
            "nodes": plan.n_nodes,
            "settled_s": settled_s,
            "fresh_from_start_s": statistics.median(start_s for start_s, _ in fresh),
            "fresh_from_listening_s": statistics.median(listening_s for _, listening_s in fresh),
            "idle_cpu_share": idle_cpu_share,
            "state_equal": await _is_state_equal(nodes),
        }
        async with _own_node(folder / "own", link, len(nodes)) as node:
            result |= await _measure_dht(node.view.node.discovery, nodes, plan.operations)
            rss_mb = [_rss_mb(node) for node in nodes]
            result |= {"rss_mb_p50": statistics.median(rss_mb), "rss_mb_max": max(rss_mb)}
        return result
    finally:
        await _stop_all(nodes)


# --- nodes --------------------------------------------------------------------------------


def _prepare(homes: list[Path], first_address: str) -> SwarmLink:
    """Write what the nodes find in their homes, and return the link that leads to the first."""
    for home in homes:
        _write_settings(home)
    write_manifest(homes[:1])
    first = load_or_create_identity(homes[0] / "node.key").peer_id
    return SwarmLink(SWARM, swarm_identity().public_key, (Hint(first, first_address),))


def _write_settings(home: Path) -> None:
    make_private_dir(home)
    write_atomic(home / "config.toml", _SETTINGS)


async def _start_all(nodes: list[NodeProcess], link: SwarmLink) -> float:
    """Return the seconds until all know all."""
    begin = trio.current_time()
    for node in nodes:
        await node.start(str(link))
    with trio.move_on_after(_SETTLE_DEADLINE_S):
        for node in nodes:
            others = [other for other in nodes if other is not node]
            while not await _knows(node, others):  # noqa: ASYNC110 -- another process
                await trio.sleep(0.25)
        return trio.current_time() - begin
    raise DeadlineExceeded("waiting for all nodes to know each other", _SETTLE_DEADLINE_S)


async def _knows(node: NodeProcess, others: list[NodeProcess]) -> bool:
    """Whether this node holds all others for alive and has heard what each says."""
    await node.poll()
    if node.status.get("peers_alive", 0) < len(others):
        return False
    known = {
        address
        for peer in await node.ask("GET", "/peers")
        for address in peer["addresses"]
        if peer["alive"] == "alive" and peer["state"] == "serving"
    }
    return known.issuperset(other.address for other in others)


async def _join_fresh(home: Path, link: SwarmLink, nodes: list[NodeProcess]) -> tuple[float, float]:
    """Return seconds until a newcomer knows all: from its start, and from when it listens."""
    _write_settings(home)
    fresh = NodeProcess(home, free_addresses(1)[0])
    begin = trio.current_time()
    await fresh.start(str(link))
    listens_at = 0.0
    try:
        with trio.move_on_after(_SETTLE_DEADLINE_S):
            while not await _knows(fresh, nodes):
                if not listens_at and fresh.status.get("address"):
                    listens_at = trio.current_time()
                await trio.sleep(0.02)
            now = trio.current_time()
            return now - begin, now - (listens_at or now)
        raise DeadlineExceeded("waiting for a fresh node to know all others", _SETTLE_DEADLINE_S)
    finally:
        with trio.CancelScope(shield=True):
            await _stop_all([fresh])


async def _stop_all(nodes: list[NodeProcess]) -> None:
    """Let them leave; one that does not in time is ended."""
    with trio.CancelScope(shield=True):
        try:
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    if node.process is not None and node.process.poll() is None:
                        nursery.start_soon(node.interrupt, _STOP_DEADLINE_S)
        finally:
            for node in nodes:
                node.kill_if_running()


async def _is_state_equal(nodes: list[NodeProcess]) -> bool:
    """Whether at some moment all hold the same records; each says something new every 8 s."""
    with trio.move_on_after(_SETTLE_DEADLINE_S):
        while True:
            fingerprints: set[str] = set()
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(_take_fingerprint, node, fingerprints)
            if len(fingerprints) == 1:
                return True
            await trio.sleep(0.2)
    return False


async def _take_fingerprint(node: NodeProcess, fingerprints: set[str]) -> None:
    fingerprints.add((await node.ask("GET", "/status"))["state_fingerprint"])


async def _cpu_share(nodes: list[NodeProcess], seconds: float) -> float:
    """Return the median share of a core that a node uses while nothing happens."""
    before = [_cpu_s(node) for node in nodes]
    await trio.sleep(seconds)
    used_s = [_cpu_s(node) - first_s for node, first_s in zip(nodes, before, strict=True)]
    return statistics.median(used_s) / seconds


def _cpu_s(node: NodeProcess) -> float:
    fields = _proc(node, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(node: NodeProcess) -> float:
    """Return the resident memory of a node, what it shares with others included."""
    line = next(line for line in _proc(node, "status").splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def _proc(node: NodeProcess, name: str) -> str:
    assert node.process is not None
    return Path(f"/proc/{node.process.pid}/{name}").read_text()


# --- the DHT, from a node in this process -----------------------------------------------------


@asynccontextmanager
async def _own_node(home: Path, link: SwarmLink, n_others: int) -> AsyncIterator[Node]:
    """Run one more member of the swarm; it knows all others when the block begins."""
    _write_settings(home)
    config = NodeConfig(
        home=home, listen="127.0.0.1:0", metrics="off", dashboard="off", role="monitor", lan=False
    )
    node = Node(
        config=config,
        link=link,
        identity=Identity.generate(),
        boot_epoch=1,
        transport=TcpTransport(),
        start_worker=start_worker_process(home / "worker.log"),
        env=real_env(trio.current_time, trio.to_thread.run_sync),
        training=TrainingChoice(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        with trio.fail_after(_SETTLE_DEADLINE_S):
            await node.view.node.discovery.bootstrapped.wait()
            while _n_known(node) < n_others:  # noqa: ASYNC110 -- only reads a counter
                await trio.sleep(0.1)
        await trio.sleep(_CALM_S)
        yield node
        node.stop("measured")


def _n_known(node: Node) -> int:
    match node.view.membership:
        case Member(part=part):
            return len(part.members.live()) - 1
    return 0


async def _measure_dht(
    discovery: Discovery, nodes: list[NodeProcess], operations: int
) -> dict[str, Any]:
    members = [bytes(PeerId.parse(node.status["peer"])) for node in nodes]
    digests = [secrets.token_bytes(32) for _ in range(_PUBLISHED)]
    where = [partial(discovery.get, member, quorum=limits.DHT_QUORUM) for member in members]
    result: dict[str, Any] = {}
    for name, works in (
        ("put", [partial(_publish, discovery, digest) for digest in digests]),
        ("get", [partial(_get, one) for one in where]),
        ("get_all", [partial(_get, partial(discovery.get, blob_key(d))) for d in digests]),
    ):
        result |= await _timed(name, works, operations, nodes)
    for digest in digests:
        discovery.withdraw(blob_key(digest))
    return result


async def _publish(discovery: Discovery, digest: bytes) -> None:
    draft = wire.ProviderRecord(0, 0, limits.DHT_RECORD_TTL_S, ("127.0.0.1:1",), digest)
    done = await discovery.publish(blob_key(digest), draft)
    if not done.replicas:
        raise SwarmNodeError("a record was published and no node holds it")


async def _get(ask: Callable[[], Awaitable[Any]]) -> None:
    if not (await ask()).records:
        raise SwarmNodeError("a record that was published was not found")


async def _timed(
    name: str,
    works: Sequence[Callable[[], Awaitable[None]]],
    operations: int,
    nodes: list[NodeProcess],
) -> dict[str, float]:
    """Return median, 99th percentile and CPU time of operations, in ms."""
    taken_ms = []
    before_s = sum(map(_cpu_s, nodes)) + time.process_time()
    for number in range(operations):
        start = time.perf_counter()
        await works[number % len(works)]()
        taken_ms.append((time.perf_counter() - start) * 1e3)
    cpu_s = sum(map(_cpu_s, nodes)) + time.process_time() - before_s
    taken_ms.sort()
    return {
        f"{name}_p50_ms": statistics.median(taken_ms),
        f"{name}_p99_ms": taken_ms[math.ceil(0.99 * operations) - 1],
        f"{name}_cpu_ms": 1e3 * cpu_s / operations,
    }
