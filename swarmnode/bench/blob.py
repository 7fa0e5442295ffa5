"""How fast a blob comes from three holders, against a plain copy of the same file.

Four processes on loopback, as nodes are: this one fetches, three helpers (this module run as a
program) hold the blob. The rivals take turns within every round, so that a busy machine slows
all of them alike:

- plain: one Trio TCP stream from one helper, disk to disk, no cryptography, no checks;
- session: the same file over one stream of a session with one helper, encrypted;
- fetch: the blob service with all three, every chunk hashed and proved.

Each ends with the file on the disk (fsync). Sessions are open before, as between nodes; the
plain copy opens its connection, which on loopback takes less than a millisecond.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from swarmnode import limits
from swarmnode.daemon.snapshots.blobs import Blobs
from swarmnode.env import real_env
from swarmnode.errors import WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.spawn import worker_command
from swarmnode.net.channel import Channel
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpTransport
from swarmnode.processes.children import child
from swarmnode.processes.stopping import run_async
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.store.blobs import BlobStore

_NETWORK_ID = bytes(32)
_HOLDERS = 3
_PIECE_BYTES = 256 * limits.KIB  # what a plain copy does best with
_LOOPBACK = "127.0.0.1"


def run_blob_bench(*, size_bytes: int = 200_000_000, rounds: int = 7) -> dict[str, Any]:
    """Measure and return figures; MB are 1e6 bytes, each figure is the median of the rounds.

    Returns:
        ``fetch_mbps``, ``plain_copy_mbps``, ``session_copy_mbps``; ``share_of_plain_copy`` and
        ``share_of_session_copy``, the medians of the rounds' own ratios; ``cpu_s_per_gb`` of a
        fetch and ``session_cpu_s_per_gb`` of a session copy, all processes together, and the
        best round's of both as ``..._min``: a busy machine adds to it and never takes away;
        ``chunks_sent`` in all rounds against ``chunks_wanted``.

    Raises:
        WorkerError: a helper failed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarmnode-bench-")))
        source = folder / "source"
        source.write_bytes(os.urandom(size_bytes))
        helpers = [
            stack.enter_context(
                child(
                    worker_command("swarmnode.bench.blob", str(folder), str(number)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for number in range(_HOLDERS)
        ]
        try:
            ports = [_greeting_of(helper) for helper in helpers]
            return run_async(_measure, folder, ports, size_bytes, rounds)
        finally:
            for helper in helpers:
                assert helper.stdin is not None
                helper.stdin.close()  # tells it to end


def format_blob_bench(result: dict[str, Any]) -> str:
    """Return the figures as lines for a person."""
    return "\n".join(
        [
            f"blob from {_HOLDERS} holders     {result['fetch_mbps']:8.0f} MB/s  "
            f"({result['share_of_plain_copy']:.0%} of the plain copy, "
            f"{result['share_of_session_copy']:.0%} of that over a session, "
            f"{result['cpu_s_per_gb']:.2f} CPU s/GB)",
            f"plain TCP copy          {result['plain_copy_mbps']:8.0f} MB/s  one stream",
            f"copy over a session     {result['session_copy_mbps']:8.0f} MB/s  one stream, "
            f"{result['session_cpu_s_per_gb']:.2f} CPU s/GB",
            f"chunks sent             {result['chunks_sent']:8d}       "
            f"{result['chunks_wanted']} were wanted",
        ]
    )


def _greeting_of(helper: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert helper.stdout is not None
    line = helper.stdout.readline()
    if not line:
        raise WorkerError("a helper of the benchmark ended before it said where it listens")
    greeting: dict[str, Any] = json.loads(line)
    return greeting


# --- the fetching side ----------------------------------------------------------------------


class _Joiner:
    """The node that fetches, over sessions that stay open."""

    def __init__(self, folder: Path, sessions: list[Session]) -> None:
        self._target = folder / "copy"
        self._sessions = {session.peer: session for session in sessions}
        self._store = BlobStore(folder / "joiner", bytes_max=limits.BLOB_BYTES_MAX)
        self._blobs = Blobs(
            self._store, Services(), self._open_session, real_env(trio.current_time)
        )

    async def _open_session(self, peer: PeerId) -> Session:
        await trio.lowlevel.checkpoint()
        return self._sessions[peer]

    async def copy_plainly(self, port: int, size_bytes: int) -> None:
        """Copy as a program with Trio's own streams and files does."""
        stream = await trio.open_tcp_stream(_LOOPBACK, port)
        async with stream, await trio.open_file(self._target, "wb", buffering=0) as file:
            left = size_bytes
            while left:
                piece = await stream.receive_some(_PIECE_BYTES)
                await file.write(piece)
                left -= len(piece)
            await trio.to_thread.run_sync(os.fsync, file.fileno())

    async def copy_over_session(self, size_bytes: int) -> None:
        """Copy over one stream of one session."""
        session = next(iter(self._sessions.values()))
        stream = await session.open_stream("copy")
        buffer = memoryview(bytearray(limits.BLOB_CHUNK_BYTES))
        async with stream, await trio.open_file(self._target, "wb", buffering=0) as file:
            left = size_bytes
            while left:
                piece = buffer[: min(left, len(buffer))]
                await stream.receive_into(piece)
                await file.write(piece)
                left -= len(piece)
            await trio.to_thread.run_sync(os.fsync, file.fileno())

    async def fetch(self, name: bytes) -> None:
        """Fetch the blob from all."""
        await self._blobs.fetch(
            name,
            self._sessions.keys,
            on_progress=lambda _done, _total: None,
            size_bytes_max=limits.BLOB_BYTES_MAX,
        )

    async def forget(self, name: bytes) -> None:
        """Remove what was fetched or copied, so that the next one begins from nothing."""
        self._target.unlink(missing_ok=True)
        await self._blobs.remove(name)

    async def cpu_s(self) -> float:
        """Return the CPU seconds of this process and of all helpers so far."""
        answers = [
            await session.request("cpu", b"", deadline_s=10) for session in self._sessions.values()
        ]
        return time.process_time() + sum(float(answer) for answer in answers)

    async def chunks_sent(self) -> int:
        """Return how many chunks the helpers have sent so far."""
        answers = [
            await session.request("sent", b"", deadline_s=10) for session in self._sessions.values()
        ]
        return sum(int(answer) for answer in answers)


async def _measure(
    folder: Path, ports: list[dict[str, Any]], size_bytes: int, rounds: int
) -> dict[str, Any]:
    name = bytes.fromhex(ports[0]["blob"])
    plain: list[float] = []
    over_session: list[float] = []
    fetched: list[float] = []
    session_cpu_s: list[float] = []
    fetch_cpu_s: list[float] = []
    async with _sessions(ports) as sessions:
        joiner = _Joiner(folder, sessions)
        copy_plainly = functools.partial(joiner.copy_plainly, ports[0]["plain"], size_bytes)
        copy_over_session = functools.partial(joiner.copy_over_session, size_bytes)
        for _ in range(rounds):
            plain.append(await _seconds(copy_plainly))
            cpu_s = [await joiner.cpu_s()]
            over_session.append(await _seconds(copy_over_session))
            cpu_s.append(await joiner.cpu_s())
            fetched.append(await _seconds(functools.partial(joiner.fetch, name)))
            cpu_s.append(await joiner.cpu_s())
            session_cpu_s.append(cpu_s[1] - cpu_s[0])
            fetch_cpu_s.append(cpu_s[2] - cpu_s[1])
            await joiner.forget(name)
        chunks_sent = await joiner.chunks_sent()
    megabytes = size_bytes / 1e6
    return {
        "size_bytes": size_bytes,
        "rounds": rounds,
        "fetch_mbps": megabytes / statistics.median(fetched),
        "plain_copy_mbps": megabytes / statistics.median(plain),
        "session_copy_mbps": megabytes / statistics.median(over_session),
        "share_of_plain_copy": _share(plain, fetched),
        "share_of_session_copy": _share(over_session, fetched),
        "cpu_s_per_gb": statistics.median(fetch_cpu_s) / megabytes * 1e3,
        "cpu_s_per_gb_min": min(fetch_cpu_s) / megabytes * 1e3,
        "session_cpu_s_per_gb": statistics.median(session_cpu_s) / megabytes * 1e3,
        "session_cpu_s_per_gb_min": min(session_cpu_s) / megabytes * 1e3,
        "chunks_sent": chunks_sent,
        "chunks_wanted": rounds * -(-size_bytes // limits.BLOB_CHUNK_BYTES),
    }


def _share(copied_s: list[float], fetched_s: list[float]) -> float:
    """Return the median of how fast a fetch was, of a copy of the same round."""
    return statistics.median(
        copy_s / fetch_s for copy_s, fetch_s in zip(copied_s, fetched_s, strict=True)
    )


async def _seconds(work: Callable[[], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


@asynccontextmanager
async def _sessions(ports: list[dict[str, Any]]) -> AsyncIterator[list[Session]]:
    """Give a session to each helper."""
    identity = Identity.generate()
    async with trio.open_nursery() as nursery:
        sessions: list[Session] = []
        for port in ports:
            run = functools.partial(
                run_session,
                await TcpTransport().dial(port["link"]),
                identity=identity,
                network_id=_NETWORK_ID,
                services=Services(),
                role=Role.CLIENT,
                expected=PeerId.parse(port["peer"]),
            )
            sessions.append(await nursery.start(run))
        yield sessions
        for session in sessions:
            await session.aclose("measured")


# --- a helper: the holding side ---------------------------------------------------------------


async def _hold(folder: Path, number: int) -> None:
    source = folder / "source"
    identity = Identity.generate()
    services = Services()
    store = BlobStore(folder / f"holder-{number}", bytes_max=limits.BLOB_BYTES_MAX)
    blobs = Blobs(store, services, _dial_none, real_env(trio.current_time))
    name = await blobs.add_file(source)

    async def send_copy(_session: Session, stream: Stream) -> None:
        async with await trio.open_file(source, "rb", buffering=0) as file:
            while piece := await file.read(limits.BLOB_CHUNK_BYTES):
                await stream.send(piece)

    async def send_plainly(stream: trio.SocketStream) -> None:
        async with await trio.open_file(source, "rb", buffering=0) as file:
            while piece := await file.read(_PIECE_BYTES):
                await stream.send_all(piece)

    async def report_sent(_peer: PeerId, _request: bytes) -> bytes:
        return str(blobs.statistics().chunks_sent_total).encode()

    async def accept(channel: Channel) -> None:
        await run_session(
            channel,
            identity=identity,
            network_id=_NETWORK_ID,
            services=services,
            role=Role.SERVER,
        )

    services.add_stream("copy", send_copy)
    services.add_request("cpu", _report_cpu)
    services.add_request("sent", report_sent)
    async with trio.open_nursery() as nursery:
        link: str = await nursery.start(TcpTransport().serve, f"{_LOOPBACK}:0", accept)
        listeners = await nursery.start(
            functools.partial(trio.serve_tcp, send_plainly, 0, host=_LOOPBACK)
        )
        plain: int = listeners[0].socket.getsockname()[1]
        greeting = {"link": link, "peer": str(identity.peer_id), "plain": plain}
        sys.stdout.write(json.dumps(greeting | {"blob": name.hex()}) + "\n")
        sys.stdout.flush()
        await _stdin_closed()
        nursery.cancel_scope.cancel()


async def _dial_none(_peer: PeerId) -> Session:
    raise AssertionError("a holder fetches nothing")


async def _report_cpu(_peer: PeerId, _request: bytes) -> bytes:
    return repr(time.process_time()).encode()


async def _stdin_closed() -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(1):
            pass


if __name__ == "__main__":
    trio.run(_hold, Path(sys.argv[1]), int(sys.argv[2]))
