"""Whether the user of a system service reaches what its units name: Python, swarmnode, the home.

Distributions make home folders that only their owner may enter, and a unit with ``PrivateTmp`` has
a /tmp of its own. systemd says of both no more than "status=203/EXEC", again and again.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import swarmnode
from swarmnode.cli.service.files import SYSTEM_HOME

_PRIVATE_TMP = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - what the units do not see of them
_ACL = "system.posix_acl_access"


class ServiceUser(NamedTuple):
    """Whom the units run as; ids are None as long as there is no such user."""

    name: str = "swarmnode"
    uid: int | None = None
    gids: frozenset[int] = frozenset()


def service_user(name: str = "swarmnode") -> ServiceUser:
    """Return who that is on this machine."""
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
