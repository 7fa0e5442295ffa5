"""What a session moves over a long and lossy link, with BBR and without it.

    python tests/lab/thin/throughput.py [--rtt-ms 50] [--loss-percent 0.5] [--seconds 8] [--json]

Two processes in the laboratory, one at a public address and one behind an uplink that delays and
loses frames both ways. Needs root, see ``natlab.py``.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[3]))

from swarmnode.bench.link import link_services, measure_rate, send_bulk
from swarmnode.ids import PeerId
from swarmnode.net import tcp
from swarmnode.net.channel import Channel
from swarmnode.net.peering import run_session
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role
from tests.lab.natlab import ROOT, NatLab
from tests.lab.shaper import Shape

_PORT = 7337
_FIRST_BYTES = 4_000_000


def measure(rtt_ms: float, loss_percent: float, seconds: float) -> dict[str, Any]:
    """Return MB/s by congestion control."""
    shape = Shape(delay_ms=rtt_ms / 2, loss_percent=loss_percent)
    rates: dict[str, float] = {}
    with NatLab(["none"], public=1, shape=shape) as lab:
        receiver = _start(lab, "pub0", ["receive"])
        assert receiver.stdout is not None
        peer = receiver.stdout.readline().decode().strip()
        for control in ("bbr", "cubic"):
            sender = _start(lab, "c0", ["send", control, lab.ip("pub0"), peer, str(seconds)])
            out, _ = sender.communicate(timeout=60 + seconds)
            rates[control] = round(float(out), 2)
    return {"rtt_ms": rtt_ms, "loss_percent": loss_percent, "mb_per_s": rates}


def _start(lab: NatLab, host: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.lab.thin.throughput", *arguments]
    return lab.popen(host, command, cwd=ROOT, stdout=subprocess.PIPE)


# --- the two sides ----------------------------------------------------------------------------


async def serve_sessions(services: Services) -> None:
    """Answer every session with these services, and say on standard output who does."""
    identity = Identity.generate()

    async def accept(channel: Channel) -> None:
        session = await start_session(nursery, channel, identity, services, Role.SERVER, None)
        await session.wait_closed()

    async with trio.open_nursery() as nursery:
        await nursery.start(TcpTransport().serve, f"*:{_PORT}", accept)
        print(identity.peer_id, flush=True)


async def _send(control: str, host: str, peer: str, seconds: float) -> None:
    tcp.CONGESTION_CONTROL = control.encode("ascii")
    async with trio.open_nursery() as nursery:
        channel = await TcpTransport().dial(f"{host}:{_PORT}")
        identity, expected = Identity.generate(), PeerId.parse(peer)
        session = await start_session(nursery, channel, identity, Services(), Role.CLIENT, expected)
        # How fast it is at the beginning tells how much goes through in the time that there is.
        began_at = time.perf_counter()
        await send_bulk(session, _FIRST_BYTES)
        rate = _FIRST_BYTES / (time.perf_counter() - began_at)
        print(await measure_rate(int(rate * seconds), functools.partial(send_bulk, session)))
        await session.aclose("measured")
        nursery.cancel_scope.cancel()


async def start_session(
    nursery: trio.Nursery,
    channel: Channel,
    identity: Identity,
    services: Services,
    role: Role,
    expected: PeerId | None,
) -> Session:
    start = functools.partial(
        run_session,
        channel,
        identity=identity,
        network_id=bytes(32),
        services=services,
        role=role,
        expected=expected,
    )
    session: Session = await nursery.start(start)
    return session


def main() -> None:
    """Run the command line, or one side of the measurement."""
    if sys.argv[1:2] == ["receive"]:
        trio.run(serve_sessions, link_services())
    elif sys.argv[1:2] == ["send"]:
        control, host, peer, seconds = sys.argv[2:]
        trio.run(_send, control, host, peer, float(seconds))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rtt-ms", type=float, default=50)
        parser.add_argument("--loss-percent", type=float, default=0.5)
        parser.add_argument("--seconds", type=float, default=8)
        parser.add_argument("--json", action="store_true")
        options = parser.parse_args()
        found = measure(options.rtt_ms, options.loss_percent, options.seconds)
        if options.json:
            print(json.dumps(found))
        else:
            for control, rate in found["mb_per_s"].items():
                print(
                    f"{control:6} {rate:8.2f} MB/s at {found['rtt_ms']:g} ms, "
                    f"{found['loss_percent']:g} % loss"
                )


if __name__ == "__main__":
    main()
