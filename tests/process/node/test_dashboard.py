"""The dashboard of three real nodes in a real browser, and the same swarm in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swarmnode.daemon.exchange.history import letters_of
from swarmnode.ids import PeerId
from swarmnode.ipc.spawn import worker_command
from swarmnode.protocol.swarm import Hint
from tests.conftest import ROOT
from tests.kits.daemon_kit import (
    DEADLINE_S,
    LOOPBACK,
    Daemon,
    environment,
    make_home,
    new_swarm,
    swarmnode,
    wait_until,
)
from tests.process.node.browser_kit import CHROMIUM, Browser, browser
from tests.process.node.page_kit import made_up_history, made_up_overview, made_up_page

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
IMAGES = ROOT / "docs" / "images"
IMAGE_BYTES_MAX = 150_000
# Set to write the pictures of the docs anew.
WRITE_IMAGES = "DASHBOARD_WRITE_IMAGES"
ROW = "#members tbody tr"


@dataclass
class Trio:
    """Three nodes, the first of which serves its page."""

    nodes: list[Daemon]

    @property
    def first(self) -> Daemon:
        return self.nodes[0]

    @property
    def names(self) -> set[str]:
        return {letters_of(PeerId.parse(node.status()["peer"])) for node in self.nodes}

    def address(self, *, with_key: bool = True) -> str:
        answer = swarmnode(self.first.home, "dashboard", "--json")
        assert answer.code == 0, answer.err
        url: str = answer.json["url"]
        return url if with_key else url.partition("#")[0]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    root = tmp_path_factory.mktemp("three")
    swarm = new_swarm()
    make_home(root / "a", swarm)
    nodes: list[Daemon] = []
    try:
        first = Daemon(root / "a", str(swarm.link()), "--dashboard", f"{LOOPBACK}:0")
        nodes.append(first)
        peer = PeerId.parse(first.wait_training()["peer"])
        link = str(swarm.link(Hint(peer, f"{LOOPBACK}:{first.port}")))
        nodes += [Daemon(root / name, link) for name in "bc"]
        first.wait(
            lambda s: s["peers_connected"] == 2 and s["exchanges_committed"] > 2, "three that meet"
        )
        yield Trio(nodes)
    finally:
        for node in nodes:
            node.kill()


@pytest.fixture(scope="module")
def page(three: Trio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        page.look(width=1280, height=900)
        yield page


def open_page(page: Browser, address: str) -> None:
    page.complaints.clear()
    page.evaluate("sessionStorage.clear()") if page.evaluate("location.protocol == 'http:'") else 0
    page.open("about:blank")
    page.open(address)
    page.wait(f"document.querySelectorAll('{ROW}').length >= 3", "three rows")


def points_of(page: Browser, curve: str) -> int:
    """Return how many points a curve has."""
    path = page.evaluate(f"document.querySelector('path.{curve}')?.getAttribute('d') ?? ''")
    return len(re.findall("[ML]", path))


# --- the page -----------------------------------------------------------------------------


@needs_chromium
def test_the_page_shows_the_swarm(three: Trio, page: Browser) -> None:
    open_page(page, three.address())
    rows = page.evaluate(
        f"[...document.querySelectorAll('{ROW} th span.mono')].map(e => e.innerText)"
    )
    assert set(rows) == three.names
    called = page.evaluate(
        f"[...document.querySelectorAll('{ROW} th span.called')].map(e => e.innerText)"
    )
    assert set(called) == {node.status()["node_name"] for node in three.nodes}
    page.wait("document.querySelectorAll('#map .way[data-path=direct]').length == 2", "two ways")
    assert (
        set(
            page.evaluate(
                "[...document.querySelectorAll('#map [data-member]')].map(e => e.dataset.member)"
            )
        )
        == three.names
    )
    page.wait("document.querySelector('path.curve-swarm') !== null", "a curve")
    wait_until(lambda: points_of(page, "curve-swarm") >= 4, "a curve of some points")
    wait_until(lambda: points_of(page, "curve-own") >= 4, "our own curve")
    assert page.evaluate("document.querySelector('#state').innerText") == "training"
    assert page.evaluate("document.querySelector('#link-state').innerText") == "live"
    assert page.evaluate("document.title") == "demo: training, swarmnode"
    assert page.complaints == []


@needs_chromium
def test_the_key_does_not_stay_in_the_address(three: Trio, page: Browser) -> None:
    open_page(page, three.address())
    assert page.evaluate("location.href") == three.address(with_key=False)
    page.wait("!document.querySelector('#pause').disabled", "a button that works")
    page.call("Page.reload")
    page.wait(
        "document.readyState == 'complete' && !document.querySelector('#pause').disabled",
        "a button that works after a reload",
    )


@needs_chromium
def test_without_the_key_the_page_only_shows(three: Trio, page: Browser) -> None:
    open_page(page, three.address(with_key=False))
    page.wait(
        "document.querySelector('#control-note').innerText.includes('swarmnode dashboard')",
        "how to get the key",
    )
    assert page.evaluate("document.querySelector('#pause').disabled")
    status = page.evaluate("fetch('/pause', {method: 'POST', body: '{}'}).then(a => a.status)")
    assert status == 403
    assert three.first.status()["state"] == "training"


@needs_chromium
def test_the_button_pauses_and_resumes(three: Trio, page: Browser) -> None:
    open_page(page, three.address())
    page.wait("!document.querySelector('#pause').disabled", "a button")
    page.evaluate("document.querySelector('#pause').click()")
    status = three.first.wait(lambda s: s["state"] == "paused", "a pause")
    assert "hand" in status["reason"] or "manual" in status["reason"]
    page.wait("document.querySelector('#state').innerText == 'paused'", "the page says so")
    page.wait("document.querySelector('#pause').innerText == 'Resume training'", "another button")
    assert page.evaluate("document.querySelector('#reason').innerText") == status["reason"]
    page.evaluate("document.querySelector('#pause').click()")
    three.first.wait_training()
    page.wait("document.querySelector('#state').innerText == 'training'", "the page says so")
    assert page.complaints == []


@needs_chromium
def test_a_shared_page_opens_by_its_link_and_only_shows(three: Trio, page: Browser) -> None:
    answer = swarmnode(three.first.home, "dashboard", "--share", f"{LOOPBACK}:0", "--json")
    assert answer.code == 0, answer.err
    (link,) = answer.json["shared"]
    bare = link.partition("?")[0]
    try:
        page.open(bare)  # a reader without the link
        page.wait("document.body.innerText.includes('whole link')", "a refusal")
        open_page(page, link)
        assert page.evaluate("location.href") == bare
        assert page.evaluate("document.querySelector('#pause').disabled")
        assert page.evaluate("document.cookie") == ""  # no script gets it
        page.wait(
            "document.querySelectorAll('#line tbody tr').length == 4", "what the line carried"
        )
        page.evaluate("document.querySelector('a[href=\"/swarm\"]').click()")
        page.wait(
            "location.pathname == '/swarm' && document.querySelector('#tiles dd') !== null",
            "the swarm",
        )
        tiles = page.evaluate("document.querySelector('#tiles').innerText")
        assert "Members here\n3" in tiles
        page.wait(
            "document.querySelector('#members path.curve-swarm') !== null", "members over time"
        )
        page.wait("document.querySelector('#tokens path.curve-swarm') !== null", "tokens over time")
        assert contrasts(page) >= 4.5
        page.look(width=360, height=800)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        # The browser asks for an icon of the refusal, too.
        assert [each for each in page.complaints if "favicon.ico" not in each] == []
        page.open("about:blank")
    finally:
        page.look(width=1280, height=900)
        ended = swarmnode(three.first.home, "dashboard", "--unshare", "--json")
    assert ended.json == {"shared": []}


@needs_chromium
def test_keys_read_the_curve(three: Trio, page: Browser) -> None:
    open_page(page, three.address())
    page.wait("document.querySelector('path.curve-swarm') !== null", "a curve")
    page.evaluate("document.querySelector('#loss').focus()")
    for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        text = page.evaluate("document.querySelector('#loss-readout').innerText")
        assert re.search(r"^\d\d:\d\d:\d\d: swarm [\d.–]+, this node [\d.–]+ at step", text), text


@needs_chromium
def test_text_of_peers_stays_text(three: Trio, page: Browser) -> None:
    open_page(page, three.address())
    evil = "<img src=x onerror=alert(1)>"
    member = {
        "peer": evil, "name": evil, "is_self": False, "role": evil, "alive": "alive",
        "state": evil, "path": evil, "rtt_s": None, "step": 5, "tokens": 5, "eval_loss": None,
        "version": evil,
    }  # fmt: skip
    seen = {"members": [member], "swarm_steps": 5, "others_steps": 0, "edges": [],
            "members_alive": 1}  # fmt: skip
    snapshot = {"root": evil, "step": 1, "size_bytes": 1, "loss": None, "n_holders": 9,
                "holders": [evil]}  # fmt: skip
    found = page.evaluate(
        f"""(async () => {{
        const seen = {json.dumps(seen)};
        const tables = await import("/static/tables.js");
        const {{ SwarmMap }} = await import("/static/map.js");
        const [members, snapshots] = ["members", "snapshots"].map((id) =>
            document.getElementById(id).cloneNode(true));
        tables.showMembers(members, seen);
        tables.showSnapshots(snapshots, [{json.dumps(snapshot)}]);
        const root = document.createElement("div");
        const parts = {{ root, count: document.createElement("p"), legend: root.cloneNode() }};
        new SwarmMap(parts).update(seen);
        const all = [members, snapshots, root];
        return [all.map((e) => e.querySelectorAll("img").length), all.map((e) => e.textContent)];
        }})()"""
    )
    n_images, texts = found
    assert n_images == [0, 0, 0]
    assert all(evil in text for text in texts), texts


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_everywhere_and_is_legible(
    three: Trio, page: Browser, scheme: str, tmp_path: Path
) -> None:
    open_page(page, three.address())
    page.wait("document.querySelector('path.curve-swarm') !== null", "a curve")
    try:
        for width in (360, 768, 1280):
            page.look(width=width, height=800, scheme=scheme)
            page.screenshot(tmp_path / f"{scheme}-{width}.png", whole=True)
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert contrasts(page) >= 4.5
    finally:
        page.look(width=1280, height=900)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_larger_swarm_with_all_kinds_of_ways(page: Browser, scheme: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    seen = made_up_overview(13, rng)
    with made_up_page(seen, made_up_history(seen, 120, rng)) as address:
        page.look(width=1080, height=850, scheme=scheme)
        open_page(page, address + "#" + "k" * 32)
        for path in ("direct", "punched-tcp", "rtc", "relay"):
            count = page.evaluate(
                f"document.querySelectorAll('#map .way[data-path=\"{path}\"]').length"
            )
            assert count == sum(member.path == path for member in seen.members)
        assert page.evaluate("document.querySelectorAll('path.curve-peer').length") == 6
        assert points_of(page, "curve-swarm") == 120
        rows = page.evaluate(f"document.querySelectorAll('{ROW}').length")
        assert rows == 13 + 1  # and the members that have gone
        assert contrasts(page) >= 4.5
        picture = tmp_path / f"dashboard-{scheme}.png"
        data = page.screenshot(picture)
        assert data.startswith(b"\x89PNG")
        assert len(data) <= IMAGE_BYTES_MAX
        if WRITE_IMAGES in os.environ:
            (IMAGES / picture.name).write_bytes(data)
        assert page.complaints == []
        page.open("about:blank")
    page.look(width=1280, height=900)


@needs_chromium
def test_a_swarm_of_hundreds_is_cut(page: Browser) -> None:
    rng = random.Random(8)
    seen = made_up_overview(700, rng)
    with made_up_page(seen, made_up_history(seen, 512, rng)) as address:
        open_page(page, address)
        assert page.evaluate(f"document.querySelectorAll('{ROW}').length") == 201
        assert page.evaluate("document.querySelectorAll('#map .spot').length") == 96
        note = page.evaluate("document.querySelector('#members-note').innerText")
        assert note == "500 more are not listed"
        page.look(width=360, height=800)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.open("about:blank")
    page.look(width=1280, height=900)


def contrasts(page: Browser) -> float:
    """Return the smallest contrast of a text with what is behind it, by WCAG's formula."""
    smallest: float = page.evaluate(
        """(() => {
        const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => {
            for (let at = e; at !== null; at = at.parentElement) {
                const colour = parts(getComputedStyle(at).backgroundColor);
                if (colour.length === 3 || colour[3] === 1) return colour;
            }
            return [255, 255, 255];
        };
        const shown = [...document.querySelectorAll("body *")].filter((e) =>
            [...e.childNodes].some((c) => c.nodeType === 3 && c.data.trim()) &&
            !e.matches(":disabled") && e.checkVisibility());
        return Math.min(...shown.map((e) => {
            const style = getComputedStyle(e);
            const text = light(parts(e instanceof SVGElement ? style.fill : style.color));
            const [high, low] = [text, light(behind(e))].sort((a, b) => b - a);
            return (high + 0.05) / (low + 0.05);
        }));
        })()"""
    )
    return smallest


