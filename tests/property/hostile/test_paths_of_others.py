"""Names that others chose lead nowhere: in backups, manifests, blobs, and where an export goes."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmnode.cli.main import cli
from swarmnode.cli.model.export import copy_model
from swarmnode.config import Paths
from swarmnode.errors import ConfigError, MalformedMessage, StorageError, SwarmNodeError
from swarmnode.processes.environment import file_name
from swarmnode.protocol.identity import Identity
from swarmnode.store.blobs import BlobStore
from swarmnode.store.files import IncomingFile, write_atomic, write_new
from swarmnode.store.keys import load_or_create_identity
from swarmnode.tensor.snapshot_format import About
from swarmnode.wire.packing import decode_record
from swarmnode.wire.swarm import Manifest
from swarmnode.worker.snapshots.restore import export_weights
from swarmnode.worker.snapshots.tensorfile import read_tensors
from tests.kits.daemon_kit import Swarm

EXAMPLES = settings(max_examples=30, deadline=None)
# What a home may have, by README of `backup`; written anew here, as one reads it.
OF_A_HOME = re.compile(
    r"(config\.toml|boot_epoch(\.previous)?|contacts|exchanges\.jsonl(\.1)?|pause\.json|totals\.json"
    r"|traffic\.json|node\.key|home\.lock"
    r"|swarms/[a-z0-9][a-z0-9._-]*/(extension|final/model\.safetensors|link|manifest|meeting\.key"
    r"|state\.journal|swarm\.key|trust\.journal|snapshots/[a-z0-9.-]+\.safetensors))"
)

PARTS = (
    *("..", ".", "...", "", "~", "C:", "..\\..", "victim", "swarms", "one", "snapshots", "final"),
    *("link", "manifest", "node.key", "config.toml", "model.safetensors", "..safetensors"),
)
FRONTS = ("", "/", "//", "./", "../", "swarms/", "swarms/one/", "swarms/one/snapshots/")
parts = st.one_of(st.sampled_from(PARTS), st.text(max_size=8))
names = st.builds(
    lambda front, inner, end: front + "/".join(inner) + end,
    st.sampled_from(FRONTS),
    st.lists(parts, min_size=1, max_size=4),
    st.sampled_from(["", "/", "\0x", "\n", ".safetensors"]),
)
modes = st.sampled_from([stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO])


@contextmanager
def place() -> Iterator[Path]:
    """Give a folder with something in it that is not for others, and check it at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "victim").write_bytes(b"mine")
        (folder / "inside").mkdir()
        yield folder / "inside"
        assert {path.name for path in folder.iterdir()} == {"victim", "inside"}
        assert (folder / "victim").read_bytes() == b"mine"


@pytest.mark.filterwarnings("ignore:Duplicate name")  # of the archive that a hostile hand makes
@EXAMPLES
@example([("node.key", stat.S_IFREG)])
@given(st.lists(st.tuples(names, modes), min_size=1, max_size=3, unique_by=lambda each: each[0]))
@example([("../victim", stat.S_IFREG)])
@example([("swarms/one/link", stat.S_IFLNK), ("swarms/one/snapshots/a.safetensors", stat.S_IFREG)])
def test_a_backup_writes_files_of_a_home_and_nothing_else(found: list[tuple[str, int]]) -> None:
    with place() as inside:
        file, home, other = inside / "b.zip", inside / "home", inside / "of-its-key"
        load_or_create_identity(Paths(other).node_key)
        with zipfile.ZipFile(file, "w") as archive:
            archive.write(Paths(other).node_key, "node.key")
            for name, mode in found:
                info = zipfile.ZipInfo(name)
                info.external_attr = (mode | 0o777) << 16
                archive.writestr(info, b"../../victim")
        arguments = ["restore", str(file), "--home", str(home)]
        done = CliRunner().invoke(cli, arguments, standalone_mode=False)
        assert done.exception is None or isinstance(done.exception, SwarmNodeError)
        for path in home.rglob("*"):
            assert not path.is_symlink()
            if path.is_dir():
                continue
            assert stat.S_ISREG(path.stat().st_mode)
            assert not path.stat().st_mode & 0o077
            name = str(path.relative_to(home))
            assert OF_A_HOME.fullmatch(name), name
            assert done.exception is None or name == "home.lock"


