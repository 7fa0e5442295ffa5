"""Mutants of ``tests/mutants/disk.py`` that no campaign catches, each with its reason."""

from __future__ import annotations

# What they break is promised nowhere: they are no part of the share that is caught.
HARMLESS = {
    "blobs.py Blob.link_to too early: sync_directory(path.parent)": (
        "a temporary name that comes back is removed by the next link"
    ),
    "blobs.py Blob.flush no sync: sync_data(self._fd)": (
        "it only lets the disk begin earlier; complete() syncs"
    ),
    "blobs.py Blob._open no cut: os.truncate(self._proofs_fd, self.n_chun": (
        "what is beyond the slots is never read"
    ),
    "blobs.py BlobStore.add_file in place: write_atomic(folder / 'proofs', proofs)": (
        "complete() syncs the proofs, and a torn one is no proof"
    ),
    "blobs.py BlobStore.remove no name: (folder / 'manifest').unlink()": (
        "all of the folder goes next; of a half that stays each chunk is checked"
    ),
    "blobs.py BlobStore._adopt no name: part.unlink(missing_ok=True)": (
        "where a part lies already the bytes are copied into it"
    ),
    "files.py IncomingFile.__exit__ no name: self._temporary.unlink()": (
        "after a failure only; a later start removes the file"
    ),
    "files.py HistoryFile._rotate no name: self._path.replace(_older(self._path))": (
        "the history grows, and loses nothing"
    ),
    "invites.py save_invite no name: (folder / encode_base32(name)).unlink(mi": (
        "invites that are over stay listed"
    ),
    "invites.py set_admission_state_aside no name: path.replace(path.with_name('admission.d": (
        "the damaged file is kept for people, and is refused again where it lies"
    ),
    "journal.py _save_aside in place: write_atomic(saved_as, tail)": (
        "what follows the last whole record is kept for people"
    ),
    "journal.py _save_aside no name: old.unlink(missing_ok=True)": (
        "older ones of these are kept for longer"
    ),
    "journal.py _checksum no checksum: zlib.crc32(struct.pack('<IQ', len(payloa": (
        "the payload's own sum is left, and numbers that do not follow are refused"
    ),
    "volunteer.py load_totals no name: path.replace(aside)": (
        "the damaged file is kept for people; the next one takes its place"
    ),
    "tensorfile.py write_copy no name: temporary.unlink(missing_ok=True)": (
        "of links that lie there; tests/property/hostile/test_paths_of_others.py"
    ),
    "tensorfile.py write_copy no name: temporary.unlink(missing_ok=True) #2": (
        "after a failure only; the next snapshot removes the file"
    ),
    "environment.py SwarmEnvironment.install in place: write_atomic(self.folder / ENVIRONMENT_M": (
        "a torn mark is another one, and the environment is made anew"
    ),
    "files.py make_private_dir not undone: undone(path.rmdir)": (
        "the folder's mode says it, too, wherever mkdir() takes it"
    ),
    "files.py write_new not undone: undone(path.unlink)": (
        "what finds the file syncs its name: write_new(), and what reads keys"
    ),
    "journal.py Journal._cut in place: write_atomic(self._path, _MAGIC)": (
        "what was there is kept beside it, a torn beginning is mended again, and opening syncs it"
    ),
}
# What they break is promised, and the sample is too small to show it.
MISSED: dict[str, str] = {
    "journal.py Journal.__init__ no sync: sync_directory(path.parent)": (
        "needs a process that dies before its journal has a name, then a power failure before "
        "it is rotated; tests/crash/test_journal_damage.py has both"
    ),
}
