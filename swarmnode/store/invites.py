"""Admission on disk: invites made here, revocations, this node's certificate, what it has seen.

In the folder of a swarm::

    invites/<id>            an invite certificate without its secret, for `invite list`
    revocations/<sequence>  what the swarm's key has signed, on the home that holds it
    member                  the chain that this node shows
    admission               uses of invites and revocations that this node has seen

A new list of revocations is a new file and never replaces one, so that of two processes that
revoke at once neither takes back what the other did. No signature is verified here: that is
done by the code that uses it, once for what comes from disk and from peers alike. The last two
files begin with a CRC-32, since not all that is in them is signed; what is damaged is made anew.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from swarmnode import limits
from swarmnode.config import SwarmPaths
from swarmnode.errors import CorruptRecord, MalformedMessage, Refused
from swarmnode.ids import encode_base32
from swarmnode.protocol.admission import AdmissionState
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import Invite, ends_at, invite_id, sign_revocations
from swarmnode.protocol.swarm import swarm_id
from swarmnode.store.files import (
    make_private_dir,
    read_file,
    storage_errors,
    write_atomic,
    write_new,
)
from swarmnode.wire.admission import InviteCertificate, MemberChain, Revocations
from swarmnode.wire.packing import RecordT, decode_record, encode_record
from swarmnode.wire.swarm import Signed

# ADMISSION_MEMBERS_MAX with two bodies of CERTIFICATE_BYTES_MAX each, on disk.
_ADMISSION_STATE_BYTES_MAX = 8 * limits.MIB

_REMEDY = "restore it from a copy, or remove it to go on without"


def save_invite(invite: Invite, paths: SwarmPaths, *, now_unix_s: float) -> None:
    """Remember that an invite was made, not its secret; forget those that are long over.

    Raises:
        CorruptRecord: a file beside it is damaged.
        StorageError: the disk does not do what was asked.
    """
    folder = _invites(paths)
    make_private_dir(folder)
    # A revoked one must be known to be over before the next list may leave it out.
    revoked = _revoked(load_revocations(paths))
    for name, certificate in load_invites(paths).items():
        if now_unix_s > ends_at(certificate) and name not in revoked:
            with storage_errors(folder, "clean"):
                (folder / encode_base32(name)).unlink(missing_ok=True)
    write_new(folder / encode_base32(invite.id), encode_record(invite.signed))


def load_invites(paths: SwarmPaths) -> dict[bytes, InviteCertificate]:
    """Return the invites made on this home by their ids, the oldest first.

    Raises:
        CorruptRecord: a file is damaged.
    """
    found = []
    for path in _files(_invites(paths)):
        with suppress(FileNotFoundError):  # another process has just seen that it is long over
            signed = _decode(path, _read(path), Signed)
            found.append(_decode(path, signed.body, InviteCertificate))
    found.sort(key=lambda certificate: (certificate.not_before, certificate.invite_key))
    return {invite_id(certificate.invite_key): certificate for certificate in found}


def load_revocations(paths: SwarmPaths) -> Signed | None:
    """Return the newest list of revoked invites: made here, or seen by this home's node.

    Raises:
        CorruptRecord: a file is damaged.
    """
    seen = load_admission_state(paths).revocations
    newest = max(_files(_revocations(paths)), default=None, key=lambda path: path.name)
    own = None if newest is None else _decode(newest, _read(newest), Signed)
    return max(filter(None, (seen, own)), default=None, key=_sequence)


def revoke_invite(
    paths: SwarmPaths, swarm_identity: Identity, revoked_id: bytes, now_unix_s: float
) -> Signed:
    """Put an invite on the list; return the list, which is on disk then.

    Raises:
        Refused: the list is full.
        CorruptRecord: a file is damaged.
        StorageError: the disk does not do what was asked.
    """
    make_private_dir(_revocations(paths))
    while True:  # until ours is on the newest list, whatever process adds to it too
        newest = load_revocations(paths)
        if newest is not None and revoked_id in _revoked(newest):
            return newest
        ended = {n for n, terms in load_invites(paths).items() if now_unix_s > ends_at(terms)}
        kept = tuple(name for name in _revoked(newest) if name not in ended)
        if len(kept) >= limits.REVOCATIONS_MAX:
            raise Refused(
                f"{limits.REVOCATIONS_MAX} invites are revoked already, and none of them is over:"
                " wait until one is, or create a new swarm"
            )
        revocations = Revocations(
            swarm_id=swarm_id(swarm_identity.public_key),
            # Ahead of all lists of a disk that was lost.
            sequence=max(_sequence(newest) + 1, int(now_unix_s)),
            revoked=(*kept, revoked_id),
        )
        signed = sign_revocations(revocations, swarm_identity)
        name = f"{revocations.sequence:020d}"  # the names sort as the numbers do
        write_new(_revocations(paths) / name, encode_record(signed))


def save_member_chain(chain: MemberChain, paths: SwarmPaths) -> None:
    """Keep the chain that this node shows: its renewal repeats when the node joined."""
    make_private_dir(paths.directory)
    write_atomic(paths.directory / "member", _sealed(encode_record(chain)))


def load_member_chain(paths: SwarmPaths) -> MemberChain | None:
    """Return the chain that this node showed last, None if it has none.

    Raises:
        CorruptRecord: the file is damaged; a new chain can take its place.
    """
    path = paths.directory / "member"
    try:
        return _decode(path, _unsealed(path, _read(path)), MemberChain)
    except FileNotFoundError:
        return None


def save_admission_state(state: AdmissionState, paths: SwarmPaths) -> None:
    """Keep what this node has seen."""
    make_private_dir(paths.directory)
    write_atomic(_admission(paths), _sealed(msgspec.msgpack.encode(state)))


def load_admission_state(paths: SwarmPaths) -> AdmissionState:
    """Return what this node has seen; nothing on its first run.

    Raises:
        CorruptRecord: the file is damaged.
    """
    path = _admission(paths)
    try:
        data = read_file(path, bytes_max=_ADMISSION_STATE_BYTES_MAX)
        return msgspec.msgpack.decode(_unsealed(path, data), type=AdmissionState)
    except FileNotFoundError:
        return AdmissionState()
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"{path} is damaged ({error}): {_REMEDY}", path=str(path)) from error


def set_admission_state_aside(paths: SwarmPaths) -> None:
    """Keep a damaged file for a person who wants to see it, where no code reads it any more."""
    path = _admission(paths)
    with storage_errors(path, "rename"), suppress(FileNotFoundError):
        path.replace(path.with_name("admission.damaged"))


def _invites(paths: SwarmPaths) -> Path:
    return paths.directory / "invites"


def _revocations(paths: SwarmPaths) -> Path:
    return paths.directory / "revocations"


def _admission(paths: SwarmPaths) -> Path:
    return paths.directory / "admission"


def _files(folder: Path) -> list[Path]:
    """Return what was written there; the hidden files are those that a crash left half done."""
    with storage_errors(folder, "read"):
        if not folder.is_dir():
            return []
        return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _read(path: Path) -> bytes:
    return read_file(path, bytes_max=limits.MESSAGE_BYTES_MAX)


def _sealed(body: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(body)) + body


def _unsealed(path: Path, data: bytes) -> bytes:
    """Return what was sealed. Raises CorruptRecord."""
    body = data[4:]
    if _sealed(body) != data:
        raise CorruptRecord(f"{path} is damaged (its checksum): {_REMEDY}", path=str(path))
    return body


def _decode(path: Path, data: bytes, record_type: type[RecordT]) -> RecordT:
    try:
        return decode_record(data, record_type)
    except MalformedMessage as error:
        raise CorruptRecord(f"{path} is damaged ({error}): {_REMEDY}", path=str(path)) from error


def _sequence(signed: Signed | None) -> int:
    return decode_record(signed.body, Revocations).sequence if signed else 0


def _revoked(signed: Signed | None) -> tuple[bytes, ...]:
    return decode_record(signed.body, Revocations).revoked if signed else ()
