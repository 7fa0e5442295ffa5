"""Field types shared by every message: sizes and ranges that a decoder checks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

PeerIdBytes = Annotated[bytes, Meta(min_length=32, max_length=32)]
PublicKeyBytes = Annotated[bytes, Meta(min_length=32, max_length=32)]
SignatureBytes = Annotated[bytes, Meta(min_length=64, max_length=64)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
ExchangeId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Weight = Annotated[float, Meta(gt=0.0, le=1e18)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
ShortText = Annotated[str, Meta(max_length=256)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Address = Annotated[str, Meta(min_length=3, max_length=260)]
