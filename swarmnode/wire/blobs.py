"""Messages of blob transfer: ``proto/blobs.md`` says when each is sent.

A blob is named by the digest of its manifest, so a node that knows a name can check the
manifest, and one that has the manifest can check every chunk by itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.wire.records import Digest

BlobChunkIndex = Annotated[int, Meta(ge=0, lt=limits.BLOB_CHUNKS_MAX)]
BlobProof = Annotated[tuple[Digest, ...], Meta(max_length=limits.BLOB_PROOF_MAX)]
Bitmap = Annotated[bytes, Meta(max_length=limits.BLOB_CHUNKS_MAX // 8)]


class BlobManifest(msgspec.Struct, frozen=True):
    """How large a blob is, how it is cut, and the root of the tree over its chunks."""

    size_bytes: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES_MAX)]
    chunk_bytes: Annotated[int, Meta(ge=1, le=limits.BLOB_CHUNK_BYTES_MAX)]
    root: Digest


class BlobMessage(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every message of blob transfer."""

    blob: Digest


class HoldingQuery(BlobMessage, frozen=True, tag="holding-query"):
    """What do you hold of this blob?"""


class Holding(BlobMessage, frozen=True, tag="holding"):
    """Bit ``i % 8`` of byte ``i // 8`` of ``have``: I hold chunk i. No manifest: nothing of it."""

    manifest: BlobManifest | None
    have: Bitmap = b""


class ChunkRequest(BlobMessage, frozen=True, tag="chunk-request"):
    """Send me this chunk."""

    index: BlobChunkIndex


class ChunkHeader(BlobMessage, frozen=True, tag="chunk"):
    """The chunk follows as raw bytes; ``proof`` leads from it to the root, from the leaf up."""

    index: BlobChunkIndex
    proof: BlobProof


class ChunkRefusal(BlobMessage, frozen=True, tag="refusal"):
    """Not now (``busy``), or not from me any more (``absent``)."""

    index: BlobChunkIndex
    reason: Literal["busy", "absent"]


Request = HoldingQuery | ChunkRequest
Answer = Holding | ChunkHeader | ChunkRefusal
Message = HoldingQuery | Holding | ChunkRequest | ChunkHeader | ChunkRefusal
