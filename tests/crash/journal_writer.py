"""A process that writes to a journal until it is killed, and says what was acknowledged.

Each record is a counter and bytes that follow from it; after each sync the last counter goes
to the standard output, one per line. A rotation keeps the last counter.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from swarmnode.store.journal import Journal


def payload_of(counter: int) -> bytes:
    """Return the record of a counter: 8 bytes and up to 700 that follow from it."""
    return counter.to_bytes(8, "big") + random.Random(counter).randbytes(counter * 7919 % 701)


def counter_of(payload: bytes) -> int:
    """Return the counter of a record. Raises AssertionError if it is not one of ours."""
    counter = int.from_bytes(payload[:8], "big")
    assert payload == payload_of(counter)
    return counter


def write_for_ever(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Journal(path) as journal:
        counters = [counter_of(payload) for payload in journal.recovered.records]
        counter = counters[-1] if counters else 0
        while True:
            for _ in range(rng.randint(1, 8)):
                counter += 1
                journal.append(payload_of(counter))
            if rng.random() < 0.1:
                journal.rotate([payload_of(counter)])
            else:
                journal.sync()
            os.write(1, b"%d\n" % counter)


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]), int(sys.argv[2]))
