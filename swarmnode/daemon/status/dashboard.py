"""The dashboard: a page about the swarm on a loopback port, and what it may ask of the node.

Who may ask what is in ``dashboard/page.py``.

=============  ========================================================================
GET /, /swarm  the pages, and ``GET /static/{name}`` what belongs to them
GET /overview  :class:`~swarmnode.daemon.status.overview.Overview`
GET /history   :class:`~swarmnode.daemon.status.dashboard.History`
GET /events    both as server-sent events: ``history`` once, then ``overview`` every second and
               ``sample`` for each new one
POST /pause, /resume  as on the control socket; they need the key of this run
=============  ========================================================================

The owner may share it on other addresses, where it only shows, to readers with a token.

Loss over time, in memory: what the dashboard draws.

The history covers the whole life of the process in a bounded number of samples: when it is
full, every second sample goes and the time between two samples doubles.

::

    samples taken every  2 s ... 4 s ... 8 s
    reaching back        17 min  34 min  68 min
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.config import HostPort, NodeConfig
from swarmnode.daemon.exchange.history import letters_of
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.status.view import Owned
from swarmnode.env import Env
from swarmnode.errors import ConfigError, NotRunning, SwarmNodeError
from swarmnode.net.web.http import serve_http
from swarmnode.net.web.routes import (
    HttpMethod,
    Request,
    Response,
    Route,
    StreamingResponse,
    json_response,
)

if TYPE_CHECKING:
    from swarmnode.daemon.status.overview import Overview
    from swarmnode.dashboard.page import Page, Shares


class Sample(msgspec.Struct, frozen=True):
    """One moment. Losses are those on the public probe set; None: no member has said one."""

    unix_s: float
    step: int  # of this node
    members: int
    own: float | None
    swarm: float | None  # the mean over all members that train
    peers: Mapping[str, float] = {}  # by name; capped
    tokens: int = 0  # of the swarm; 0: not known yet


class History(msgspec.Struct, frozen=True):
    """Samples, oldest first. Another ``generation`` takes the place of the one before."""

    generation: int
    samples: tuple[Sample, ...]


@dataclass
class LossHistory:
    """Keeps samples.

    Args:
        samples_max: an even number.

    Attributes:
        interval_s: the time between two samples, from now on.
        generation: how often it was thinned.
    """

    samples_max: int = limits.DASHBOARD_SAMPLES_MAX
    interval_s: float = limits.DASHBOARD_SAMPLE_S
    generation: int = 0
    _samples: list[Sample] = field(default_factory=list)
    _shown: dict[str, None] = field(default_factory=dict)  # peers that have a curve, in order

    def add(self, sample: Sample) -> None:
        """Keep a sample; peers beyond DASHBOARD_CURVES_MAX have no curve."""
        for peer in sample.peers:
            if len(self._shown) < limits.DASHBOARD_CURVES_MAX:
                self._shown[peer] = None
        kept = {peer: loss for peer, loss in sample.peers.items() if peer in self._shown}
        self._samples.append(msgspec.structs.replace(sample, peers=kept))
        if len(self._samples) > self.samples_max:
            self._thin()

    @property
    def newest(self) -> Sample | None:
        """The last sample, if there is one."""
        return self._samples[-1] if self._samples else None

    def whole(self) -> History:
        """Return everything that is kept."""
        return History(self.generation, tuple(self._samples))

    def _thin(self) -> None:
        # One more than an even number: the first and the last one both stay.
        self._samples = self._samples[::2]
        self.interval_s *= 2
        self.generation += 1
        alive = {peer for sample in self._samples for peer in sample.peers}
        self._shown = {peer: None for peer in self._shown if peer in alive}


# States of a node that has the shared state of its swarm.
_KNOWS = ("training", "serving", "paused")
# What the page asks of its port, answered by ``dashboard/page.py``.
_OF_PAGE: tuple[tuple[HttpMethod, str], ...] = (
    ("GET", "/"),
    ("GET", "/swarm"),
    ("GET", "/static/{name}"),
    ("GET", "/events"),
    ("GET", "/overview"),
    ("GET", "/history"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/link"),
)
# What a person asks and wants of a node, answered by ``owner.py``.
_OF_OWNER: tuple[tuple[HttpMethod, str], ...] = (
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/finish"),
    ("GET", "/limits"),
    ("GET", "/link"),
)


class Whereabouts(msgspec.Struct, frozen=True):
    """Where the page is; only for the owner: ``key`` lets the page pause the node."""

    url: str  # "" if it is not served
    key: str
    reason: str  # why it is not served
    shared: tuple[str, ...] = ()  # links, with the token, that open it on other machines


class ShareRequest(msgspec.Struct, frozen=True):
    """Where to show the page too; no address ends it everywhere, and changes the token."""

    addresses: tuple[str, ...] = ()


class Sharing(NamedTuple):
    """What the owner has set of it."""

    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    token_file: Path = Path("dashboard.token")

    @classmethod
    def of(cls, config: NodeConfig) -> Sharing:
        """Return that of a node's settings."""
        return cls(config.dashboard_share, config.dashboard_names, config.paths.dashboard_token)


