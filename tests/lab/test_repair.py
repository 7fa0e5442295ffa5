"""Ways that were lost come back, and poor ones become better ones, while a session uses them.

The nodes are keepers without torch: what a way carries is asked of their sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kits.daemon_kit import wait_until
from tests.lab import namespaces
from tests.lab.broken.world import World
from tests.lab.natlab import NatLab

PUNCHED_S = 30.0
# UPGRADE_PAUSE_S_MIN and a quarter, the same doubled, and the tries themselves.
BETTERED_S = 150.0
_MEET_S = 90.0  # on a machine with two cores that is busy with other things
# From here on nothing is left of any session: SILENCE_S until a channel is given up, RESUME_S
# until the session is, and some more. Ten minutes change nothing but the pauses between dials,
# and of those the longest that a node with no session takes is over after half a minute.
SESSIONS_GONE_S = 80.0
TEN_MINUTES_S = 600.0  # really waited for where one asks for it: ``pytest -m "lab and soak"``
OLD, NEW = "11.11.11.100", "11.11.11.180"


@contextmanager
def two_behind(
    folder: Path,
    *sites: str,
    prepare: Callable[[NatLab], None] = lambda _lab: None,
    **lab: Any,
) -> Iterator[World]:
    """Two nodes behind such NATs, each connected with the other, and a relay."""
    with NatLab(sites, public=2, **lab) as made:
        prepare(made)
        world = World(made, folder)
        world.other = "c1"
        try:
            world.hint("pub0")
            world.public()
            for host in ("c0", "c1"):
                world.start(host)
            yield world
        finally:
            world.close()


def paths(world: World) -> tuple[str, str]:
    """Return the path that each of the two has to the other."""
    return (
        world.daemons["c0"].path_to(world.ids["c1"]),
        world.daemons["c1"].path_to(world.ids["c0"]),
    )


def until_path(world: World, path: str, seconds: float) -> float:
    """Wait until both have this path; return how long it took."""
    began_at = time.monotonic()
    wait_until(lambda: paths(world) == (path, path), f"{path} on both sides", seconds)
    return time.monotonic() - began_at


def sleep_s(seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > ends_at, "the end of the outage", seconds + 10)


def restart_router(lab: NatLab) -> None:
    """The router of c0 loses all its state, and the provider gives it another address."""
    router = lab.namespace("r0")
    lab.flush()
    namespaces.run("ip", "-n", router, "addr", "del", f"{OLD}/24", "dev", "wan")
    namespaces.run("ip", "-n", router, "addr", "add", f"{NEW}/24", "dev", "wan")
    namespaces.run("ip", "-n", router, "route", "replace", "default", "via", "11.11.11.1")


@pytest.mark.parametrize(
    ("outage_s", "at_another_address"),
    [
        (40.0, False),
        pytest.param(SESSIONS_GONE_S, True, marks=pytest.mark.soak),
        pytest.param(TEN_MINUTES_S, False, marks=pytest.mark.soak),
    ],
)
def test_punched_again_after_an_outage(
    able: None, tmp_path: Path, outage_s: float, *, at_another_address: bool
) -> None:
    """After 40 s the sessions wait for another channel, and the kernel repeats last bytes rarely.

    It would do so from both ports of the punched way, for longer than the outage takes.
    """
    with two_behind(tmp_path, "port-restricted", "cgnat") as world:
        until_path(world, "punched-tcp", _MEET_S)
        world.lab.set_uplink("c0", is_up=False)
        sleep_s(outage_s)
        assert paths(world) == ("", "")
        if at_another_address:
            restart_router(world.lab)
        world.lab.set_uplink("c0", is_up=True)
        back_s = until_path(world, "punched-tcp", 2 * PUNCHED_S)
        print(f"punched again {back_s:.1f} s after {outage_s:g} s without a line")
        assert back_s <= PUNCHED_S


def test_webrtc_gives_way_to_a_punch_as_soon_as_there_is_one(able: None, tmp_path: Path) -> None:
    """The router of c0 lets no TCP of the other home through, until it is mended."""
    with two_behind(tmp_path, "port-restricted", "port-restricted", prepare=_block_tcp) as world:
        until_path(world, "rtc", _MEET_S)
        world.lab.run("r0", "nft", "delete", "table", "ip", "picky")
        # What was tried in vain before is remembered there for two minutes (a SYN that got no
        # answer), and would let packets in before the punch begins.
        with world.lab.inside("r1"):
            namespaces.forget_connections()
        bettered_s = until_path(world, "punched-tcp", BETTERED_S)
        print(f"bettered {bettered_s:.1f} s after the router let TCP through")
        moved = [line for line in world.daemons["c0"].log.splitlines() if "goes on" in line]
        assert "punched-tcp" in moved[-1], "the session that there was, and no other"


def _block_tcp(lab: NatLab) -> None:
    other = lab.public_ip("c1")
    drop = f"meta l4proto tcp ip saddr {other} drop; meta l4proto tcp ip daddr {other} drop"
    chain = f"chain f {{ type filter hook forward priority filter - 6; {drop}; }}"
    lab.run("r0", "nft", "-f", "-", stdin=f"table ip picky {{ {chain}\n}}\n")