@EXAMPLES
@given(names)
@example("demo\n")
@example("..")
def test_a_manifest_names_a_folder_of_the_home_or_is_refused(name: str) -> None:
    manifest = Swarm(Identity.from_seed(bytes(32))).manifest()
    words = msgspec.to_builtins(manifest, builtin_types=(bytes,))
    octets = msgspec.msgpack.encode({**words, "name": name})
    home = Path("/home/of/a/node")
    try:
        found = Paths(home).swarm(decode_record(octets, Manifest).name).directory
    except (MalformedMessage, ConfigError):
        return
    assert Path(os.path.normpath(found)) == home / "swarms" / name


@EXAMPLES
@given(names, st.sampled_from(["https://192.0.2.1/", "https://192.0.2.1/a?", "http://x/#"]))
@example("%2e%2e%2fvictim", "https://192.0.2.1/")
@example("..%2f..", "https://192.0.2.1/")
def test_data_is_written_beside_its_swarm_whatever_its_address(name: str, front: str) -> None:
    try:
        found = file_name(front + name)
    except ValueError:  # no address; the manifest that has it is refused before
        return
    assert found == Path(found).name
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", found), found


@EXAMPLES
@given(st.one_of(st.binary(max_size=40), names.map(lambda name: name.encode())))
@example(b"")
@example(b"../victim")
def test_a_blob_is_looked_for_in_the_store_alone(name: bytes) -> None:
    with place() as inside:
        store = BlobStore(inside / "blobs", bytes_max=10**6)
        try:
            mine = inside / "mine"
            mine.write_bytes(b"a whole blob")
            kept = store.add_file(mine)
            kept.close()
            assert store.open(name) is None
            store.remove(name)
            assert store.complete().keys() == {kept.name}
        finally:
            store.close()


EXPORTED = ("model.safetensors", "model.tmp", "config.json", "README.md")
plants = st.dictionaries(
    st.sampled_from(EXPORTED), st.sampled_from(["link", "nowhere", "hard"]), min_size=1
)


@EXAMPLES
@given(plants)
@example({"model.tmp": "link"})
@example({"model.tmp": "hard", "README.md": "link"})
def test_an_export_follows_no_link_that_lies_where_it_goes(planted: dict[str, str]) -> None:
    about = About(
        task="synthetic", task_version=1, task_config={}, layout_hash="0" * 64, step=1, tokens=1
    )
    with place() as inside:
        victim = inside.parent / "victim"
        for name, kind in planted.items():
            if kind == "hard":
                (inside / name).hardlink_to(victim)
            else:
                (inside / name).symlink_to(victim if kind == "link" else inside.parent / "new")
        export_weights({"model/weight": torch.arange(8.0)}, about, inside)
        for name in ("config.json", "README.md"):
            write_atomic(inside / name, b"text", mode=0o644)
            assert (inside / name).read_bytes() == b"text"
        assert read_tensors(inside / "model.safetensors")[0]["weight"].tolist() == [*range(8)]
        assert not [path for path in inside.iterdir() if path.is_symlink()]
        assert {path.name for path in inside.iterdir()} <= {*EXPORTED} - {"model.tmp"}


@EXAMPLES
@given(st.sampled_from(["link", "nowhere", "hard"]), st.binary(max_size=40))
def test_what_is_written_takes_the_place_of_a_link(kind: str, data: bytes) -> None:
    with place() as inside:
        victim = inside.parent / "victim"
        for name in ("replaced", "new", "incoming"):
            if kind == "hard":
                (inside / name).hardlink_to(victim)
            else:
                (inside / name).symlink_to(victim if kind == "link" else inside.parent / "new")
        write_atomic(inside / "replaced", data)
        with IncomingFile(inside / "incoming") as incoming:
            incoming.write(memoryview(data))
            incoming.commit()
        assert not write_new(inside / "new", data)  # never in the place of anything
        for name in ("replaced", "incoming"):
            assert not (inside / name).is_symlink()
            assert (inside / name).read_bytes() == data


@pytest.mark.parametrize("kind", ["link", "nowhere", "hard"])
def test_a_merged_model_is_copied_by_way_of_no_link(kind: str) -> None:
    with place() as inside:
        source, out = inside / "found", inside / "model"
        source.write_bytes(b"weights")
        for name in ("model", "model.tmp"):
            if kind == "hard":
                (inside / name).hardlink_to(inside.parent / "victim")
            else:
                (inside / name).symlink_to(inside.parent / ("victim" if kind == "link" else "new"))
        copy_model(source, out)
        assert not out.is_symlink()
        assert out.read_bytes() == b"weights"
        with pytest.raises(StorageError, match=r"cannot write .*it is in"):
            copy_model(source, inside / "no folder" / "model")
        assert {path.name for path in inside.iterdir()} == {"found", "model", "model.tmp"}
