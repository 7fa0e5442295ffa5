"""What goes into a group core and what comes out of it.

The shell holds, for each run, its own payload cut into pieces, the shares of others that it was
told to keep, and the sums of one plan. It frees all of it on ``Commit`` or ``Abort``: exactly one
of the two comes, exactly once.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarmnode.ids import PeerId
from swarmnode.wire.exchange.group import Message

_GROUP_DOMAIN = b"swarmnode/gid\0"
_PLAN_DOMAIN = b"swarmnode/group-plan\0"
_ID_BYTES = 16


def group_id(key: bytes, tag: str, fragment: int, round_number: int, base_version: bytes) -> bytes:
    """Return the name of a run: members that average the same thing find the same.

    ``key``: 32 bytes, the digest of strategy, settings, layout and codecs.
    """
    text = tag.encode()
    parts = (
        len(text).to_bytes(2, "big") + text,
        fragment.to_bytes(8, "big"),
        round_number.to_bytes(8, "big"),
        base_version,
    )
    return hashlib.sha256(_GROUP_DOMAIN + key + b"".join(parts)).digest()[:_ID_BYTES]


def plan_id(gid: bytes, contributors: Iterable[PeerId]) -> bytes:
    """Return the name of the mean over ``contributors``."""
    return hashlib.sha256(_PLAN_DOMAIN + gid + b"".join(sorted(contributors))).digest()[:_ID_BYTES]


class Phase(enum.StrEnum):
    """Where a run is."""

    ENLIST = "enlist"  # which members take part?
    FLUSH = "flush"  # do all of the view agree on the view?
    RUN = "run"  # shares and sums flow
    OVER = "over"


@dataclass
class Plan:
    """One mean: over which members, and what this member holds of it."""

    contributors: tuple[PeerId, ...]
    plan: bytes
    n_pieces: int
    held: set[int]
    reducing: set[int]
    is_assembling: bool = False
    result: bytes = b""  # SHA-256 of the whole, once it is assembled
    hashes: tuple[bytes, ...] = ()  # of its pieces, then
    is_prepared: bool = False  # and the others were, or will be, told so
    witnessed: int | None = None  # the piece whose witness this member is
    is_witnessing: bool = False
    witness: tuple[bytes, ...] = ()  # by which hashes that piece may go
    sources: tuple[PeerId, ...] = ()  # they have the whole mean; none: it is made anew

    @property
    def missing(self) -> set[int]:
        """The pieces whose sums are not here."""
        return set(range(self.n_pieces)) - self.held

    @property
    def may_witness(self) -> bool:
        """Whether the sums are here, and one of them is to be made again."""
        return self.witnessed is not None and not self.missing

    def source(self, piece: int) -> PeerId:
        """Return the member that has, or makes, the sum of a piece; it may be gone."""
        sources = self.sources or self.contributors
        return sources[piece % len(sources)]

    def stage(self, *, lacks_shares: bool, has_witnesses: bool) -> int:
        """1: shares, 2: sums, which wait for shares, 3: shares of a witness, last: the others."""
        if self.is_prepared:
            return 4 if has_witnesses else 3
        if lacks_shares:
            return 1
        return 3 if self.may_witness else 2

    def shares(self, pieces: Iterable[int], but: PeerId) -> set[tuple[PeerId, int]]:
        """Return (contributor, piece) of what pieces are made of, without those of one member."""
        return {(peer, piece) for peer in self.contributors if peer != but for piece in pieces}


def has_majority(electorate: Collection[PeerId], view: Iterable[PeerId]) -> bool:
    """Whether no view without a member of this one can have a majority as well."""
    present = set(electorate) & set(view)
    margin = 2 * len(present) - len(electorate)
    return margin > 0 or not electorate or (margin == 0 and min(electorate) in present)


# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Average with ``members``, this node among them or not.

    Attributes:
        pieces_max: into how many pieces the vector can be cut at most, the same for all members.
            A plan has as many as contributors, so that each reduces its part, if that is no more.
        weight: of this node's payload in the mean, above 0, unless Loaded says another one; what
            it counts, ``fair_weights`` says.
        weights: of ``members`` in their order, where all of them know these beforehand: then
            nothing else counts. Empty: each tells its own.
        enlist_s: how long to wait for members that have not come; the grace of this round.
        transfer_s: how long one share or sum may take at the most.
        patience_s: how long a stage may last as far as is known, see round_patience.py; 0: as
            transfer_s says.
        electorate: finish only in a view with a majority of these; of exactly one half, with the
            smallest id. Empty: any view may finish.
        needs_all: finish only with all members, or not at all.
        quorum_s: how long to wait for a majority of the electorate at the most; then those that are
            missing have half of ``enlist_s`` at the least. 0: ``enlist_s``, however few have come.
        lineage, attempt: what ENLIST says of the run, for members that do not know its name.
        calls: members that hear ENLIST come, also where there is no lineage.
        has_witnesses: pieces are made by two members, see witnesses.py.
        is_witness: whether this node makes the piece whose witness it is; no other one knows it.
        doubted: members that have held up rounds: none goes without another on their word.
        silence_s: a share of which no byte comes for so long is waited for no more, whatever
            patience_s says; 0: as that says. With it the shell tells of bytes, see Arriving.
        behind, behind_s: members that lack means, and how long the roll stays open for these.
    """

    gid: bytes
    members: tuple[PeerId, ...]
    pieces_max: int
    weight: float
    enlist_s: float
    transfer_s: float
    electorate: tuple[PeerId, ...] = ()
    needs_all: bool = False
    weights: tuple[float, ...] = ()
    quorum_s: float = 0.0
    lineage: int | None = None
    attempt: int = 0
    has_witnesses: bool = False
    is_witness: bool = True
    patience_s: float = 0.0
    doubted: frozenset[PeerId] = frozenset()
    silence_s: float = 0.0
    behind: frozenset[PeerId] = frozenset()
    behind_s: float = 0.0
    calls: bool = False

    @property
    def stage_s(self) -> float:
        """How long a stage may last, each of which waits for the one before it elsewhere."""
        return self.patience_s or self.transfer_s

    def may_finish(self, view: Collection[PeerId]) -> bool:
        """Whether these members may finish without the others."""
        is_enough = not self.needs_all or set(self.members) <= set(view)
        return is_enough and self.is_quorum(view)

    def is_quorum(self, view: Collection[PeerId]) -> bool:
        """Whether these are a majority of those that have a say."""
        return has_majority(self.electorate, view)


