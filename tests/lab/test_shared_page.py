"""A page that is shared beyond its machine: by the address that was chosen, and with the token."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kits.daemon_kit import make_home, new_swarm, swarmnode, without_torch
from tests.lab.lab_daemon import LabDaemon
from tests.lab.matrix import PORT
from tests.lab.natlab import NatLab

NODE, READER = "pub0", "pub1"
PAGE_PORT = 7340
ANSWER_S = 20.0


@dataclass
class World:
    """A node on a host with two addresses, and a reader on another machine."""

    lab: NatLab
    node: LabDaemon

    @property
    def chosen(self) -> str:
        return self.lab.ip(NODE)

    @property
    def other(self) -> str:
        """Return the second address of the node's host."""
        network, _, last = self.chosen.rpartition(".")
        return f"{network}.{int(last) + 1}"

    def share(self, *options: str) -> list[str]:
        """Return the links that the verb prints."""
        answer = swarmnode(self.node.home, "dashboard", *options, "--json")
        assert answer.code == 0, answer.err + answer.out
        links: list[str] = answer.json["shared"]
        return links

    def get(
        self, path: str, address: str = "", host: str = READER, method: str = "GET", **headers: str
    ) -> tuple[int, str]:
        """Ask as another machine does; return the status, and the cookie that came."""
        connection = http.client.HTTPConnection(address or self.chosen, PAGE_PORT, timeout=ANSWER_S)
        try:
            with self.lab.inside(host):  # where the socket is opened is where it stays
                connection.connect()
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, (answer.getheader("Set-Cookie") or "").partition(";")[0]
        finally:
            connection.close()


@pytest.fixture
def world(able: None, tmp_path: Path) -> Iterator[World]:
    swarm = new_swarm()
    make_home(tmp_path / NODE, swarm)
    light = without_torch(tmp_path / "no_torch")
    with NatLab([], public=2) as lab:
        flags = ("--role", "monitor")
        node = LabDaemon(lab, NODE, tmp_path, str(swarm.link()), *flags, port=PORT, env=light)
        try:
            node.wait(lambda status: True, "an answer")
            yield World(lab, node)
        finally:
            node.kill()


def test_another_machine_sees_the_page_with_the_token_and_at_the_chosen_address_only(
    world: World,
) -> None:
    with pytest.raises(ConnectionRefusedError):
        world.get("/")  # nothing is shared unless the owner says so
    (link,) = world.share("--share", f"{world.chosen}:{PAGE_PORT}")
    place, _, token = link.partition("/?token=")
    assert place == f"http://{world.chosen}:{PAGE_PORT}"

    for path in ("/", "/swarm", "/overview", "/static/app.js"):
        assert world.get(path)[0] == 403, path
        assert world.get(path, Authorization=f"Bearer {token}")[0] == 200, path
    for wrong in (token[:-1], token + "x", token.swapcase(), ""):
        assert world.get(f"/?token={wrong}") == (403, "")
        assert world.get("/overview", Authorization=f"Bearer {wrong}")[0] == 403
    status, cookie = world.get(f"/?token={token}")
    assert (status, bool(cookie)) == (200, True)
    assert world.get("/overview", Cookie=cookie)[0] == 200
    assert world.get("/pause", method="POST", Cookie=cookie)[0] in (404, 405)  # it only shows
    elsewhere = {"Cookie": cookie, "Host": "evil.example"}  # a name that leads here
    assert world.get("/overview", **elsewhere)[0] == 403

    # The other address of that host, and its loopback, were not chosen.
    for address, host in ((world.other, READER), (world.other, NODE), ("127.0.0.1", NODE)):
        with pytest.raises(ConnectionRefusedError):
            world.get("/", address, host)
    assert world.get("/", world.chosen, NODE)[0] == 403  # and there it wants the token, too

    assert world.share("--unshare") == []
    with pytest.raises(ConnectionRefusedError):
        world.get("/overview", Authorization=f"Bearer {token}")
    (again,) = world.share("--share", f"{world.chosen}:{PAGE_PORT}")
    assert again != link
    assert world.get("/overview", Authorization=f"Bearer {token}")[0] == 403


def test_all_addresses_are_shared_where_that_was_said(world: World) -> None:
    link, *_ = world.share("--share", f"*:{PAGE_PORT}")
    token = link.partition("?token=")[2]
    for address in (world.chosen, world.other):
        assert world.get("/overview", address)[0] == 403
        assert world.get("/overview", address, Authorization=f"Bearer {token}")[0] == 200


def test_an_address_of_another_machine_is_refused(world: World) -> None:
    address = world.lab.ip(READER)
    wanted = ("--share", f"{address}:{PAGE_PORT}")
    answer = swarmnode(world.node.home, "dashboard", *wanted, "--json")
    assert answer.code == 2
    assert f"cannot listen on port {PAGE_PORT} of {address}" in answer.json["error"]
