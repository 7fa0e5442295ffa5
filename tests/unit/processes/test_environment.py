"""A swarm's own environment: what its manifest names and no more, or one line that says why."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarmnode.errors import ConfigError, Refused, StorageFull, TransportError
from swarmnode.ipc.spawn import worker_environment
from swarmnode.paths import SwarmPaths
from swarmnode.processes import pip
from swarmnode.processes.environment import SwarmEnvironment, describe_url, file_name
from swarmnode.wire.environment import DataReference, Environment, PinnedPackage
from tests.kits.index_kit import Index, serving, wheel

DATA = b"1,2,3\n" * 1000


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serving(tmp_path / "index") as found:
        (found.folder / "points.csv").write_bytes(DATA)
        yield found


@pytest.fixture
def paths(tmp_path: Path) -> SwarmPaths:
    return SwarmPaths(tmp_path / "home" / "swarms" / "demo")


def level(index: Index) -> Environment:
    """Return an environment with the task ``level``, as the index has it now."""
    task, target = index.add_level()
    packages = (
        PinnedPackage("swarmnode-level", "1.0", (sha256(task),)),
        PinnedPackage("level-target", "2.1", (sha256(target),)),
    )
    return Environment(packages, index=index.address)


def run_in(python: str, code: str) -> str:
    done = subprocess.run(
        [python, "-P", "-c", code],
        env=worker_environment(python),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.strip()


def test_it_has_what_is_named_and_after_that_what_this_python_has(
    index: Index, paths: SwarmPaths
) -> None:
    kept = SwarmEnvironment(level(index), paths)
    assert kept.python == ""
    assert not kept.is_made
    python = kept.install()
    assert kept.python == python
    assert kept.is_made
    code = (
        "import sys, importlib.util as u, swarmnode.tasks.installed as i\n"
        "spec = u.find_spec('torch')\n"
        "print(i.installed_tasks()['level'], spec.origin.startswith(sys.prefix),"
        " u.find_spec('swarmnode_level').origin.startswith(sys.prefix))"
    )
    assert run_in(python, code) == "swarmnode_level:Level False True"
    # A process that it starts in turn, a rank of several, sees the same.
    assert (
        run_in(
            python,
            "from swarmnode.ipc.spawn import worker_environment as w\nprint('PYTHONPATH' in w())",
        )
        == "False"
    )
    index.asked.clear()
    assert SwarmEnvironment(level(index), paths).install() == python
    assert index.asked == []


def test_a_package_of_the_swarm_takes_the_place_of_ours(index: Index, paths: SwarmPaths) -> None:
    # What swarmnode itself needs is installed here, in the very version that is named.
    version = importlib.metadata.version("h11")
    other = wheel("h11", version, {"h11/__init__.py": "__version__ = 'the swarm has this'\n"})
    index.add("h11", version, other)
    named = Environment((PinnedPackage("h11", version, (sha256(other),)),), index=index.address)
    python = SwarmEnvironment(named, paths).install()
    code = "import h11; print(h11.__version__)"
    assert run_in(python, code) == "the swarm has this"


def test_a_changed_byte_is_refused_and_named(index: Index, paths: SwarmPaths) -> None:
    named = level(index)
    changed = wheel("level-target", "2.1", {"level_target.py": "TARGET = 4.0\n"})
    index.add("level-target", "2.1", changed)
    kept = SwarmEnvironment(named, paths)
    with pytest.raises(Refused) as caught:
        kept.install()
    said = str(caught.value)
    assert said.startswith("package level-target 2.1 at the index is not the one that")
    assert named.packages[1].hashes[0].hex() in said
    assert sha256(changed).hex() in said
    assert "\n" not in said
    assert not kept.folder.exists()
    assert not kept.is_made


def test_what_is_not_named_is_not_installed(index: Index, paths: SwarmPaths) -> None:
    named = level(index)
    alone = msgspec.structs.replace(named, packages=named.packages[:1])
    python = SwarmEnvironment(alone, paths).install()
    assert "level-target" not in " ".join(index.asked)
    assert (
        run_in(python, "import importlib.util as u; print(u.find_spec('level_target'))") == "None"
    )


def test_no_wheel_is_one_line_and_nothing_is_left(index: Index, paths: SwarmPaths) -> None:
    named = Environment((PinnedPackage("level-lost", "1.0", (bytes(32),)),), index=index.address)
    with pytest.raises(
        TransportError, match=r"No matching distribution found for level-lost==1\.0"
    ):
        SwarmEnvironment(named, paths).install()
    assert not SwarmEnvironment(named, paths).folder.exists()


@pytest.mark.parametrize(
    ("package", "index_named", "expected"),
    [
        (("a\n--index-url=http://192.0.2.1", "1.0"), "", "expected a package and its version"),
        (("--pre", "1.0"), "", "expected a package and its version"),
        (("a", "1.0 --pre"), "", "expected a package and its version"),
        (("a", "1.0"), "http://192.0.2.1/simple", "expected https, as packages are code"),
        (("a", "1.0"), "--extra", "expected an index as a name or https://"),
        (("a", "1.0"), "https://x/ --pre", "expected an index as a name or https://"),
        (("a", "1.0"), "no-such-index", "pip config set swarmnode.no-such-index ADDRESS"),
    ],
)
def test_nothing_is_run_for_what_no_package_is_called(
    paths: SwarmPaths, package: tuple[str, str], index_named: str, expected: str
) -> None:
    named = Environment((PinnedPackage(*package, (bytes(32),)),), index=index_named)
    with pytest.raises(ConfigError) as caught:
        SwarmEnvironment(named, paths).install()
    assert expected in str(caught.value)
    assert not paths.directory.joinpath("environment").exists()


def test_a_name_of_an_index_is_what_pip_knows(
    index: Index, paths: SwarmPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[swarmnode]\nlab = {index.address}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    assert pip.index_address("lab") == index.address
    named = msgspec.structs.replace(level(index), index="lab")
    assert SwarmEnvironment(named, paths).install()


def test_what_was_agreed_is_these_very_bytes(index: Index, paths: SwarmPaths) -> None:
    named = level(index)
    kept = SwarmEnvironment(named, paths)
    assert not kept.is_agreed
    kept.agree()
    assert SwarmEnvironment(named, paths).is_agreed
    other = msgspec.structs.replace(named, index="")
    assert not SwarmEnvironment(other, paths).is_agreed


def test_an_environment_of_another_manifest_is_made_anew(index: Index, paths: SwarmPaths) -> None:
    python = Path(SwarmEnvironment(level(index), paths).install())
    (python.parent.parent / "old").touch()
    fewer = msgspec.structs.replace(level(index), packages=level(index).packages[1:])
    assert SwarmEnvironment(fewer, paths).python == ""
    SwarmEnvironment(fewer, paths).install()
    assert not (python.parent.parent / "old").exists()
    assert (
        run_in(str(python), "import importlib.util as u; print(u.find_spec('swarmnode_level'))")
        == "None"
    )


# --- data ---------------------------------------------------------------------------------


def points(index: Index, **changes: object) -> Environment:
    data = DataReference("url", f"{index.base}/points.csv", "", sha256(DATA), len(DATA))
    return Environment(data=msgspec.structs.replace(data, **changes))


def test_data_is_fetched_once_and_placed(index: Index, paths: SwarmPaths) -> None:
    kept = SwarmEnvironment(points(index), paths)
    assert not kept.is_made
    folder = kept.fetch_data()
    assert [path.name for path in Path(folder).iterdir()] == ["points.csv"]
    assert (Path(folder) / "points.csv").read_bytes() == DATA
    assert kept.is_made
    assert kept.install() == ""
    index.asked.clear()
    assert SwarmEnvironment(points(index), paths).fetch_data() == folder
    assert index.asked == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sha256": bytes(32)}, "is not the data that the swarm's creator signed"),
        ({"size_bytes": len(DATA) - 1}, f"got {len(DATA)} or more with"),
        ({"size_bytes": len(DATA) + 1}, f"got {len(DATA)} with"),
    ],
)
def test_other_data_is_refused_and_named(
    index: Index, paths: SwarmPaths, changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(Refused) as caught:
        SwarmEnvironment(points(index, **changes), paths).fetch_data()
    assert expected in str(caught.value)
    assert "points.csv" in str(caught.value)
    assert sha256(DATA).hex() in str(caught.value)
    assert list((paths.directory / "data").iterdir()) == []


@pytest.mark.parametrize("source", ["file:///etc/passwd", "ftp://192.0.2.1/x", "http://x /y", ""])
def test_no_other_kind_of_address_is_opened(index: Index, paths: SwarmPaths, source: str) -> None:
    with pytest.raises(ConfigError, match="expected data as http"):
        SwarmEnvironment(points(index, source=source), paths).fetch_data()


def test_data_that_is_away_is_one_line(index: Index, paths: SwarmPaths) -> None:
    lost = points(index, source=f"{index.base}/lost.csv")
    with pytest.raises(TransportError, match=r"lost\.csv cannot be fetched: HTTP Error 404"):
        SwarmEnvironment(lost, paths).fetch_data()


def test_data_that_no_disk_holds_is_not_begun(index: Index, paths: SwarmPaths) -> None:
    with pytest.raises(StorageFull, match="the data of the swarm takes"):
        SwarmEnvironment(points(index, size_bytes=2**62), paths).fetch_data()
    assert index.asked == []


def test_data_of_the_members_own_is_not_fetched(paths: SwarmPaths) -> None:
    kept = SwarmEnvironment(Environment(data=DataReference("yours")), paths)
    assert kept.is_made
    assert kept.fetch_data() == ""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://x/a/b.csv?c=d", "b.csv"),
        ("http://x/..%2f..%2fetc%2fpasswd", "passwd"),
        ("http://x/.ssh", "ssh"),
        ("http://x/", "data"),
        ("http://x/%2e%2e", "data"),
        ("http://x/a%00b%0ac", "a-b-c"),
        (f"http://x/{'a' * 500}.txt", f"{'a' * 96}.txt"),
    ],
)
def test_a_file_is_called_what_is_safe(address: str, expected: str) -> None:
    assert file_name(address) == expected


def test_a_creator_describes_data_by_fetching_it(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "home" / "data" / "points.csv"
    made = describe_url(f"{index.base}/points.csv", path)
    assert made == points(index).data
    assert path.read_bytes() == DATA
