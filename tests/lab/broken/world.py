"""A small swarm on a line that is broken in one way, and what is measured of it.

expected   the best path from c0 to the other member that the condition leaves; "none"
path       what came of it
exchanged  each of the two has got a page of the other over their session: keepers, which these
           nodes are, exchange no models
seconds    from the start of c0 to the sentence
told       the first sentence of ``netcheck``, and the advice after "->"; where no node runs,
           because it does not start on that machine, the last that ``join`` said
is_told    the sentence names the condition, and ``netcheck`` ends as it should
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.protocol.swarm import Hint, SwarmLink
from tests.kits.daemon_kit import make_home, new_swarm, wait_until, without_torch
from tests.lab import namespaces
from tests.lab.lab_daemon import LabDaemon, told
from tests.lab.natlab import NatLab
from tests.lab.shaper import Shape

TELL_S = 30.0
PORT = 7337
_PATH_S = 15.0
_CLOCK = """
import os, time
_real, _ahead_s = time.time, float(os.environ.get("LAB_CLOCK_AHEAD_S", "0"))
time.time = lambda: _real() + _ahead_s
"""


class World:
    """A lab with a swarm: light nodes on its hosts."""

    def __init__(self, lab: NatLab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.other = ""  # the member that c0 should reach
        self.swarm = new_swarm()
        self.link = self.swarm.link()
        self.daemons: dict[str, LabDaemon] = {}
        self.at_end = contextlib.ExitStack()
        self._light = without_torch(folder / "no-torch")
        with (folder / "no-torch" / "sitecustomize.py").open("a") as file:
            file.write(_CLOCK)
        hosts = [f"pub{n}" for n in range(2)] + list(lab.kinds)
        signed = self.swarm.signed()
        self.ids = {
            host: str(make_home(folder / host, self.swarm, signed).peer_id) for host in hosts
        }

    def hint(self, host: str, port: int = 443, address: str = "") -> None:
        """Put a node into the link."""
        at = f"{address or self.lab.ip(host)}:{port}"
        hint = Hint(PeerId.parse(self.ids[host]), at)
        self.link = replace(self.link, hints=(*self.link.hints, hint))

    def start(
        self, host: str, role: str = "keeper", link: SwarmLink | None = None, **settings: str
    ) -> LabDaemon:
        """Start a node with the link as it is now, or another one."""
        text = str(link or self.link)
        env = self._light | settings
        daemon = LabDaemon(self.lab, host, self.folder, text, "--role", role, port=PORT, env=env)
        self.daemons[host] = daemon
        return daemon

    def public(self, role: str = "relay", host: str = "pub0", **settings: str) -> None:
        """Start a public node, and wait until it is there."""
        self.start(host, role, None, **settings).wait(lambda s: s["state"] == "serving", host)

    def nft(self, host: str, text: str) -> None:
        """Load rules into the firewall of a host."""
        self.lab.run(host, "nft", "-f", "-", stdin=text + "\n")

    def filter(self, host: str, hook: str, rule: str, family: str = "ip") -> None:
        """Add one rule to the firewall of a host, before its own."""
        chain = f"chain c {{ type filter hook {hook} priority -1; {rule}\n}}"
        self.nft(host, f"table {family} broken {{ {chain}\n}}")

    def ip(self, host: str, *command: str) -> None:
        """Change the network of a host."""
        namespaces.run("ip", "-n", self.lab.namespace(host), *command)

    def path(self) -> str:
        """Return the path from c0 to the other member, "none" without one."""
        with contextlib.suppress(AssertionError):  # it has ended
            if self.other:
                return self.daemons["c0"].path_to(self.ids[self.other]) or "none"
        return "none"

    def exchanges(self) -> bool:
        """Whether c0 and the other get a page of each other, over whatever is between them."""
        if self.path() == "none":
            return False
        ends = ("c0", self.other), (self.other, "c0")
        with contextlib.suppress(SwarmNodeError):
            return all(self.daemons[one].page_of(self.ids[two]) for one, two in ends)
        return False

    def close(self) -> None:
        """End all nodes."""
        for daemon in self.daemons.values():
            with contextlib.suppress(Exception):
                daemon.kill()
        self.at_end.close()


@dataclass(frozen=True)
class Condition:
    """``prepare`` breaks the line and starts the nodes; c0 is the last of them.

    ``says``: words that the sentence has to have; ``is_fail``: whether ``netcheck`` ends with 1.
    """

    prepare: Callable[[World], None]
    says: str
    sites: tuple[str, ...] = ("port-restricted",)
    expected: str = "none"
    is_fail: bool = True
    forbidden: str = "\0"  # words that may be in no line
    lab: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape)
    after: Callable[[World], None] | None = None  # mends the line: the path comes then


def measure(name: str, condition: Condition, delay_ms: float = 0.0) -> dict[str, Any]:
    """Build the lab of one condition, and return what the node on it has said."""
    shape = replace(condition.shape, delay_ms=condition.shape.delay_ms + delay_ms)
    with (
        tempfile.TemporaryDirectory(prefix="swarmnode-conditions-") as folder,
        NatLab(condition.sites, shape=shape, **{"public": 2} | dict(condition.lab)) as lab,
    ):
        world = World(lab, Path(folder))
        try:
            condition.prepare(world)
            return {"name": name, "expected": condition.expected} | _watch(world, condition)
        finally:
            world.close()


def _watch(world: World, condition: Condition) -> dict[str, Any]:
    begin, said, is_told = time.monotonic(), "", False
    while time.monotonic() < begin + TELL_S and not is_told:
        said, texts, code = _listen(world.daemons["c0"])
        is_told = (
            condition.says in said
            and bool(code) is condition.is_fail
            and condition.forbidden not in texts
        )
    seconds = time.monotonic() - begin
    if condition.after is not None:
        condition.after(world)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: world.path() == condition.expected, "the path", _PATH_S)
    return {
        "path": world.path(),
        "exchanged": world.exchanges(),
        "seconds": round(seconds, 1),
        "told": said,
        "is_told": is_told,
    }


def _listen(node: LabDaemon) -> tuple[str, str, int]:
    """Return the sentence, all that was said, and the exit code of the verb that said it."""
    assert node.process is not None
    code = node.process.poll()
    if code is not None:
        ours = [line for line in node.log.splitlines() if line.startswith("swarmnode: ")]
        return (ours or [""])[-1], node.log, code
    findings, code = node.netcheck()
    return told(findings), json.dumps(findings), code
