"""Secrets stand in settings, logs and history, however spelt: none is in a support bundle."""

from __future__ import annotations

import base64
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode.cli.main import cli
from swarmnode.config import Paths
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink

NOWHERE = {f"SWARMNODE_{name}": "127.0.0.1:0" for name in ("LISTEN", "METRICS", "DASHBOARD")}
WINDOW = 16  # as many characters in a row of a secret are a part of it that helps
HELD = ("node key", "swarm's key", "meeting key")  # by files of the home
SPELLINGS: dict[str, Callable[[bytes], str]] = {
    "hex": bytes.hex,
    "HEX": lambda data: data.hex().upper(),
    "base32": encode_base32,
    "BASE32": lambda data: encode_base32(data).upper(),
    "base64": lambda data: base64.b64encode(data).decode(),
    "base64url": lambda data: base64.urlsafe_b64encode(data).decode(),
    "repr": repr,
}
URLSAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
# What a secret that no file of the home holds is known by.
NAMED = (
    "HF_TOKEN={}", "token {} was refused", "password: {}", "Authorization: Bearer {}",
    "{{\"api_key\": \"{}\"}}", "{{'client_secret': '{}'}}", "GET /?token={}&x=1", "seed = {}",
    "https://me:{}@hub.example/x", "--wandb-api-key={}",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
)  # fmt: skip
BEGUN = ("hf_", "ghp_", "github_pat_", "glpat-", "sk-", "xoxb-", "pypi-", "AKIA")

seeds = st.binary(min_size=32, max_size=32)
tokens = st.text(URLSAFE, min_size=20, max_size=48)
around = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=12)


@st.composite
def planted(draw: st.DrawFn) -> tuple[dict[str, bytes], str, list[tuple[str, str]]]:
    """Return what the home holds, its dashboard's token, and secrets, each with its line."""
    held = {name: draw(seeds) for name in HELD}
    shared, invite = draw(tokens), draw(st.binary(min_size=32, max_size=60))
    own = SwarmLink("tiny", Identity.from_seed(held["swarm's key"]).public_key, (), invite)
    found = []
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(["held", "shared", "named", "begun", "link", "invite"])):
            case "held":
                spell = SPELLINGS[draw(st.sampled_from(sorted(SPELLINGS)))]
                secret = spell(held[draw(st.sampled_from(HELD))])
                line = draw(st.sampled_from(["{}", "x{}", "<{}>", "'{}'", "key={}"])).format(secret)
            case "shared":
                secret = shared
                line = draw(st.sampled_from(["{}", "http://192.0.2.1/?token={}", "({})"]))
                line = line.format(secret)
            case "named":
                secret = draw(tokens)
                line = draw(st.sampled_from(NAMED)).format(secret)
            case "begun":
                secret = draw(tokens)
                line = draw(st.sampled_from(BEGUN)) + secret
            case "link":
                secret, line = encode_base32(invite), str(own)
            case _:
                other = SwarmLink("other", bytes(range(32)), (), draw(st.binary(min_size=32)))
                secret = encode_base32(other.invite)
                line = str(other)
        if line.startswith("swarm:"):
            ways = [line, quote(line, safe=""), line.replace("&", "&amp;")]
            line = draw(st.sampled_from(ways))
        found.append((secret, f"{draw(around)} {line} {draw(around)}"))
    return held | {"invite": invite}, shared, found


def key_file(path: Path, seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    text = f"swarmnode ed25519 key v1\nseed {encode_base32(seed)}\nid {identity.peer_id}\n"
    path.write_text(text)
    path.chmod(0o600)


def write_home(home: Path, held: dict[str, bytes], shared: str, lines: list[str]) -> None:
    """Make a home, and put a third of the lines each into its settings, logs and history."""
    paths = Paths(home)
    swarm = paths.swarm("tiny")
    swarm.directory.mkdir(parents=True)
    key_file(paths.node_key, held["node key"])
    key_file(swarm.swarm_key, held["swarm's key"])
    key_file(swarm.meeting_key, held["meeting key"])
    own = SwarmLink("tiny", Identity.from_seed(held["swarm's key"]).public_key, (), held["invite"])
    swarm.link.write_text(f"{own}\n")
    paths.dashboard_token.write_text(shared)
    swarm.worker_log.write_text("".join(f"{line}\n" for line in lines[::3]))
    (home / "daemon.log").write_text(
        "".join(f'{{"event": {json.dumps(x)}}}\n' for x in lines[1::3])
    )
    events = ({"event": "finished", "why": line} for line in lines[::2])
    paths.history.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    names = [f"name_{n} = {json.dumps(line)}\n" for n, line in enumerate(lines[2::3])]
    paths.config_file.write_text("".join(names))


def texts_of(home: Path, out: Path) -> dict[str, str]:
    arguments = ["support-bundle", "--home", str(home), "--out", str(out), "--no-torch"]
    done = CliRunner(env=NOWHERE).invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, done.exception
    with zipfile.ZipFile(out) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@settings(max_examples=15, deadline=None)
@given(planted())
def test_no_secret_is_in_a_bundle(
    found: tuple[dict[str, bytes], str, list[tuple[str, str]]],
) -> None:
    held, shared, secrets = found
    with tempfile.TemporaryDirectory() as name:
        home, out = Path(name, "home"), Path(name, "out.zip")
        write_home(home, held, shared, [line for _, line in secrets])
        text = "\n".join(texts_of(home, out).values())
        # A secret may be drawn that is made of words which any bundle has.
        write_home(plain := Path(name, "plain"), held, shared, [])
        usual = "\n".join(texts_of(plain, Path(name, "plain.zip")).values())
    for secret, line in secrets:
        for escaped in {secret, json.dumps(secret)[1:-1]}:
            windows = {escaped[at : at + WINDOW] for at in range(len(escaped) - WINDOW + 1)}
            seen = sorted(each for each in windows if each in text and each not in usual)
            assert not seen, f"of {secret!r} in {line!r}: {seen[0]!r} is there"


def test_what_the_lines_say_otherwise_is_kept(tmp_path: Path) -> None:
    """A bundle that is empty holds no secret either, and helps no reader."""
    kept = "2026-11-26T16:00:00Z info daemon.worker: worker ready device=cpu step=1655 of sn1abcdef"
    home = tmp_path / "home"
    held = {name: bytes([n]) * 32 for n, name in enumerate((*HELD, "invite"))}
    write_home(home, held, "t" * 32, [kept])
    texts = texts_of(home, tmp_path / "out.zip")
    assert kept in texts["logs/swarms-tiny-worker.log"]
    assert kept in texts["logs/exchanges.jsonl"]
