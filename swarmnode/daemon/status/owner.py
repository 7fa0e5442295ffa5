"""What the owner of a node asks of it: what holds it, and the link to pass on.

What is allowed, what is used of it, and what holds, for ``swarmnode limits``; the routes by which
a person pauses, resumes and finishes. And the link to our swarm as it is good today: with members
as hints that are reached now. Loaded with the first question: most nodes are never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

import msgspec

from swarmnode.daemon.discovery.rendezvous import can_be_told
from swarmnode.daemon.status.view import NodeView, Owned
from swarmnode.daemon.volunteer.rules import Volunteer
from swarmnode.errors import ConfigError
from swarmnode.ids import PUBLIC_KEY_BYTES, PeerId
from swarmnode.limits import BOOTSTRAP_HINTS_MAX, LINK_CHARACTERS_MAX
from swarmnode.net.relays.address import PREFIX
from swarmnode.net.web.routes import Handler, Request, Response, json_response
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.protocol.uplink import Line
from swarmnode.quantities import parse_duration_s, show_bytes, show_duration

_T = TypeVar("_T")
_UNKNOWN = "unknown here"


class HoldView(msgspec.Struct, frozen=True):
    """One reason why the node does not train."""

    reason: str
    text: str
    until_unix_s: float | None


class LimitView(msgspec.Struct, frozen=True):
    """One limit: the setting, what it allows, and what is used or known of it, in words."""

    setting: str
    allowed: str
    used: str


class LimitsView(msgspec.Struct, frozen=True):
    """What ``swarmnode limits --json`` prints."""

    may_train: bool
    may_carry_tensors: bool
    holds: tuple[HoldView, ...]
    limits: tuple[LimitView, ...]
    held_s: dict[str, float]


def limits_view(volunteer: Volunteer, view: NodeView) -> LimitsView:
    """Return it as of now."""
    verdict = volunteer.verdict
    holds = tuple(HoldView(h.reason, h.text, h.until_unix_s) for h in verdict.holds)
    lines = [*_machine_lines(volunteer, view), *_line_lines(volunteer), *_pause_lines(volunteer)]
    return LimitsView(
        verdict.may_train, verdict.may_carry_tensors, holds, tuple(lines), volunteer.held_s()
    )


def _machine_lines(volunteer: Volunteer, view: NodeView) -> list[LimitView]:
    config, seen = volunteer.config, volunteer.readings
    work = view.work.figures()
    threads = f"{work.threads} threads on {work.device}" if work.is_up else "-"
    cores = volunteer.cpu_cores_used
    gpus = ", ".join(map(str, config.gpus)) or "all"
    return [
        LimitView("cpu_percent", f"{config.cpu_percent} %", _shown(cores, "{:.2f} cores".format)),
        LimitView("threads", str(config.threads or "all but one"), threads),
        LimitView("gpus", f"{gpus} (device {config.device})", "-"),
        LimitView("gpu_memory", config.gpu_memory or "all", "-"),
        LimitView(
            "gpu_temperature_max",
            f"{config.gpu_temperature_max} °C" if config.gpu_temperature_max else "-",
            _shown(seen.gpu_celsius, "{:.0f} °C".format),
        ),
        LimitView("ram", config.ram or "all", _shown(seen.worker_bytes, show_bytes)),
        LimitView("disk", config.disk or "all", _shown(seen.disk_bytes, show_bytes)),
    ]


def _line_lines(volunteer: Volunteer) -> list[LimitView]:
    config, traffic = volunteer.config, volunteer.traffic
    sent, received = _by_purpose(traffic.up), _by_purpose(traffic.down)
    month = show_bytes(volunteer.readings.month_bytes) + " this month"
    return [
        LimitView("upload", config.upload or "all", f"{sent} sent"),
        LimitView("upload_yields", _yes(config.upload_yields), _yields(traffic.up)),
        LimitView("download", config.download or "all", f"{received} received"),
        LimitView(
            "monthly_quota", config.monthly_quota or "all", month if config.monthly_quota else "-"
        ),
    ]


def _yields(line: Line) -> str:
    """Say what is left of the line by what others need of it."""
    rate = line.yielding.rate_bytes_per_s if line.yielding else 0.0
    return f"{show_bytes(round(rate))}/s go unnoticed" if rate else "-"


def _by_purpose(line: Line) -> str:
    """Say what passed, and what for."""
    parts = [f"{name} {show_bytes(n)}" for name, n in line.by_purpose().items() if n]
    return f"{show_bytes(line.total_bytes)} ({', '.join(parts)})" if parts else "nothing"


def _pause_lines(volunteer: Volunteer) -> list[LimitView]:
    config, seen = volunteer.config, volunteer.readings
    quiet = f"after {show_duration(config.pause_on_user_s)}" if config.pause_on_user_s else "no"
    return [
        LimitView("schedule", "; ".join(config.schedule) or "always", "-"),
        LimitView(
            "pause_on_battery",
            _yes(config.pause_on_battery),
            _shown(seen.on_battery, _yes, _UNKNOWN),
        ),
        LimitView(
            "pause_on_metered", _yes(config.pause_on_metered), _shown(seen.metered, _yes, _UNKNOWN)
        ),
        LimitView(
            "pause_on_gpu_busy",
            _yes(config.pause_on_gpu_busy),
            _shown(seen.gpu_others_share, "{:.0%} by others".format),
        ),
        LimitView(
            "pause_on_user_s",
            quiet,
            _shown(seen.user_quiet_s, lambda quiet_s: f"quiet for {show_duration(quiet_s)}"),
        ),
    ]


def _shown(value: _T | None, say: Callable[[_T], str], unknown: str = "-") -> str:
    """Return in words what was seen, if anything was."""
    return unknown if value is None else say(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


class PauseView(msgspec.Struct, frozen=True):
    """What became of a pause: ``why`` names all that holds, "" if nothing does."""

    paused: bool
    why: str
    until_unix_s: float | None


def answers(node: Owned) -> dict[str, Handler]:
    """Return what answers the owner, by path; ``dashboard.py`` has the methods."""

    def now() -> Response:
        verdict = node.volunteer.verdict
        return json_response(
            PauseView(not verdict.may_train, verdict.sentence(), verdict.until_unix_s)
        )

    async def pause(request: Request) -> Response:
        length = request.query().get("for", "")
        try:
            length_s = parse_duration_s(length) if length else None
        except ConfigError as error:
            return json_response({"error": str(error), "exit_code": error.exit_code}, status=400)
        await node.volunteer.pause(length_s)
        return now()

    async def resume(request: Request) -> Response:  # noqa: ARG001
        await node.volunteer.resume()
        return now()

    async def finish(request: Request) -> Response:  # noqa: ARG001
        node.finish()
        return json_response({"finishing": True})

    async def limits(request: Request) -> Response:  # noqa: ARG001
        return json_response(limits_view(node.volunteer, node.view))

    async def link(request: Request) -> Response:  # noqa: ARG001
        return json_response(fresh_link(node.view))

    return {
        "/pause": pause,
        "/resume": resume,
        "/finish": finish,
        "/limits": limits,
        "/link": link,
    }


# --- the link ---------------------------------------------------------------------------------


class FreshLink(msgspec.Struct, frozen=True):
    """A link to pass on; never with an invite."""

    link: str
    swarm: str
    closed: bool  # a peer without an invite is not let in
    hints: tuple[str, ...]


def fresh_link(view: NodeView) -> FreshLink:
    """Return the link with this node and those members that it reaches, as many as fit.

    Raises:
        NotRunning: the node does not know its swarm yet.
    """
    member = view.member()
    manifest, part = member.manifest, member.part
    told = {view.node.self_id: view.node.addresses()}
    live = frozenset(part.members.live())
    # Members that we reach directly, others may too; those behind relays are reached by the DHT.
    direct = [
        peer
        for peer, session in part.sessions.items()
        if not session.is_suspended and not session.channel_description.startswith(PREFIX)
    ]
    for peer in (*direct, *sorted(live)):
        if peer not in told and peer in live:
            told[peer] = part.peer_report(peer).addresses or part.members.book.addresses_of(peer)
    meeting = (manifest.grant or b"")[:PUBLIC_KEY_BYTES]
    bare = SwarmLink(manifest.name, manifest.swarm_key, meeting=meeting)
    link = with_hints(bare, hints_of(told))
    closed = manifest.admission == "closed"
    return FreshLink(str(link), manifest.name, closed, tuple(map(str, link.hints)))


def hints_of(told: dict[PeerId, tuple[str, ...]]) -> list[Hint]:
    """Return one address of each peer, in the order given, then their second ones."""
    columns = [
        [Hint(peer, address) for address in addresses if can_be_told(address)]
        for peer, addresses in told.items()
    ]
    return [hint for row in zip_longest(*columns) for hint in row if hint is not None]


def with_hints(link: SwarmLink, hints: Iterable[Hint]) -> SwarmLink:
    """Return the link with as many of these hints as a link may have."""
    for hint in dict.fromkeys(hints):
        longer = replace(link, hints=(*link.hints, hint))
        if len(longer.hints) > BOOTSTRAP_HINTS_MAX:
            break
        if len(str(longer)) <= LINK_CHARACTERS_MAX:
            link = longer
    return link
