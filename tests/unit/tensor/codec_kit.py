"""Vectors, and codecs with buffers of the right size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swarmnode.tensor.codec import Codec


@dataclass(frozen=True)
class Elements:
    """A part of a payload, as a size is taken of it."""

    codec: Codec
    view: int = 0
    is_scaled: bool = True


def gaussian(n_elems: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n_elems, dtype=np.float32)


def encoded(codec: Codec, values: np.ndarray) -> bytearray:
    payload = bytearray(codec.payload_bytes(values.size))
    codec.encode(values.data, payload)
    return payload


def decoded(codec: Codec, payload: bytes | bytearray, n_elems: int) -> np.ndarray:
    out = np.full(n_elems, np.nan, dtype=np.float32)
    codec.decode(payload, out.data)
    return out
