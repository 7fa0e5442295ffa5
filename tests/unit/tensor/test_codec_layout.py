"""The flat layout: offsets, the hash that peers compare, and chunks."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.tensor.layout import Layout, TensorSpec, chunks

TENSORS = [("w", (3, 4), "float32"), ("b", (), "bfloat16"), ("v", (0,), "float32")]


def test_tensors_follow_each_other_without_gaps() -> None:
    layout = Layout.of(TENSORS)
    assert layout.offsets == (0, 12, 13)
    assert layout.numel == 13
    assert [(spec.name, begin, end) for spec, begin, end in layout.spans()] == [
        ("w", 0, 12),
        ("b", 12, 13),
        ("v", 13, 13),
    ]


def test_the_hash_tells_all_that_differs() -> None:
    variants = [
        TENSORS,
        TENSORS[::-1],
        TENSORS[:2],
        [("w", (4, 3), "float32"), *TENSORS[1:]],
        [("w", (12,), "float32"), *TENSORS[1:]],
        [("w", (3, 4), "float16"), *TENSORS[1:]],
        [("x", (3, 4), "float32"), *TENSORS[1:]],
        [],
    ]
    assert len({Layout.of(tensors).layout_hash for tensors in variants}) == len(variants)
    assert Layout.of(TENSORS).layout_hash == Layout.of(TENSORS).layout_hash
    assert len(Layout.of(TENSORS).layout_hash) == 32


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ([("", (1,), "float32")], "expected 1 to"),
        ([("w" * 513, (1,), "float32")], "expected 1 to"),
        ([("w", (-1,), "float32")], "at most 8 dimensions"),
        ([("w", (1,) * 9, "float32")], "at most 8 dimensions"),
        ([("w", (1,), "int64")], "expected a dtype of"),
        ([("w", (1,), "float32")] * 2, "two tensors are called 'w'"),
        ([("w", (2**18, 2**18), "float32")], "at most 17179869184 elements"),
    ],
)
def test_what_cannot_be_laid_out_is_named(tensors: list, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Layout.of(tensors)


def test_the_number_of_tensors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmnode.tensor.layout.LAYOUT_TENSORS_MAX", 2)
    with pytest.raises(ConfigError, match="at most 2 tensors, got 3"):
        Layout(tuple(TensorSpec(name, (1,)) for name in "abc"))


def test_chunks_cover_the_vector_in_order() -> None:
    assert list(chunks(0)) == []
    assert list(chunks(200, 64)) == [(0, 64), (64, 128), (128, 192), (192, 200)]
    assert list(chunks(limits.CODEC_CHUNK_ELEMS)) == [(0, limits.CODEC_CHUNK_ELEMS)]
    assert limits.CODEC_CHUNK_ELEMS % 64 == 0


@pytest.mark.parametrize("chunk_elems", [0, -64, 100])
def test_chunks_never_cut_a_block(chunk_elems: int) -> None:
    with pytest.raises(AssertionError):
        list(chunks(1000, chunk_elems))
