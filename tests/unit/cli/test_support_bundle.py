"""A support bundle says what is wrong, and nothing that its owner would regret."""

from __future__ import annotations

import base64
import json
import socket
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swarmnode.cli.doctor import support_bundle
from swarmnode.cli.doctor.support_bundle import Redactor, redactor_for
from swarmnode.cli.main import cli
from swarmnode.config import Paths
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.store.keys import load_or_create_identity
from swarmnode.store.swarms import save_link

PUBLIC = ("8.8.4.4", "2a01:4f8:c0c:1234::1", "93.184.216.34")
PRIVATE = ("127.0.0.1", "192.168.1.7", "fe80::1", "10.0.0.9")
USER, HOST = "wendeline", "wendelines-laptop"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home" / USER / "node"
    monkeypatch.setenv("HOME", str(home.parent))
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(support_bundle.getpass, "getuser", lambda: USER)
    for name in ("LISTEN", "METRICS", "DASHBOARD"):
        monkeypatch.setenv(f"SWARMNODE_{name}", "127.0.0.1:0")
    monkeypatch.setattr(support_bundle, "_journal", lambda: f"Nov 21 {HOST} python: up\n")
    return home


def bundle(home: Path, out: Path, *more: str) -> tuple[Result, dict[str, str]]:
    arguments = ["support-bundle", "--home", str(home), "--out", str(out), "--no-torch", *more]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    if not out.exists():
        return done, {}
    with zipfile.ZipFile(out) as archive:
        return done, {name: archive.read(name).decode() for name in archive.namelist()}


def planted(home: Path) -> dict[str, str]:
    """Put secrets wherever a node, its owner or a library could; return them by what they are."""
    paths = Paths(home)
    seed = load_or_create_identity(paths.node_key).seed()
    swarm = load_or_create_identity(paths.swarm("tiny").swarm_key)
    invite = "aebagbafaydqqcikbmga2dqpcaireeyuculbogazdinryhi6d4qcclq"
    link = f"{SwarmLink('tiny', swarm.public_key)}&i={invite}"
    paths.swarm("tiny").link.write_text(f"{link}\n")
    secrets = {
        "seed, as the file has it": encode_base32(seed),
        "seed, hex": seed.hex(),
        "seed, base64": base64.b64encode(seed).decode().rstrip("="),
        "seed, repr": repr(seed)[2:-1],
        "seed, repr in JSON": json.dumps(repr(seed))[1:-1],
        "swarm's seed": encode_base32(swarm.seed()),
        "invite": invite,
        "password": "correct-horse-battery",
        "token": "hf_abcdefgh12345678",
        "pem": "MC4CAQAwBQYDK2VwBCIEIGrandmother",
        "user": USER,
        "host": HOST,
        "domain": "node.wendeline.example",
        "other user": "grandfather",
        "mac": "3c:22:fb:9a:0b:17",
        **{f"address {address}": address for address in PUBLIC},
    }
    lines = [
        f"INFO key {secrets['seed, hex']} or {secrets['seed, base64']}",
        f"bytes {seed!r}, swarm {secrets[chr(115) + 'warm' + chr(39) + 's seed']}",
        f"looking for {link} and swarm:tiny?k=x&amp;i={invite}",
        f"POST https://{USER}:{secrets['password']}@hub.example/x?token={secrets['token']}",
        f'"api_key": "{secrets["token"]}", Authorization: Bearer {secrets["token"]}',
        f"-----BEGIN PRIVATE KEY-----\n{secrets['pem']}\n-----END PRIVATE KEY-----",
        f"cannot open {home}/swarms/tiny: {Path.home()}/x /home/grandfather/y"
        " C:\\Users\\grandfather",
        f"from {PUBLIC[0]}:7337 [{PUBLIC[1]}]:7337 ::ffff:{PUBLIC[2]} on {secrets['mac']}",
        f"again {PUBLIC[0]}, at home {' '.join(PRIVATE)} version 1.2.3 at 12:34:56",
    ]
    paths.swarm("tiny").worker_log.write_text("\n".join(lines) + "\n")
    events = [{"peer": "sn1abc", "why": lines[7]}, {"raw": repr(seed)}]
    paths.history.write_text("".join(json.dumps(event) + "\n" for event in events))
    paths.config_file.write_text(
        f'advertise = ["{secrets["domain"]}:7337", "{PUBLIC[0]}:7337"]\n'
        f'bootstrap = ["sn1abc@{PUBLIC[2]}:7337"]\n'
    )
    return secrets


def test_nothing_that_was_planted_is_in_the_zip(home: Path, tmp_path: Path) -> None:
    secrets = planted(home)
    out = tmp_path / "bundle.zip"
    done, files = bundle(home, out)
    assert done.exception is None, done.exception
    everything = "\n".join([*files, *files.values()])
    leaked = {what for what, secret in secrets.items() if secret.lower() in everything.lower()}
    assert not leaked
    assert not any(secret.encode() in out.read_bytes() for secret in secrets.values())
    assert out.stat().st_mode & 0o777 == 0o600
    for kept in (*PRIVATE, "sn1abc", "version 1.2.3 at 12:34:56", "tiny"):
        assert kept in everything


