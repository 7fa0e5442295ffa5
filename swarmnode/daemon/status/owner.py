"""What is allowed, what is used of it, and what holds: for ``swarmnode limits``.

The routes by which a person pauses, resumes and finishes, and sees what holds.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from swarmnode.daemon.status.view import NodeView
from swarmnode.daemon.volunteer.rules import Volunteer
from swarmnode.errors import ConfigError
from swarmnode.net.web.routes import Request, Response, Route, json_response
from swarmnode.quantities import parse_duration_s, show_bytes, show_duration


class Owned(Protocol):
    """A node whose owner may pause it."""

    view: NodeView
    volunteer: Volunteer

    def finish(self) -> None:
        """Complete what runs, then stop."""


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
    ready = view.trainer.ready if view.trainer is not None else None
    threads = f"{ready.threads} threads on {ready.device}" if ready is not None else "-"
    cores = volunteer.cpu_cores_used
    gpus = ", ".join(map(str, config.gpus)) or "all"
    return [
        LimitView("cpu_percent", f"{config.cpu_percent} %", _known(cores, "{:.2f} cores")),
        LimitView("threads", str(config.threads or "all but one"), threads),
        LimitView("gpus", f"{gpus} (device {config.device})", "-"),
        LimitView("gpu_memory", config.gpu_memory or "all", "-"),
        LimitView(
            "gpu_temperature_max",
            f"{config.gpu_temperature_max} °C" if config.gpu_temperature_max else "-",
            _known(seen.gpu_celsius, "{:.0f} °C"),
        ),
        LimitView("ram", config.ram or "all", _bytes(seen.worker_bytes)),
        LimitView("disk", config.disk or "all", _bytes(seen.disk_bytes)),
    ]


def _line_lines(volunteer: Volunteer) -> list[LimitView]:
    config, traffic = volunteer.config, volunteer.traffic
    month = show_bytes(volunteer.readings.month_bytes) + " this month"
    return [
        LimitView("upload", config.upload or "all", show_bytes(traffic.up.total_bytes) + " sent"),
        LimitView(
            "download", config.download or "all", show_bytes(traffic.down.total_bytes) + " received"
        ),
        LimitView(
            "monthly_quota", config.monthly_quota or "all", month if config.monthly_quota else "-"
        ),
    ]


def _pause_lines(volunteer: Volunteer) -> list[LimitView]:
    config, seen = volunteer.config, volunteer.readings
    quiet = f"after {show_duration(config.pause_on_user_s)}" if config.pause_on_user_s else "no"
    return [
        LimitView("schedule", "; ".join(config.schedule) or "always", "-"),
        LimitView("pause_on_battery", _yes(config.pause_on_battery), _said(seen.on_battery)),
        LimitView("pause_on_metered", _yes(config.pause_on_metered), _said(seen.metered)),
        LimitView(
            "pause_on_gpu_busy",
            _yes(config.pause_on_gpu_busy),
            _known(seen.gpu_others_share, "{:.0%} by others"),
        ),
        LimitView(
            "pause_on_user_s",
            quiet,
            f"quiet for {show_duration(seen.user_quiet_s)}"
            if seen.user_quiet_s is not None
            else "-",
        ),
    ]


def _known(value: float | None, how: str) -> str:
    return "-" if value is None else how.format(value)


def _bytes(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else show_bytes(n_bytes)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _said(value: bool | None) -> str:
    return "unknown here" if value is None else _yes(value)


class PauseView(msgspec.Struct, frozen=True):
    """What became of a pause: ``why`` names all that holds, "" if nothing does."""

    paused: bool
    why: str
    until_unix_s: float | None


def volunteer_routes(node: Owned) -> list[Route]:
    """Return the routes."""

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

    return [
        Route("POST", "/pause", pause),
        Route("POST", "/resume", resume),
        Route("POST", "/finish", finish),
        Route("GET", "/limits", limits),
    ]
