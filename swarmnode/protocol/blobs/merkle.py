"""The tree over the chunks of a blob: roots, inclusion proofs, and names of blobs.

::

    leaf = SHA-256(0x00, chunk)      node = SHA-256(0x01, left, right)
    name = SHA-256(0x02, size u64, chunk size u32, root), big-endian

Levels are paired from the left; a node without a partner goes up as it is. That is the tree
of RFC 6962, section 2.1. The first byte keeps a node from passing as a chunk, and the name
binds the size, so that no peer announces a blob longer than it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Callable, Sequence
from functools import cache

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.wire.blobs import BlobManifest

_SIZES = struct.Struct(">QI")
Chunk = bytes | bytearray | memoryview


def leaf_hash(chunk: Chunk) -> bytes:
    """Hash one chunk. Cost: the only O(size) step; releases the GIL."""
    digest = hashlib.sha256(b"\x00")
    digest.update(chunk)
    return digest.digest()


def leaf_hashes(chunks: Sequence[Chunk]) -> list[bytes]:
    """Hash chunks, two of one size at once where the processor can: that takes half of the time."""
    hashes: list[bytes] = []
    while len(hashes) < len(chunks):
        two = chunks[len(hashes) : len(hashes) + 2]
        hashes += _hash_two(*two) if len(two) == 2 else [leaf_hash(two[0])]
    return hashes


def _hash_two(chunk: Chunk, other: Chunk) -> Sequence[bytes]:
    in_one_go = _native_sha256_two()
    digests = in_one_go(0, chunk, other) if in_one_go and len(chunk) == len(other) else None
    return digests or (leaf_hash(chunk), leaf_hash(other))


@cache
def _native_sha256_two() -> Callable[[int, Chunk, Chunk], tuple[bytes, bytes] | None] | None:
    with contextlib.suppress(ImportError):
        from swarmnode.tensor.native import sha256_two

        return sha256_two
    return None


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash two children."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """All levels of a tree, from the leaves up. Memory: 64 bytes a chunk."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        assert 0 < len(leaves) <= limits.BLOB_CHUNKS_MAX
        self._levels = [list(leaves)]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            above = [node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)]
            self._levels.append(above + below[len(below) - len(below) % 2 :])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def proof(self, index: int) -> tuple[bytes, ...]:
        """Return the siblings on the way from leaf ``index`` to the root."""
        siblings = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                siblings.append(level[index ^ 1])
            index //= 2
        return tuple(siblings)


def root_from(leaf: bytes, index: int, n_chunks: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root that a proof leads to, or None if it has not the right length."""
    if len(proof) != proof_length(index, n_chunks):
        return None
    siblings = iter(proof)
    node, width = leaf, n_chunks
    while width > 1:
        if index ^ 1 < width:
            sibling = next(siblings)
            node = node_hash(sibling, node) if index & 1 else node_hash(node, sibling)
        index //= 2
        width = (width + 1) // 2
    return node


def proof_length(index: int, n_chunks: int) -> int:
    """Return the number of siblings of a leaf: those that go up alone need fewer."""
    assert 0 <= index < n_chunks
    length = 0
    while n_chunks > 1:
        length += index ^ 1 < n_chunks
        index //= 2
        n_chunks = (n_chunks + 1) // 2
    return length


def n_chunks_of(manifest: BlobManifest) -> int:
    """Return the number of chunks of a blob."""
    return -(-manifest.size_bytes // manifest.chunk_bytes)


def chunk_size(manifest: BlobManifest, index: int) -> int:
    """Return the bytes of one chunk: the last may be shorter."""
    assert 0 <= index < n_chunks_of(manifest)
    return min(manifest.chunk_bytes, manifest.size_bytes - index * manifest.chunk_bytes)


def is_in_blob(manifest: BlobManifest, index: int, leaf: bytes, proof: Sequence[bytes]) -> bool:
    """Whether a chunk with this hash is the one that the blob has at ``index``."""
    n_chunks = n_chunks_of(manifest)
    return 0 <= index < n_chunks and root_from(leaf, index, n_chunks, proof) == manifest.root


def blob_name(manifest: BlobManifest) -> bytes:
    """Return the 32 bytes that name a blob."""
    sizes = _SIZES.pack(manifest.size_bytes, manifest.chunk_bytes)
    return hashlib.sha256(b"\x02" + sizes + manifest.root).digest()


def check_manifest(manifest: BlobManifest, name: bytes) -> None:
    """Check what a holder says a blob is.

    Raises:
        MalformedMessage: it is another blob's, or has more chunks than any blob.
    """
    n_chunks = n_chunks_of(manifest)
    if n_chunks > limits.BLOB_CHUNKS_MAX:
        raise MalformedMessage(
            f"a blob of {n_chunks} chunks, at most {limits.BLOB_CHUNKS_MAX} are allowed"
        )
    if blob_name(manifest) != name:
        raise MalformedMessage(f"expected the manifest of blob {name.hex()[:16]}, got another's")
