"""proto/dht.md says what the code does: messages, records, limits."""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from swarmnode import limits
from swarmnode.wire import dht
from tests.conftest import ROOT

SPEC = (ROOT / "proto" / "dht.md").read_text(encoding="utf-8")
SPACED = " ".join(SPEC.split())


def rows_after(heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table under a heading, by the tag in their first."""
    section = SPEC.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows if row[0] != "`t`"}


def tags_of(union: object) -> dict[str, type[msgspec.Struct]]:
    return {str(record.__struct_config__.tag): record for record in get_args(union)}


def test_every_message_and_field_is_named() -> None:
    rows = rows_after("## 1. Carriage and identity")
    records = tags_of(dht.Message)
    assert rows.keys() == records.keys()
    for tag, (fields, _) in rows.items():
        named = re.findall(r"`(\w+)`", fields)
        assert named == [name for name in records[tag].__struct_fields__ if name != "id"], tag


def test_every_kind_of_record_is_named() -> None:
    assert rows_after("## 4. Records").keys() == tags_of(dht.Record).keys()


def test_every_outcome_is_named() -> None:
    cell = rows_after("## 1. Carriage and identity")["stored"][1]
    assert tuple(re.findall(r"`(\w+)`", cell)) == get_args(dht.StoreOutcome)


def test_limits_are_named_with_their_value() -> None:
    names = set(re.findall(r"\bDHT_[A-Z_]+\b", SPEC))
    assert len(names) > 20
    for name in names:
        assert hasattr(limits, name), name
    shown = re.findall(r"\b(DHT_[A-Z_]+)(?:,| \() ?([\d.]+)", SPACED)
    assert len(shown) > 20
    for name, value in shown:
        assert getattr(limits, name) == float(value), name