@dataclass(frozen=True)
class Received:
    """A message of an authenticated peer; a share or a sum with its whole payload."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class Arriving:
    """Bytes of a payload of this peer have come, and it is not whole yet."""

    gid: bytes
    peer: PeerId


@dataclass(frozen=True)
class Behind:
    """This member has to catch up: the roll of a run that waits for it stays open so long."""

    gid: bytes
    peer: PeerId
    behind_s: float


@dataclass(frozen=True)
class PeerLost:
    """The session with this peer ended, or it is known to be dead.

    ``gid``: only a payload of this run broke off; None: it is lost for all of them.
    """

    peer: PeerId
    gid: bytes | None = None


@dataclass(frozen=True)
class Loaded:
    """The own payload that TakePayload asked for is there.

    ``weight``: what it counts, as of the moment at which it was taken; 0: as Begin says.
    """

    gid: bytes
    weight: float = 0.0


@dataclass(frozen=True)
class Reduced:
    """The sum of a piece that Reduce asked for is there."""

    gid: bytes
    plan: bytes
    piece: int


@dataclass(frozen=True)
class Assembled:
    """All pieces of the mean are in one place; ``result`` is the SHA-256 over them.

    ``hashes``: that of each piece, where pieces have witnesses.
    """

    gid: bytes
    plan: bytes
    result: bytes
    hashes: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Witnessed:
    """The piece that Witness asked for has been made; ``hashes``: by which it may go."""

    gid: bytes
    plan: bytes
    hashes: tuple[bytes, ...]


@dataclass(frozen=True)
class Failed:
    """Our side cannot go on: not finite, no memory, the worker went away."""

    gid: bytes
    why: str


@dataclass(frozen=True)
class PeerSilent:
    """A peer does not even answer that it is there; it may come back."""

    peer: PeerId


Event = (
    Begin
    | Received
    | Arriving
    | Behind
    | PeerLost
    | PeerSilent
    | Loaded
    | Reduced
    | Assembled
    | Witnessed
    | Failed
)


# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """A control message, in order with the others to that peer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True)
class AskAlive:
    """A run waits for this peer, and could go on without it: is it there? Else PeerSilent."""

    peer: PeerId


