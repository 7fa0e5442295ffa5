"""What each store promises of a disk: what it was told to keep, and what it finds."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.errors import CorruptRecord, SwarmNodeError
from swarmnode.protocol.admission import AdmissionState
from swarmnode.protocol.blobs.merkle import MerkleTree, blob_name, leaf_hash
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import make_creator_chain, make_invite
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.protocol.volunteer import ManualPause
from swarmnode.store.blobs import Blob, BlobStore
from swarmnode.store.contacts import load_contacts, save_contacts
from swarmnode.store.files import (
    HistoryFile,
    HomeLock,
    IncomingFile,
    make_private_dir,
    read_file,
    read_history,
    write_atomic,
    write_new,
)
from swarmnode.store.invites import (
    load_admission_state,
    load_invites,
    load_member_chain,
    load_revocations,
    revoke_invite,
    save_admission_state,
    save_invite,
    save_member_chain,
)
from swarmnode.store.journal import Journal
from swarmnode.store.keys import (
    load_identity,
    load_or_create_identity,
    next_boot_epoch,
    skip_boot_epochs,
)
from swarmnode.store.swarms import read_signed_manifest, save_link, stored_link, stored_links
from swarmnode.store.training_data import TrainingData, load_training_data, save_training_data
from swarmnode.store.volunteer import (
    Book,
    SwarmTotals,
    Totals,
    TrafficLedger,
    load_pause,
    load_totals,
    save_pause,
    save_totals,
)
from swarmnode.wire.admission import Revocations
from swarmnode.wire.blobs import BlobManifest
from swarmnode.wire.dht import Contact
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.disk_kit import Diary, Store

NOW = 1_800_000_000
SWARM = Identity.from_seed(bytes(range(32)))
PEER = Identity.from_seed(b"\2" * 32).peer_id
CREATED = Identity.from_seed(b"\3" * 32)


def content_of(path: Path) -> bytes | None:
    try:
        return read_file(path, bytes_max=limits.MIB)
    except FileNotFoundError:
        return None


# --- files -----------------------------------------------------------------------------------

FILES = ("deep/er/replaced", "apart/new", "incoming")


def look_at_files(home: Path, diary: Diary) -> None:
    for name in FILES:
        diary.found(name, content_of(home / name))


def write_files(home: Path, diary: Diary) -> None:
    HomeLock(home / "deep" / "lock").close()
    for _ in range(2):
        data = diary.rng.randbytes(diary.rng.randrange(1, 400))
        replaced, new, incoming = (home / name for name in FILES)
        with diary.sets(FILES[0], data):
            if content_of(new) is None:  # else nothing but write_new() syncs its folder
                make_private_dir(new.parent)
            make_private_dir(replaced.parent)
            write_atomic(replaced, data)
        before = diary.facts.allowed(FILES[1])
        diary.note("tried", FILES[1], data)
        if write_new(new, data):
            diary.note("done", FILES[1], data)
            assert before[0] is None or len(before) > 1
        else:  # of another one, which is as durable
            diary.note("done", FILES[1], content_of(new))
        with diary.sets(FILES[2], data), IncomingFile(incoming) as file:
            file.write(memoryview(data)[:10])
            file.write(memoryview(data)[10:])
            file.commit()


# --- the history -----------------------------------------------------------------------------


def look_at_history(home: Path, diary: Diary) -> None:
    """A failure may cost its last lines, and never more: what is there are the first."""
    found = [entry["n"] for entry in read_history(home / "history") if "n" in entry]
    assert all(later > earlier for earlier, later in itertools.pairwise(found))
    tried = diary.facts.allowed("last")[-1]
    assert not found or found[-1] <= tried


def append_history(home: Path, diary: Diary) -> None:
    history = HistoryFile(home / "history", bytes_max=300)
    written = []
    try:
        for _ in range(8):
            number = diary.facts.allowed("last")[-1] + 1
            with diary.sets("last", number):
                history.append({"n": number, "why": "x" * diary.rng.randrange(40)})
                written.append(number)
    finally:
        history.close()
    # While the machine runs nothing is lost, whatever the disk refused in between.
    found = [entry["n"] for entry in read_history(home / "history")]
    since = max((*found[:1], *written[:1]), default=0)
    assert [each for each in found if each >= since] == [each for each in written if each >= since]


# --- journals --------------------------------------------------------------------------------


def look_at_journal(home: Path, diary: Diary) -> None:
    with Journal(home / "swarm" / "journal") as journal:
        found = [int(record.partition(b" ")[0]) for record in journal.recovered.records]
        first, last = (found[0], found[-1]) if found else (1, 0)
        assert found == [*range(first, last + 1)]
        last = last if found else diary.facts.allowed("journal")[0]
        assert last in diary.facts.allowed("journal"), (found, diary.facts.allowed("journal"))
        assert not found or first in diary.facts.allowed("begin")
        diary.note("done", "journal", last)  # opening it acknowledges what it found
        assert journal.statistics().synced_records == len(found)


def append_to_journal(home: Path, diary: Diary) -> None:
    with Journal(home / "swarm" / "journal") as journal:
        last = diary.facts.allowed("journal")[0]
        for _ in range(4):
            try:
                for _ in range(diary.rng.randrange(1, 4)):
                    diary.note("tried", "journal", last + 1)
                    journal.append(b"%d %s" % (last + 1, bytes(diary.rng.randrange(50))))
                    last += 1
                if diary.rng.random() < 0.3:
                    diary.note("tried", "begin", last)
                    journal.rotate([b"%d " % last])
                    diary.note("done", "begin", last)
                else:
                    journal.sync()
                diary.note("done", "journal", last)
            except SwarmNodeError:
                diary.failures += 1


# --- keys ------------------------------------------------------------------------------------


def look_at_keys(home: Path, diary: Diary) -> None:
    try:
        diary.found("key", bytes(load_identity(home / "node" / "key").peer_id))
    except FileNotFoundError:
        diary.found("key", None)
    epoch = next_boot_epoch(home / "boot_epoch")
    assert epoch > diary.facts.allowed("epoch")[-1]
    diary.note("done", "epoch", epoch)


def make_keys(home: Path, diary: Diary) -> None:
    path = home / "node" / "key"
    # It is made at random: what is on the way is known by reading it, not before.
    diary.note("tried", "key", ANY)
    diary.note("done", "key", bytes(load_or_create_identity(path).peer_id))
    for _ in range(2):
        epoch = next_boot_epoch(home / "boot_epoch")
        assert epoch > diary.facts.allowed("epoch")[-1]
        diary.note("done", "epoch", epoch)
    if diary.rng.random() < 0.3:  # as `restore` does
        skip_boot_epochs(home / "boot_epoch", epoch + 3)
        diary.note("done", "epoch", epoch + 3)


def damage_boot_epochs(folder: Path) -> None:
    """Flip each bit of either copy, and cut either short anywhere: no epoch comes twice."""
    path, previous = folder / "boot_epoch", folder / "boot_epoch.previous"
    for _ in range(12):
        last = next_boot_epoch(path)
    good = {each: each.read_bytes() for each in (path, previous)}
    for damaged, data in good.items():
        torn = [data[:length] for length in range(len(data))]
        flipped = [
            data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            for at in range(len(data))
            for bit in range(8)
        ]
        for bad in torn + flipped:
            for each, whole in good.items():
                each.write_bytes(bad if each == damaged else whole)
            assert next_boot_epoch(path) > last, bad


class _Any:
    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY = _Any()


# --- contacts, links, manifests, data --------------------------------------------------------


def look_at_swarms(home: Path, diary: Diary) -> None:
    paths = Paths(home)
    diary.found("contacts", load_contacts(home / "state" / "contacts"))
    links = {link.name: link for link in stored_links(paths)}
    for name in ("one", "two"):
        diary.found(f"link {name}", stored_link(name, paths))
        assert links.get(name) == stored_link(name, paths)
    diary.found("data", load_training_data("one", paths))
    diary.found("manifest", read_signed_manifest("one", paths))


def save_swarms(home: Path, diary: Diary) -> None:
    paths, rng = Paths(home), diary.rng
    for _ in range(2):
        address = f"192.0.2.{rng.randrange(256)}:{rng.randrange(1, 65536)}"
        contacts = tuple(Contact(rng.randbytes(32), (address,)) for _ in range(rng.randrange(4)))
        with diary.sets("contacts", contacts):
            save_contacts(home / "state" / "contacts", contacts)
        for name in ("one", "two"):
            link = SwarmLink(name, SWARM.public_key, (Hint(PEER, address),))
            with diary.sets(f"link {name}", link):
                save_link(link, paths)
        signed = Signed(rng.randbytes(90), rng.randbytes(32), rng.randbytes(64))
        with diary.sets("manifest", signed):
            make_private_dir(paths.swarm("one").manifest.parent)
            write_atomic(paths.swarm("one").manifest, encode_record(signed))
        data = TrainingData(f"/data/{address}") if rng.random() < 0.6 else TrainingData()
        with diary.sets("data", data):
            save_training_data("one", paths, data)


# --- admission -------------------------------------------------------------------------------


def look_at_admission(home: Path, diary: Diary) -> None:
    paths = Paths(home).swarm("closed")
    known = load_invites(paths)
    revoked = load_revocations(paths)
    names = decode_record(revoked.body, Revocations).revoked if revoked else ()
    for number in range(diary.facts.allowed("invites")[-1]):
        invite = invite_of(number)
        diary.found(f"invite {number}", invite.id in known)
        diary.found(f"revoked {number}", invite.id in names)
    diary.found("chain", load_member_chain(paths))
    diary.found("state", load_admission_state(paths))


def invite_of(number: int):  # type: ignore[no-untyped-def]
    if number not in _INVITES:
        _INVITES[number] = make_invite(
            SWARM, role="trainer", uses=1, expires_at=NOW + 10**6, now_unix_s=NOW
        )
    return _INVITES[number]


_INVITES: dict[int, object] = {}


def admit(home: Path, diary: Diary) -> None:
    paths, rng = Paths(home).swarm("closed"), diary.rng
    for _ in range(2):
        number = diary.facts.allowed("invites")[-1]
        for subject in ("invite", "revoked"):
            diary.note("done", f"{subject} {number}", False)
        diary.note("done", "invites", number + 1)
        with diary.sets(f"invite {number}", True):
            save_invite(invite_of(number), paths, now_unix_s=NOW)
        if rng.random() < 0.6:
            with diary.sets(f"revoked {number}", True):
                revoke_invite(paths, SWARM, invite_of(number).id, NOW)
        chain = make_creator_chain(SWARM, PEER, NOW + rng.randrange(1000))
        with diary.sets("chain", chain):
            save_member_chain(chain, paths)
        state = AdmissionState(float(rng.randrange(1000)), float(rng.randrange(1000)))
        with diary.sets("state", state):
            save_admission_state(state, paths)


# --- what a volunteer gives ------------------------------------------------------------------


def look_at_gifts(home: Path, diary: Diary) -> None:
    diary.found("pause", load_pause(home / "pause"))
    diary.found("month", TrafficLedger(home / "traffic").add("2026-11", 0))
    diary.found("totals", load_totals(home / "totals"))


def give(home: Path, diary: Diary) -> None:
    rng = diary.rng
    ledger = TrafficLedger(home / "traffic")
    for _ in range(2):
        number = rng.randrange(10**9)
        pause = None if rng.random() < 0.4 else ManualPause(number, number // 2)
        with diary.sets("pause", pause):
            save_pause(home / "pause", pause)
        month = ledger.add("2026-11", number)
        with diary.sets("month", month):
            ledger.save()
        book = Book(Totals(steps=number), {"demo": SwarmTotals(Totals(tokens=number))})
        with diary.sets("totals", book):
            save_totals(home / "totals", book)


# --- blobs and snapshots ---------------------------------------------------------------------

CHUNK_BYTES = 300
N_CHUNKS = 5


def bytes_of(number: int) -> bytes:
    return (b"%d blob " % number * 1000)[: CHUNK_BYTES * N_CHUNKS - 7]


def chunks_of(number: int) -> list[bytes]:
    data = bytes_of(number)
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def tree_of(number: int) -> MerkleTree:
    return MerkleTree([leaf_hash(chunk) for chunk in chunks_of(number)])


def manifest_of(number: int) -> BlobManifest:
    return BlobManifest(len(bytes_of(number)), CHUNK_BYTES, tree_of(number).root)


def look_at_blobs(home: Path, diary: Diary) -> None:
    store = BlobStore(home / "blobs", bytes_max=10**6)
    try:
        complete = store.complete()
        for number in range(diary.facts.allowed("blobs")[-1]):
            name = blob_name(manifest_of(number))
            subject = f"blob {number}"
            blob = store.open(name)
            if blob is not None:
                with blob:
                    is_whole = name in complete and look_at_blob(number, blob)
            diary.found(subject, blob is not None and is_whole)
            linked = content_of(home / "out" / f"{number}")
            diary.found(f"linked {number}", linked is not None)
            assert linked in (None, bytes_of(number))
    finally:
        store.close()


def look_at_blob(number: int, blob: Blob) -> bool:
    """Whether all of it is there; what is said to be there is what was written, or is noticed."""
    n_good = 0
    for index in sorted(blob.stored):
        try:
            chunk, proof = blob.read(index)
        except CorruptRecord:
            assert index not in blob.stored
            continue
        assert chunk == chunks_of(number)[index]
        assert proof == tree_of(number).proof(index)
        n_good += 1
    return n_good == N_CHUNKS


def fetch_blobs(home: Path, diary: Diary) -> None:
    store = BlobStore(home / "blobs", bytes_max=10**6)
    try:
        for _ in range(2):
            number = diary.facts.allowed("blobs")[-1]
            for subject in ("blob", "linked"):
                diary.note("done", f"{subject} {number}", False)
            diary.note("done", "blobs", number + 1)
            ways: list[Callable[[int, BlobStore, Path], Blob]] = [fetch_blob, add_blob]
            with diary.sets(f"blob {number}", True):
                way = diary.rng.choice(ways)
                blob = way(number, store, home)
            if diary.facts.allowed(f"blob {number}") != [True]:
                continue
            with blob, diary.sets(f"linked {number}", True):
                blob.link_to(home / "out" / f"{number}")
            if diary.rng.random() < 0.2:
                diary.note("tried", f"blob {number}", False)  # a removal need not survive
                store.remove(blob.name)
                assert store.open(blob.name) is None
    finally:
        store.close()


def fetch_blob(number: int, store: BlobStore, _home: Path) -> Blob:
    """Write chunk by chunk, and try again what fails, as the next fetch does."""
    blob = store.begin(manifest_of(number))
    try:
        write_missing(number, blob)
    except SwarmNodeError:
        blob = store.begin(manifest_of(number))
        write_missing(number, blob)
    return blob


def write_missing(number: int, blob: Blob) -> None:
    try:
        for index, chunk in enumerate(chunks_of(number)):
            if not blob.has(index):
                blob.write(index, chunk, leaf_hash(chunk), tree_of(number).proof(index))
            if index == 2:
                blob.flush()
        blob.complete()
    except SwarmNodeError:
        blob.close()
        raise


def add_blob(number: int, store: BlobStore, home: Path) -> Blob:
    path = home / f"mine-{number}"  # its bytes are the blob's from then on
    write_atomic(path, bytes_of(number))
    return store.add_file(path, chunk_bytes=CHUNK_BYTES)


def damage_blobs(folder: Path) -> None:
    """Flip a bit of each chunk, cut the file short and make it longer: nothing wrong is given."""
    name = blob_name(manifest_of(0))
    for index in range(N_CHUNKS):
        store = BlobStore(folder / f"{index}", bytes_max=10**6)
        with add_blob(0, store, folder) as blob:
            data = bytearray(bytes_of(0))
            data[index * CHUNK_BYTES + 7] ^= 1
            blob.path.write_bytes(data)
            with pytest.raises(CorruptRecord):
                blob.read(index)
            assert index not in blob.stored
        assert name not in store.complete()
        with fetch_blob(0, store, folder) as blob:
            assert look_at_blob(0, blob)
            for wrong in (bytes_of(0)[:-1], bytes_of(0) + b"more"):
                blob.path.write_bytes(wrong)
                with fetch_blob(0, store, folder) as mended:
                    assert mended.path.read_bytes() == bytes_of(0)
            out, stale = folder / f"out-{index}", folder / f".out-{index}.link.swarmnode-tmp"
            for _ in range(2):
                stale.write_bytes(b"of a crash")
                mended.link_to(out)
                assert out.samefile(mended.path)
                assert not stale.exists()
        store.close()


def damage_texts(folder: Path) -> None:
    """Flip bits of a link, a certificate and a state: what is read is what was written, or none."""
    paths, link = Paths(folder), SwarmLink("one", SWARM.public_key, (Hint(PEER, "192.0.2.1:7337"),))
    swarm = paths.swarm("one")
    save_link(link, paths)
    save_member_chain(make_creator_chain(SWARM, PEER, NOW), swarm)
    save_admission_state(AdmissionState(3.0, 7.0), swarm)
    looks: list[Callable[[], object]] = [
        lambda: stored_link("one", paths),
        lambda: load_member_chain(swarm),
        lambda: load_admission_state(swarm),
    ]
    whole = [look() for look in looks]
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            for look, right in zip(looks, whole, strict=True):
                with contextlib.suppress(SwarmNodeError):
                    assert look() in (right, None), (path, at)
        path.write_bytes(data)


def leave_files_behind(folder: Path) -> None:
    """Let a start clean up after a crash, and a lock name its holder alone."""
    stale = folder / ".x.0123.swarmnode-tmp"
    stale.write_bytes(b"of a crash")
    os.utime(stale, (NOW - 10**8, NOW - 10**8))
    (folder / "lock").write_text("12345678901234567890\n")
    with HomeLock(folder / "lock"):
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"
    assert not stale.exists()


# What is asked beside the lives of a store.
DAMAGES = {
    "keys": damage_boot_epochs,
    "blobs": damage_blobs,
    "files": leave_files_behind,
    "swarms": damage_texts,
    "admission": damage_texts,
}
STORES = {
    "files": Store(look_at_files, write_files),
    "history": Store(look_at_history, append_history, {"last": 0}),
    "journal": Store(look_at_journal, append_to_journal, {"journal": 0, "begin": 1}),
    "keys": Store(look_at_keys, make_keys, {"epoch": 0}),
    "swarms": Store(look_at_swarms, save_swarms, {"contacts": (), "data": TrainingData()}),
    "admission": Store(look_at_admission, admit, {"invites": 0, "state": AdmissionState()}),
    "volunteer": Store(look_at_gifts, give, {"month": 0, "totals": Book()}),
    "blobs": Store(look_at_blobs, fetch_blobs, {"blobs": 0}),
}
