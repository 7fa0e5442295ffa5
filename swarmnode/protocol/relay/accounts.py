"""What each peer has used of a relay, and what it may use.

A circuit is charged to the peer that asked for it: else any peer could use up another's share.
Keys cost nothing, so the shares of single peers keep order among honest ones; what a flood of
new keys costs is bounded by the sums over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs.bucket import TokenBucket

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
    circuits_max: int = limits.RELAY_CIRCUITS_MAX
    bytes_per_s: float | None = limits.RELAY_BYTES_PER_S
    peer_bytes_per_s: float | None = _RELAY_PEER_BYTES_PER_S
    bytes_per_day: float | None = _RELAY_BYTES_PER_DAY
    peer_bytes_per_day: float | None = _RELAY_PEER_BYTES_PER_DAY


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
    """Those who owe something, at most RELAY_ACCOUNTS_MAX."""

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
