"""The wire does not drift: recorded bytes are what we send and can read, schemas are current."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

import swarmnode.wire
from swarmnode.errors import MalformedMessage
from swarmnode.wire import schema
from swarmnode.wire.exchange import gossip
from swarmnode.wire.packing import decode_record, encode_record
from tests.golden.messages import EXAMPLES, PAST, decoder_of, load_vectors

VECTORS = load_vectors()
REGISTERED = {record for family in schema.FAMILIES for record in schema.records_of(family)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_encoding_is_as_recorded(name: str) -> None:
    assert name in VECTORS, f"{name} has no vector: run python -m tests.golden.messages --add"
    assert encode_record(EXAMPLES[name]).hex() == VECTORS[name].hex(), (
        f"{name}: the wire has changed; keep the old example in PAST and add a new one"
    )


@pytest.mark.parametrize("name", VECTORS)
def test_recorded_bytes_are_read(name: str) -> None:
    expected = EXAMPLES.get(name) or PAST.get(name)
    assert expected is not None, f"{name} was removed: a vector stays, its example moves to PAST"
    assert decode_record(VECTORS[name], decoder_of(name)) == expected


def test_every_registered_record_has_an_example() -> None:
    assert {type(record) for record in EXAMPLES.values()} >= REGISTERED


def test_every_record_of_the_wire_is_registered() -> None:
    """Reachable from a family, so that its schema is written and reviewed."""
    documents = "".join(schema.schema_of(family) for family in schema.FAMILIES)
    for module_info in pkgutil.iter_modules(swarmnode.wire.__path__, "swarmnode.wire."):
        module = importlib.import_module(module_info.name)
        for record in vars(module).values():
            if not (isinstance(record, type) and issubclass(record, msgspec.Struct)):
                continue
            if record.__module__ == module.__name__ and record.__struct_fields__:
                is_base = bool(record.__subclasses__())
                assert is_base or f'"#/$defs/{record.__name__}"' in documents, (
                    f"{record.__qualname__}: add it to FAMILIES in swarmnode/wire/schema.py"
                )


def test_schema_files_are_current() -> None:
    assert schema.main(["--check"]) == 0


def test_check_names_the_files_that_differ(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path)]
    assert schema.main(["--write", *folder]) == 0
    assert schema.main(["--check", *folder]) == 0
    (tmp_path / "gossip.json").write_text("{}")
    (tmp_path / "former.json").write_text("{}")
    assert schema.main(["--check", *folder]) == 1
    assert "former.json, gossip.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "broken",
    [
        {"t": "commit", "xid": bytes(15)},
        {"t": "commit"},
        {"t": "unheard-of", "xid": bytes(16)},
        {"t": "chunk", "xid": bytes(16), "index": -1},
        {"t": "chunk", "xid": bytes(16), "index": 65_536},
        {"t": "ready", "xid": bytes(16), "n_chunks": 0},
        {"t": "status-reply", "xid": bytes(16), "outcome": "maybe"},
        {"t": "abort", "xid": bytes(16), "reason": "r" * 257},
        {"xid": bytes(16)},
    ],
    ids=str,
)
def test_what_breaks_a_range_is_malformed(broken: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(msgspec.msgpack.encode(broken), gossip.Message)  # type: ignore[arg-type]


def test_unknown_fields_of_a_newer_minor_version_are_ignored() -> None:
    newer = msgspec.msgpack.encode({"t": "commit", "xid": bytes(16), "mood": "good"})
    assert decode_record(newer, gossip.Message) == gossip.Commit(bytes(16))  # type: ignore[arg-type]


def test_reason_codes_are_a_closed_set() -> None:
    assert gossip.reason_code("incompatible: other codec") == "incompatible"
    assert gossip.reason_code("busy") == "busy"
    assert gossip.reason_code("bored: of you") == "other"
    assert gossip.reason_code("") == "other"
