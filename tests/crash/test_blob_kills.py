"""Kill −9 while a blob is written: what was acknowledged is there, what is there is right."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmnode.store.blobs import BlobStore
from tests.conftest import ROOT
from tests.crash.blob_writer import CHUNK_BYTES, cut, manifest_of

N_CHUNKS = 40


def write_and_kill(folder: Path, source: Path, rng: random.Random) -> tuple[set[int], bool]:
    """Run the writer and kill it after some chunks; return what it acknowledged."""
    command = [sys.executable, "-m", "tests.crash.blob_writer", str(folder), str(source)]
    command.append(str(rng.randrange(2**32)))
    wanted = rng.randrange(0, N_CHUNKS // 4)
    acknowledged: set[int] = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().startswith("begun")
        while len(acknowledged) < wanted and (line := writer.stdout.readline()).strip().isdigit():
            acknowledged.add(int(line))
        writer.send_signal(signal.SIGKILL)
        lines = writer.stdout.read().split("\n")[:-1]  # the last may be torn
        acknowledged |= {int(line) for line in lines if line.isdigit()}
        return acknowledged, "complete" in lines


@pytest.mark.parametrize(
    "kills", [10, pytest.param(200, marks=pytest.mark.slow)], ids="{}-kills".format
)
def test_no_kill_costs_what_was_written(tmp_path: Path, kills: int) -> None:
    rng = random.Random(kills)
    source = rng.randbytes(N_CHUNKS * CHUNK_BYTES - 1000)
    source_path = tmp_path / "source"
    source_path.write_bytes(source)
    chunks = cut(source)
    acknowledged: set[int] = set()
    folder = tmp_path / "blobs-0"
    completed = 0
    for kill in range(kills):
        new, is_complete = write_and_kill(folder, source_path, rng)
        assert not new & acknowledged, "a chunk that was written was fetched again"
        acknowledged |= new
        store = BlobStore(folder, bytes_max=10 * len(source))
        with store.begin(manifest_of(source)) as blob:
            assert blob.stored >= acknowledged
            assert all(blob.read(index)[0] == chunks[index] for index in blob.stored)
            acknowledged = set(blob.stored)  # one more may be there, unsaid
            if len(blob.stored) == N_CHUNKS:
                blob.complete()
                assert blob.path.read_bytes() == source
                completed += 1
                acknowledged = set()
                folder = tmp_path / f"blobs-{kill + 1}"
            else:
                assert not is_complete
                assert not blob.is_complete
        store.close()
    assert completed >= kills // 20
