"""The tree over the chunks of a blob, and names of blobs: what other implementations must match."""

from __future__ import annotations

import hashlib

import pytest

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.protocol.blobs.merkle import (
    MerkleTree,
    blob_name,
    check_manifest,
    chunk_size,
    is_in_blob,
    leaf_hash,
    leaf_hashes,
    n_chunks_of,
    node_hash,
    proof_length,
    root_from,
)
from swarmnode.wire.blobs import BlobManifest

CHUNKS = [bytes([number]) * 3 for number in range(8)]
LEAVES = [leaf_hash(chunk) for chunk in CHUNKS]
A, B, C, D, E, F, G, H = LEAVES


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


AB, CD, EF = node(A, B), node(C, D), node(E, F)
ABCD = node(AB, CD)


def test_hashes_of_chunks_and_nodes_begin_with_a_byte_that_tells_them_apart() -> None:
    assert leaf_hash(b"xy") == hashlib.sha256(b"\x00xy").digest()
    assert leaf_hash(memoryview(bytearray(b"xy"))) == leaf_hash(b"xy")
    assert node_hash(A, B) == AB


@pytest.mark.parametrize("n_chunks", range(7))
def test_many_chunks_have_the_hashes_of_each(n_chunks: int) -> None:
    assert leaf_hashes(CHUNKS[:n_chunks]) == LEAVES[:n_chunks]
    unequal = [chunk * (1 + number) for number, chunk in enumerate(CHUNKS[:n_chunks])]
    assert leaf_hashes(unequal) == [leaf_hash(chunk) for chunk in unequal]
    large = [chunk * 100_000 for chunk in CHUNKS[:n_chunks]]
    assert leaf_hashes(large) == [leaf_hash(chunk) for chunk in large]


@pytest.mark.parametrize(
    ("n_chunks", "root"),
    [
        (1, A),
        (2, AB),
        (3, node(AB, C)),
        (4, ABCD),
        (5, node(ABCD, E)),
        (6, node(ABCD, EF)),
        (7, node(ABCD, node(EF, G))),
    ],
)
def test_levels_are_paired_from_the_left_and_who_has_no_partner_goes_up(
    n_chunks: int, root: bytes
) -> None:
    assert MerkleTree(LEAVES[:n_chunks]).root == root


@pytest.mark.parametrize(
    ("n_chunks", "proofs"),
    [
        (1, [()]),
        (2, [(B,), (A,)]),
        (3, [(B, C), (A, C), (AB,)]),
        (5, [(B, CD, E), (A, CD, E), (D, AB, E), (C, AB, E), (ABCD,)]),
        (6, [(B, CD, EF), (A, CD, EF), (D, AB, EF), (C, AB, EF), (F, ABCD), (E, ABCD)]),
    ],
)
def test_a_proof_has_the_siblings_on_the_way_and_leads_to_the_root(
    n_chunks: int, proofs: list[tuple[bytes, ...]]
) -> None:
    tree = MerkleTree(LEAVES[:n_chunks])
    manifest = BlobManifest(3 * n_chunks, 3, tree.root)
    for index, proof in enumerate(proofs):
        assert tree.proof(index) == proof
        assert proof_length(index, n_chunks) == len(proof)
        assert root_from(LEAVES[index], index, n_chunks, proof) == tree.root
        assert is_in_blob(manifest, index, LEAVES[index], proof)
        assert not is_in_blob(manifest, index, H, proof)
        assert root_from(LEAVES[index], index, n_chunks, (*proof, H)) is None
        if proof:
            assert root_from(LEAVES[index], index, n_chunks, proof[:-1]) is None
    for outside in (-1, n_chunks):
        assert not is_in_blob(manifest, outside, A, proofs[0])


@pytest.mark.parametrize(
    ("size_bytes", "sizes"),
    [(1, [1]), (9, [9]), (10, [10]), (11, [10, 1]), (20, [10, 10]), (29, [10, 10, 9])],
)
def test_all_chunks_are_of_one_size_but_the_last(size_bytes: int, sizes: list[int]) -> None:
    manifest = BlobManifest(size_bytes, 10, A)
    assert n_chunks_of(manifest) == len(sizes)
    assert [chunk_size(manifest, index) for index in range(len(sizes))] == sizes


def test_a_name_binds_the_size_the_size_of_chunks_and_the_root() -> None:
    sizes = (29).to_bytes(8, "big") + (10).to_bytes(4, "big")
    name = hashlib.sha256(b"\x02" + sizes + AB).digest()
    assert blob_name(BlobManifest(29, 10, AB)) == name
    check_manifest(BlobManifest(29, 10, AB), name)
    for other in (BlobManifest(28, 10, AB), BlobManifest(29, 11, AB), BlobManifest(29, 10, CD)):
        with pytest.raises(MalformedMessage, match="expected the manifest of blob"):
            check_manifest(other, name)


def test_a_blob_has_no_more_chunks_than_any() -> None:
    largest = BlobManifest(limits.BLOB_CHUNKS_MAX, 1, A)
    check_manifest(largest, blob_name(largest))
    larger = BlobManifest(limits.BLOB_CHUNKS_MAX + 1, 1, A)
    with pytest.raises(MalformedMessage, match="at most 65536 are allowed"):
        check_manifest(larger, blob_name(larger))
    assert proof_length(0, limits.BLOB_CHUNKS_MAX) == limits.BLOB_PROOF_MAX
