"""A home goes into one file and comes out of it as the same node, or not at all."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swarmnode.cli.main import cli
from swarmnode.config import Paths
from swarmnode.errors import ConfigError, CorruptRecord, Refused
from swarmnode.store.files import HomeLock
from swarmnode.store.keys import load_or_create_identity, next_boot_epoch
from swarmnode.tensor.snapshot_format import snapshot_name


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a node of two swarms that was started three times; one snapshot is old."""
    paths = Paths(tmp_path / "home")
    load_or_create_identity(paths.node_key)
    for _ in range(3):
        next_boot_epoch(paths.boot_epoch)
    paths.config_file.write_text('node_name = "calm"\n')
    for name in ("one", "two"):
        swarm = paths.swarm(name)
        swarm.snapshots.mkdir(parents=True)
        swarm.manifest.write_bytes(b"manifest of " + name.encode())
        swarm.journal.write_bytes(bytes(range(256)) * 9)
        for step in (10, 20):
            (swarm.snapshots / snapshot_name(step)).write_bytes(b"%d" % step)
    (paths.home / "home.sock").write_text("of the moment")
    return paths.home


def invoke(verb: str, *arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [verb, *map(str, arguments)], standalone_mode=False)


def files(home: Path) -> dict[str, bytes]:
    found = (path for path in home.rglob("*") if path.is_file())
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def test_the_same_node_comes_back(home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "b.zip", tmp_path / "other"
    done = invoke("backup", file, "--home", home, "--json")
    assert json.loads(done.output)["files"] == sorted(zipfile.ZipFile(file).namelist())
    assert file.stat().st_mode & 0o077 == 0
    assert "again" in invoke("restore", file, "--home", other).output
    before, after = files(home), files(other)
    old = {f"swarms/{name}/snapshots/{snapshot_name(10)}" for name in ("one", "two")}
    left_out = {"home.sock", "home.lock", "boot_epoch", *old}
    assert {name: data for name, data in before.items() if name not in left_out} == {
        name: data for name, data in after.items() if name not in left_out
    }
    assert not old & after.keys()
    assert (other / "node.key").stat().st_mode & 0o077 == 0


def test_no_boot_epoch_is_given_twice(home: Path, tmp_path: Path) -> None:
    """The node ran on after its backup; a home that is restored must not speak as it did then."""
    file, other = tmp_path / "b.zip", tmp_path / "other"
    invoke("backup", file, "--home", home)
    used = [next_boot_epoch(Paths(home).boot_epoch) for _ in range(50)]
    invoke("restore", file, "--home", other)
    assert next_boot_epoch(Paths(other).boot_epoch) > max(used)


def test_without_snapshots(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    invoke("backup", file, "--home", home, "--no-snapshots")
    assert not [name for name in zipfile.ZipFile(file).namelist() if "snapshots" in name]


def test_a_home_that_has_a_node_is_left_alone(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    invoke("backup", file, "--home", home)
    before = files(home)
    error = invoke("restore", file, "--home", home).exception
    assert isinstance(error, ConfigError)
    assert "has a node already" in str(error)
    assert files(home) == before | {"home.lock": files(home)["home.lock"]}


def test_a_home_in_use_is_left_alone(home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "b.zip", tmp_path / "other"
    invoke("backup", file, "--home", home)
    with HomeLock(Paths(other).lock):
        assert isinstance(invoke("restore", file, "--home", other).exception, Refused)


def test_a_backup_is_never_replaced(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    file.write_text("mine")
    assert isinstance(invoke("backup", file, "--home", home).exception, ConfigError)
    assert file.read_text() == "mine"


def test_a_home_without_a_node_has_nothing(tmp_path: Path) -> None:
    error = invoke("backup", tmp_path / "b.zip", "--home", tmp_path / "none").exception
    assert isinstance(error, ConfigError)
    assert "no node yet" in str(error)


@pytest.mark.parametrize(
    "name",
    [
        "../node.key",
        "/etc/passwd",
        "swarms/one/../../x",
        "swarms/One/manifest",
        "home.sock",
        "a\0b",
    ],
)
def test_other_names_are_refused_before_anything_is_written(
    home: Path, tmp_path: Path, name: str
) -> None:
    file, other = tmp_path / "b.zip", tmp_path / "other"
    invoke("backup", file, "--home", home)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, "hostile")
    error = invoke("restore", file, "--home", other).exception
    assert isinstance(error, ConfigError), error
    assert files(other).keys() == {"home.lock"}


def test_a_changed_byte_is_named_and_leaves_no_node(home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "b.zip", tmp_path / "other"
    invoke("backup", file, "--home", home)
    data = bytearray(file.read_bytes())
    at = data.index(b"swarms/one/manifest") + 40
    data[at] ^= 1
    file.write_bytes(data)
    error = invoke("restore", file, "--home", other).exception
    assert isinstance(error, CorruptRecord), error
    assert not (other / "node.key").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"x" * 1000])
def test_what_is_no_backup(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "b.zip"
    file.write_bytes(data)
    error = invoke("restore", file, "--home", tmp_path / "other").exception
    assert isinstance(error, CorruptRecord)
    assert "swarmnode backup" in str(error)
