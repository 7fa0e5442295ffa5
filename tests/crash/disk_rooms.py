"""What is promised of a disk outside of the store: snapshots, manifests, targets, environments."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
import trio
import trio.testing

from swarmnode.config import Paths
from swarmnode.daemon.discovery.rendezvous import ManifestKeeper
from swarmnode.daemon.membership.progress import TargetKeeper
from swarmnode.env import Env
from swarmnode.errors import ChannelBroken, StorageError
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.processes.environment import SwarmEnvironment, fetch, file_name
from swarmnode.protocol.extension import sign_extension
from swarmnode.protocol.identity import Identity
from swarmnode.store.files import make_private_dir, read_file, storage_errors
from swarmnode.tensor.snapshot_format import About
from swarmnode.wire.environment import DataReference, Environment
from swarmnode.wire.packing import encode_record
from swarmnode.wire.recipe import Extension, Recipe
from swarmnode.wire.swarm import ManifestReply, Signed
from swarmnode.worker.snapshots.tensorfile import read_tensors, write_tensors
from tests.kits.daemon_kit import Swarm
from tests.kits.disk_kit import Diary, Store

NAME = "one"
SWARM = Swarm(Identity.from_seed(bytes(range(32))), NAME)
PEER = Identity.from_seed(b"\2" * 32).peer_id
ENV = Env(lambda: 0.0, lambda: 1_800_000_000.0)

# --- a worker's snapshots --------------------------------------------------------------------


def look_at_snapshots(home: Path, diary: Diary) -> None:
    path = home / "snapshots" / "snapshot-000000000001.safetensors"
    step = None
    if is_there(path):
        tensors, about = read_tensors(path)
        step = about.step
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
            name: tensor.tolist() for name, tensor in model_of(step).items()
        }
    diary.found("snapshot", step)


def is_there(path: Path) -> bool:
    with storage_errors(path, "look at"):
        return path.exists()


def write_snapshots(home: Path, diary: Diary) -> None:
    folder = home / "snapshots"
    make_private_dir(folder)
    for _ in range(2):
        step = diary.rng.randrange(10**9)
        about = About(
            task="synthetic",
            task_version=1,
            task_config={"dim": 32},
            layout_hash="0" * 64,
            step=step,
            tokens=7 * step,
        )
        with diary.sets("snapshot", step):
            write_tensors(folder / "snapshot-000000000001.safetensors", model_of(step), about)


def model_of(step: int) -> dict[str, torch.Tensor]:
    values = torch.arange(32, dtype=torch.float32) * (step % 1000)
    return {"model/weight": values.reshape(4, 8), "strategy/rounds": torch.tensor([step])}


# --- manifests -------------------------------------------------------------------------------


def look_at_manifest(home: Path, diary: Diary) -> None:
    manifest = keeper_of(home).load()
    diary.found("manifest", manifest and manifest.seed)


def fetch_manifest(home: Path, diary: Diary) -> None:
    for _ in range(2):
        seed = diary.rng.randrange(8)
        # On a clock of its own: what fails is asked again, until it is given up.
        clock = trio.testing.MockClock(autojump_threshold=0)
        peer: Any = _Peer(signed_with(seed))
        with diary.sets("manifest", seed):
            trio.run(keeper_of(home).fetch, peer, lambda: {PEER: ("192.0.2.1:7337",)}, clock=clock)


def keeper_of(home: Path) -> ManifestKeeper:
    return ManifestKeeper(SWARM.link(), Paths(home), ENV, Services())


@cache
def signed_with(seed: int) -> Signed:
    return SWARM.signed(seed=seed, recipe=Recipe(target_tokens=1))


class _Peer:
    """A network in which each peer is reached, and says this manifest once."""

    def __init__(self, signed: Signed) -> None:
        self._left = [encode_record(ManifestReply(signed))]

    async def connect(self, peer: PeerId, addresses: tuple[str, ...]) -> _Peer:
        await trio.lowlevel.checkpoint()
        return self

    async def request(self, service: str, request: bytes, *, deadline_s: float) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._left:  # else a disk that failed once would always be tried again
            raise ChannelBroken("it has gone")
        return self._left.pop()


# --- where training ends ---------------------------------------------------------------------


def look_at_target(home: Path, diary: Diary) -> None:
    diary.found("target", loaded_target(home).horizon.target_tokens)


def extend(home: Path, diary: Diary) -> None:
    for _ in range(3):
        target = loaded_target(home)
        tokens = target.horizon.target_tokens + diary.rng.randrange(1, 100)
        text = sign_extension(Extension(tokens, tokens // 2), SWARM.key)
        if diary.rng.random() < 0.3:
            diary.note("tried", "target", tokens)  # members say it again after the next start
            target.heard(text)
        else:
            with diary.sets("target", tokens):
                target.extend(text)


def loaded_target(home: Path) -> TargetKeeper:
    path = home / "extension"
    target = TargetKeeper(SWARM.manifest(recipe=Recipe(target_tokens=1)), path)
    target.load()
    if is_there(path) and not target.text:  # it goes on without, and other members say it
        raise StorageError("an extension is there, and was not read")
    return target


# --- a swarm's environment -------------------------------------------------------------------


def look_at_environment(home: Path, diary: Diary) -> None:
    paths = Paths(home).swarm(NAME)
    agreed = [n for n in range(4) if SwarmEnvironment(environment_of(n), paths).is_agreed]
    diary.found("agreed", agreed)
    for number in range(4):
        reference = environment_of(number).data
        assert reference
        folder = SwarmEnvironment(environment_of(number), paths).data
        diary.found(f"data {number}", bool(folder))
        if folder:
            path = Path(folder) / file_name(reference.source)
            assert read_file(path, bytes_max=1000) == data_of(number)


def make_environment(home: Path, diary: Diary) -> None:
    paths = Paths(home).swarm(NAME)
    for _ in range(2):
        number = diary.rng.randrange(4)
        with diary.sets("agreed", [number]):
            SwarmEnvironment(environment_of(number), paths).agree()
        reference = environment_of(number).data
        assert reference
        path = paths.directory / "data" / file_name(reference.source)
        with diary.sets(f"data {number}", True):
            make_private_dir(path.parent)
            fetch(reference, path)


def data_of(number: int) -> bytes:
    return b"%d rows\n" % number * (30 + number)


@cache
def environment_of(number: int) -> Environment:
    """Return one whose data is in its own address: a disk fails here, and no network."""
    data = data_of(number)
    address = f"data:text/csv;base64,{base64.b64encode(data).decode()}"
    digest = hashlib.sha256(data).digest()
    return Environment(data=DataReference("url", address, "", digest, len(data)))


NO_ENVIRONMENT = {"agreed": [], **{f"data {number}": False for number in range(4)}}
ROOMS = {
    "snapshots": Store(look_at_snapshots, write_snapshots),
    "manifest": Store(look_at_manifest, fetch_manifest),
    "target": Store(look_at_target, extend, {"target": 1}),
    "environment": Store(look_at_environment, make_environment, NO_ENVIRONMENT),
}
