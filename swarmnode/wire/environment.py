"""What members need before they can train: the part of a manifest that names software and data.

It names files by hash and carries none. A node installs by it only what its owner said yes to.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmnode import limits
from swarmnode.wire.records import Count, Digest

PackageName = Annotated[str, Meta(max_length=limits.PACKAGE_NAME_CHARACTERS_MAX)]
PackageVersion = Annotated[str, Meta(max_length=limits.PACKAGE_VERSION_CHARACTERS_MAX)]
_Place = Annotated[str, Meta(max_length=limits.PLACE_CHARACTERS_MAX)]


class PinnedPackage(msgspec.Struct, frozen=True):
    """A package in one version; ``hashes``: the SHA-256 of each wheel of it that will do."""

    name: PackageName
    version: PackageVersion
    hashes: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=limits.PACKAGE_HASHES_MAX)]


class DataReference(msgspec.Struct, frozen=True):
    """What is trained on.

    ``url``: one file of ``size_bytes`` with that hash; ``hub``: a data set of Hugging Face's hub at
    a revision, which is a commit, and the hash is over the path and the hash of each of its files,
    in their order; ``yours``: each member brings its own, and ``source`` is empty.
    """

    kind: Literal["url", "hub", "yours"]
    source: _Place = ""
    revision: Annotated[str, Meta(max_length=64)] = ""
    sha256: Digest | UnsetType = UNSET
    size_bytes: Count = 0


class Environment(msgspec.Struct, frozen=True):
    """What a member needs, in the words of its creator's package installer.

    Attributes:
        packages: the one that has the task first, then all that it needs and swarmnode does not.
        extras: of the first, for people; what they bring is among the packages.
        index: "" is what the installer of a machine is set to, a name one that it knows, and an
            address is shown before it is asked.
        memory_bytes, disk_bytes: at least, as computed by the creator; 0: not said.
    """

    packages: Annotated[
        tuple[PinnedPackage, ...], Meta(max_length=limits.ENVIRONMENT_PACKAGES_MAX)
    ] = ()
    extras: Annotated[tuple[PackageName, ...], Meta(max_length=limits.ENVIRONMENT_EXTRAS_MAX)] = ()
    index: _Place = ""
    data: DataReference | UnsetType = UNSET
    memory_bytes: Count = 0
    disk_bytes: Count = 0
