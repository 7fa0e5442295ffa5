"""What each peer may use of a relay, has used, and which may send next where bandwidth is scarce.

A circuit is charged to the peer that asked for it: else any peer could use up another's share.
Keys cost nothing, so the shares of single peers keep order among honest ones; what a flood of
new keys costs is bounded by the sums over all of them.

Circuits themselves are shared by :class:`Worths`. A peer's n-th circuit is worth 1 / n² to it, and
a circuit what it is worth to both its peers; in a relay that is full a new one takes the place of
the one that is worth least, if that is less than the new one. So the sum of all grows with each,
which ends, and it ends where all have about as many. The first of a peer displaces one of any two
peers that have two each, and its second one of two that have three each: that is the minimum
guaranteed to all. What displaces which does not depend on which came first.

Source: Kelly, Maulloo and Tan, "Rate control for communication networks: shadow prices,
proportional fairness and stability", 1998; the utility is that of Mo and Walrand with alpha 2,
"Fair end-to-end window-based congestion control", 2000, over whole circuits instead of rates.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.uplink import Line, Purpose, on_the_wire

# A volunteer gives a fifth of a 100 Mbit/s line, and to one peer no more than half of that.
_RELAY_PEER_BYTES_PER_S = 1_250_000
# What was saved while no peer asked: the first exchange of a million parameters waits for nothing.
RELAY_BURST_S = 4.0
# A small server's traffic, of which a month is 1 TB, and a tenth of it for one peer.
_RELAY_BYTES_PER_DAY = 32 * 1024 * limits.MIB
_RELAY_PEER_BYTES_PER_DAY = _RELAY_BYTES_PER_DAY // 10
# Questions for circuits: all partners at once after a restart, then one now and then.
RELAY_CONNECTS_PER_S = 1.0
RELAY_CONNECTS_BURST = 32
# What peers have used lately; one that has paid everything back is forgotten.
RELAY_ACCOUNTS_MAX = 4096

_DAY_S = 86_400
# A circuit is worth beginning when an hour's part of the daily share is there.
_WORTHWHILE = 1 / 24


@dataclass(frozen=True, slots=True)
class Quota:
    """What a relay gives. None: as much as there is."""

    reservations_max: int = limits.RELAY_RESERVATIONS_MAX
    reservations_per_host_max: int = limits.RELAY_RESERVATIONS_PER_HOST_MAX
    circuits_max: int = limits.RELAY_CIRCUITS_MAX
    circuits_per_peer_max: int = limits.RELAY_CIRCUITS_PER_PEER_MAX
    bytes_per_s: float | None = limits.RELAY_BYTES_PER_S
    peer_bytes_per_s: float | None = _RELAY_PEER_BYTES_PER_S
    bytes_per_day: float | None = _RELAY_BYTES_PER_DAY
    peer_bytes_per_day: float | None = _RELAY_PEER_BYTES_PER_DAY


def role_quota(memory_bytes: int, files_max: int, bytes_per_s: float | None) -> Quota:
    """Return what a node gives that is there to relay: what its machine and its line can carry.

    Never less than a volunteer gives. Three quarters of the descriptors: a circuit has two.

    Args:
        files_max: descriptors that the process may have.
        bytes_per_s: what its owner gives, None: all.
    """
    circuits = min(memory_bytes // 4 // limits.RELAY_CIRCUIT_BYTES, files_max // 4)
    if bytes_per_s is not None:
        circuits = min(circuits, int(bytes_per_s / limits.RELAY_CIRCUIT_BYTES_PER_S))
    places = min(memory_bytes // 8 // limits.RELAY_RESERVATION_BYTES, files_max // 4)
    places = max(places, limits.RELAY_RESERVATIONS_MAX)
    return Quota(
        reservations_max=places,
        reservations_per_host_max=max(places // 4, limits.RELAY_RESERVATIONS_PER_HOST_MAX),
        circuits_max=max(circuits, limits.RELAY_CIRCUITS_MAX),
        circuits_per_peer_max=limits.RELAY_ROLE_CIRCUITS_PER_PEER_MAX,
        bytes_per_s=bytes_per_s,
        peer_bytes_per_s=None,
        bytes_per_day=None,
        peer_bytes_per_day=None,
    )


@dataclass(frozen=True, slots=True)
class End:
    """One of the two that a circuit joins, and where its bytes come from."""

    peer: PeerId
    host: str


Ends = tuple[End, End]


class Worths:
    """What circuits are worth to those that have them; see the module.

    Of an address with more than RELAY_HOUSEHOLD peers, the circuits of each count as so many more.
    """

    def __init__(self, circuits: Iterable[Ends]) -> None:
        self._degrees: Counter[PeerId] = Counter()
        self._peers: dict[str, set[PeerId]] = {}
        for each in circuits:
            for end in each:
                self._degrees[end.peer] += 1
                self._peers.setdefault(end.host, set()).add(end.peer)

    def of_new(self, ends: Ends, instead_of: Ends) -> float:
        """Return what a new circuit is worth, in place of one that there is."""
        kept = {end.peer for end in instead_of}
        return sum(self._worth(end, 1) for end in ends if end.peer not in kept)

    def of_old(self, ends: Ends, given_for: Ends) -> float:
        """Return what is lost with a circuit, if it is given for a new one."""
        kept = {end.peer for end in given_for}
        return sum(self._worth(end, 0) for end in ends if end.peer not in kept)

    def _worth(self, end: End, more: int) -> float:
        n_there = len(self._peers.get(end.host, set()) | {end.peer})
        counts_as = max(1.0, n_there / limits.RELAY_HOUSEHOLD)
        return 1 / (counts_as * (self._degrees[end.peer] + more)) ** 2


def rate_bucket(bytes_per_s: float | None) -> TokenBucket | None:
    """Return the bucket of a bandwidth."""
    if bytes_per_s is None:
        return None
    return TokenBucket(bytes_per_s, bytes_per_s * RELAY_BURST_S)


@dataclass(slots=True)
class Allowance:
    """A volume that comes back over a day."""

    bytes_per_day: float | None
    _bucket: TokenBucket | None = field(init=False)

    def __post_init__(self) -> None:
        per_day = self.bytes_per_day
        self._bucket = None if per_day is None else TokenBucket(per_day / _DAY_S, per_day)

    def is_spent(self, now: float) -> bool:
        """Whether nothing is left."""
        return self._bucket is not None and not self._bucket.has(0, now)

    def spend(self, n_bytes: int, now: float) -> None:
        """Take from it."""
        if self._bucket is not None:
            self._bucket.spend(n_bytes, now)

    def worthwhile_in_s(self, now: float) -> float:
        """Return when a new circuit is worth beginning; 0: now."""
        if self._bucket is None or self.bytes_per_day is None:
            return 0.0
        wanted = self.bytes_per_day * _WORTHWHILE
        return 0.0 if self._bucket.has(wanted, now) else self._bucket.free_at(wanted) - now

    def is_full(self, now: float) -> bool:
        """Whether nothing is owed."""
        return self._bucket is None or self._bucket.is_full(now)


class Account:
    """One peer's shares."""

    __slots__ = ("asks", "rate", "volume")

    def __init__(self, quota: Quota) -> None:
        self.rate = rate_bucket(quota.peer_bytes_per_s)
        self.volume = Allowance(quota.peer_bytes_per_day)
        self.asks = TokenBucket(RELAY_CONNECTS_PER_S, RELAY_CONNECTS_BURST)

    def is_settled(self, now: float) -> bool:
        """Whether forgetting it would give its peer nothing."""
        return (
            (self.rate is None or self.rate.is_full(now))
            and self.volume.is_full(now)
            and self.asks.is_full(now)
        )


