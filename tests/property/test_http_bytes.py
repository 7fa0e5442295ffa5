"""Whatever bytes arrive, in whatever pieces: an answer, a refusal or silence, never a crash."""

from __future__ import annotations

import random
import re

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from swarmnode.net.web.http import HttpServer
from tests.kits.http_kit import ROUTES, converse, get
from tests.unit.net.web.test_http import HOSTILE

SEED = 7337
N_MUTATIONS = 10_000
# Each of these has killed, or hung, a server of its kind: the first two took Hypercorn's task
# group with them (its issue 225, and settings of HTTP/2 that are no base64).
EIGHT = (
    "websocket and a byte",
    "h2c with junk settings",
    "http2 preface",
    "tls hello",
    "large header",
    "chunk size is no number",
    "two lengths",
    "only newlines",
)

GOOD = (
    get("/echo?a=1"),
    get("/json", "Content-Type: application/json", method="POST", body=b'{"a":1}'),
    get("/echo", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
    get("/echo", method="HEAD"),
    get("/echo", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
    get("/echo", "Expect: 100-continue", method="POST", body=b"12345"),
)
SEEDS = (*GOOD, *GOOD, *(HOSTILE[name] for name in EIGHT if len(HOSTILE[name]) < 400))
SPLICES = (b"\0", b"\r", b"\n", b"\r\n", b":", b" ", b"-", b"\xff", b"HTTP/1.1", b"chunked", b"%")


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """Flip, cut, repeat or splice a few bytes."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = rng.choice(SPLICES)
            case 3:
                data[at:at] = data[at : at + rng.randint(1, 30)]
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
    return bytes(data)


def test_mutated_requests_never_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(SEED)
    statuses: dict[bytes, int] = {}

    async def main() -> None:
        server = HttpServer(ROUTES, any_host=False)
        for _ in range(N_MUTATIONS):
            raw = b"".join(mutate(rng, rng.choice(SEEDS)) for _ in range(rng.randint(1, 2)))
            answer = await converse(server, [raw], eof=rng.random() < 0.8)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            statuses[answer[9:12]] = statuses.get(answer[9:12], 0) + 1
        for name in EIGHT:
            await converse(server, [HOSTILE[name]])
        assert (await converse(server, [get("/echo")])).startswith(b"HTTP/1.1 200")

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert b"500" not in statuses
    assert caplog.records == []
    # The mutations reach both sides of the parser, or this test shows nothing.
    assert min(statuses[b"200"], statuses[b"400"]) > N_MUTATIONS / 20


@settings(max_examples=100, deadline=None)
@given(
    raw=st.one_of(
        st.binary(max_size=200),
        st.lists(st.sampled_from([*GOOD, *(h for h in HOSTILE.values() if len(h) < 400)])).map(
            b"".join
        ),
    ),
    cuts=st.lists(st.integers(min_value=1, max_value=50), max_size=40),
)
def test_answer_does_not_depend_on_how_bytes_are_cut(raw: bytes, cuts: list[int]) -> None:
    pieces, rest = [], raw
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pieces.append(rest)

    async def main() -> tuple[bytes, bytes]:
        server = HttpServer(ROUTES, any_host=False)
        whole = await converse(server, [raw])
        return whole, await converse(server, [piece for piece in pieces if piece])

    whole, in_pieces = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert _statuses(in_pieces) == _statuses(whole)


def _statuses(answer: bytes) -> list[bytes]:
    """Final statuses only: a client that sends its body at once is not told to go on.

    The text of a refusal may differ: h11 knows some garbage by its first byte.
    """
    return [status for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer) if status != b"100"]
