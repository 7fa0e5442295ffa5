"""JSON Schemas of every record on the wire, for other implementations and for reviewers.

``python -m swarmnode.wire.schema --write`` writes ``proto/schemas/FAMILY.json``;
``--check`` fails if a file differs from what the records say now, so a change of
the wire is always visible in a diff.

JSON Schema has no byte strings: they appear as ``{"type": "bytes"}`` with
``minBytes`` and ``maxBytes``, and are msgpack ``bin`` on the wire. Everything else
means what it means in JSON Schema 2020-12.

To add a record: name it in FAMILIES (a tagged union brings its members along) and
run ``--write``; then give it an example, one line in ``tests/golden/messages.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from swarmnode.wire import (
    admission,
    blobs,
    crdt,
    dht,
    meeting,
    membership,
    metrics,
    recipe,
    session,
    swarm,
    swim,
)
from swarmnode.wire.connect import beacon, nat, punch, reach, relay, signal
from swarmnode.wire.exchange import finalize, gather, gossip, group, log, pull

# Family name to its record types: a union where the field "t" tells them apart, else a tuple.
FAMILIES: dict[str, Any] = {
    "admission": (
        admission.InviteCertificate,
        admission.MemberCertificate,
        admission.MemberChain,
        admission.Revocations,
        admission.Credentials,
    ),
    "beacon": (beacon.Beacon,),
    "crdt": crdt.Envelope,
    "crdt-record": (crdt.StateRecord,),
    "dht": dht.Message,
    "dht-record": dht.Record,
    "finalize": finalize.Message,
    "finalize-answer": (finalize.Prepared, finalize.Merged),
    "gossip": gossip.Message,
    "gather": gather.Message,
    "gather-set": (gather.Announcement, gather.GatherShare, gather.GatherSet),
    "group": group.Message,
    "log": (log.LogEntry, log.LogRound, log.LogShare, log.LogAsk, log.LogGive),
    "pull": pull.Message,
    "metrics": (metrics.MetricsRequest, metrics.MetricsSnapshot),
    "nat": (nat.RtcOffer, nat.RtcAnswer, nat.ProbeRequest),
    "recipe": (recipe.Extension,),
    "reach": reach.Message,
    "relay": relay.Message,
    "punch": punch.Message,
    "session": (session.Hello,),
    "signal": signal.Message,
    "signal-body": (signal.Signal,),
    "meeting": (meeting.MeetingItem,),
    "membership": (membership.SwarmHello,),
    "swim": swim.Message,
    "blobs": blobs.Message,
    "swarm": (swarm.Signed, swarm.Manifest, swarm.ManifestRequest, swarm.ManifestReply),
}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "proto" / "schemas"


def records_of(family: str) -> tuple[type[msgspec.Struct], ...]:
    """Return the record types of a family, in the order of its registration."""
    members = FAMILIES[family]
    return members if isinstance(members, tuple) else get_args(members)


def is_tagged(family: str) -> bool:
    """Whether one decoder reads all of the family and the field ``t`` tells them apart."""
    return not isinstance(FAMILIES[family], tuple)


def schema_of(family: str) -> str:
    """Return the text of the family's schema file."""
    definitions: dict[str, Any] = {}
    references = [_schema(inspect.type_info(record), definitions) for record in records_of(family)]
    document = {
        "$schema": _DIALECT,
        "title": f"swarmnode wire records: {family}",
        "anyOf": references,
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _schema(info: inspect.Type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Translate one msgspec type; structs go into ``definitions`` and are referred to."""
    match info:
        case inspect.StructType():
            return _struct(info, definitions)
        case inspect.Metadata(type=inner):
            return _schema(inner, definitions)
        case inspect.UnionType(types=types):
            return {"anyOf": [_schema(member, definitions) for member in types]}
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            bounds = _present(minItems=info.min_length, maxItems=info.max_length)
            return {"type": "array", "items": _schema(item, definitions), **bounds}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value, definitions)}
        case inspect.LiteralType(values=values):
            return {"enum": sorted(values)}
        case _:
            return _scalar(info)


def _scalar(info: inspect.Type) -> dict[str, Any]:
    match info:
        case inspect.BytesType(min_length=low, max_length=high):
            return {"type": "bytes", **_present(minBytes=low, maxBytes=high)}
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            bounds = _present(minLength=low, maxLength=high, pattern=pattern)
            return {"type": "string", **bounds}
        case inspect.IntType() | inspect.FloatType():
            bounds = _present(
                minimum=info.ge,
                exclusiveMinimum=info.gt,
                maximum=info.le,
                exclusiveMaximum=info.lt,
            )
            return {"type": "integer" if isinstance(info, inspect.IntType) else "number", **bounds}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.NoneType():
            return {"type": "null"}
        case inspect.AnyType():
            return {}
    raise TypeError(f"{info}: teach swarmnode.wire.schema this type, or do not send it")


def _struct(info: inspect.StructType, definitions: dict[str, Any]) -> dict[str, Any]:
    name = info.cls.__name__
    reference = {"$ref": f"#/$defs/{name}"}
    if name in definitions:
        return reference
    definitions[name] = {}  # taken, in case the record contains itself
    properties: dict[str, Any] = {}
    required = []
    if info.tag_field is not None:
        properties[info.tag_field] = {"const": info.tag}
        required.append(info.tag_field)
    for field in info.fields:
        properties[field.encode_name] = _schema(field.type, definitions)
        if field.required:
            required.append(field.encode_name)
    definitions[name] = {
        "description": (info.cls.__doc__ or "").strip().partition("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
    }
    return reference


def _present(**bounds: Any) -> dict[str, Any]:
    return {name: bound for name, bound in bounds.items() if bound is not None}


def stale_files(folder: Path) -> list[str]:
    """Return the names of schema files that are missing, differ, or belong to no family."""
    wanted = {f"{family}.json": schema_of(family) for family in FAMILIES}
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )


def main(arguments: list[str] | None = None) -> int:
    """Write or check the schema files; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m swarmnode.wire.schema", description=main.__doc__
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="fail if a file differs")
    what.add_argument("--write", action="store_true", help="write every file")
    parser.add_argument("--folder", type=Path, default=_DEFAULT_FOLDER)
    options = parser.parse_args(arguments)
    if options.write:
        options.folder.mkdir(parents=True, exist_ok=True)
        for family in FAMILIES:
            path = options.folder / f"{family}.json"
            path.write_text(schema_of(family), encoding="utf-8")
        return 0
    stale = stale_files(options.folder)
    if stale:
        sys.stderr.write(
            f"expected {options.folder} to match the records, but these differ: "
            f"{', '.join(stale)}; run python -m swarmnode.wire.schema --write and review the diff\n"
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
