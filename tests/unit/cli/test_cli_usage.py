"""The command line used wrongly: one line, the right exit code, the same as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from swarmnode.cli import main as main_module
from swarmnode.cli.main import cli, main, plain
from swarmnode.config import Paths
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.store.swarms import save_link

SWARM = Identity.from_seed(bytes(range(32)))
PEER = Identity.from_seed(bytes(32)).peer_id
LINK = str(SwarmLink("demo", SWARM.public_key, (Hint(PEER, "127.0.0.1:7337"),)))
BARE = str(SwarmLink("demo", SWARM.public_key))
JOIN = ("join", LINK)
CREATE = ("create", "demo", "--task", "synthetic")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for name in os.environ if name.startswith("SWARMNODE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SWARMNODE_RENDEZVOUS", "link,contacts")  # no DHT and no DNS of the world
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWARMNODE_LAN", "false")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return (exit code, standard output, standard error) of one verb."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return (exit code, message), the same with and without ``--json``."""
    code, out, err = run(capsys, *arguments)
    assert out == ""
    assert err.startswith("swarmnode: ")
    assert err.count("\n") == 1
    message = err.removeprefix("swarmnode: ").rstrip("\n")
    json_code, out, err = run(capsys, *arguments, "--json")
    assert err == ""
    assert out.count("\n") == 1
    assert json.loads(out) == {"error": message, "exit_code": code}
    assert json_code == code
    return code, message


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nosuch",), 2, "No such command 'nosuch' (see `swarmnode --help`)"),
        (
            ("stauts",),
            2,
            "No such command 'stauts': did you mean 'status'? (see `swarmnode --help`)",
        ),
        (
            ("service", "instal"),
            2,
            "No such command 'instal': did you mean 'install'? (see `swarmnode service --help`)",
        ),
        (("status", "--bogus"), 2, "No such option"),
        (("status", "extra"), 2, "unexpected extra argument"),
        (("status",), 3, "start it with `swarmnode join LINK`"),
        (("peers",), 3, "no swarmnode runs on"),
        (("leave",), 3, "no swarmnode runs on"),
        (("status", "--home", "/dev/null/x"), 3, "no swarmnode runs on /dev/null/x"),
        (("create",), 2, "Missing argument 'NAME'"),
        (("create", "demo"), 2, "expected a task to train, --task NAME, or a --model"),
        (("create", "Ünï", "--task", "synthetic"), 2, "a swarm's name has 1-64 of a-z 0-9"),
        (("create", "a" * 65, "--task", "synthetic"), 2, "a swarm's name has 1-64 of"),
        (("create", "", "--task", "synthetic"), 2, "a swarm's name has 1-64 of"),
        ((*CREATE, "--codec", "X"), 2, "no codec 'X': choose RAW32, BF16, Q8B64, Q4B64, E3M0,"),
        ((*CREATE, "--codec", "q8b63"), 2, "no codec 'Q8B63': choose RAW32, BF16, Q8B64"),
        ((*CREATE, "--codec", "sign64"), 2, "--codec SIGN64: it needs error feedback"),
        ((*CREATE, "--codec", "SIGN64"), 2, "--codec SIGN64: it needs error feedback"),
        ((*CREATE, "--set", "dim"), 2, "--set: expected KEY=VALUE, got 'dim'"),
        ((*CREATE, "--set", "=3"), 2, "--set: expected KEY=VALUE, got '=3'"),
        (
            ("create", "demo", "--task", "bytes-lm", "--data", "nosuch"),
            2,
            "--data: expected a folder of text files, nosuch is none",
        ),
        (
            ("create", "demo", "--task", "logistic", "--data", "nosuch"),
            2,
            "--data: expected a folder of .csv files whose rows are numbers and a label, the label"
            " last and no heading, labels 0 and 1, nosuch is none",
        ),
        (
            (*CREATE, "--data", "nosuch"),
            2,
            "--data: expected a folder of the files that task synthetic reads, nosuch is none",
        ),
        ((*CREATE, "--strategy", "mean"), 2, "expected a strategy among a2cid2"),
        ((*CREATE, "--topology", "nosuch"), 2, "--topology: expected one of ring"),
        ((*JOIN, "--nproc", "0"), 2, "0 is not in the range 1<=x<=64"),
        ((*JOIN, "--nproc", "2", "--parallel", "dp"), 2, "'dp' is not one of 'ddp', 'fsdp2'"),
        ((*CREATE, "--expires-days", "0"), 2, "0 is not in the range"),
        ((*CREATE, "--listen", "127.0.0.1:0"), 2, "expected a port that stays the same"),
        ((*CREATE, "--advertise", "*:7"), 2, "advertise (--advertise): expected a host, not '*'"),
        (("join",), 2, "Missing argument 'LINK'"),
        (("join", "nosuch"), 2, "this home knows no swarm named 'nosuch', and none was found in"),
        (("join", "nosuch", "--key", "abc"), 2, "--key: expected 8 to 52 letters of a swarm's"),
        (("join", "nosuch", "--bootstrap", "x"), 2, "expected a hint like sn1…@HOST:PORT"),
        (("join", "nosuch", "--network", "Ü"), 2, "--network: "),
        (("join", BARE), 2, "names no peer (b=) to join through, this home knows no other node"),
        (("join", LINK, "--role", "king"), 2, "'king' is not one of 'trainer', 'keeper'"),
        (("join", LINK, "--key", "abcdefgh"), 2, "--key: the link names the key"),
        (("join", ""), 2, "a swarm's name has 1-64 of"),
        (("join", "日本"), 2, "a swarm's name has 1-64 of"),
        (("join", "http://x"), 2, "expected a link like swarm:NAME?k=…&b=…, got 'http://x'"),
        (("join", "swarm:demo"), 2, "the link has no ?k=…: copy it whole"),
        (("join", "swarm:demo?k=abc"), 2, "the swarm key (k=) in the link: not base32"),
        (("join", LINK[:-60]), 2, "expected a hint like sn1…@HOST:PORT"),
        (("join", LINK[:-5]), 2, "a peer (b=) in the link: expected HOST:PORT"),
        (("join", LINK + "x" * 3000), 2, "a link has at most 2048 characters"),
        ((*JOIN, "--listen", "7337"), 2, "listen (--listen): expected HOST:PORT"),
        ((*JOIN, "--listen", "127.0.0.1:99999"), 2, "a port of 0 to 65535"),
        ((*JOIN, "--metrics", "0.0.0.0:7338"), 2, "can be reached from other machines"),
        ((*JOIN, "--device", "gpu"), 2, "--device: expected auto, cpu, mps, cuda or cuda:N"),
        ((*JOIN, "--steps", "0"), 2, "0 is not in the range"),
        ((*JOIN, "--data", "nosuch"), 2, "--data: expected a folder of the task's files, nosuch"),
        (("trust",), 2, "Missing argument 'LINK'"),
        (("trust", "nosuch"), 2, "this home knows no swarm named 'nosuch', and none was found in"),
        (("trust", "swarm:demo"), 2, "the link has no ?k=…: copy it whole"),
        (("trust", BARE), 1, "no peer gave the manifest of swarm 'demo': none was found"),
        (("swarms", "Ünï"), 2, "a swarm's name has 1-64 of"),
        (("swarms", *(f"n{n}" for n in range(17))), 2, "expected at most 16 names of swarms"),
        (("export",), 2, "Missing argument 'DIRECTORY'"),
        (("export", "out"), 2, "no swarm has been joined from the home"),
        (("export", "out", "--swarm", "Ü"), 2, "expected a swarm name of 1 to 64 characters"),
        (("export", "out", "--swarm", "no"), 2, "this home holds no manifest of a swarm named"),
        (("demo", "--nodes", "1"), 2, "1 is not in the range"),
        (("demo", "--data", "nosuch"), 2, "--data: expected a folder of text files, nosuch is"),
        (("generate",), 2, "Missing argument 'EXPORT_DIR'"),
        (("generate", "x", "--temperature", "nan"), 2, "--temperature: expected a number from 0"),
        (("generate", "x", "--temperature", "-1"), 2, "-1.0 is not in the range"),
        (("generate", "x", "--seed", "-1"), 2, "-1 is not in the range"),
        (("generate", "x", "--prompt", "x" * 70_000), 2, "--prompt: expected at most 65536 bytes"),
    ],
)
def test_one_line_says_what_was_expected(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    found_code, found = fails(capsys, *arguments)
    assert found_code == code
    assert message in found


def test_settings_are_checked_before_anything_starts(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARMNODE_LISTEM", "x")
    code, message = fails(capsys, *JOIN)
    assert (code, message) == (
        2,
        "unknown environment variable SWARMNODE_LISTEM: did you mean SWARMNODE_LISTEN?",
    )
    monkeypatch.delenv("SWARMNODE_LISTEM")
    home.mkdir()
    Paths(home).config_file.write_text("lisden = 'x'\n")
    code, message = fails(capsys, *JOIN)
    assert code == 2
    assert message.startswith(f"{home}/config.toml: unknown setting 'lisden': did you mean")


def test_a_stored_link_that_is_damaged_is_named(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    paths = Paths(home)
    save_link(SwarmLink("demo", SWARM.public_key), paths)
    paths.swarm("demo").link.write_text("swarm:de")
    code, message = fails(capsys, "join", "demo")
    assert code == 2
    assert message.startswith(f"{home}/swarms/demo/link is damaged (")
    assert message.endswith("join once by the link instead of the name")


def test_a_name_that_is_taken_is_not_taken_again(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    """Also a swarm that was only joined: its snapshots lie under that name."""
    directory = Paths(home).swarm("demo").directory
    directory.mkdir(parents=True)
    (directory / "manifest").write_text("theirs")
    code, message = fails(capsys, *CREATE)
    assert code == 4
    assert message == "this home has a swarm named 'demo' already: choose another name"
    assert (directory / "manifest").read_text() == "theirs"


def test_the_help_comes_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert code == 0
    assert "Commands:" in out
    assert err == ""


def test_the_help_of_a_group_comes_without_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench")
    assert code == 0
    assert "  codec " in out
    assert err == ""


def test_json_may_stand_before_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json", "paths")
    assert code == 0
    assert json.loads(out)["home"] == os.environ["SWARMNODE_HOME"]


def test_every_verb_takes_json_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        command = cli.get_command(context, verb)
        assert command is not None
        commands = command.commands.values() if isinstance(command, click.Group) else [command]
        for one in commands:
            assert one.help, verb
            assert any("--json" in parameter.opts for parameter in one.params), (verb, one.name)


def test_text_from_peers_cannot_move_the_cursor() -> None:
    assert plain("a\x1b[31mb\r\nc\u202ed ü…") == "a�[31mb��c�d ü…"


def test_an_error_of_the_system_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/root/x")

    monkeypatch.setattr(main_module.cli, "main", refuse)
    code, message = fails(capsys, "paths")
    assert (code, message) == (1, "the system refused: /root/x: Permission denied")


def test_ctrl_c_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module.cli, "main", interrupt)
    assert fails(capsys, "paths") == (1, "stopped by Ctrl-C")
