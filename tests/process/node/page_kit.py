"""The dashboard's files over a made-up swarm: all kinds of ways and states, as many as wanted."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import msgspec
import trio

from swarmnode.config import HostPort
from swarmnode.daemon.status.dashboard import History, Sample
from swarmnode.daemon.status.overview import (
    ExchangeEdge,
    MemberView,
    Overview,
    OwnView,
    SnapshotView,
)
from swarmnode.dashboard import PAGE, load_assets
from swarmnode.net.web.http import serve_http
from swarmnode.net.web.routes import Request, Response, Route, SendChunk, StreamingResponse

UNIX_S = 1_800_000_000.0
_PATHS = ("direct", "punched-tcp", "direct", "rtc", "relay", "direct", "rtc", "")
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def made_up_overview(n_members: int, rng: random.Random) -> Overview:
    """Return a swarm of which this node knows ``n_members``, two of them paused or suspect."""
    steps = [18_400 + rng.randrange(-9000, 9000) for _ in range(n_members)]
    members = tuple(_member(place, steps[place], rng) for place in range(n_members))
    edges = tuple(
        ExchangeEdge(one, (one + jump) % n_members, rng.uniform(10, 200))
        for one in range(n_members)
        for jump in (1, 3)
        if one != (one + jump) % n_members
    )
    return Overview(
        unix_s=UNIX_S,
        node=_own(members[0]),
        members=members[:200],
        members_known=n_members,
        members_alive=n_members - 1,
        swarm_loss=1.4321,
        swarm_steps=sum(steps) + 21_000,
        swarm_tokens=(sum(steps) + 21_000) * 2048,
        others_steps=21_000,
        others_tokens=21_000 * 2048,
        edges=edges[:400],
        snapshots=tuple(_snapshot(place, members) for place in range(3)),
    )


def made_up_history(overview: Overview, n_samples: int, rng: random.Random) -> History:
    """Return losses that fall for three hours."""
    names = {member.name: rng.uniform(0.9, 1.25) for member in overview.members[1:7]}
    samples = []
    for place in range(n_samples):
        base = 1.4 + 3.9 * math.exp(-place / (n_samples / 5))
        peers = {name: base * rng.gauss(share, 0.002) for name, share in names.items()}
        at = UNIX_S - 10_800 * (n_samples - 1 - place) / n_samples
        step = place * 18_400 // n_samples
        samples.append(Sample(at, step, 1 + len(names), base * rng.gauss(1.05, 0.006), base, peers))
    return History(0, tuple(samples))


def _name(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=8))


def _member(place: int, step: int, rng: random.Random) -> MemberView:
    name, path = _name(rng), _PATHS[place % len(_PATHS)] if place else ""
    return MemberView(
        peer="sn1" + name + "".join(rng.choices(_LETTERS, k=44)),
        name=name,
        is_self=place == 0,
        role="keeper" if place == 9 else "trainer",
        alive={7: "suspect", 12: "dead"}.get(place, "alive"),
        state={4: "paused", 9: "serving", 11: "syncing", 12: "dead"}.get(place, "training"),
        path=path if place != 12 else "",
        rtt_s=rng.uniform(0.004, 0.16) if path else None,
        step=step,
        tokens=step * 2048,
        eval_loss=rng.gauss(1.45, 0.03),
        version="0.1.0",
    )


def _own(member: MemberView) -> OwnView:
    return OwnView(
        swarm="tiny-stories",
        task="bytes-lm",
        strategy="noloco",
        codec="Q8B64",
        numel=15_204_352,
        peer=member.peer,
        role="trainer",
        state="training",
        reason="on cuda:0",
        alarm="",
        connectivity="punched",
        connectivity_why="31 peers: 12 direct, 14 punched-tcp, 5 relay",
        bootstraps={"connected": 2, "failing": 1},
        can_pause=True,
        version="0.1.0",
        uptime_s=10_912,
        device="cuda:0",
        step=member.step,
        tokens=member.tokens,
        step_time_s=0.184,
        loss=1.39,
        eval_loss=1.4402,
        exchanges_committed=918,
        exchanges_aborted=11,
        exchanges_declined=74,
        exchanges_in_doubt=0,
        sent_bytes=14_300_000_000,
        received_bytes=14_100_000_000,
        worker_restarts=0,
        snapshot_step=18_200,
    )


def _snapshot(place: int, members: tuple[MemberView, ...]) -> SnapshotView:
    holders = tuple(member.name for member in members[place : place + 4 - place])
    step = 18_200 - 600 * place
    return SnapshotView(
        f"{place}f3c9a17b2d4", step, 60_817_412, 1.44 + 0.03 * place, len(holders), holders
    )


@contextlib.contextmanager
def made_up_page(overview: Overview, history: History) -> Iterator[str]:
    """Serve the page for a block; give its address."""
    addresses: SimpleQueue[str] = SimpleQueue()
    stop: list[trio.lowlevel.TrioToken] = []
    scope = trio.CancelScope()

    async def serve() -> None:
        stop.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery:
                start = partial(serve_http, HostPort("127.0.0.1", 0), _routes(overview, history))
                listeners = await nursery.start(start)
                addresses.put(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/")

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield addresses.get()
    finally:
        stop[0].run_sync_soon(scope.cancel)
        thread.join()


def _routes(overview: Overview, history: History) -> list[Route]:
    assets = load_assets()

    async def page(request: Request) -> Response:
        return Response(*assets[request.parameter or PAGE])

    async def follow(send: SendChunk) -> None:
        await send(b"event: history\ndata: %s\n\n" % msgspec.json.encode(history))
        await send(b"event: overview\ndata: %s\n\n" % msgspec.json.encode(overview))
        await trio.sleep_forever()

    async def events(request: Request) -> StreamingResponse:
        return StreamingResponse(follow, "text/event-stream")

    return [
        Route("GET", "/", page),
        Route("GET", "/static/{name}", page),
        Route("GET", "/events", events),
    ]
