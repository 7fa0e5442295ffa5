"""aiortc as it comes, without anything of ours: the baseline of ``bench link --path rtc``.

A program in two roles, driven by lines of JSON: the sender writes its offer, reads the answer,
and then sends as many bytes as each line says. Messages and buffer are as large as ours.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)

from swarmnode import limits

_PIECE = bytes(limits.RTC_MESSAGE_BYTES_MAX)
_MB = 1e6


async def _read_line() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


def _write_line(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def send() -> None:
    """Offer, then send what is asked for; report MB/s and the CPU seconds of this process."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    channel = connection.createDataChannel("bare")
    channel.bufferedAmountLowThreshold = limits.RTC_SEND_BUFFER_BYTES // 2
    is_open, is_low, is_received = asyncio.Event(), asyncio.Event(), asyncio.Event()
    channel.on("open", is_open.set)
    channel.on("bufferedamountlow", is_low.set)
    channel.on("message", lambda _message: is_received.set())
    await connection.setLocalDescription(await connection.createOffer())
    _write_line(connection.localDescription.sdp)
    answer = json.loads(await _read_line())
    await connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    await is_open.wait()
    while line := await _read_line():
        left = int(line)
        is_received.clear()
        start, cpu_before_s = time.perf_counter(), time.process_time()
        channel.send(f"{left}")
        n_bytes = left
        while left > 0:
            while channel.bufferedAmount + len(_PIECE) > limits.RTC_SEND_BUFFER_BYTES:
                is_low.clear()
                await is_low.wait()
            channel.send(_PIECE[:left])
            left -= len(_PIECE)
        await is_received.wait()
        taken_s = time.perf_counter() - start
        cpu_s = time.process_time() - cpu_before_s
        _write_line({"mbps": n_bytes / _MB / taken_s, "cpu_s": cpu_s})
    await connection.close()


async def receive() -> None:
    """Answer, then acknowledge each delivery that is here whole, until the input ends."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))

    def accept(channel: RTCDataChannel) -> None:
        left = 0

        def take(message: bytes | str) -> None:
            nonlocal left
            left = int(message) if isinstance(message, str) else left - len(message)
            if left == 0:
                channel.send("received")

        channel.on("message", take)

    connection.on("datachannel", accept)
    offer = json.loads(await _read_line())
    await connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
    await connection.setLocalDescription(await connection.createAnswer())
    _write_line(connection.localDescription.sdp)
    await _read_line()
    await connection.close()


if __name__ == "__main__":
    asyncio.run(send() if sys.argv[1] == "send" else receive())
