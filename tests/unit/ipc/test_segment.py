import fcntl
import os

import pytest

from swarmnode.errors import SpecMismatch
from swarmnode.ipc.segment import SEGMENT_SLOTS_MAX, Owner, Segment, StaleSlot


@pytest.fixture
def both():
    """(daemon's view, worker's view) of one segment with two slots of five numbers."""
    daemon = Segment.create()
    worker = Segment(os.dup(daemon.fd))
    worker.format(numel=5, slots=2)
    daemon.map()
    yield daemon, worker
    daemon.close()
    worker.close()


def test_numbers_written_on_one_side_are_read_on_the_other(both):
    daemon, worker = both
    generation = worker.claim(0)
    worker.slot_view(0).cast("f")[:] = memoryview(bytes(20)).cast("f")
    worker.slot_view(0).cast("f")[3] = 2.5
    worker.hand_over(0, generation, Owner.DAEMON)

    daemon.check(0, generation, Owner.DAEMON)
    assert daemon.slot_view(0).cast("f").tolist() == [0, 0, 0, 2.5, 0]
    assert daemon.slot_view(1).nbytes == 20


def test_halves_lie_one_after_the_other(both):
    _, worker = both
    own, room = worker.halves(1)
    assert (own.nbytes, room.nbytes) == (8, 8)
    own[:], room[:] = b"o" * 8, b"r" * 8
    assert worker.slot_view(1).tobytes() == b"o" * 8 + b"r" * 8 + bytes(4)


def test_slots_are_page_aligned_and_apart(both):
    daemon, worker = both
    worker.slot_view(0)[:] = b"\xff" * 20
    assert daemon.slot_view(1).tobytes() == bytes(20)
    assert os.fstat(daemon.fd).st_size == Segment.size_for(5, 2) == 3 * 4096
    assert Segment.size_for(1024, 2) == 3 * 4096
    assert Segment.size_for(1025, 2) == 5 * 4096


def test_a_stale_generation_is_detected(both):
    daemon, worker = both
    old = worker.claim(0)
    worker.hand_over(0, old, Owner.DAEMON)
    daemon.hand_over(0, old, Owner.WORKER)
    new = worker.claim(0)
    worker.hand_over(0, new, Owner.DAEMON)

    assert new == old + 1
    with pytest.raises(StaleSlot, match=f"expected generation {old} owned by daemon"):
        daemon.check(0, old, Owner.DAEMON)
    with pytest.raises(StaleSlot):
        daemon.hand_over(0, old, Owner.WORKER)


def test_neither_side_takes_what_is_the_others(both):
    daemon, worker = both
    generation = worker.claim(0)
    with pytest.raises(StaleSlot, match="owned by worker"):
        daemon.hand_over(0, generation, Owner.WORKER)
    worker.hand_over(0, generation, Owner.DAEMON)
    with pytest.raises(StaleSlot, match="it is the daemon's"):
        worker.claim(0)


def test_a_reclaimed_slot_is_of_no_use_to_a_late_worker(both):
    daemon, worker = both
    generation = worker.claim(0)
    daemon.reclaim_all()
    with pytest.raises(StaleSlot, match="owned by revoked"):
        worker.hand_over(0, generation, Owner.DAEMON)
    with pytest.raises(StaleSlot):
        worker.claim(1)


def test_a_torn_slot_header_is_detected(both):
    daemon, worker = both
    generation = worker.claim(0)
    worker.hand_over(0, generation, Owner.DAEMON)
    at = 4096 - 64 * SEGMENT_SLOTS_MAX + 4  # one byte of the generation, which begins anywhere
    (byte,) = os.pread(daemon.fd, 1, at)
    os.pwrite(daemon.fd, bytes([byte ^ 1]), at)
    with pytest.raises(StaleSlot, match="torn"):
        daemon.check(0, generation, Owner.DAEMON)


def test_two_workers_never_share_a_generation():
    generations = []
    for _ in range(2):
        segment = Segment.create()
        segment.format(numel=1, slots=1)
        generations.append(segment.claim(0))
        segment.close()
    assert generations[0] != generations[1]


def test_the_size_is_sealed(both):
    daemon, _ = both
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(daemon.fd, size)


def test_without_memfd_an_unlinked_file_does(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    segment = Segment.create()
    assert os.fstat(segment.fd).st_nlink == 0
    segment.format(numel=3, slots=1)
    other = Segment.attach(os.dup(segment.fd))
    assert (other.numel, other.slots) == (3, 1)
    other.close()
    segment.close()


def test_an_unsized_segment_is_refused():
    segment = Segment.create()
    with pytest.raises(SpecMismatch, match="expected a header page, the file has 0 bytes"):
        segment.map()
    with pytest.raises(StaleSlot):
        segment.slot_view(0)
    segment.close()


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 24, 32])
def test_a_damaged_file_header_is_refused(offset):
    segment = Segment.create()
    os.ftruncate(segment.fd, Segment.size_for(5, 2))
    with pytest.raises(SpecMismatch, match="expected header version 1"):
        segment.map()
    segment.close()

    whole = Segment.create()
    whole.format(numel=5, slots=2)
    byte = os.pread(whole.fd, 1, offset)[0]
    os.pwrite(whole.fd, bytes([byte ^ 1]), offset)
    with pytest.raises(SpecMismatch):
        Segment.attach(whole.fd)
    whole.close()


@pytest.mark.parametrize(("numel", "slots"), [(0, 1), (1, 0), (1, SEGMENT_SLOTS_MAX + 1)])
def test_sizes_out_of_range_are_refused(numel, slots):
    segment = Segment.create()
    with pytest.raises(SpecMismatch, match="expected 1 to"):
        segment.format(numel, slots)
    segment.close()


def test_closing_leaves_a_lent_view_alive():
    segment = Segment.create()
    segment.format(numel=2, slots=1)
    view = segment.slot_view(0)
    segment.close()
    view[:4] = b"left"
    assert view.tobytes() == b"left\0\0\0\0"
    with pytest.raises(StaleSlot):
        segment.slot_view(0)


def test_seals_are_what_the_kernel_knows_them_as():
    segment = Segment.create()
    segment.format(numel=2, slots=1)
    seals = fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    assert seals & fcntl.F_SEAL_GROW
    segment.close()
