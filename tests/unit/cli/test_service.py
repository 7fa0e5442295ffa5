"""The files of `swarmnode service`: what they say, which ones stay, what systemd thinks."""

from __future__ import annotations

import plistlib
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import swarmnode
from swarmnode.cli.main import SUCCESS_VARIABLE, cli, main
from swarmnode.cli.service import files as service_files
from swarmnode.cli.service.files import (
    SYSTEM_HOME,
    Service,
    ServiceFile,
    ServiceUser,
    plan_launchd,
    plan_systemd,
    plan_windows,
    unit_word,
    why_unreadable,
)
from swarmnode.config import Paths
from swarmnode.errors import FINAL_EXIT_CODES, ConfigError, Refused, TransportError
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.store.swarms import save_link, stored_link

EXPOSURE_MAX = 2.0
ROOT = Path(swarmnode.__file__).parent.parent
LINK = SwarmLink("tiny", Identity.from_seed(b"s" * 32).public_key)
STRANGER = ServiceUser("swarmnode", 54321)
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def units(service: Service, folder: Path, *, is_system: bool = True) -> dict[str, ServiceFile]:
    plan = plan_systemd(service, folder, folder if is_system else None)
    return {file.path.name: file for file in plan.files}


def settings(file: ServiceFile) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", file.text, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["service", *arguments])


# --- what they say --------------------------------------------------------------------------


@pytest.mark.parametrize("is_system", [True, False])
def test_the_worker_has_no_network_and_the_daemon_no_devices(
    tmp_path: Path, *, is_system: bool
) -> None:
    written = units(Service("tiny", SYSTEM_HOME), tmp_path, is_system=is_system)
    daemon = settings(written["swarmnode.service"])
    worker = settings(written["swarmnode-worker@.service"])
    listener = settings(written["swarmnode-worker.socket"])
    assert daemon["Type"] == ["notify"]
    assert daemon["WatchdogSec"] == ["60"]
    assert daemon["Requires"] == ["swarmnode-worker.socket"]
    assert daemon["Restart"] == ["on-failure"]
    final = f"{ConfigError.exit_code} {Refused.exit_code}"
    assert daemon["RestartPreventExitStatus"] == [final]
    assert worker["RestrictAddressFamilies"] == ["AF_UNIX"]
    assert listener["Accept"] == ["yes"]
    (path,) = listener["ListenStream"]
    assert f'"SWARMNODE_WORKER_SOCKET={path}"' in daemon["Environment"]
    assert not any("WORKER_SOCKET" in line for line in worker.get("Environment", []))
    assert worker["ExecStart"][0].endswith(" -P -m swarmnode.worker.main --activated")
    for unit in (daemon, worker):
        assert unit["NoNewPrivileges"] == ["yes"]
        assert "MemoryDenyWriteExecute" not in unit, "it breaks TLS here and torch there"
    if is_system:
        assert worker["PrivateNetwork"] == worker["PrivateUsers"] == ["yes"]
        assert worker["IPAddressDeny"] == ["any"]
        assert "char-nvidia* rw" in worker["DeviceAllow"]
        assert daemon["PrivateDevices"] == ["yes"]
        for unit in (daemon, worker, listener):
            assert "swarmnode" in unit.get("User", []) + unit.get("SocketUser", [])


def test_a_node_without_a_worker_is_one_unit(tmp_path: Path) -> None:
    written = units(Service("tiny", SYSTEM_HOME, has_worker=False), tmp_path)
    assert written.keys() == {"swarmnode.conf", "swarmnode.service"}
    daemon = settings(written["swarmnode.service"])
    assert "Requires" not in daemon
    assert not any("WORKER_SOCKET" in line for line in daemon.get("Environment", []))


def test_the_home_can_be_written_and_no_other(tmp_path: Path) -> None:
    usual = settings(units(Service("tiny", SYSTEM_HOME), tmp_path)["swarmnode.service"])
    other = settings(units(Service("tiny", Path("/srv/a node")), tmp_path)["swarmnode.service"])
    assert usual["StateDirectory"] == ["swarmnode"]
    assert "ReadWritePaths" not in usual
    assert other["ReadWritePaths"] == ['"/srv/a node"']
    assert "StateDirectory" not in other


