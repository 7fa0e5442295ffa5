"""The link can be had again, fresh or from the disk, and one that was cut is named."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segno
import trio

from swarmnode import limits
from swarmnode.cli.main import main
from swarmnode.config import Paths, load_config
from swarmnode.daemon.status.owner import fresh_link, with_hints
from swarmnode.errors import ConfigError, NotRunning
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, cut_note, parse_link
from swarmnode.store.contacts import save_contacts
from swarmnode.store.swarms import save_link, stored_link
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SWARM_KEY, sim_swarm
from swarmnode.wire.dht import Contact
from tests.sim.checks import until

KEY = Identity.from_seed(bytes(32)).public_key
PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 20)]
OLD = Hint(PEERS[0], "192.0.2.1:7337")
NEW = Hint(PEERS[1], "192.0.2.2:7337")
STORED = SwarmLink("demo", KEY, (OLD,), b"an invite")


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path))
    return Paths(tmp_path)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of the swarm runs on this home, and reaches another peer by now."""
    fresh = SwarmLink("demo", KEY, (NEW,))

    def get(_client: ControlClient, path: str, **_: Any) -> Any:
        assert path == "/link"
        return {"link": str(fresh), "swarm": "demo", "closed": False, "hints": [str(NEW)]}

    monkeypatch.setattr(ControlClient, "get", get)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["link", *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == code, err
    return out, err


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("arguments", [(), ("demo",)])
def test_a_running_node_gives_todays_members(
    paths: Paths, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    save_link(STORED, paths)
    out, err = run(capsys, *arguments)
    assert out == f"{SwarmLink('demo', KEY, (NEW,))}\n"
    assert err == ""
    said = json.loads(run(capsys, *arguments, "--json")[0])
    assert (said["link"], said["fresh"], said["hints"]) == (out.strip(), True, [str(NEW)])


def test_without_a_node_stored_link_and_contacts_make_it_and_that_is_said(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    save_link(STORED, paths)
    save_contacts(paths.contacts, (Contact(bytes(NEW.peer), (NEW.address,)),))
    out, err = run(capsys, "demo")
    assert parse_link(out) == SwarmLink("demo", KEY, (OLD, NEW))  # and no invite
    assert "no node of this swarm runs here" in err
    said = json.loads(run(capsys, "--json")[0])
    assert (said["name"], said["fresh"]) == ("demo", False)


@pytest.mark.usefixtures("running")
def test_a_qr_code_in_the_terminal_is_that_of_the_link(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    save_link(STORED, paths)
    text, *lines = run(capsys, "--qr")[0].splitlines()
    bright = {"█": (0, 0), "▀": (0, 1), "▄": (1, 0), " ": (1, 1)}  # of the upper and lower square
    rows = [[bright[each][half] for each in line] for line in lines for half in (0, 1)]
    border = segno.make_qr(text, error="l").default_border_size
    code = [row[border:-border] for row in rows[border:]]
    wanted = [list(row) for row in segno.make_qr(text, error="l").matrix]
    assert code[: len(wanted)] == wanted
    assert not any(map(any, rows[:border]))  # a camera needs the margin
    assert not any(any(row[:border] + row[-border:]) for row in rows[:-1])


@pytest.mark.usefixtures("running")
def test_without_segno_the_error_names_the_extra(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_link(STORED, paths)
    monkeypatch.setitem(sys.modules, "segno", None)  # as an import of what is not there ends
    err = run(capsys, "--qr", code=1)[1]
    assert "pip install '.[qr]'" in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("running")
def test_a_node_in_another_swarm_does_not_answer_for_this_one(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    save_link(SwarmLink("other", PEERS[3][:32], (OLD,)), paths)
    out, err = run(capsys, "other")
    assert out.startswith("swarm:other?")
    assert "no node of this swarm runs here" in err


def test_what_is_not_known_or_not_clear_is_said(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "this home has no swarm yet" in run(capsys, code=2)[1]
    save_link(STORED, paths)
    save_link(SwarmLink("more", KEY), paths)
    assert "this home has several: demo, more" in run(capsys, code=2)[1]
    assert "knows no swarm named 'nosuch'" in run(capsys, "nosuch", code=2)[1]


async def test_a_node_names_itself_and_members_that_it_reaches(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with sim_swarm(tmp_path, 3, worker=FakeWorker(np.zeros(0))) as swarm:
        nodes = swarm.nodes
        await until(lambda: all(n.status.peers_connected == 2 for n in nodes), 30)
        await trio.sleep(5)
        at = {node.peer: Hint(node.peer, f"192.0.2.{node.index + 1}:7337") for node in nodes}
        for node in nodes:  # addresses of the virtual network are of no use in a link
            address = at[node.peer].address
            node.running.view.node.addresses = lambda address=address: (address,)
            node.running._find_addresses = lambda _bound, address=address: (address,)
        await trio.sleep(limits.SWARM_REPUBLISH_S_MIN + 60)
        told = parse_link(fresh_link(nodes[0].running.view).link)
        assert told.swarm_key == SWARM_KEY.public_key
        assert told.hints[0] == at[nodes[0].peer]
        assert {hint.peer for hint in told.hints} == {node.peer for node in nodes}
        await nodes[2].leave()
        await trio.sleep(30)
        told = parse_link(fresh_link(nodes[0].running.view).link)
        assert {hint.peer for hint in told.hints} == {node.peer for node in nodes[:2]}
        await swarm.leave_all()


async def test_a_node_that_has_no_manifest_yet_says_so(tmp_path: Path) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        node = swarm.add(FakeWorker(np.zeros(640)), hints=())
        await swarm.start(node.index)
        with pytest.raises(NotRunning, match="not in its swarm yet"):
            fresh_link(node.running.view)
        await swarm.leave_all()


def test_a_link_has_as_many_peers_as_it_may() -> None:
    hints = [Hint(peer, "192.0.2.1:7337") for peer in PEERS]
    link = with_hints(SwarmLink("demo", KEY), hints)
    assert link.hints == tuple(hints[: limits.BOOTSTRAP_HINTS_MAX])
    long = [Hint(peer, "a" * 250 + ":7337") for peer in PEERS]
    assert len(str(with_hints(SwarmLink("demo", KEY), long))) <= limits.LINK_CHARACTERS_MAX


# --- the file ---------------------------------------------------------------------------------


def test_the_file_is_one_line_that_can_be_pasted(paths: Paths) -> None:
    save_link(STORED, paths)
    text = paths.swarm("demo").link.read_text()
    assert text == f"{STORED}\n"
    assert parse_link(text) == STORED


def test_a_file_of_two_lines_is_still_read_and_checked(paths: Paths) -> None:
    path = paths.swarm("demo").link
    path.parent.mkdir(parents=True)
    checked = f"{STORED}\ncrc32 {zlib.crc32(str(STORED).encode()):08x}\n"
    path.write_text(checked)
    assert stored_link("demo", paths) == STORED
    path.write_text(checked.replace("crc32 ", "crc32 0"))
    with pytest.raises(ConfigError, match="its checksum is wrong"):
        stored_link("demo", paths)


def test_a_flipped_bit_is_noticed_and_a_copied_link_is_taken(paths: Paths) -> None:
    save_link(STORED, paths)
    path = paths.swarm("demo").link
    text = path.read_text()
    path.write_text(text.replace("192.0.2.1", "192.0.2.9"))
    with pytest.raises(ConfigError, match="its checksum is wrong"):
        stored_link("demo", paths)
    path.with_name("link.crc32").unlink()
    assert stored_link("demo", paths) is not None


# --- a link that the shell has cut --------------------------------------------------------------


def test_a_link_cut_at_the_ampersand_is_named_and_still_tried(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarmnode.cli.swarm.lookup import resolve

    config = load_config({"home": str(paths.home)}, {})
    whole = str(SwarmLink("demo", KEY, (OLD,)))
    said: list[str] = []
    found = resolve(
        whole.split("&")[0], None, config, said.append, may_ask=False, asks_daemon=False
    )
    assert found == SwarmLink("demo", KEY)
    (line,) = said
    assert "a shell cuts a link without quotes at the &" in line
    assert "single quotes" in line
    said.clear()
    resolve(whole, None, config, said.append, may_ask=False, asks_daemon=False)
    assert said == []
    assert cut_note(str(SwarmLink("demo", KEY, (), b"i")), SwarmLink("demo", KEY)) == ""
