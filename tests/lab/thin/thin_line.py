"""What a node that sends tensors over an uplink of 1 Mbit/s leaves to others on it.

    python tests/lab/thin/thin_line.py [--rate-mbit 1] [--seconds 30] [--upload-kbit 0]
        [--no-yields]

A process behind an uplink sends an exchange and a snapshot to one at a public address, for ever;
datagrams of another program on the same host go there and back meanwhile. Needs root, see
``natlab.py``.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[3]))

from swarmnode.bench.link import link_services
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from swarmnode.protocol.uplink import Yielding
from swarmnode.wire.session import Priority
from tests.lab.natlab import ROOT, NatLab
from tests.lab.plain import plain_sockets
from tests.lab.shaper import Shape
from tests.lab.thin.throughput import serve_sessions, start_session

_PORT = 7337
_DELAY_MS = 10
_PING_EVERY_S = 0.05
_PING_BYTES = bytes(64)
_SETTLE_S = 5.0
_PIECE_BYTES = 64_000


def measure(
    rate_mbit: float, seconds: float, upload_kbit: float = 0.0, *, yields: bool = True
) -> dict[str, Any]:
    """Return others' round trips in ms before and while it sends, and what it sends."""
    shape = Shape(delay_ms=_DELAY_MS, rate_mbit=rate_mbit)
    with NatLab(["none"], public=1, shape=shape) as lab, plain_sockets(lab) as plain:
        receiver = _start(lab, "pub0", ["receive"])
        assert receiver.stdout is not None
        peer = receiver.stdout.readline().decode().strip()
        asker, echo = plain.udp("c0", lab.ip("c0")), plain.udp("pub0", lab.ip("pub0"), 7000)
        quiet_ms = _ping(asker, echo, 2.0)
        given = [lab.ip("pub0"), peer, str(upload_kbit * 125), "yields" if yields else "presses"]
        sender = _start(lab, "c0", ["send", *given], stdin=subprocess.PIPE)
        _ping(asker, echo, _SETTLE_S)  # in which it finds its rate
        before, began_at = _sent_bytes(lab, "c0"), time.monotonic()
        busy_ms = _ping(asker, echo, seconds)
        sent_bytes, took_s = _sent_bytes(lab, "c0") - before, time.monotonic() - began_at
        out, _ = sender.communicate(b"enough\n", timeout=60)
    return {
        "quiet_p95_ms": round(_p95(quiet_ms)),
        "busy_p95_ms": round(_p95(busy_ms)),
        "busy_median_ms": round(statistics.median(busy_ms)),
        "line_kbit_per_s": round(sent_bytes * 8 / 1000 / took_s),
        "counted": json.loads(out),
    }


def _ping(asker: socket.socket, echo: socket.socket, seconds: float) -> list[float]:
    """Send datagrams there and back; those that are lost took as long as is waited for."""
    found = []
    until = time.monotonic() + seconds
    asker.settimeout(2.0)
    while time.monotonic() < until:
        began_at = time.monotonic()
        asker.sendto(_PING_BYTES, echo.getsockname())
        try:
            echo.settimeout(2.0)
            data, source = echo.recvfrom(2048)
            echo.sendto(data, source)
            asker.recvfrom(2048)
        except TimeoutError:
            pass
        found.append((time.monotonic() - began_at) * 1e3)
        select.select([], [], [], max(0.0, began_at + _PING_EVERY_S - time.monotonic()))
    return found


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _sent_bytes(lab: NatLab, host: str) -> int:
    lines = lab.run(host, "cat", "/proc/net/dev").splitlines()
    return int(next(line for line in lines if "eth0" in line).split(":")[1].split()[8])


def _start(lab: NatLab, host: str, arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.lab.thin.thin_line", *arguments]
    return lab.popen(host, command, cwd=ROOT, stdout=subprocess.PIPE, **options)


# --- the two sides ----------------------------------------------------------------------------


async def _receive() -> None:
    services = link_services()

    async def take(_session: Session, stream: Stream) -> None:
        while await stream.receive():
            pass

    services.add_stream("blob/1", take)
    services.add_stream("pour", take)

    await serve_sessions(services)


async def _send(host: str, peer: str, upload_bytes_per_s: float, *, yields: bool) -> None:
    services = Services()
    line = services.traffic.up
    line.limit(upload_bytes_per_s)
    line.yielding = Yielding() if yields else None
    async with trio.open_nursery() as nursery:
        channel = await TcpTransport().dial(f"{host}:{_PORT}")
        identity, expected = Identity.generate(), PeerId.parse(peer)
        session = await start_session(nursery, channel, identity, services, Role.CLIENT, expected)
        for service in ("pour", "blob/1"):
            nursery.start_soon(_pour, session, service)
        await trio.to_thread.run_sync(sys.stdin.readline)
        print(json.dumps(line.by_purpose()))
        nursery.cancel_scope.cancel()


async def _pour(session: Session, service: str) -> None:
    stream = await session.open_stream(service, priority=Priority.BULK)
    while True:
        await stream.send(bytes(_PIECE_BYTES))


def main() -> None:
    """Run the command line, or one side of the measurement."""
    if sys.argv[1:2] == ["receive"]:
        trio.run(_receive)
    elif sys.argv[1:2] == ["send"]:
        host, peer, upload, mode = sys.argv[2:]

        async def send() -> None:
            await _send(host, peer, float(upload), yields=mode == "yields")

        trio.run(send)
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rate-mbit", type=float, default=1)
        parser.add_argument("--seconds", type=float, default=30)
        parser.add_argument("--upload-kbit", type=float, default=0)
        parser.add_argument("--no-yields", action="store_true")
        options = parser.parse_args()
        found = measure(
            options.rate_mbit, options.seconds, options.upload_kbit, yields=not options.no_yields
        )
        print(json.dumps(found))


if __name__ == "__main__":
    main()