_NOT_SHARED = Sharing()


class Shown(Owned, Protocol):
    """A node that has a dashboard."""

    env: Env
    dashboard: Dashboard


def dashboard_routes(node: Shown) -> list[Route]:
    """Return what the control socket says of the dashboard, and what the page shows."""

    async def overview(request: Request) -> Response:  # noqa: ARG001
        return json_response(node.dashboard.overview())

    async def history(request: Request) -> Response:  # noqa: ARG001
        return json_response(node.dashboard.history.whole())

    async def whereabouts(request: Request) -> Response:  # noqa: ARG001
        return json_response(node.dashboard.whereabouts())

    async def share(request: Request) -> Response:
        await node.dashboard.share(request.json(ShareRequest).addresses)
        return json_response(node.dashboard.whereabouts())

    return [
        Route("GET", "/overview", overview),
        Route("GET", "/history", history),
        Route("GET", "/dashboard", whereabouts),
        Route("POST", "/dashboard", share),
    ]


def owner_routes(node: Owned) -> list[Route]:
    """Return what the owner asks and wants of the node."""
    return [Route(method, path, partial(_answer_owner, node, path)) for method, path in _OF_OWNER]


async def _answer_owner(node: Owned, path: str, request: Request) -> Response | StreamingResponse:
    from swarmnode.daemon.status.owner import answers  # a person rarely asks

    return await answers(node)[path](request)


