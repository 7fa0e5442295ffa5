"""What a person names, and which swarm that is."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import trio

from swarmnode.cli.swarm import lookup
from swarmnode.cli.swarm.lookup import age, choose, describe, look_until_found, resolve
from swarmnode.cli.swarm.named import check_key, is_interactive
from swarmnode.config import NodeConfig
from swarmnode.daemon.discovery.lookup import Findings, FoundSwarm, Searched
from swarmnode.errors import ConfigError, Refused
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.swarms import save_link

KEYS = [Identity.from_seed(bytes([n]) * 32).public_key for n in range(12)]
PEER = Identity.from_seed(b"p" * 32).peer_id
SEARCHED = Searched(dht_contacts=7, lan_interfaces=("lo", "eth0"), lan_peers=2)


def swarm(number: int, *, name: str = "demo", members: int | None = 3) -> FoundSwarm:
    hint = str(Hint(PEER, f"192.0.2.{number}:7337"))
    return FoundSwarm(name, encode_base32(KEYS[number]), members, 1000, ("dht",), (hint,))


def found(*swarms: FoundSwarm) -> Findings:
    return Findings(swarms, SEARCHED)


# --- which of several -----------------------------------------------------------------------


def test_the_only_one_of_a_name_is_meant() -> None:
    findings = found(swarm(1), swarm(2, name="other"))
    assert choose("demo", "", findings, may_ask=False) == swarm(1)


def test_none_says_where_was_looked_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        choose("nosuch", "", found(swarm(1)), may_ask=True)
    text = str(caught.value)
    assert "no swarm named 'nosuch'" in text
    assert "in the DHT (7 nodes) and on the LAN (lo, eth0: 2 nodes)" in text
    assert "--bootstrap PEER@HOST:PORT" in text
    off = Findings((), Searched(0, None, 0))
    with pytest.raises(ConfigError, match=r"in the DHT \(0 nodes\); the LAN is switched off"):
        choose("nosuch", "", off, may_ask=False)


def test_several_are_listed_and_none_is_taken() -> None:
    with pytest.raises(Refused) as caught:
        choose("demo", "", found(swarm(1), swarm(2, members=1)), may_ask=False)
    text = str(caught.value)
    assert text.startswith("2 swarms are named 'demo': ")
    assert f"key {encode_base32(KEYS[1])[:12]}…, 3 members" in text
    assert f"key {encode_base32(KEYS[2])[:12]}…, 1 member," in text
    assert "repeat with --key and the first 8 letters or more" in text


def test_a_flood_of_swarms_does_not_flood_the_line() -> None:
    with pytest.raises(Refused, match=r"12 swarms are named 'demo': .*and 4 smaller ones; repeat"):
        choose("demo", "", found(*map(swarm, range(12))), may_ask=False)


def test_a_key_settles_it() -> None:
    findings = found(swarm(1), swarm(2))
    for letters in (8, 20, 52):
        wanted = check_key(encode_base32(KEYS[2])[:letters].upper())
        assert choose("demo", wanted, findings, may_ask=False) == swarm(2)
    with pytest.raises(ConfigError, match="--key: no swarm named 'demo' has a key that starts"):
        choose("demo", encode_base32(KEYS[3])[:8], findings, may_ask=True)


@pytest.mark.parametrize("text", ["", "abcdefg", "abcdefg1", "ab cdefgh", "a" * 53, "äbcdefgh"])
def test_a_key_has_eight_letters_at_least(text: str) -> None:
    with pytest.raises(ConfigError, match="--key: expected 8 to 52 letters of a swarm's key"):
        check_key(text)


def test_a_key_may_be_copied_with_what_shows_that_it_goes_on() -> None:
    assert check_key("abcdefgh2345…") == "abcdefgh2345"


def _answer_two(text: str, **options: Any) -> Any:
    assert text == "which one"
    return options["type"].convert("2", None, None)


def test_a_person_chooses_by_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(click, "prompt", _answer_two)
    assert choose("demo", "", found(swarm(1), swarm(2)), may_ask=True) == swarm(2)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "2 swarms are named demo; members and ages are what members say"
    assert [line.split()[0] for line in shown[2:]] == ["1", "2"]
    assert encode_base32(KEYS[2])[:12] in shown[3]


def test_only_a_terminal_is_interactive(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "r") as terminal, Path(os.devnull).open() as null:
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stdout", terminal)
        assert is_interactive()
        monkeypatch.setattr("sys.stdin", null)
        assert not is_interactive()


# --- words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "just made"),
        (59, "just made"),
        (60, "1 minute old"),
        (7199, "1 hour old"),
        (86_400, "1 day old"),
        (2000 * 86_400, "2,000 days old"),
    ],
)
def test_ages(seconds: float, words: str) -> None:
    assert age(1000, 1000 + seconds) == words


def test_what_no_member_said_is_not_made_up() -> None:
    silent = FoundSwarm("demo", encode_base32(KEYS[1]), None, None, ("home",), ())
    assert describe(silent, 0.0) == (
        f"key {encode_base32(KEYS[1])[:12]}…, ? members, of unknown age (home)"
    )


# --- links and names ------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    return NodeConfig(home=tmp_path / "home", lan=False)


@pytest.fixture
def look_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a lookup give these swarms; without it none may happen."""

    def give(*swarms: FoundSwarm) -> None:
        monkeypatch.setattr(lookup, "find", lambda *_, **__: found(*swarms))

    monkeypatch.setattr(lookup, "find", None)
    return give


