"""Which member brings what to a gathering, signed, and the one set of it that counts.

The set of a run is made by one member and checked by all: every entry is signed by its author for
this run, so no member can bring something in another's name, nor bring to one round what was meant
for another. Whether all members have the same set is what the group run agrees on (``group.py``),
whose one piece is the bytes of the set.

A member that trains nothing can send what another has sent, a little changed. Which elements a
sparse message keeps tells the two apart from members that trained: see :func:`copies`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Signer, Verify
from swarmnode.wire.exchange.gather import Announcement, GatherSet
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

_DOMAIN = "gather/1"
# Of the positions that two members keep, so many are the same where one has copied.
COPY_OVERLAP = 0.4


@dataclass(frozen=True)
class Announced:
    """A message that its author has signed for a run, and the bytes of that signature."""

    author: PeerId
    digest: bytes
    size_bytes: int
    signed: Signed


@dataclass(frozen=True)
class RunTerms:
    """What is known of every message of a run beforehand.

    Attributes:
        members: those that may bring one.
        size_bytes: of each: codec and elements are the same for all.
    """

    gid: bytes
    members: frozenset[PeerId]
    size_bytes: int
    verify: Verify

    def announce(self, signer: Signer, digest: bytes) -> Announced:
        """Return the own message, signed."""
        body = encode_record(Announcement(self.gid, digest, self.size_bytes))
        signed = Signed(body, signer.public_key, signer.sign(_DOMAIN, body))
        return Announced(signer.peer_id, digest, self.size_bytes, signed)

    def read(self, signed: Signed) -> Announced:
        """Check what a member signed.

        Raises:
            MalformedMessage: it is of another run or size, or its author is no member.
            AuthenticationFailed: the signature is not its author's.
        """
        author = PeerId.from_public_key(signed.public_key)
        if author not in self.members:
            raise MalformedMessage(f"gathering: {author.short} is no member of this run")
        said = decode_record(signed.body, Announcement)
        if said.gid != self.gid or said.size_bytes != self.size_bytes:
            raise MalformedMessage(
                f"gathering: expected a message of {self.size_bytes} bytes for this run, "
                f"{author.short} signed one of {said.size_bytes} bytes for "
                f"{'this' if said.gid == self.gid else 'another'} run"
            )
        what = f"message of {author.short}"
        self.verify(signed.public_key, _DOMAIN, signed.body, signed.signature, what=what)
        return Announced(author, said.digest, said.size_bytes, signed)

    def make_set(self, entries: Iterable[Announced]) -> bytes:
        """Return the bytes of the set of these messages, at most one of each author."""
        ordered = sorted(entries, key=lambda each: each.author)
        return encode_record(GatherSet(self.gid, tuple(each.signed for each in ordered)))

    def read_set(self, data: bytes, known: Collection[Announced] = ()) -> tuple[Announced, ...]:
        """Check the bytes of a set; return its messages in ascending order of their authors.

        ``known``: announcements that have been checked before; their signatures are not again.

        Raises:
            MalformedMessage, AuthenticationFailed: it cannot be the set of this run.
        """
        found = decode_record(data, GatherSet)
        if found.gid != self.gid:
            raise MalformedMessage("gathering: expected the set of this run, got another's")
        checked = {each.signed: each for each in known}
        entries = tuple(checked.get(signed) or self.read(signed) for signed in found.entries)
        if not all(one.author < two.author for one, two in pairwise(entries)):
            raise MalformedMessage("gathering: expected one message of each author, in order")
        if encode_record(found) != data:
            raise MalformedMessage("gathering: expected a set in its one encoding")
        return entries


def copies(kept: Mapping[PeerId, frozenset[int]]) -> frozenset[PeerId]:
    """Return the authors of messages that are copies of an earlier one.

    Two are one if they share COPY_OVERLAP of the positions that they keep, and clearly more than
    any two messages of the round usually do: twice as many, or half of the way to all.

    Args:
        kept: by author, in the order in which they were announced. A member must have the message
            that it copies before it can sign its own.

    Source: the check for copies of Gauntlet, in the code of Templar. Deviation: what is usual in
    the round counts, since all members of a small model keep much of the same.
    """
    shared = {
        (one, two): len(kept[one] & kept[two]) / min(len(kept[one]), len(kept[two]))
        for one, two in combinations(kept, 2)
        if kept[one] and kept[two]
    }
    if not shared:
        return frozenset()
    usual = median(shared.values())
    bound = min(2 * usual, (1 + usual) / 2)
    return frozenset(
        later
        for (_, later), overlap in shared.items()
        if overlap >= COPY_OVERLAP and overlap > bound
    )
