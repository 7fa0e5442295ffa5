"""``swarmnode service``: the node as a service of this machine. Writes files, runs nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.options import given, home_option, json_option
from swarmnode.cli.service.files import (
    SYSTEM_HOME,
    Plan,
    Service,
    commands,
    plan_launchd,
    plan_systemd,
    plan_windows,
)
from swarmnode.config import Paths, load_config, resolve_home
from swarmnode.errors import ConfigError, Refused

_ASK_DEADLINE_S = 5.0
_UNIT = "swarmnode.service"


def _scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--root",
            type=click.Path(file_okay=False, path_type=Path),
            help="Write below this folder, for an image or a package [default: /].",
        ),
        click.option(
            "--system/--user",
            "is_system",
            default=None,
            help="For the machine or for you [default: --system for root].",
        ),
    ):
        command = option(command)
    return command


@click.group()
def service() -> None:
    """Run a node as a service of this machine: systemd, launchd or a task of Windows."""


@service.command()
@click.argument("link")
@click.argument("join_options", nargs=-1, type=click.UNPROCESSED)
@home_option
@_scope_options
@click.option("--dry-run", is_flag=True, help="Print the files instead of writing them.")
@json_option
def install(
    link: str,
    join_options: tuple[str, ...],
    home: Path | None,
    root: Path | None,
    is_system: bool | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write the files of a service that joins the swarm of a LINK, or a NAME of this home.

    Options of `join` stand after `--`. Says what it wrote and what you run to start it; files that
    it did not write, or that were changed since, stay.
    """
    scope = _Scope(is_system, root, needs_root=not dry_run)
    own_home = scope.home(home)
    from swarmnode.protocol.swarm import cut_note
    from swarmnode.store.swarms import is_link, resolve_link

    known = resolve_link(link, Paths(scope.below_root(own_home)))
    if is_link(link) and (note := cut_note(link, known)):
        click.echo(f"note: {note}", err=True)
    has_worker = _has_worker(known.name, own_home, join_options)
    plan = scope.plan(Service(known.name, own_home, join_options, has_worker))
    scope.check_readable(own_home, is_for_now=not dry_run and root is None)
    if not dry_run:
        _check_free(plan)
        _save_link(known, scope.below_root(own_home))
        for file in plan.files:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            file.path.write_bytes(file.text.encode(file.encoding))
    if as_json:
        names = [{"path": str(file.path), "text": file.text} for file in plan.files]
        print_json({"files": names, "written": not dry_run, "run": list(plan.start)})
        return
    for file in plan.files:
        click.echo(f"# {file.path}\n{file.text}" if dry_run else f"wrote {file.path}")
    click.echo(f"to start it now and at every boot, run:\n{commands(plan.start)}")


@service.command()
@home_option
@_scope_options
@json_option
def uninstall(home: Path | None, root: Path | None, is_system: bool | None, as_json: bool) -> None:
    """Remove what `install` wrote; the home of the node stays, and so does what is not ours."""
    scope = _Scope(is_system, root)
    plan = scope.plan(Service("", scope.home(home)))
    if enabled := [path for file in plan.files for path in _links_to(file.path)]:
        raise Refused(
            f"the service is still enabled ({enabled[0]}): run `{plan.stop[0]}`, then this again"
        )
    removed, kept = [], []
    for file in plan.files:
        state = file.state()
        if state == "ours":
            file.path.unlink()
            removed.append(str(file.path))
        elif state != "absent":
            kept.append((str(file.path), state))
    if as_json:
        print_json({"removed": removed, "kept": [path for path, _ in kept]})
        return
    for path in removed:
        click.echo(f"removed {path}")
    for path, state in kept:
        why = "was changed since" if state == "edited" else "is not ours"
        click.echo(f"left {path}: it {why}")
    if not removed and not kept:
        click.echo("no service is installed")


@service.command()
@home_option
@_scope_options
@json_option
def status(home: Path | None, root: Path | None, is_system: bool | None, as_json: bool) -> None:
    """Show which files of a service are there, and whether it runs."""
    scope = _Scope(is_system, root, needs_root=False)
    plan = scope.plan(Service("", scope.home(home)))
    states = {str(file.path): file.state() for file in plan.files}
    active = _active(scope) if root is None and "ours" in states.values() else "unknown"
    if as_json:
        print_json({"files": states, "active": active})
        return
    for path, state in states.items():
        click.echo(f"{state:<8} {path}")
    click.echo(f"service: {plain(active)}")


