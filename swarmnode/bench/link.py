"""How fast the link between two nodes is, against plain Trio TCP and trio.SSLStream.

Two processes on loopback, as two nodes are: this one sends, a helper (this
module run as a program) receives. The three rivals take turns within every
round, so that a busy machine slows all of them alike; medians count.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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

_NETWORK_ID = bytes(32)
# What plain TCP and TLS do best with, and the payload of a chunk of an exchange in Q8B64.
_WRITE_BYTES = 256 * 1024
_PAYLOAD_BYTES = 523_776
_REQUEST_BYTES = 128
_LOOPBACK = "127.0.0.1"


def run_link_bench(
    *, rounds: int = 5, bytes_per_round: int = 512_000_000, requests: int = 300
) -> dict[str, float]:
    """Measure and return figures; MB are 1e6 bytes.

    Returns:
        ``bulk_mbps``, ``plain_tcp_mbps``, ``ssl_stream_mbps``; ``request_p50_ms_idle`` and
        ``request_p50_ms_loaded`` for 128 bytes there and back, the latter while bulk runs;
        ``cpu_s_per_gb`` of both processes together for our link's bulk.
    """
    command = worker_command("swarmnode.bench.link")
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            ports = json.loads(helper.stdout.readline())
            return run_async(_measure, ports, rounds, bytes_per_round, requests)
        finally:
            helper.stdin.close()  # tells it to end


def format_link_bench(result: dict[str, float]) -> str:
    """Return the figures as lines for a person."""
    bulk, plain, tls = (result["bulk_mbps"], result["plain_tcp_mbps"], result["ssl_stream_mbps"])
    return "\n".join(
        [
            f"bulk over a session    {bulk:8.0f} MB/s  {result['cpu_s_per_gb']:.2f} CPU s/GB",
            f"plain Trio TCP         {plain:8.0f} MB/s  (a session reaches {bulk / plain:.0%})",
            f"trio.SSLStream TLS 1.3 {tls:8.0f} MB/s  (a session is {bulk / tls:.1f} times that)",
            f"request, 128 bytes     {result['request_p50_ms_idle']:8.2f} ms idle, "
            f"{result['request_p50_ms_loaded']:.2f} ms under bulk",
        ]
    )


# --- the sending side ----------------------------------------------------------------------


async def _measure(
    ports: dict[str, Any], rounds: int, n_bytes: int, requests: int
) -> dict[str, float]:
    async with trio.open_nursery() as nursery:
        channel = await TcpTransport().dial(ports["link"])
        session: Session = await nursery.start(
            functools.partial(
                run_session,
                channel,
                identity=Identity.generate(),
                network_id=_NETWORK_ID,
                services=Services(),
                role=Role.CLIENT,
                expected=PeerId.parse(ports["peer"]),
            )
        )
        rates: dict[str, list[float]] = {"bulk": [], "plain": [], "ssl": []}
        cpu_s_per_gb: list[float] = []
        for _ in range(rounds):
            rates["plain"].append(await _plain_rate(ports["plain"], n_bytes))
            rates["ssl"].append(await _ssl_rate(ports["ssl"], n_bytes))
            cpu_before_s = await _cpu_s(session)
            rates["bulk"].append(await measure_rate(n_bytes, functools.partial(send_bulk, session)))
            cpu_s_per_gb.append((await _cpu_s(session) - cpu_before_s) / n_bytes * 1e9)
        idle_ms = await request_p50_ms(session, requests)
        async with trio.open_nursery() as load:
            load.start_soon(_send_bulk_forever, session)
            loaded_ms = await request_p50_ms(session, requests)
            load.cancel_scope.cancel()
        await session.aclose("measured")
    return {
        "bulk_mbps": statistics.median(rates["bulk"]),
        "plain_tcp_mbps": statistics.median(rates["plain"]),
        "ssl_stream_mbps": statistics.median(rates["ssl"]),
        "request_p50_ms_idle": idle_ms,
        "request_p50_ms_loaded": loaded_ms,
        "cpu_s_per_gb": statistics.median(cpu_s_per_gb),
    }


async def measure_rate(n_bytes: int, send: Callable[[int], Awaitable[None]]) -> float:
    """Return MB/s from the first write to the receiver's acknowledgement of the last byte."""
    start = time.perf_counter()
    await send(n_bytes)
    return n_bytes / 1e6 / (time.perf_counter() - start)


async def _plain_rate(port: int, n_bytes: int) -> float:
    async with await trio.open_tcp_stream(_LOOPBACK, port) as stream:
        return await measure_rate(n_bytes, functools.partial(_send_raw, stream))


