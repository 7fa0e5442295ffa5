"""Writes a blob chunk by chunk and says each chunk that is written, until it is killed.

``python -m tests.crash.blob_writer FOLDER SOURCE SEED``
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from swarmnode.protocol.blobs.merkle import MerkleTree, leaf_hash
from swarmnode.store.blobs import BlobStore
from swarmnode.wire.blobs import BlobManifest

CHUNK_BYTES = 64 * 1024


def cut(source: bytes) -> list[bytes]:
    return [source[i : i + CHUNK_BYTES] for i in range(0, len(source), CHUNK_BYTES)]


def manifest_of(source: bytes) -> BlobManifest:
    tree = MerkleTree([leaf_hash(chunk) for chunk in cut(source)])
    return BlobManifest(len(source), CHUNK_BYTES, tree.root)


def main(folder: Path, source_path: Path, seed: int) -> None:
    source = source_path.read_bytes()
    chunks = cut(source)
    leaves = [leaf_hash(chunk) for chunk in chunks]
    tree = MerkleTree(leaves)
    store = BlobStore(folder, bytes_max=10 * len(source))
    with store.begin(manifest_of(source)) as blob:
        missing = sorted(set(range(len(chunks))) - blob.stored)
        print("begun", len(missing), flush=True)
        random.Random(seed).shuffle(missing)
        for index in missing:
            blob.write(index, chunks[index], leaves[index], tree.proof(index))
            print(index, flush=True)
        blob.complete()
    print("complete", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
