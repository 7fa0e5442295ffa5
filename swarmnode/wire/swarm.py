"""Records of a swarm: the signed manifest, and how a newcomer asks for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmnode.wire.environment import Environment, PackageName, PackageVersion
from swarmnode.wire.recipe import Recipe
from swarmnode.wire.records import Count, Digest, Name, PublicKeyBytes, ShortText, SignatureBytes

# Edges of a graph over some dozens of nodes; more of them have a name.
Topology = Annotated[
    str, Meta(max_length=8192, pattern=r"^([a-z]*|[0-9]+-[0-9]+( [0-9]+-[0-9]+)*)$")
]


class Signed(msgspec.Struct, frozen=True):
    """The exact bytes that were signed, whose key signed them, and the signature.

    ``body`` is kept as bytes so that a signature never depends on how a
    record is encoded again.
    """

    body: Annotated[bytes, Meta(max_length=64 * 1024)]
    public_key: PublicKeyBytes
    signature: SignatureBytes


class Manifest(msgspec.Struct, frozen=True):
    """What a swarm trains and by which rules; signed by the swarm's own key.

    It names code (``task``, ``strategy``, ``codec``), it never carries any. Tensor shapes
    are not in it either: both sides build the model and compare ``layout_hash``.
    """

    name: Name
    swarm_key: PublicKeyBytes
    task: Name
    task_version: Annotated[int, Meta(ge=1, le=10_000)]
    task_config: dict[str, Any]
    numel: Annotated[int, Meta(ge=1, le=2**40)]
    layout_hash: Digest
    data_hash: Annotated[bytes, Meta(max_length=32)]
    strategy: Name
    strategy_settings: dict[str, Any]
    codec: Annotated[str, Meta(min_length=1, max_length=16, pattern=r"^[A-Z0-9]+$")]
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    admission: Literal["open", "closed"]  # closed: by invite, see wire.admission
    min_version: ShortText
    created_at: Count  # Unix seconds
    expires_at: Count  # Unix seconds; 0: never
    strategy_version: Annotated[int, Meta(ge=1, le=10_000)] = 1
    topology: Topology = ""  # of pairs that meet: a graph's name, or its edges "0-1 1-2 ..."
    # These are not encoded where they are not set, so that manifests without them keep their bytes.
    # The package that has the task on its creator's machine, for people who lack it. A node that
    # prints one checks first that it is a name and a version of a package.
    task_package: PackageName | UnsetType = UNSET
    task_package_version: PackageVersion | UnsetType = UNSET
    own_data: bool | UnsetType = UNSET  # each member is meant to have data of its own
    recipe: Recipe | UnsetType = UNSET  # not set: each member's optimizer is as the task made it
    # SHA-256 of the examples by which members weigh what others send, which no peer chooses.
    probe_hash: Digest | UnsetType = UNSET
    # The key by which members tell strangers where they are, signed by the swarm's.
    grant: Annotated[bytes, Meta(min_length=96, max_length=96)] | UnsetType = UNSET
    environment: Environment | UnsetType = UNSET  # not set: swarmnode itself has all that it takes


class ManifestRequest(msgspec.Struct, frozen=True):
    """Ask a peer for the manifest of the swarm whose public key this is."""

    swarm_key: PublicKeyBytes


class ManifestReply(msgspec.Struct, frozen=True):
    """The signed manifest; the asker verifies it against the key in its link."""

    manifest: Signed