class Dashboard:
    """Serves the page of one node, and remembers losses for it.

    Args:
        address: where to listen; None if it is switched off.
        sharing: where other machines may see it.
    """

    def __init__(
        self, node: Shown, address: HostPort | None, sharing: Sharing = _NOT_SHARED
    ) -> None:
        self.history = LossHistory()
        self._sharing = sharing
        self._nurseries: list[trio.Nursery] = []  # one, while it runs
        self._is_remembering = self._is_shared = False
        self._node = node
        self._address = address
        self._key = secrets.token_urlsafe(24)
        self._url = ""
        self._failure = ""
        self._overview: tuple[float, Overview] | None = None

    def whereabouts(self) -> Whereabouts:
        """Return where the page is, or why it is nowhere."""
        off = "the setting dashboard is off" if self._address is None else ""
        shared = self.shares.links() if self._is_shared else ()
        return Whereabouts(self._url, self._key if self._url else "", self._failure or off, shared)

    async def share(self, addresses: tuple[str, ...]) -> None:
        """Show the page at these addresses too, or at none any more if none is named.

        Raises:
            ConfigError: one is none of this machine, or taken.
            NotRunning: the node does not serve yet.
        """
        if not self._nurseries:
            raise NotRunning("this node is starting: try again")
        if addresses:
            self._is_shared = True
            self._begin_to_remember()
            await self.shares.open(addresses)
        else:
            self._is_shared = False
            await self.shares.end()

    def overview(self) -> Overview:
        """Return what the node knows now, at most DASHBOARD_EVENT_S old."""
        from swarmnode.daemon.status.overview import overview_of  # until a person looks

        now = self._node.env.monotonic()
        if self._overview is None or now >= self._overview[0] + limits.DASHBOARD_EVENT_S / 2:
            self._overview = (
                now,
                overview_of(
                    self._node.view, now, self._node.env.wall(), self.history.whole().samples
                ),
            )
        return self._overview[1]

    async def run(
        self,
        say: Callable[[str], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve and remember until cancelled; a port that is taken is said, and nothing more."""
        async with trio.open_nursery() as nursery:
            self._nurseries.append(nursery)
            if self._address is not None:
                await self._listen(self._address, nursery, say)
                self._begin_to_remember()
            if self._sharing.addresses:
                await self._share_as_set(say)
            task_status.started()
            # With the page off nothing runs here yet, and the owner may still share it.
            await trio.sleep_forever()

    async def _share_as_set(self, say: Callable[[str], None]) -> None:
        try:
            await self.share(self._sharing.addresses)
        except SwarmNodeError as error:  # training matters more
            say(f"dashboard not shared: {error}")
        for url in self.shares.urls():
            say(f"dashboard shared at {url} (`swarmnode dashboard` has the link)")

    def _begin_to_remember(self) -> None:
        if not self._is_remembering:
            self._is_remembering = True
            self._nurseries[0].start_soon(self._remember)

    async def _listen(
        self, address: HostPort, nursery: trio.Nursery, say: Callable[[str], None]
    ) -> None:
        serve = partial(serve_http, setting="dashboard")
        try:
            listeners = await nursery.start(serve, address, self.routes())
        except ConfigError as error:  # training matters more than a page about it
            self._failure = str(error)
            say(f"no dashboard: {error}")
            return
        host = f"[{address.host}]" if ":" in (address.host or "") else address.host
        self._url = f"http://{host}:{listeners[0].socket.getsockname()[1]}/"
        say(f"dashboard: {self._url} (`swarmnode dashboard` opens it with the right to pause)")

    async def _remember(self) -> NoReturn:
        while True:
            await trio.sleep(self.history.interval_s)
            self.history.add(self._sample())

    def _sample(self) -> Sample:
        now_s, view = self._node.env.monotonic(), self._node.view
        seen = view.node_status(now_s)
        losses: Mapping[str, float] = {}
        match view.membership:
            case Member() as member:
                losses = _losses(member)
        return Sample(
            unix_s=self._node.env.wall(),
            step=seen.step,
            members=seen.peers_alive + 1,
            own=seen.eval_loss,
            swarm=seen.swarm_loss,
            peers=losses,
            tokens=seen.swarm_tokens if seen.state in _KNOWS else 0,
        )

    def routes(self) -> list[Route]:
        """Return the routes of the loopback port."""
        return [Route(method, path, partial(self._answer, path)) for method, path in _OF_PAGE]

    async def _answer(self, path: str, request: Request) -> Response | StreamingResponse:
        return await self._page.handlers[path](request)

    @cached_property
    def _page(self) -> Page:
        return self._new_page(self._key)

    def _new_page(self, key: str) -> Page:
        from swarmnode.dashboard.page import Page  # most nodes are looked at by none

        asked = [*dashboard_routes(self._node), *owner_routes(self._node)]
        gets = {each.path: each.handler for each in asked if each.path != "/dashboard"}
        return Page(self, key, gets)

    @cached_property
    def shares(self) -> Shares:
        """What shows the page on other machines. Only while it runs."""
        from swarmnode.dashboard.page import Shares  # most owners look at home

        # Readers elsewhere take no place of the owner, and what needs a key has none there.
        page = self._new_page(secrets.token_urlsafe(24))
        names, token_file = self._sharing.names, self._sharing.token_file
        in_thread = self._node.env.in_thread
        return Shares(page, token_file, names, in_thread, self._nurseries[0])


def _losses(member: Member) -> dict[str, float]:
    reports = {
        peer: member.part.peer_report(peer).numbers
        for peer in member.part.partners()[: limits.DASHBOARD_MEMBERS_MAX]
        if peer != member.self_id
    }
    return {
        letters_of(peer): said["eval_loss"] for peer, said in reports.items() if "eval_loss" in said
    }
