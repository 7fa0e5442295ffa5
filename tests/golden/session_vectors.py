"""Makes the golden bytes of the session: ``python -m tests.golden.session_vectors``.

The file is only ever added to: a change of these bytes is a new protocol version.
"""

from __future__ import annotations

import json
from pathlib import Path

from swarmnode.protocol.session.opening import ResumeKeys
from swarmnode.protocol.session.records import CipherName, Role, Sealer, traffic_key
from swarmnode.wire.frames import FrameKind, encode_ack, encode_credit, encode_frame
from swarmnode.wire.session import (
    GoodbyeCode,
    Hello,
    Priority,
    ResetCode,
    encode_goodbye,
    encode_hello,
    encode_open,
    encode_reset,
)

PATH = Path(__file__).with_name("session-v1.json")
SECRET = bytes(range(32))
REKEY_RECORDS = 2  # so that a few records show a change of key


def frames() -> dict[str, str]:
    """Return every kind of frame with fixed content, in hex."""
    hello = Hello(
        version_min=1,
        version_max=1,
        network=bytes(range(32)),
        software="swarmnode 1.0",
        expected=bytes(range(32, 64)),
    )
    probe = Hello(
        version_min=1,
        version_max=2,
        network=bytes(range(32)),
        software="swarmnode 1.0",
        instance=bytes(range(16)),
        is_probe=True,
    )
    made = {
        "hello": encode_hello(hello),
        "hello-of-a-probe": encode_hello(probe),
        "open": encode_open(1, "gossip/exchange", Priority.BULK, 0),
        "open-of-a-swarm": encode_open(1, "state/1@sme5g3yjj6brmytq", Priority.STATE, 0),
        "open-with-deadline": encode_open(2, "dht.find", Priority.CONTROL, 2500),
        "data": encode_frame(FrameKind.DATA, 1, b"payload"),
        "credit": encode_credit(1, 2 * 1024 * 1024),
        "end": encode_frame(FrameKind.END, 1),
        "reset": encode_reset(2, ResetCode.REFUSED, "wrong round"),
        "ping": encode_frame(FrameKind.PING, 0, (1).to_bytes(8, "big")),
        "pong": encode_frame(FrameKind.PONG, 0, (1).to_bytes(8, "big")),
        "ack": encode_ack(3_000_000_000),
        "goodbye": encode_goodbye(GoodbyeCode.DONE, "maintenance"),
        "goodbye-key-in-use": encode_goodbye(GoodbyeCode.KEY_IN_USE, "another node answers"),
    }
    return {name: frame.hex() for name, frame in made.items()}


def keys() -> list[dict[str, object]]:
    """Return key and IV for each cipher, sender and two epochs."""
    rows: list[dict[str, object]] = []
    for cipher in CipherName:
        for sender in Role:
            for epoch in (0, 1):
                key, iv = traffic_key(SECRET, cipher, sender, epoch)
                rows.append(
                    {
                        "cipher": cipher.value,
                        "sender": sender.value,
                        "epoch": epoch,
                        "key": key.hex(),
                        "iv": iv.hex(),
                    }
                )
    return rows


def records() -> list[dict[str, object]]:
    """Return three records of one direction, the third in the second epoch."""
    rows: list[dict[str, object]] = []
    for cipher in CipherName:
        sealer = Sealer(SECRET, cipher, Role.CLIENT, rekey_records=REKEY_RECORDS)
        for number in range(3):
            plaintext = encode_frame(FrameKind.PING, 0, number.to_bytes(8, "big"))
            out = memoryview(bytearray(100))
            size = sealer.seal_into(memoryview(plaintext), out)
            rows.append(
                {
                    "cipher": cipher.value,
                    "number": number,
                    "plaintext": plaintext.hex(),
                    "record": bytes(out[:size]).hex(),
                }
            )
    return rows


def resumption() -> dict[str, str]:
    """Return the messages that take a session to another channel."""
    keys = ResumeKeys.of(SECRET)
    client, server = bytes(range(16)), bytes(range(16, 32))
    return {
        "ask": keys.ask(client).hex(),
        "client_nonce": client.hex(),
        "server_nonce": server.hex(),
        "client_claim_of_1000": keys.claim(Role.CLIENT, client + server, 1000).hex(),
        "server_claim_of_70000": keys.claim(Role.SERVER, client + server, 70_000).hex(),
    }


def vectors() -> dict[str, object]:
    """Return everything that the file holds."""
    return {
        "secret": SECRET.hex(),
        "rekey_records": REKEY_RECORDS,
        "frames": frames(),
        "keys": keys(),
        "records": records(),
        "resumption": resumption(),
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n")