def test_placeholders_are_the_same_everywhere(home: Path, tmp_path: Path) -> None:
    planted(home)
    _, files = bundle(home, tmp_path / "bundle.zip")
    log = files["logs/swarms-tiny-worker.log"]
    (first,) = {line.split()[1].split(":")[0] for line in log.splitlines() if "from" in line}
    assert first.startswith("<ip-")
    assert f"again {first}, at home" in log
    assert f"{first}:7337" in files["config.json"]
    assert f"from {first}:7337" in files["logs/exchanges.jsonl"]
    assert "cannot open <home>/swarms/tiny: ~/x" in log
    assert "/home/<user-1>/y C:\\Users\\<user-1>" in log


def test_it_says_what_it_contains(home: Path, tmp_path: Path) -> None:
    planted(home)
    done, files = bundle(home, tmp_path / "bundle.zip")
    readme = files.pop("README.txt")
    assert files.keys() == {
        "versions.json",
        "config.json",
        "doctor.json",
        "home.json",
        "status.json",
        "peers.json",
        "metrics.txt",
        "logs/swarms-tiny-worker.log",
        "logs/exchanges.jsonl",
        "logs/journal.txt",
    }
    for name in files:
        assert name in readme
        assert name in done.output
    assert json.loads(files["versions.json"])["swarmnode"]
    assert json.loads(files["config.json"])["advertise"]["origin"].endswith("/config.toml")
    assert "no swarmnode runs on <home>" in json.loads(files["status.json"])["error"]
    assert "no swarmnode runs on <home>" in files["metrics.txt"]
    listed = {one["name"]: one for one in json.loads(files["home.json"])}
    assert listed["node.key"]["mode"].endswith("600")
    checks = {one["check"] for one in json.loads(files["doctor.json"])}
    assert {"versions", "home", "disk"} <= checks


def test_a_home_that_is_broken_or_absent(home: Path, tmp_path: Path) -> None:
    done, files = bundle(home, tmp_path / "none.zip")
    assert done.exception is None, done.exception
    assert "logs/exchanges.jsonl" not in files
    home.mkdir(parents=True)
    (home / "config.toml").write_text("listen = 7\n")
    done, files = bundle(home, tmp_path / "broken.zip")
    assert done.exception is None, done.exception
    assert "<home>/config.toml: listen: Expected" in json.loads(files["config.json"])["error"]


def test_a_proxy_keeps_its_password_and_its_name(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Paths(home).swarm("tiny").worker_log
    log.parent.mkdir(parents=True)
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:swordfish@shell.corp.example:3128")
    log.write_text("through the proxy shell.corp.example:3128: it answers 407\n")
    (home / "config.toml").write_text('proxy = "http://ann:swordfish@proxy.corp.example:3128"\n')
    done, files = bundle(home, tmp_path / "bundle.zip")
    assert done.exception is None, done.exception
    assert json.loads(files["config.json"])["proxy"]["value"] == "http://<secret>@<host-1>:3128"
    assert "proxy <host-2>:3128" in files["logs/swarms-tiny-worker.log"]
    assert not [name for name, text in files.items() if "swordfish" in text or "corp" in text]


def test_a_file_that_exists_is_never_replaced(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "taken.zip"
    out.write_text("mine")
    arguments = ["support-bundle", "--home", str(home), "--out", str(out), "--no-torch"]
    done = CliRunner().invoke(cli, arguments)
    assert "exists already" in str(done.exception)
    assert out.read_text() == "mine"


def test_a_long_log_is_cut_to_its_last_lines(home: Path, tmp_path: Path) -> None:
    paths = Paths(home)
    save_link(SwarmLink("tiny", Identity.from_seed(b"s" * 32).public_key), paths)
    lines = [f"line {number} of a log" for number in range(30_000)]
    paths.swarm("tiny").worker_log.write_text("\n".join(lines) + "\n")
    _, files = bundle(home, tmp_path / "bundle.zip")
    kept = files["logs/swarms-tiny-worker.log"].splitlines()
    assert kept == lines[-len(kept) :]
    assert len(kept) < 20_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12:34:56 and 1.2.3 and a::b::c", "12:34:56 and 1.2.3 and a::b::c"),
        ("2026-11-21T06:00:00.123Z", "2026-11-21T06:00:00.123Z"),
        ("999.8.8.8", "999.8.8.8"),
        ("[2a01:4f8::1]:80", "[<ip-1>]:80"),
        ("8.8.8.8.", "<ip-1>."),
        ("seed ok", "seed ok"),
    ],
)
def test_what_is_no_address_stays(text: str, wanted: str) -> None:
    assert Redactor(secrets=(), paths={}, names={})(text) == wanted


def test_redaction_is_stable(home: Path) -> None:
    planted(home)
    clean = redactor_for(Paths(home))
    text = Paths(home).swarm("tiny").worker_log.read_text()
    once = clean(text)
    assert clean(once) == once
    assert clean(text) == once
