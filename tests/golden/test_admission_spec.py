"""proto/admission.md says what the code does: records, reasons, limits, vectors."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
import pytest

from swarmnode import limits
from swarmnode.ids import encode_base32
from swarmnode.protocol.admission import Admission
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import Invite, Reason
from swarmnode.protocol.swarm import swarm_id
from swarmnode.wire import admission
from swarmnode.wire.admission import MemberChain
from swarmnode.wire.packing import encode_record
from swarmnode.wire.schema import FAMILIES
from swarmnode.wire.swarm import Signed
from tests.conftest import ROOT
from tests.golden.messages import EXAMPLES

SPEC = (ROOT / "proto" / "admission.md").read_text(encoding="utf-8")
SPACED = " ".join(SPEC.split())
SWARM = Identity.from_seed(b"s" * 32)
INVITE = Identity.from_seed(b"i" * 32)


def example(name: str, **changes: object) -> bytes:
    records: Any = EXAMPLES
    swarm = swarm_id(SWARM.public_key)
    return encode_record(
        msgspec.structs.replace(records[f"admission/{name}"], swarm_id=swarm, **changes)
    )


def signed(signer: Identity, purpose: str, body: bytes) -> Signed:
    return Signed(body, signer.public_key, signer.sign(purpose, body))


INVITE_SIGNED = signed(
    SWARM, "invite/1", example("invite", invite_key=INVITE.public_key, role="trainer")
)
MEMBER_SIGNED = signed(INVITE, "member/1", example("member", peer=bytes(SWARM.peer_id)))


@pytest.mark.parametrize("record", FAMILIES["admission"], ids=lambda record: record.__name__)
def test_every_field_is_named(record: type[msgspec.Struct]) -> None:
    table = SPEC.split(f"\n| `{record.__name__}` |", 1)[1].split("\n\n", 1)[0]
    shown = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert shown == list(record.__struct_fields__)


def test_every_reason_and_role_is_named_in_order() -> None:
    section = SPEC.split("\n## 3. ", 1)[1].split("\n## ", 1)[0]
    assert {f"{reason}" for reason in Reason} <= set(re.findall(r"`([a-z-]+)`", section))
    roles = SPEC.split("**Roles**", 1)[1].split(".", 1)[0]
    assert tuple(re.findall(r"`(\w+)`", roles)) == get_args(admission.Role)


def test_limits_are_named_with_their_value() -> None:
    shown = re.findall(r"\b([A-Z]+(?:_[A-Z]+)+) \((\d+)(?: s)?\)", SPACED)
    assert len(shown) >= 8
    for name, value in shown:
        assert getattr(limits, name) == int(value), name


def test_vectors() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+) \| `([0-9a-f]+)` \|$", SPEC, re.MULTILINE))
    token = INVITE.seed() + INVITE_SIGNED.signature + INVITE_SIGNED.body
    made = Invite.decode(token, SWARM.public_key)
    assert rows == {
        "invite id": made.id.hex(),
        "signature of the invite": INVITE_SIGNED.signature.hex(),
        "signature of the member": MEMBER_SIGNED.signature.hex(),
    }
    assert re.findall(r"^    ([a-z2-7]{100,})$", SPEC, re.MULTILINE) == [encode_base32(token)]
    assert made.encode() == token
    book = Admission(swarm_id(SWARM.public_key), SWARM.public_key)
    chain = MemberChain(MEMBER_SIGNED, INVITE_SIGNED)
    assert book.admit(SWARM.peer_id, chain, 1_800_000_060) == "keeper"