def resolved(text: str, config: NodeConfig, key: str | None = None) -> tuple[SwarmLink, list[str]]:
    said: list[str] = []
    return resolve(text, key, config, said.append, may_ask=False, asks_daemon=False), said


def test_what_this_home_knows_is_not_looked_up(
    config: NodeConfig, look_up: Callable[..., None]
) -> None:
    link = SwarmLink("demo", KEYS[1], (Hint(PEER, "192.0.2.1:7337"),))
    assert resolved(str(link), config) == (link, [])
    save_link(link, config.paths)
    assert resolved("demo", config) == (link, [])
    assert resolved("demo", config, encode_base32(KEYS[1])[:8]) == (link, [])


def test_a_whole_key_needs_no_lookup(config: NodeConfig, look_up: Callable[..., None]) -> None:
    link, _ = resolved("demo", config, encode_base32(KEYS[1]))
    assert link == SwarmLink("demo", KEYS[1])


def test_a_name_that_is_found_says_which_it_is(
    config: NodeConfig, look_up: Callable[..., None]
) -> None:
    look_up(swarm(4))
    link, said = resolved("demo", config)
    assert link == SwarmLink("demo", KEYS[4], (Hint(PEER, "192.0.2.4:7337"),))
    (line,) = said
    assert line.startswith(f"found swarm demo: key {encode_base32(KEYS[4])[:12]}…, 3 members, ")


def test_another_key_than_that_of_the_link_or_of_this_home_is_refused(
    config: NodeConfig, look_up: Callable[..., None]
) -> None:
    link = SwarmLink("demo", KEYS[1])
    wanted = encode_base32(KEYS[2])[:8]
    with pytest.raises(ConfigError, match="--key: the link names the key"):
        resolved(str(link), config, wanted)
    save_link(link, config.paths)
    with pytest.raises(Refused, match="this home already holds another swarm named 'demo'"):
        resolved("demo", config, wanted)


@pytest.mark.parametrize("text", ["", "Ünï", "../demo", "a b"])
def test_what_is_no_name_is_not_looked_up(
    config: NodeConfig, look_up: Callable[..., None], text: str
) -> None:
    with pytest.raises(ConfigError, match="a swarm's name has"):
        resolved(text, config)


# --- a name that no node knows yet ------------------------------------------------------------


async def looked_until(answers: list[Findings], wait_s: float, key: str = "") -> tuple[Any, ...]:
    """Look with these answers, the last of them for ever; each visit takes three seconds."""
    said: list[str] = []
    visits: list[float] = []

    async def look() -> Findings:
        visits.append(trio.current_time())
        await trio.sleep(3)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    begun = trio.current_time()
    wanted = "a member of swarm demo"
    findings = await look_until_found(look, ("demo",), key, wait_s, said.append, wanted=wanted)
    return findings, said, len(visits), trio.current_time() - begun


async def test_a_name_is_waited_for_and_said_so_once(autojump_clock: Any) -> None:
    nobody, there = found(swarm(2, name="other")), found(swarm(1))
    findings, said, visits, _ = await looked_until([nobody, nobody, there], 30)
    assert (findings, visits) == (there, 3)
    (line,) = said
    assert "in the DHT (7 nodes)" in line
    assert "knows a member of swarm demo yet: waiting up to 30 s" in line


async def test_waiting_ends(autojump_clock: Any) -> None:
    nobody = found()
    findings, _, visits, seconds = await looked_until([nobody], 30)
    assert findings is nobody
    assert visits > 5
    assert 26 <= seconds <= 33
    assert (await looked_until([nobody], 0))[1:3] == ([], 1)


async def test_another_key_is_not_what_is_waited_for(autojump_clock: Any) -> None:
    wanted = encode_base32(KEYS[2])[:8]
    findings, _, visits, _ = await looked_until([found(swarm(1)), found(swarm(2))], 30, wanted)
    assert (findings, visits) == (found(swarm(2)), 2)
