"""The session's bytes never change within a protocol version."""

from __future__ import annotations

import json
import re

from swarmnode import limits
from swarmnode.protocol.session import records
from swarmnode.protocol.session.records import CipherName, Opener, Role
from swarmnode.wire.frames import FrameKind, FrameParser
from swarmnode.wire.session import GoodbyeCode, Hello, ResetCode
from tests.golden.session_vectors import PATH, REKEY_RECORDS, SECRET, vectors

GOLDEN = json.loads(PATH.read_text())
SPEC = (PATH.parents[2] / "proto" / "session.md").read_text()


def test_frames_keys_and_records_are_as_published() -> None:
    assert vectors() == GOLDEN


def test_every_kind_of_frame_has_a_vector() -> None:
    parser = FrameParser()
    kinds = {
        FrameKind(frame[0])
        for text in GOLDEN["frames"].values()
        for frame in parser.feed(memoryview(bytes.fromhex(text)))
    }
    assert kinds == set(FrameKind)


def test_published_records_open_in_order() -> None:
    for cipher in CipherName:
        opener = Opener(SECRET, cipher, Role.CLIENT, rekey_records=REKEY_RECORDS)
        for row in (row for row in GOLDEN["records"] if row["cipher"] == cipher.value):
            record = bytes.fromhex(row["record"])
            plaintext = bytearray(len(record) - 20)
            opener.open_into(memoryview(record), memoryview(plaintext))
            assert plaintext.hex() == row["plaintext"]


def test_the_specification_states_the_limits_that_the_code_has() -> None:
    for value in (
        limits.RECORD_PLAINTEXT_BYTES_MAX,
        limits.FRAME_DATA_BYTES_MAX,
        limits.STREAM_WINDOW_BYTES,
        limits.BULK_WINDOW_BYTES,
        records.REKEY_RECORDS,
        limits.CREDIT_BYTES_MAX,
    ):
        assert f"{value:,}" in SPEC
    for kind in FrameKind:
        assert f"| {kind.name} | {kind.value} |" in SPEC
    for code in GoodbyeCode:
        assert f"| {code.name} | {code.value} |" in SPEC
    for code in ResetCode:
        assert f"| {code.name} | {code.value} |" in SPEC
    table = SPEC.split("HELLO is a msgpack map", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE)
    assert ", ".join(rows).replace("`", "").split(", ") == list(Hello.__struct_fields__)
