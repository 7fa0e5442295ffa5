"""A process on a host of the lab that opens WebRTC channels: a command a line, as JSON.

stun PORT                 answer STUN there, and on TCP send probes to whoever asks
offer SERVERS             the description of an offer, in hex
answer OFFER, SERVERS     the description of the answer
connect ANSWER, GIVE_UP_S open it, exchange a word; the address of the other side, or why not
survey SERVERS            what the own NAT does
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import trio

from swarmnode import limits
from swarmnode.errors import DialFailed
from swarmnode.net.channel import receive_exactly
from swarmnode.net.nat_survey import survey_nat
from swarmnode.net.rtc.channel import RtcChannel
from swarmnode.net.rtc.engine import PendingAnswer, PendingOffer, RtcEngine, open_rtc
from swarmnode.net.stun import StunResponder
from swarmnode.net.tcp import parse_address

_WORD = b"word"
_PROBE_BYTES = 2 + 12


class Agent:
    """What one host does."""

    def __init__(self, nursery: trio.Nursery, engine: RtcEngine) -> None:
        self._nursery = nursery
        self._engine = engine
        self._responder = StunResponder()
        self._pending: PendingOffer | PendingAnswer | None = None

    async def do(self, command: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self, f"do_{command}")(**arguments)

    async def do_stun(self, port: int) -> None:
        await self._nursery.start(self._responder.run, f"*:{port}")
        await self._nursery.start(trio.serve_tcp, self._probe, port)

    async def _probe(self, stream: trio.SocketStream) -> None:
        async with stream:
            request = await stream.receive_some(_PROBE_BYTES)
            host = stream.socket.getpeername()[0].removeprefix("::ffff:")
            self._responder.send_probe(host, int.from_bytes(request[:2], "big"), bytes(request[2:]))

    async def do_offer(self, servers: list[str], give_up_s: float) -> str:
        limits.RTC_CONNECT_S = give_up_s
        self._pending = await self._engine.offer(servers)
        return self._pending.description.hex()

    async def do_answer(self, offer: str, servers: list[str], give_up_s: float) -> str | None:
        limits.RTC_CONNECT_S = give_up_s  # its time runs from the answer
        try:
            self._pending = await self._engine.answer(bytes.fromhex(offer), servers)
        except DialFailed:
            return None
        return self._pending.description.hex()

    async def do_connect(self, answer: str) -> dict[str, Any]:
        assert self._pending is not None
        start = trio.current_time()
        try:
            async with self._pending as pending:
                channel = (
                    await pending.connect(bytes.fromhex(answer))
                    if isinstance(pending, PendingOffer)
                    else await pending.connect()
                )
        except DialFailed as error:
            return {"remote": None, "why": str(error)}
        took_s = trio.current_time() - start
        await self._exchange(channel)
        return {"remote": channel.description, "took_s": took_s}

    async def _exchange(self, channel: RtcChannel) -> None:
        word = bytearray(len(_WORD))
        with trio.fail_after(5):
            await channel.send_all(memoryview(_WORD))
            await receive_exactly(channel, memoryview(word))
        assert word == _WORD
        await channel.aclose()

    async def do_survey(self, servers: list[str]) -> dict[str, Any]:
        async def ask_probe(server: int, port: int, transaction: bytes) -> None:
            host, tcp_port = parse_address(servers[server])
            async with await trio.open_tcp_stream(host, tcp_port) as stream:
                await stream.send_all(port.to_bytes(2, "big") + transaction)
                await stream.receive_some(1)  # its end

        return asdict(await survey_nat(servers, ask_probe))


async def _main() -> None:
    source = trio.lowlevel.FdStream(0)
    rest = b""
    async with open_rtc() as engine, trio.open_nursery() as nursery:
        agent = Agent(nursery, engine)
        async for piece in source:
            *lines, rest = (rest + bytes(piece)).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                result = await agent.do(asked["do"], asked["with"])
                sys.stdout.write(json.dumps({"result": result}) + "\n")
                sys.stdout.flush()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main)