class _Scope:
    """Whose service it is, and where its files lie."""

    def __init__(
        self, is_system: bool | None, root: Path | None, *, needs_root: bool = True
    ) -> None:
        """Raise Refused if this user may not write there."""
        is_systemd = sys.platform not in ("darwin", "win32")
        is_root = is_systemd and os.geteuid() == 0
        self.is_system = is_root if is_system is None else is_system
        self._root = root
        if self.is_system and not is_systemd:
            raise Refused("--system is for systemd: on this machine a service is one of yours")
        if self.is_system and needs_root and root is None and not is_root:
            raise Refused(
                "a service of the machine is written to /etc/systemd: run this as root, or with"
                " --user"
            )

    def home(self, chosen: Path | None) -> Path:
        """Return the home of the node, as the service sees it."""
        if self.is_system:
            return (chosen or SYSTEM_HOME).absolute()
        return resolve_home(chosen, os.environ)

    def check_readable(self, home: Path, *, is_for_now: bool) -> None:
        """Say what the service's user cannot read; of files for later or elsewhere it may change.

        Raises:
            Refused: such a service would be started now, and fail.
        """
        if not self.is_system:
            return
        from swarmnode.cli.service.files import service_user, why_unreadable

        why = why_unreadable(home, service_user())
        if why and is_for_now:
            raise Refused(why)
        if why:
            click.echo(f"swarmnode: as things are here, {plain(why)}", err=True)

    def below_root(self, path: Path) -> Path:
        """Return where a path lies now."""
        return path if self._root is None else self._root / path.relative_to(path.anchor)

    def plan(self, service: Service) -> Plan:
        """Return the files."""
        if sys.platform == "darwin":
            return plan_launchd(service, self.below_root(Path.home() / "Library/LaunchAgents"))
        if sys.platform == "win32":
            return plan_windows(service, service.home)
        if self.is_system:
            units, sysusers = Path("/etc/systemd/system"), Path("/etc/sysusers.d")
            return plan_systemd(service, self.below_root(units), self.below_root(sysusers))
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return plan_systemd(service, self.below_root(Path(config) / "systemd/user"), None)


def _has_worker(name: str, home: Path, join_options: tuple[str, ...]) -> bool:
    """Return whether the node trains; raises what `join` would say of its options."""
    from swarmnode.cli.swarm.join import join

    words = [name, *join_options]
    if join_options and not join_options[0].startswith("-"):
        raise ConfigError(
            f"options of `join` stand after `--`, each with its dashes; got {join_options[0]!r}"
        )
    with join.make_context("swarmnode join", words) as context:
        role = context.params["role"]
    return load_config(given(home=str(home), role=role), {}).role == "trainer"


def _check_free(plan: Plan) -> None:
    for file in plan.files:
        state = file.state()
        if state == "foreign":
            raise Refused(f"{file.path} was not written by swarmnode: move it away first")
        if state == "edited":
            raise Refused(
                f"{file.path} was changed since swarmnode wrote it: put your lines elsewhere"
                f" (`systemctl edit {file.path.name}`), and remove it"
            )


def _save_link(link: Any, home: Path) -> None:
    """Keep the link where the service finds it by name: every user can read unit files."""
    from swarmnode.store.swarms import save_link

    paths = Paths(home)
    owner = home.stat() if home.exists() else None
    save_link(link, paths, has_check=False)  # the node writes it, as its own file
    if owner is not None and sys.platform != "win32" and os.geteuid() == 0:
        link_path = paths.swarm(link.name).link
        for path in (paths.swarms, link_path.parent, link_path):
            os.chown(path, owner.st_uid, owner.st_gid)


def _links_to(path: Path) -> list[Path]:
    """Return what `systemctl enable` made of a unit."""
    return [link for link in path.parent.glob(f"*.wants/{path.name}") if link.is_symlink()]


def _active(scope: _Scope) -> str:
    """Return what systemd says of the daemon; "unknown" where it cannot be asked."""
    if shutil.which("systemctl") is None:
        return "unknown"
    command = ["systemctl", *([] if scope.is_system else ["--user"]), "is-active", _UNIT]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_DEADLINE_S, check=False
        )
        return done.stdout.strip() or "unknown"
    return "unknown"