def test_words_are_quoted_for_systemd() -> None:
    assert unit_word("/srv/venv/bin/python") == "/srv/venv/bin/python"
    assert unit_word("a b") == '"a b"'
    assert unit_word('50% $HOME "\\') == '"50%% $$HOME \\"\\\\"'
    assert unit_word("") == '""'
    with pytest.raises(ConfigError, match="without control characters"):
        unit_word("a\nExecStartPre=/bin/sh")


def test_what_may_go_away_is_tried_again() -> None:
    assert TransportError.exit_code not in FINAL_EXIT_CODES
    assert 0 not in FINAL_EXIT_CODES


def test_a_property_list_for_launchd(tmp_path: Path) -> None:
    service = Service("tiny", Path("/Users/a & b/node"), ("--steps", "5"))
    (file,) = plan_launchd(service, tmp_path).files
    found = plistlib.loads(file.text.encode())
    assert found["Label"] == file.path.stem
    assert found["ProgramArguments"] == service.join()
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["StandardErrorPath"] == "/Users/a & b/node/daemon.log"
    assert found["Umask"] == 0o077


@pytest.mark.parametrize(
    ("name", "options", "code", "said"),
    [
        ("tiny", ("--rolle", "keeper"), 0, "No such option"),
        ("tiny", ("--metrics", "nowhere"), 0, "expected HOST:PORT"),
        ("tiny", ("--data", "/nowhere"), 0, "/nowhere"),
        ("other", (), 1, "cannot read"),
    ],
)
def test_launchd_sees_a_success_where_a_person_must_look(
    tmp_path: Path, name: str, options: tuple[str, ...], code: int, said: str
) -> None:
    home = tmp_path / "home"
    (home / "swarms" / "other" / "link").mkdir(parents=True)  # a disk may be better later
    (file,) = plan_launchd(Service(name, home, options), tmp_path).files
    found = plistlib.loads(file.text.encode())
    done = subprocess.run(
        found["ProgramArguments"],
        env=found["EnvironmentVariables"] | {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert said in done.stderr


def test_other_verbs_say_their_code_whatever_a_manager_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUCCESS_VARIABLE, "2 4")
    for arguments, code in ((["join", "--rolle"], 0), (["status", "--rolle"], 2)):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == code


def test_a_task_for_windows(tmp_path: Path) -> None:
    service = Service("tiny", Path("C:\\Users\\a & b\\node"), ("--steps", "5"))
    (file,) = plan_windows(service, tmp_path).files
    task = ET.fromstring(file.text.encode(file.encoding))
    name = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert task.findtext(".//t:Command", namespaces=name) == sys.executable
    arguments = task.findtext(".//t:Arguments", namespaces=name)
    assert arguments == subprocess.list2cmdline(service.join()[1:])
    assert task.findtext(".//t:ExecutionTimeLimit", namespaces=name) == "PT0S"
    assert int(task.findtext(".//t:RestartOnFailure/t:Count", "", namespaces=name)) <= 10


# --- what systemd thinks --------------------------------------------------------------------


def rendered(folder: Path, home: Path = SYSTEM_HOME) -> list[Path]:
    folder.mkdir(exist_ok=True)
    written = units(Service("tiny", home, ("--data", "/srv/te xt")), folder)
    for file in written.values():
        file.path.write_text(file.text)
    return [file.path for file in written.values() if file.path.suffix != ".conf"]


@needs_systemd
@pytest.mark.parametrize("home", [SYSTEM_HOME, Path("/home/u/node")])
def test_systemd_takes_the_units_and_finds_them_shut(tmp_path: Path, home: Path) -> None:
    paths = rendered(tmp_path / "units", home)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    for path in paths:
        if path.suffix == ".service":
            looked = subprocess.run(
                [
                    *("systemd-analyze", "security", "--offline=true", "--no-pager"),
                    f"--threshold={EXPOSURE_MAX * 10:.0f}",
                    path,
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            assert looked.returncode == 0, looked.stdout
            (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+)", looked.stdout)
            print(f"{path.name}: exposure {exposure}")
            assert float(exposure) <= EXPOSURE_MAX


@needs_systemd
def test_systemd_finds_what_is_wrong(tmp_path: Path) -> None:
    path = rendered(tmp_path / "units")[0]
    path.write_text(path.read_text().replace("Type=notify", "Type=notified\nPrivateTmp=perhaps"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False
    )
    assert "notified" in checked.stderr
    path.write_text(
        re.sub(r"^(Protect|Private|Restrict|System|Cap).*\n", "", path.read_text(), flags=re.M)
    )
    looked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", path],
        capture_output=True,
        check=False,
    )
    assert looked.returncode != 0


# --- install, status, uninstall -------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SWARMNODE_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    save_link(LINK, Paths(home))
    return home


def test_install_status_uninstall_of_a_user(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "systemd" / "user"
    done = run("install", "tiny", "--user", "--", "--steps", "7")
    assert done.exit_code == 0, done.output
    names = {"swarmnode.service", "swarmnode-worker.socket", "swarmnode-worker@.service"}
    assert {path.name for path in folder.iterdir()} == names
    assert all(f"wrote {folder / name}" in done.output for name in names)
    assert "systemctl --user enable --now swarmnode-worker.socket swarmnode.service" in done.output
    (command,) = settings(ServiceFile(Path("x"), (folder / "swarmnode.service").read_text()))[
        "ExecStart"
    ]
    assert shlex.split(command)[4:] == ["join", "tiny", "--home", str(home), "--steps", "7"]
    again = run("install", "tiny", "--user")
    assert again.exit_code == 0, "ours may be replaced"
    shown = run("status", "--user")
    assert shown.output.count("ours ") == 3
    gone = run("uninstall", "--user")
    assert gone.output.count("removed ") == 3
    assert list(folder.iterdir()) == []
    assert "no service is installed" in run("uninstall", "--user").output
    assert stored_link("tiny", Paths(home)) is not None, "the home stays"


def test_what_is_not_ours_stays(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "systemd" / "user"
    folder.mkdir(parents=True)
    unit, listener = folder / "swarmnode.service", folder / "swarmnode-worker.socket"
    listener.write_text("[Socket]\nListenStream=1\n")
    refused = run("install", "tiny", "--user")
    assert isinstance(refused.exception, Refused)
    assert str(refused.exception) == (
        f"{listener} was not written by swarmnode: move it away first"
    )
    assert not unit.exists(), "all or nothing"
    listener.unlink()
    assert run("install", "tiny", "--user").exit_code == 0
    unit.write_text(unit.read_text() + "Nice=5\n")
    refused = run("install", "tiny", "--user")
    assert "was changed since swarmnode wrote it" in str(refused.exception)
    assert f"left {unit}: it was changed since" in run("uninstall", "--user").output
    assert unit.exists()
    assert not listener.exists()


def test_an_enabled_service_is_not_pulled_away(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "systemd" / "user"
    assert run("install", "tiny", "--user").exit_code == 0
    wants = folder / "default.target.wants"
    wants.mkdir()
    (wants / "swarmnode.service").symlink_to(folder / "swarmnode.service")
    refused = run("uninstall", "--user")
    assert "run `systemctl --user disable --now swarmnode-worker.socket" in str(refused.exception)
    assert (folder / "swarmnode.service").exists()


def test_a_dry_run_writes_nothing(tmp_path: Path, home: Path) -> None:
    secret = f"{LINK}&i=verysecret"
    done = run("install", "tiny", "--system", "--home", str(home), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "[Service]" in done.output
    assert "# /etc/systemd/system/swarmnode.service" in done.output
    assert secret not in done.output
    assert not (tmp_path / "config").exists()


def test_below_another_root_and_without_a_worker(tmp_path: Path) -> None:
    done = run("install", str(LINK), "--system", "--root", str(tmp_path), "--", "--role", "keeper")
    assert done.exit_code == 0, done.output
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "etc/systemd/system/swarmnode.service",
        "etc/sysusers.d/swarmnode.conf",
        "var/lib/swarmnode/swarms/tiny/link",
    }
    unit = (tmp_path / "etc/systemd/system/swarmnode.service").read_text()
    assert "?k=" not in unit, "a link may hold an invite, and any user can read a unit"
    assert "--role keeper" in unit


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("nowhere",), "this home knows no swarm named 'nowhere'"),
        (("tiny", "--", "--rolle", "keeper"), "No such option"),
        (("tiny", "--", "keeper"), "options of `join` stand after"),
    ],
)
def test_what_join_would_refuse_is_refused_now(
    home: Path, options: tuple[str, ...], said: str
) -> None:
    done = run("install", "--user", *options)
    assert done.exit_code != 0
    assert said in f"{done.output}{done.exception}"


# --- what its user can read -----------------------------------------------------------------


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A venv in the home folder of a person, far from the /tmp that this test is in."""
    person = tmp_path / "people" / "ada"
    (person / "venv" / "bin").mkdir(parents=True)
    (person / "venv" / "bin" / "python").touch(0o755)
    monkeypatch.setattr(sys, "prefix", str(person / "venv"))
    monkeypatch.setattr(sys, "executable", str(person / "venv" / "bin" / "python"))
    monkeypatch.setattr(swarmnode, "__file__", str(person / "venv" / "swarmnode" / "__init__.py"))
    monkeypatch.setattr(service_files, "_PRIVATE_TMP", (tmp_path / "tmp",))
    for folder in (person / "venv", person, *person.parents):
        if folder.is_relative_to(Path("/tmp").resolve()) and folder != Path("/tmp").resolve():
            folder.chmod(0o755)
    return person / "venv"


def test_a_venv_in_a_private_folder_is_noticed(venv: Path) -> None:
    assert why_unreadable(SYSTEM_HOME, STRANGER) == ""
    person = venv.parent
    person.chmod(0o700)
    why = why_unreadable(SYSTEM_HOME, STRANGER)
    assert why.startswith(
        f"the service's user swarmnode cannot read {sys.executable}: {person} lets others not in"
        " (mode 0700): make the venv elsewhere"
    )
    found = person.stat()
    assert why_unreadable(SYSTEM_HOME, ServiceUser("ada", found.st_uid)) == "", "it is hers"
    person.chmod(0o710)
    of_group = ServiceUser("swarmnode", 54321, frozenset({found.st_gid}))
    assert why_unreadable(SYSTEM_HOME, of_group) == ""
    assert why_unreadable(SYSTEM_HOME, STRANGER)


def test_a_python_that_a_link_leads_to_is_noticed(venv: Path, tmp_path: Path) -> None:
    python = tmp_path / "private" / "python3"
    python.parent.mkdir()
    python.touch(0o755)
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to(python)
    assert why_unreadable(SYSTEM_HOME, STRANGER) == ""
    python.parent.chmod(0o700)
    assert f"{python.parent} lets others not in" in why_unreadable(SYSTEM_HOME, STRANGER)


def test_a_home_that_cannot_be_reached_is_noticed(venv: Path, tmp_path: Path) -> None:
    home = tmp_path / "srv" / "node"
    home.mkdir(parents=True, mode=0o700)
    assert why_unreadable(home, STRANGER) == "", "it is given to the user before the start"
    home.parent.chmod(0o700)
    why = why_unreadable(home, STRANGER)
    assert f"cannot read {home}: {home.parent} lets others not in (mode 0700)" in why
    assert f"leave --home out for {SYSTEM_HOME}" in why


def test_what_a_private_tmp_hides_is_noticed(venv: Path, tmp_path: Path) -> None:
    why = why_unreadable(tmp_path / "tmp" / "node", STRANGER)
    assert f"PrivateTmp) and does not see {tmp_path / 'tmp' / 'node'}" in why


def test_install_refuses_what_could_not_start(
    venv: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(service_files, "service_user", lambda: STRANGER)
    venv.parent.chmod(0o700)
    refused = run("install", "tiny", "--system", "--home", str(home))
    assert isinstance(refused.exception, Refused)
    assert "cannot read" in str(refused.exception)
    shown = run("install", "tiny", "--system", "--home", str(home), "--dry-run")
    assert shown.exit_code == 0
    assert "swarmnode: as things are here, the service's user swarmnode cannot read" in shown.output


def test_templates_are_in_the_package() -> None:
    assert '"services/*/*"' in (ROOT / "pyproject.toml").read_text()
