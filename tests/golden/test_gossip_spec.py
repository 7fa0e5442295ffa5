"""The state tables of proto/gossip.md are those of the code."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from swarmnode import limits
from swarmnode.protocol.gossip.events import Role
from swarmnode.protocol.gossip.exchange import TRANSITIONS
from swarmnode.protocol.gossip.flight import State
from swarmnode.wire.exchange import gossip
from tests.conftest import ROOT

SPEC = (ROOT / "proto" / "gossip.md").read_text(encoding="utf-8")
RECORDS = {record.__struct_config__.tag: record for record in get_args(gossip.Message)}
REFUSED = "!"


def table_under(heading: str) -> dict[str, dict[str, str]]:
    """Return message -> column -> cell of the table that follows a heading."""
    section = SPEC.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    header, _, *body = rows
    return {row[0].strip("`"): dict(zip(header[1:], row[1:], strict=True)) for row in body}


@pytest.mark.parametrize("role", list(Role))
def test_state_table_is_that_of_the_code(role: Role) -> None:
    table = table_under(f"### {role.capitalize()}")
    assert table.keys() == RECORDS.keys()
    states = {state for known_role, state, _ in TRANSITIONS if known_role is role}
    for tag, cells in table.items():
        assert cells.keys() == {state.upper() for state in states}
        for state, cell in cells.items():
            is_known = (role, State(state.lower()), RECORDS[tag]) in TRANSITIONS
            assert is_known == (cell != REFUSED), f"{role} {state} {tag}: the spec says {cell!r}"


def test_message_table_names_every_message_and_field() -> None:
    table = table_under("## 2. Messages")
    assert table.keys() == RECORDS.keys()
    for tag, cells in table.items():
        named = re.findall(r"`(\w+)`", cells["fields besides `xid`"])
        fields = [field for field in RECORDS[tag].__struct_fields__ if field != "xid"]
        assert named == fields, tag


def test_reason_codes_are_listed() -> None:
    listed = SPEC.split("Codes: ", 1)[1].split(";", 1)[0]
    assert set(re.findall(r"`([a-z-]+)`", listed)) == gossip.REASON_CODES


def test_limits_are_named_with_their_value() -> None:
    for name in set(re.findall(r"\bEXCHANGE_[A-Z_]+\b", SPEC)):
        assert hasattr(limits, name), name
    for name, shown in re.findall(r"\b(EXCHANGE_[A-Z_]+)(?:\]?, | \()(\d+(?:\.\d+)?)", SPEC):
        assert getattr(limits, name) == float(shown), name