@dataclass(frozen=True)
class TakePayload:
    """The roll is closed: take the own payload now, as fresh as can be. Comes once, or never.

    Shares that are to be sent, and sums that are to be made, wait for Loaded; Failed says that
    there is none.
    """

    gid: bytes


@dataclass(frozen=True)
class UsePlan:
    """From now on the vector is cut into ``n_pieces``; shares and sums of another plan are over."""

    gid: bytes
    plan: bytes
    n_pieces: int
    contributors: tuple[PeerId, ...]


@dataclass(frozen=True)
class SendShare:
    """Stream the own payload of a piece of the plan in use."""

    gid: bytes
    peer: PeerId
    plan: bytes
    piece: int
    weight: float


@dataclass(frozen=True)
class SendSum:
    """Stream the sum of a piece."""

    gid: bytes
    peer: PeerId
    plan: bytes
    piece: int


@dataclass(frozen=True)
class KeepShare:
    """The share just received counts. Without this effect it is dropped."""

    gid: bytes
    peer: PeerId
    piece: int


@dataclass(frozen=True)
class KeepSum:
    """The sum just received counts. Without this effect it is dropped."""

    gid: bytes
    plan: bytes
    piece: int


@dataclass(frozen=True)
class Reduce:
    """Compute the mean of a piece over ``contributors`` by ``weights``, in that order."""

    gid: bytes
    plan: bytes
    piece: int
    contributors: tuple[PeerId, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Witness:
    """Make a piece of ``maker`` as well, as Reduce does, and answer with Witnessed."""

    gid: bytes
    plan: bytes
    piece: int
    contributors: tuple[PeerId, ...]
    weights: tuple[float, ...]
    maker: PeerId


@dataclass(frozen=True)
class Assemble:
    """All sums of ``plan`` are there: put them together, and answer with Assembled."""

    gid: bytes
    plan: bytes


@dataclass(frozen=True)
class HeldRound:
    """This run has waited for a member alone for so long, or goes on without it after that."""

    gid: bytes
    peer: PeerId
    held_s: float


@dataclass(frozen=True)
class CutApart:
    """On a member's word that others are gone too few are left: nothing comes of the run."""

    gid: bytes
    peer: PeerId


@dataclass(frozen=True)
class Named:
    """On a member's word that ``others`` are gone, which were there, this one goes on without.

    ``is_excused``: it may have waited for what it alone lacks.
    """

    gid: bytes
    peer: PeerId
    others: frozenset[PeerId]
    is_excused: bool = False


@dataclass(frozen=True)
class Commit:
    """The mean over ``contributors`` counts: hand it to the worker.

    ``usual_s``: what it took without the slowest, see round_patience.py.
    """

    gid: bytes
    plan: bytes
    contributors: tuple[PeerId, ...]
    result: bytes
    usual_s: float


@dataclass(frozen=True)
class Abort:
    """Nothing came of it here. ``in_doubt``: others may have finished with our contribution.

    ``differ``: pairs of members who made the same piece, each of them something else.
    """

    gid: bytes
    why: str
    in_doubt: bool
    differ: tuple[tuple[PeerId, PeerId], ...] = ()


@dataclass(frozen=True)
class MeanEnded:
    """What became of one group mean or gathering here, once something was lent for it.

    ``result``: the SHA-256 of what it came to, over ``contributors``; both empty if to nothing.
    ``is_lost``: it has committed, and the worker that was to merge it is gone.
    """

    gid: bytes
    contributors: tuple[PeerId, ...]
    result: bytes
    reason: str
    in_doubt: bool
    took_s: float
    is_lost: bool = False


Effect = (
    Send
    | AskAlive
    | TakePayload
    | UsePlan
    | SendShare
    | SendSum
    | KeepShare
    | KeepSum
    | Reduce
    | Witness
    | Assemble
    | HeldRound
    | CutApart
    | Named
    | Commit
    | Abort
)