# --- verbs --------------------------------------------------------------------------------


def test_dashboard_prints_where_the_page_is(three: Trio) -> None:
    answer = swarmnode(three.first.home, "dashboard")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#[\w-]{20,}\n", answer.out)


def test_dashboard_says_why_there_is_none(three: Trio) -> None:
    answer = swarmnode(three.nodes[1].home, "dashboard")
    assert answer.code == 1
    assert answer.line.endswith("serves no dashboard: the setting dashboard is off")


def test_top_prints_one_frame(three: Trio) -> None:
    answer = swarmnode(three.first.home, "top", "--once", env={"COLUMNS": "80"})
    assert answer.code == 0, answer.err
    assert all(name in answer.out for name in three.names)
    assert max(map(len, answer.out.splitlines())) <= 80


def test_top_without_a_node_says_so(tmp_path: Path) -> None:
    assert swarmnode(tmp_path / "home", "top", "--once").code == 3


class Terminal:
    """A verb in a terminal of 80 columns and 24 lines."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            worker_command("swarmnode", *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(home, {"TERM": "xterm-256color"}),
            start_new_session=True,
        )
        self.shown = ""

    def wait(self, text: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            left_s = until - time.monotonic()
            assert left_s > 0, f"no {text!r} in {self.shown[-3000:]!r}"
            if select.select([self._ours], [], [], left_s)[0]:
                self.shown += os.read(self._ours, 1 << 16).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> tuple[int, list[Any]]:
        """Return the exit code, and how the terminal is set then."""
        self.wait("\x1b[?1049l")  # the screen of before is back
        return self.process.wait(DEADLINE_S), termios.tcgetattr(self._theirs)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.mark.parametrize("way", ["q", "signal"])
def test_top_leaves_the_terminal_as_it_was(three: Trio, way: str) -> None:
    with contextlib.closing(Terminal(three.first.home, "top")) as terminal:
        for name in three.names:
            terminal.wait(name)
        if way == "q":
            terminal.press("q")
        else:
            terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == (0, terminal.before)
        assert "Traceback" not in terminal.shown


def test_top_pauses_and_goes_on(three: Trio) -> None:
    with contextlib.closing(Terminal(three.first.home, "top")) as terminal:
        terminal.wait("q quits")
        terminal.press("p")
        three.first.wait(lambda s: s["state"] == "paused", "a pause")
        terminal.wait("paused")
        terminal.press("p")
        three.first.wait_training()
        terminal.press("q")
        assert terminal.end()[0] == 0
