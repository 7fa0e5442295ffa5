"""Measure the codecs on this machine, one thread, against memcpy of the same array.

Every figure is one call over a whole array, memcpy's and numpy's too, with
buffers reused between calls. GB/s count the bytes of the float32 side (1 GB =
1e9 bytes), so memcpy's is the array's bytes over the time of its copy. The
daemon calls once for each chunk of 2 MiB, whose payload is still in the
cache: there the C codecs are somewhat faster than here, and numpy about three
times, as its temporary arrays then stay in the cache too.

Rows ``…-ref`` encode the difference to a reference that is a tenth of the
values' norm away; the error is relative to the values in every row.

Time is CPU time of the thread, so a busy machine distorts it little; figures
are medians. The portable C and numpy rows use a smaller array, still larger
than a cache, to keep the run to seconds.
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swarmnode.limits import MIB
from swarmnode.tensor.codec import CODEC_NAMES, Codec, available_isas, get_codec

_ROUNDS: Final = 5
_SLOW_ISAS: Final = frozenset({"ref", "numpy"})
_SLOW_ARRAY_BYTES: Final = 64 * MIB
_NMSE_ELEMS: Final = MIB
_SEED: Final = 1
_REFERENCE_CODECS: Final = ("Q8B64",)  # the others that take one differ from it as without

Floats = NDArray[np.float32]


def run_codec_bench(
    size_bytes: int = 256 * MIB, isas: Sequence[str] | None = None
) -> dict[str, Any]:
    """Measure every codec on every instruction set; takes a few seconds.

    Args:
        size_bytes: of the float32 array; four times as much memory is used.
        isas: names of :func:`available_isas`; all of them if None.

    Returns:
        ``{"memcpy_gbps": …, "codecs": [{"codec", "isa", "encode_gbps", "decode_gbps",
        "merge_gbps", "nmse", "bits_per_element"}, …]}``.
    """
    n_elems = size_bytes // 4
    values = _floats(n_elems)
    np.random.default_rng(_SEED).standard_normal(out=values, dtype=np.float32)
    target, reference = _floats(n_elems), _floats(n_elems)
    np.multiply(values, np.float32(0.9), out=reference)
    payload = _memory(max(get_codec(name).payload_bytes(n_elems) for name in CODEC_NAMES))
    memcpy_gbps, rows = [], []
    for name, base in _variants(reference):
        for isa in available_isas() if isas is None else isas:
            # Beside each codec, so that both see the same state of the machine.
            memcpy_gbps.append(_memcpy_gbps(values, target))
            used = min(n_elems, _SLOW_ARRAY_BYTES // 4) if isa in _SLOW_ISAS else n_elems
            used_base = None if base is None else base[:used]
            codec = get_codec(name, isa)
            rows.append(_row(codec, values[:used], target[:used], payload, used_base))
    return {"memcpy_gbps": statistics.median(memcpy_gbps), "codecs": rows}


def _variants(reference: Floats) -> list[tuple[str, Floats | None]]:
    alone: list[tuple[str, Floats | None]] = [(name, None) for name in CODEC_NAMES]
    return alone + [(name, reference) for name in _REFERENCE_CODECS]


def format_codec_bench(result: dict[str, Any]) -> str:
    """Return the result as a table; in brackets the speed relative to memcpy."""
    memcpy_gbps = result["memcpy_gbps"]

    def speed(gbps: float) -> str:
        return f"{gbps:7.2f} ({gbps / memcpy_gbps:4.2f}x)"

    lines = [
        "GB/s of float32, one thread; in brackets: against memcpy of the same array",
        f"memcpy {memcpy_gbps:.2f}",
        f"{'codec':9} {'isa':7} {'encode':>15} {'decode':>15} {'merge':>15} {'NMSE':>9} "
        f"{'bit/elem':>8}",
    ]
    lines += [
        f"{row['codec']:9} {row['isa']:7} {speed(row['encode_gbps']):>15} "
        f"{speed(row['decode_gbps']):>15} {speed(row['merge_gbps']):>15} {row['nmse']:9.2e} "
        f"{row['bits_per_element']:8.2f}"
        for row in result["codecs"]
    ]
    return "\n".join(lines)


def _row(
    codec: Codec,
    values: Floats,
    target: Floats,
    payload: memoryview,
    base: Floats | None,
) -> dict[str, Any]:
    used_payload = payload[: codec.payload_bytes(values.size)]
    reference = None if base is None else base.data

    def encode() -> None:
        codec.encode(values.data, used_payload, reference)

    def decode() -> None:
        codec.decode(used_payload, target.data, reference)

    def merge() -> None:
        codec.merge(used_payload, target.data, 0.5, 0.5, reference)

    encode_gbps, decode_gbps, merge_gbps = _median_gbps(values.nbytes, (encode, decode, merge))
    return {
        "codec": codec.name if base is None else f"{codec.name}-ref",
        "isa": codec.isa,
        "encode_gbps": encode_gbps,
        "decode_gbps": decode_gbps,
        "merge_gbps": merge_gbps,
        "nmse": _nmse(codec, values, base),
        "bits_per_element": codec.bits_per_elem,
    }


def _memcpy_gbps(values: Floats, target: Floats) -> float:
    def copy() -> None:
        ctypes.memmove(target.ctypes.data, values.ctypes.data, values.nbytes)

    return _median_gbps(values.nbytes, (copy,))[0]


def _median_gbps(size_bytes: int, steps: Sequence[Callable[[], None]]) -> list[float]:
    """Run the steps in turn, once unmeasured and then ``_ROUNDS`` times."""
    seconds: list[list[float]] = [[] for _ in steps]
    for round_index in range(_ROUNDS + 1):
        for step, samples in zip(steps, seconds, strict=True):
            began_ns = time.thread_time_ns()
            step()
            if round_index > 0:
                samples.append((time.thread_time_ns() - began_ns) / 1e9)
    return [size_bytes / 1e9 / statistics.median(samples) for samples in seconds]


def _nmse(codec: Codec, values: Floats, base: Floats | None) -> float:
    """Return the squared error over the squared norm, for values from N(0, 1)."""
    values = values[:_NMSE_ELEMS]
    reference = None if base is None else base[: values.size].data
    payload = bytearray(codec.payload_bytes(values.size))
    decoded = np.empty_like(values)
    codec.encode(values.data, payload, reference)
    codec.decode(payload, decoded.data, reference)
    error = decoded.astype(np.float64) - values
    return float(np.square(error).sum() / np.square(values, dtype=np.float64).sum())


def _floats(n_elems: int) -> Floats:
    return np.frombuffer(_memory(n_elems * 4), dtype=np.float32)


def _memory(size_bytes: int) -> memoryview:
    """Return zeroed memory, on huge pages where the system has them, so that memcpy does too."""
    area = mmap.mmap(-1, size_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(area)
