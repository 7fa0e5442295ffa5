"""What service managers are given: units, a property list, a task, from templates.

The templates lie in ``swarmnode/services``. What was written from one has a mark with a digest of
the rest, so that a file of another program, or one that its owner has changed, is known as such.

Here is also whether the user of a system service reaches what its units name: Python, swarmnode,
the home. Distributions make home folders that only their owner may enter, and a unit with
``PrivateTmp`` has a /tmp of its own. systemd says of both no more than "status=203/EXEC", again and
again.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

import swarmnode
from swarmnode import __version__
from swarmnode.cli.main import SUCCESS_VARIABLE
from swarmnode.errors import FINAL_EXIT_CODES, ConfigError

State = Literal["absent", "ours", "edited", "foreign"]

SYSTEM_HOME = Path("/var/lib/swarmnode")
_FINAL = " ".join(map(str, FINAL_EXIT_CODES))
_SYSTEM_SOCKET = "/run/swarmnode/worker.sock"
_USER_SOCKET = "%t/swarmnode-worker.sock"
_MARK = re.compile(r"Written by swarmnode \S+, digest ([0-9a-f]{16})")
_PLACEHOLDER = re.compile("@([A-Z_]+)@")
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_PRIVATE_TMP = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - what the units do not see of them
_ACL = "system.posix_acl_access"
_UNIT_PLAIN = re.compile(r"[\w./:=,@+*-]+", re.ASCII)


class ServiceFile(NamedTuple):
    """A file of a service, whole."""

    path: Path
    text: str

    @property
    def encoding(self) -> str:
        """Windows wants its task in UTF-16."""
        return "utf-16" if self.path.suffix == ".xml" else "utf-8"

    def state(self) -> State:
        """Return what lies there now. Raises OSError."""
        try:
            text = self.path.read_bytes().decode(self.encoding)
        except FileNotFoundError:
            return "absent"
        except UnicodeError:
            return "foreign"
        mark = _MARK.search(text)
        if mark is None:
            return "foreign"
        return "ours" if mark[1] == _digest(text.replace(mark[0], "")) else "edited"


class Plan(NamedTuple):
    """What is written, and what its owner then runs to start it, and to end it for good."""

    files: tuple[ServiceFile, ...]
    start: tuple[str, ...]
    stop: tuple[str, ...]


class Service(NamedTuple):
    """One node as a service."""

    name: str  # of the swarm
    home: Path
    join_options: tuple[str, ...] = ()
    has_worker: bool = True

    def join(self) -> list[str]:
        """Return the command of the daemon."""
        command = [sys.executable, "-P", "-m", "swarmnode", "join", self.name]
        return [*command, "--home", str(self.home), *self.join_options]


def plan_systemd(service: Service, folder: Path, sysusers: Path | None) -> Plan:
    """Return the units; ``sysusers``: a system service, and the folder that makes its user."""
    kind, socket = ("user", _USER_SOCKET) if sysusers is None else ("system", _SYSTEM_SOCKET)
    environment = _python_path()
    if service.has_worker:
        environment["SWARMNODE_WORKER_SOCKET"] = socket
    values = {
        "NAME": service.name,
        "FINAL": _FINAL,
        "JOIN": " ".join(map(unit_word, service.join())),
        "WORKER": " ".join(
            map(unit_word, [sys.executable, "-P", "-m", "swarmnode.worker.main", "--activated"])
        ),
        "WORKER_UNITS": _unit_lines(
            {"Requires": "swarmnode-worker.socket", "After": "swarmnode-worker.socket"}
            if service.has_worker
            else {}
        ),
        "STATE": _state_lines(service.home),
        "HOME": str(service.home),
        "PROTECT_HOME": "read-only" if _is_at_home(service.home) else "yes",
    }
    names = ["swarmnode.service"]
    if service.has_worker:
        names += ["swarmnode-worker.socket", "swarmnode-worker@.service"]
    written = []
    for name in names:
        # `%t` is for systemd to fill in; what comes from people is not.
        lines = [
            f'Environment="{key}={value if value == _USER_SOCKET else _unit_escape(value)}"'
            for key, value in environment.items()
            if name == "swarmnode.service" or key != "SWARMNODE_WORKER_SOCKET"
        ]
        text = _render(f"{kind}/{name}", values | {"ENVIRONMENT": "\n".join(lines)})
        written.append(ServiceFile(folder / name, text))
    if sysusers is not None:
        text = _render(f"{kind}/sysusers.conf", values)
        written.insert(0, ServiceFile(sysusers / "swarmnode.conf", text))
    units = " ".join(name for name in reversed(names) if "@" not in name)
    return Plan(tuple(written), *_systemctl(units, service, is_system=sysusers is not None))


def plan_launchd(service: Service, folder: Path) -> Plan:
    """Return the property list of an agent of the user who runs this."""
    environment = _python_path() | {SUCCESS_VARIABLE: _FINAL}
    values = {
        "JOIN": "\n".join(f"    <string>{escape(word)}</string>" for word in service.join()),
        "ENVIRONMENT": "\n".join(
            f"    <key>{key}</key>\n    <string>{escape(value)}</string>"
            for key, value in environment.items()
        ),
        "HOME": escape(str(service.home)),
    }
    path = folder / "org.swarmnode.node.plist"
    return Plan(
        (ServiceFile(path, _render("launchd/org.swarmnode.node.plist", values)),),
        start=(f"launchctl bootstrap gui/$(id -u) '{path}'",),
        stop=("launchctl bootout gui/$(id -u)/org.swarmnode.node",),
    )


def plan_windows(service: Service, folder: Path) -> Plan:
    """Return the scheduled task of the user who runs this."""
    python, *arguments = service.join()
    values = {
        "NAME": escape(service.name),
        "PYTHON": escape(python),
        "JOIN": escape(subprocess.list2cmdline(arguments)),
    }
    path = folder / "swarmnode-task.xml"
    return Plan(
        (ServiceFile(path, _render("windows/swarmnode.xml", values)),),
        start=(f'schtasks /Create /TN swarmnode /XML "{path}"', "schtasks /Run /TN swarmnode"),
        stop=("schtasks /End /TN swarmnode", "schtasks /Delete /TN swarmnode /F"),
    )


def unit_word(word: str) -> str:
    """Quote one word of a command for a unit file. Raises ConfigError if that cannot be done."""
    if any(not character.isprintable() for character in word):
        raise ConfigError(f"a service: expected text without control characters, got {word!r}")
    escaped = _unit_escape(word).replace("$", "$$")
    return escaped if _UNIT_PLAIN.fullmatch(word) else f'"{escaped}"'


def _unit_escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _unit_lines(lines: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _state_lines(home: Path) -> str:
    """Return what lets a unit write to the home; systemd makes the usual one, and its owner."""
    if home == SYSTEM_HOME:
        return "StateDirectory=swarmnode\nStateDirectoryMode=0700"
    return f"ReadWritePaths={unit_word(str(home))}"


def _is_at_home(home: Path) -> bool:
    """Whether a unit needs to see the homes of people: Python, swarmnode or the node is there."""
    here = [home, Path(sys.prefix), Path(sys.base_prefix), Path(swarmnode.__file__)]
    return any(path.is_relative_to(people) for path in here for people in _HOMES)


def _python_path() -> dict[str, str]:
    """Return what lets Python find a swarmnode that is not installed."""
    here = Path(swarmnode.__file__).parent.parent
    installed = {Path(path) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    return {} if here in installed else {"PYTHONPATH": str(here)}


def _systemctl(
    units: str, service: Service, *, is_system: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the commands that start the units, and that stop them."""
    if is_system:
        own = () if service.home == SYSTEM_HOME else (f"chown -R swarmnode: '{service.home}'",)
        start = ("systemd-sysusers", *own, "systemctl daemon-reload")
        return (*start, f"systemctl enable --now {units}"), (f"systemctl disable --now {units}",)
    start = ("systemctl --user daemon-reload", f"systemctl --user enable --now {units}")
    linger = "loginctl enable-linger  # to go on after you log out"
    return (*start, linger), (f"systemctl --user disable --now {units}",)