class Accounts:
    """The peers that owe something, at most RELAY_ACCOUNTS_MAX."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._accounts: dict[PeerId, Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, peer: PeerId, now: float) -> Account | None:
        """Return a peer's account; None if there is no room for a new one."""
        account = self._accounts.get(peer)
        if account is not None:
            return account
        if len(self._accounts) >= RELAY_ACCOUNTS_MAX:
            self._forget_settled(now)
            if len(self._accounts) >= RELAY_ACCOUNTS_MAX:
                return None
        account = self._accounts[peer] = Account(self._quota)
        return account

    def _forget_settled(self, now: float) -> None:
        self._accounts = {
            peer: account for peer, account in self._accounts.items() if not account.is_settled(now)
        }


_QUANTUM_BYTES = limits.RELAY_PIECE_BYTES


@dataclass(slots=True, eq=False)
class Flow:
    """What of one circuit waits: at most one piece each way."""

    circuit: int
    account: Account
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (side, bytes)
    deficit_bytes: int = 0
    has_turn: bool = False


class Shaper:
    """The pieces that wait, and the bandwidth: deficit round robin over circuits.

    A piece that fits into the bandwidth of its peer and of the relay passes at once. Otherwise
    it waits, and the waiting circuits take turns, each with the same number of bytes a turn. A
    circuit whose peer has used up its own bandwidth stands aside, so that none waits behind it.

    What passes goes out over the owner's line, and keeps to what the owner allows of it.

    Source: Shreedhar and Varghese, Efficient Fair Queuing using Deficit Round Robin (1995). The
    quantum is the largest piece, so each turn passes at least one.
    """

    def __init__(self, total: TokenBucket | None, line: Line) -> None:
        self._total = total
        self._line = line
        self._line_free_at = 0.0
        self._ring: deque[Flow] = deque()
        self._aside: list[Flow] = []

    def try_pass(self, flow: Flow, n_bytes: int, now: float) -> bool:
        """Let a piece pass at once if none waits for the same bandwidth."""
        if self._ring or flow.waiting or not _is_free(flow.account.rate, now):
            return False
        if not self._has_room(now):
            return False
        self._spend(flow, n_bytes, now)
        return True

    def wait(self, flow: Flow, side: int, n_bytes: int) -> None:
        """Put a piece in line; :meth:`release` tells when it may pass."""
        flow.waiting.append((side, n_bytes))
        if len(flow.waiting) > 1:
            return
        # Of each direction only one piece waits here: a peer that sends small ones has its turn in
        # several parts.
        flow.has_turn = n_bytes <= flow.deficit_bytes
        if flow.has_turn:
            self._ring.appendleft(flow)
        else:
            self._ring.append(flow)

    def drop(self, flow: Flow) -> None:
        """Forget what waits of a circuit that is over."""
        self._ring = deque(each for each in self._ring if each is not flow)
        self._aside = [each for each in self._aside if each is not flow]

    def release(self, now: float) -> list[tuple[Flow, int]]:
        """Return (flow, side) of the pieces that pass now, in order."""
        passed: list[tuple[Flow, int]] = []
        self._call_back(now)
        while self._ring and self._has_room(now):
            flow = self._ring[0]
            if not flow.has_turn:
                flow.has_turn = True
                quantum_bytes = self._quantum_bytes(flow)
                flow.deficit_bytes = min(flow.deficit_bytes, quantum_bytes) + quantum_bytes
            if self._may_go_on(flow, now):
                side, n_bytes = flow.waiting.popleft()
                flow.deficit_bytes -= n_bytes
                self._spend(flow, n_bytes, now)
                passed.append((flow, side))
            else:
                self._end_turn(now)
        if self._ring and not self._ring[0].waiting:
            self._end_turn(now)
        return passed

    def next_deadline(self) -> float | None:
        """Return when :meth:`release` may give something; call it after :meth:`release`."""
        moments = [flow.account.rate.free_at() for flow in self._aside if flow.account.rate]
        if self._ring:
            free_at = self._total.free_at() if self._total is not None else 0.0
            moments.append(max(free_at, self._line_free_at))
        return min(moments, default=None)

    def _has_room(self, now: float) -> bool:
        """Whether another piece of any circuit may pass."""
        if not _is_free(self._total, now):
            return False
        self._line_free_at = self._line.free_at(now, Purpose.RELAYING, is_far=True)
        return self._line_free_at <= now

    def _quantum_bytes(self, flow: Flow) -> int:
        """Return the bytes of a turn: on a thin line 256 KiB of one would silence all others."""
        largest_bytes = max(n_bytes for _side, n_bytes in flow.waiting)
        return min(_QUANTUM_BYTES, max(self._line.turn_bytes_max(is_far=True), largest_bytes))

    def _may_go_on(self, flow: Flow, now: float) -> bool:
        """Whether the flow whose turn it is may send its next piece, as far as it is concerned."""
        has_piece = bool(flow.waiting) and flow.waiting[0][1] <= flow.deficit_bytes
        return has_piece and _is_free(flow.account.rate, now)

    def _end_turn(self, now: float) -> None:
        flow = self._ring.popleft()
        flow.has_turn = False
        is_held_up = not _is_free(flow.account.rate, now)
        if is_held_up:
            flow.deficit_bytes = 0
        if flow.waiting:
            (self._aside if is_held_up else self._ring).append(flow)

    def _call_back(self, now: float) -> None:
        back = [flow for flow in self._aside if _is_free(flow.account.rate, now)]
        if back:
            self._aside = [flow for flow in self._aside if flow not in back]
            self._ring.extend(back)

    def _spend(self, flow: Flow, n_bytes: int, now: float) -> None:
        self._line.spend(on_the_wire(n_bytes), now, Purpose.RELAYING, is_far=True)
        for bucket in (self._total, flow.account.rate):
            if bucket is not None:
                bucket.spend(n_bytes, now)


def _is_free(bucket: TokenBucket | None, now: float) -> bool:
    return bucket is None or bucket.has(0, now)
