"""What a payload looks like on the other side, and how many bytes it took.

RAW is every number as it is, as RAW64 is; all others are the real codecs of
:mod:`swarmnode.tensor.codec`.
"""

from __future__ import annotations

from typing import Any

import torch

from swarmnode.tensor.codec import get_codec

RAW = "RAW"


def through(codec: str, values: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return ``values`` [numel] encoded and decoded again, in memory of its own, and the bytes.

    Raises:
        ConfigError: no such codec.
        WorkerError: a value is not finite.
    """
    if codec in (RAW, "RAW64"):
        return values.clone(), values.numel() * values.element_size()
    found = get_codec(codec)
    payload = bytearray(found.payload_bytes(values.numel()))
    floats: Any = values.to(torch.float32).contiguous().numpy()  # a buffer, says numpy of late
    found.encode(floats, payload)
    decoded = torch.empty(values.numel(), dtype=torch.float32)
    out: Any = decoded.numpy()
    found.decode(payload, out)
    return decoded.to(values.dtype), len(payload)
