"""The bytes of codecs version 1, on every instruction set of this machine.

The entries of ``codecs-v1.json`` (Q8B64, Q4B64) and ``codecs-v1-more.json``
(all others, and references) are the contract with other implementations and
with files already written: never edited, only added to.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from swarmnode.errors import MalformedMessage
from swarmnode.tensor.codec import Codec, available_isas, get_codec
from swarmnode.tensor.layout import Layout

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "codecs-v1.json").read_text())
MORE = json.loads((HERE / "codecs-v1-more.json").read_text())
VALID = GOLDEN["valid"] + MORE["valid"]
INVALID = GOLDEN["invalid"] + MORE["invalid"]
# The payload and the digest of the decoded values of one block, agreed before any code existed:
# x[i] = ((37 i mod 64) - 31.5) * 0.001 in float32.
RAMP_PAYLOADS = {
    "Q8B64": "83398216aa3ed266fa8e22b64ade72069a2ec256ea7e12a63ace62f68a1eb246da6e02962abe52e67a0e"
    "a236ca5ef2861aae42d66afe9226ba4ee2760a9e32c65aee",
    "Q4B64": "943b8129a34bd57ef8923ab45cd67e18923bc56de78f29a34bc56df7913ab45cd67e",
}
RAMP_DIGESTS = {"Q8B64": "a0f9a9a9c2f06398", "Q4B64": "54a6c3c78ed64fce"}


def entry_id(entry: dict[str, Any]) -> str:
    return f"{entry['codec']} {entry['case']}"


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("entry", VALID, ids=entry_id)
def test_encode_gives_these_bytes(entry: dict[str, Any], isa: str) -> None:
    codec = get_codec(entry["codec"], isa)
    payload = bytearray(codec.payload_bytes(entry["n_elems"]))
    codec.encode(bytes.fromhex(entry["values"]), payload, reference_of(entry))
    assert payload.hex() == entry["payload"]


@pytest.mark.parametrize("entry", VALID, ids=entry_id)
def test_decode_gives_these_floats(entry: dict[str, Any], isa: str) -> None:
    out = bytearray(4 * entry["n_elems"])
    payload = bytes.fromhex(entry["payload"])
    get_codec(entry["codec"], isa).decode(payload, out, reference_of(entry))
    assert out.hex() == entry["decoded"]


@pytest.mark.parametrize("entry", VALID, ids=entry_id)
def test_merge_gives_these_floats(entry: dict[str, Any], isa: str) -> None:
    codec = get_codec(entry["codec"], isa)
    assert merged(codec, entry, entry["own_weight"], entry["peer_weight"]) == entry["merged"]
    assert merged(codec, entry, -1.0, 1.0) == entry["difference"]


@pytest.mark.parametrize("entry", INVALID, ids=entry_id)
def test_these_payloads_are_refused(entry: dict[str, Any], isa: str) -> None:
    with pytest.raises(MalformedMessage):
        get_codec(entry["codec"], isa).validate(bytes.fromhex(entry["payload"]), entry["n_elems"])


@pytest.mark.parametrize("name", RAMP_PAYLOADS)
def test_the_ramp_is_as_agreed(name: str, isa: str) -> None:
    step = struct.unpack("<f", struct.pack("<f", 1e-3))[0]
    # The exact product in double precision, rounded once by the packing, is the float32 product.
    values = struct.pack("<64f", *(((37 * i % 64) - 31.5) * step for i in range(64)))
    codec = get_codec(name, isa)
    payload = bytearray(codec.payload_bytes(64))
    codec.encode(values, payload)
    assert payload.hex() == RAMP_PAYLOADS[name]
    decoded = bytearray(256)
    codec.decode(payload, decoded)
    assert hashlib.sha256(decoded).hexdigest().startswith(RAMP_DIGESTS[name])


@pytest.mark.parametrize("entry", GOLDEN["layouts"], ids=lambda entry: f"numel {entry['numel']}")
def test_layouts_have_these_offsets_and_hashes(entry: dict[str, Any]) -> None:
    layout = Layout.of((name, shape, dtype) for name, shape, dtype in entry["tensors"])
    assert layout.numel == entry["numel"]
    assert list(layout.offsets) == entry["offsets"]
    assert layout.layout_hash.hex() == entry["layout_hash"]


def merged(codec: Codec, entry: dict[str, Any], own_weight: float, peer_weight: float) -> str:
    target = bytearray.fromhex(entry["target"])
    payload = bytes.fromhex(entry["payload"])
    codec.merge(payload, target, own_weight, peer_weight, reference_of(entry))
    return target.hex()


def reference_of(entry: dict[str, Any]) -> bytes | None:
    return bytes.fromhex(entry["reference"]) if "reference" in entry else None
