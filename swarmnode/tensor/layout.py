"""The flat vector of a model: which tensor lies where, and one hash that two peers compare.

Shapes never come from the network: both sides build the model, lay it out
here and compare ``layout_hash``. From then on the length of every message is
known in advance.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.errors import ConfigError

# A transformer has about ten tensors a layer; mixtures of experts a few thousand in all.
LAYOUT_TENSORS_MAX = 65_536
_LAYOUT_DIMS_MAX = 8
_LAYOUT_NAME_BYTES_MAX = 512
# 64 GiB of float32: far more than a volunteer's machine averages as one vector.
_LAYOUT_ELEMS_MAX = 2**34

_GRAIN_ELEMS = 64  # of the blocks that most codecs have; chunks on the wire suit all of them
_HASH_DOMAIN = b"swarmnode/layout/v1\0"
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model. ``dtype`` is how the model holds it; the flat vector is float32."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not 1 <= len(self.name.encode()) <= _LAYOUT_NAME_BYTES_MAX:
            raise ConfigError(
                f"tensor name {self.name[:80]!r}: expected 1 to "
                f"{_LAYOUT_NAME_BYTES_MAX} bytes of UTF-8"
            )
        if len(self.shape) > _LAYOUT_DIMS_MAX or any(
            not 0 <= size <= _LAYOUT_ELEMS_MAX for size in self.shape
        ):
            raise ConfigError(
                f"tensor {self.name!r}: expected at most {_LAYOUT_DIMS_MAX} dimensions of "
                f"0 to {_LAYOUT_ELEMS_MAX} elements, got {self.shape}"
            )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"tensor {self.name!r}: expected a dtype of {', '.join(DTYPES)}, got "
                f"{self.dtype!r}; leave buffers of integers out of the averaged vector"
            )

    @property
    def numel(self) -> int:
        """Elements of the tensor; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Tensors in their order, one after the other without gaps.

    Attributes:
        specs: the tensors.
        offsets: where each begins, in elements of the flat vector.
        numel: elements of the flat vector.
        layout_hash: SHA-256 of :func:`canonical_bytes`; equal hashes mean equal layouts.
    """

    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...] = field(init=False, compare=False, repr=False)
    numel: int = field(init=False, compare=False)
    layout_hash: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.specs) > LAYOUT_TENSORS_MAX:
            raise ConfigError(
                f"a layout has at most {LAYOUT_TENSORS_MAX} tensors, got {len(self.specs)}"
            )
        seen: set[str] = set()
        offsets = []
        numel = 0
        for spec in self.specs:
            if spec.name in seen:
                raise ConfigError(f"two tensors are called {spec.name!r}: names must differ")
            seen.add(spec.name)
            offsets.append(numel)
            numel += spec.numel
        if numel > _LAYOUT_ELEMS_MAX:
            raise ConfigError(f"a layout has at most {_LAYOUT_ELEMS_MAX} elements, got {numel}")
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "numel", numel)
        digest = hashlib.sha256(canonical_bytes(self.specs)).digest()
        object.__setattr__(self, "layout_hash", digest)

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Iterable[int], str]]) -> Layout:
        """Lay out (name, shape, dtype) triples in their order.

        Raises:
            ConfigError: a name, shape or dtype is not allowed, or there are too many.
        """
        return cls(tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in tensors))

    def spans(self) -> Iterator[tuple[TensorSpec, int, int]]:
        """Yield (spec, begin, end) for each tensor; ``end`` is exclusive."""
        for spec, begin in zip(self.specs, self.offsets, strict=True):
            yield spec, begin, begin + spec.numel


def canonical_bytes(specs: tuple[TensorSpec, ...]) -> bytes:
    """Return the bytes that ``layout_hash`` digests (proto/codecs.md).

    Every variable part is preceded by its length, so no two layouts share an encoding.
    """
    parts = [_HASH_DOMAIN, struct.pack("<I", len(specs))]
    for spec in specs:
        name, dtype = spec.name.encode(), spec.dtype.encode()
        parts.append(struct.pack("<H", len(name)) + name)
        parts.append(struct.pack("<B", len(dtype)) + dtype)
        parts.append(struct.pack(f"<B{len(spec.shape)}Q", len(spec.shape), *spec.shape))
    return b"".join(parts)


def chunks(numel: int, chunk_elems: int = limits.CODEC_CHUNK_ELEMS) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the chunks of a flat vector; only the last may be short.

    ``chunk_elems`` is a positive multiple of 64: a codec's block never crosses a chunk, so a
    vector encoded in chunks decodes to the same values as one encoded whole.
    """
    assert chunk_elems > 0, chunk_elems
    assert chunk_elems % _GRAIN_ELEMS == 0, chunk_elems
    for begin in range(0, numel, chunk_elems):
        yield begin, min(begin + chunk_elems, numel)
