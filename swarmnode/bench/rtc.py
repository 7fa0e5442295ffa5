"""How fast a session over a WebRTC channel is, against bare aiortc with the same bytes.

Two processes each on this machine: ours are this one and a helper (this module run as a
program), the rival's are two more. Both take turns within every round.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from swarmnode.bench.link import (
    link_services,
    measure_rate,
    request_p50_ms,
    send_bulk,
    stdin_closed,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.spawn import worker_command
from swarmnode.net.peering import run_session
from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.rtc.engine import open_rtc
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.processes.children import child
from swarmnode.processes.stopping import run_async
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.session.records import Role

_NETWORK_ID = bytes(32)
_OURS, _BARE = "swarmnode.bench.rtc", "swarmnode.net.rtc.bare"


def run_rtc_bench(
    *, rounds: int = 5, bytes_per_round: int = 32_000_000, requests: int = 200
) -> dict[str, float]:
    """Measure and return figures; MB are 1e6 bytes.

    Returns:
        ``rtc_mbps``, ``bare_mbps`` and ``share``, the median of their quotients;
        ``request_p50_ms`` for 128 bytes there and back; ``cpu_s_per_gb`` and
        ``bare_cpu_s_per_gb`` of the sending process.
    """
    with _helper(_BARE, "send") as sender, _helper(_BARE, "receive") as receiver:
        _say(receiver, _hear(sender))
        _say(sender, _hear(receiver))
        with _helper(_OURS) as helper:
            return run_async(_measure, helper, sender, rounds, bytes_per_round, requests)


def format_rtc_bench(result: dict[str, float]) -> str:
    """Return the figures as lines for a person."""
    return "\n".join(
        [
            f"session over WebRTC    {result['rtc_mbps']:8.1f} MB/s  "
            f"{result['cpu_s_per_gb']:.0f} CPU s/GB  ({result['share']:.0%} of bare aiortc)",
            f"bare aiortc            {result['bare_mbps']:8.1f} MB/s  "
            f"{result['bare_cpu_s_per_gb']:.0f} CPU s/GB",
            f"request, 128 bytes     {result['request_p50_ms']:8.2f} ms",
        ]
    )


Helper = subprocess.Popen[str]


@contextmanager
def _helper(module: str, *arguments: str) -> Iterator[Helper]:
    command = worker_command(module, *arguments)
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()  # tells it to end


def _say(helper: Helper, value: object) -> None:
    assert helper.stdin is not None
    helper.stdin.write(json.dumps(value) + "\n")
    helper.stdin.flush()


def _hear(helper: Helper) -> Any:
    assert helper.stdout is not None
    return json.loads(helper.stdout.readline())


# --- the sending side ----------------------------------------------------------------------


async def _measure(
    helper: Helper, bare: Helper, rounds: int, n_bytes: int, requests: int
) -> dict[str, float]:
    async with open_rtc(_loopback) as engine, trio.open_nursery() as nursery:
        async with await engine.offer() as offer:
            _say(helper, offer.description.hex())
            answer = await trio.to_thread.run_sync(_hear, helper)
            channel = await offer.connect(bytes.fromhex(answer["description"]))
        session: Session = await nursery.start(
            functools.partial(_run_session, channel, PeerId.parse(answer["peer"]))
        )
        ours, theirs, cpu_s = [], [], []
        for _ in range(rounds):
            cpu_before_s = time.process_time()
            ours.append(await measure_rate(n_bytes, functools.partial(send_bulk, session)))
            cpu_s.append(time.process_time() - cpu_before_s)
            _say(bare, n_bytes)
            theirs.append(await trio.to_thread.run_sync(_hear, bare))
        request_ms = await request_p50_ms(session, requests)
        await session.aclose("measured")
    return {
        "rtc_mbps": statistics.median(ours),
        "bare_mbps": statistics.median(each["mbps"] for each in theirs),
        "share": statistics.median(
            one / other["mbps"] for one, other in zip(ours, theirs, strict=True)
        ),
        "request_p50_ms": request_ms,
        "cpu_s_per_gb": statistics.median(cpu_s) / n_bytes * 1e9,
        "bare_cpu_s_per_gb": statistics.median(each["cpu_s"] for each in theirs) / n_bytes * 1e9,
    }


async def _run_session(
    channel: RtcChannel, peer: PeerId, task_status: trio.TaskStatus[Session]
) -> None:
    await run_session(
        channel,
        identity=Identity.generate(),
        network_id=_NETWORK_ID,
        services=Services(),
        role=Role.CLIENT,
        expected=peer,
        task_status=task_status,
    )


def _loopback() -> tuple[str, ...]:
    return ("127.0.0.1",)


# --- the helper: the receiving side ----------------------------------------------------------


async def _serve() -> None:
    identity = Identity.generate()
    offer = bytes.fromhex(json.loads(sys.stdin.readline()))
    async with open_rtc(_loopback) as engine, trio.open_nursery() as nursery:
        async with await engine.answer(offer) as answer:
            said = {"description": answer.description.hex(), "peer": str(identity.peer_id)}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
            channel = await answer.connect()
        nursery.start_soon(
            functools.partial(
                run_session,
                channel,
                identity=identity,
                network_id=_NETWORK_ID,
                services=link_services(),
                role=Role.SERVER,
            )
        )
        await stdin_closed()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_serve)