def _render(template: str, values: Mapping[str, str]) -> str:
    text = files(swarmnode).joinpath("services", *PurePath(template).parts).read_text("utf-8")
    fill: Callable[[re.Match[str]], str] = lambda match: (  # noqa: E731
        match[0] if match[1] == "MARK" else values[match[1]]
    )
    text = _PLACEHOLDER.sub(fill, text)
    mark = f"Written by swarmnode {__version__}, digest {_digest(text.replace('@MARK@', ''))}"
    return text.replace("@MARK@", mark)


def _digest(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()[:16]


def commands(lines: Sequence[str]) -> str:
    """Return commands as a person copies them."""
    return "\n".join(f"    {line}" for line in lines)


class ServiceUser(NamedTuple):
    """The user that the units run as; ids are None as long as there is no such user."""

    name: str = "swarmnode"
    uid: int | None = None
    gids: frozenset[int] = frozenset()


def service_user(name: str = "swarmnode") -> ServiceUser:
    """Return that user as it is on this machine."""
    import grp
    import pwd  # neither is on Windows

    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return ServiceUser(name)
    groups = {group.gr_gid for group in grp.getgrall() if name in group.gr_mem}
    return ServiceUser(name, entry.pw_uid, frozenset(groups | {entry.pw_gid}))


def why_unreadable(home: Path, user: ServiceUser) -> str:
    """Return in one line what the service cannot reach, and what to do; "" if it reaches all.

    The home itself is given to the user before the start: only the way to it counts.
    """
    programs = [Path(sys.executable), Path(sys.prefix), Path(swarmnode.__file__).parent]
    advice = "make the venv elsewhere, such as below /opt, and run this with its swarmnode"
    for path in programs:
        if why := _why_hidden(path, user, wanted=path):
            return f"{why}: {advice}"
    if home != SYSTEM_HOME and (why := _why_hidden(home.parent, user, wanted=home)):
        return f"{why}: leave --home out for {SYSTEM_HOME}, or choose another"
    return ""


def _why_hidden(path: Path, user: ServiceUser, *, wanted: Path) -> str:
    if any(path.is_relative_to(hidden) for hidden in _PRIVATE_TMP):
        return (
            f"the service has a temporary folder of its own (PrivateTmp) and does not see {wanted}"
        )
    for step in _steps(path):
        try:
            found = step.stat()
        except OSError:
            continue  # it is not there yet, or this user cannot look: nothing is known
        if not _may_enter(step, found, user):
            mode = stat.S_IMODE(found.st_mode)
            return (
                f"the service's user {user.name} cannot read {wanted}: {step} lets others not in"
                f" (mode {mode:04o})"
            )
    return ""


def _steps(path: Path) -> Iterator[Path]:
    """Yield what has to be passed, from the root on: of the path, and of where links lead."""
    for way in dict.fromkeys((path.absolute(), path.resolve())):
        yield from reversed(way.parents)
        yield way


def _may_enter(path: Path, found: os.stat_result, user: ServiceUser) -> bool:
    if user.uid == 0 or (found.st_uid == user.uid and found.st_mode & stat.S_IXUSR):
        return True
    if found.st_gid in user.gids and found.st_mode & stat.S_IXGRP:
        return True
    return bool(found.st_mode & stat.S_IXOTH) or _has_acl(path)


def _has_acl(path: Path) -> bool:
    """Whether more is said of this folder than its mode: then its owner has seen to it."""
    try:
        return bool(os.getxattr(path, _ACL)) if sys.platform == "linux" else False
    except OSError:
        return False