async def _ssl_rate(port: int, n_bytes: int) -> float:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    stream = await trio.open_ssl_over_tcp_stream(_LOOPBACK, port, ssl_context=context)
    async with stream:
        await stream.do_handshake()
        return await measure_rate(n_bytes, functools.partial(_send_raw, stream))


async def _send_raw(stream: trio.abc.Stream, n_bytes: int) -> None:
    await stream.send_all(n_bytes.to_bytes(8, "big"))
    data = memoryview(bytearray(_WRITE_BYTES))
    left = n_bytes
    while left:
        piece = data[:left]
        await stream.send_all(piece)
        left -= len(piece)
    await stream.receive_some(1)


async def send_bulk(session: Session, n_bytes: int) -> None:
    """Send so much as chunks of an exchange; return when the peer has them."""
    payload = bytearray(_PAYLOAD_BYTES)
    async with await session.open_stream("sink") as stream:
        for _ in range(n_bytes // _PAYLOAD_BYTES):
            await stream.send_message(b"header", payload)
        await stream.send_end()
        await stream.receive()


async def _send_bulk_forever(session: Session) -> None:
    while True:
        await send_bulk(session, 1_000_000_000)


async def request_p50_ms(session: Session, requests: int) -> float:
    """Return the median time of a small request there and back."""
    taken_s = []
    for _ in range(requests):
        start = time.perf_counter()
        await session.request("echo", bytes(_REQUEST_BYTES), deadline_s=10)
        taken_s.append(time.perf_counter() - start)
    return statistics.median(taken_s) * 1e3


async def _cpu_s(session: Session) -> float:
    """Return the CPU seconds that both processes used so far."""
    return time.process_time() + float(await session.request("cpu", b"", deadline_s=10))


# --- the helper: the receiving side ----------------------------------------------------------


async def _serve() -> None:
    identity = Identity.generate()
    services = link_services()

    async def accept(channel: Channel) -> None:
        await run_session(
            channel,
            identity=identity,
            network_id=_NETWORK_ID,
            services=services,
            role=Role.SERVER,
        )

    async with trio.open_nursery() as nursery:
        link: str = await nursery.start(TcpTransport().serve, f"{_LOOPBACK}:0", accept)
        plain = await nursery.start(
            functools.partial(trio.serve_tcp, _receive_raw, 0, host=_LOOPBACK)
        )
        tls = await nursery.start(
            functools.partial(
                trio.serve_ssl_over_tcp, _receive_raw, 0, _ssl_context(), host=_LOOPBACK
            )
        )
        ports = {"link": link, "peer": str(identity.peer_id), "plain": _port(plain)}
        sys.stdout.write(json.dumps(ports | {"ssl": _port(tls)}) + "\n")
        sys.stdout.flush()
        await stdin_closed()
        nursery.cancel_scope.cancel()


def link_services() -> Services:
    """Return what the receiving side offers."""
    services = Services()
    services.add_stream("sink", _sink)
    services.add_request("echo", _echo)
    services.add_request("cpu", _report_cpu)
    return services


async def _sink(_session: Session, stream: Stream) -> None:
    try:
        while True:
            await stream.receive_message(_PAYLOAD_BYTES)
    except trio.EndOfChannel:
        await stream.send(b"1")


async def _echo(_peer: PeerId, request: bytes) -> bytes:
    return request


async def _report_cpu(_peer: PeerId, _request: bytes) -> bytes:
    return repr(time.process_time()).encode()


async def _receive_raw(stream: trio.abc.Stream) -> None:
    """Receive as Trio's own streams do, plain and TLS alike."""
    left = int.from_bytes(await stream.receive_some(8), "big")
    while left:
        left -= len(await stream.receive_some(_WRITE_BYTES))
    await stream.send_all(b"1")


async def stdin_closed() -> None:
    """Wait until the parent process wants the end of this one."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(1):
            pass


def _port(listeners: list[Any]) -> int:
    listener = listeners[0]
    socket = getattr(listener, "socket", None) or listener.transport_listener.socket
    port: int = socket.getsockname()[1]
    return port


def _ssl_context() -> ssl.SSLContext:
    """Return a TLS server's context with a certificate made on the spot."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # ssl reads files only
        file.write(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        file.write(certificate.public_bytes(pem))
        file.flush()
        context.load_cert_chain(file.name)
    return context


if __name__ == "__main__":
    trio.run(_serve)
