"""What we publish: drafts, signed anew before their records end."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import msgspec

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import ConfigError
from swarmnode.protocol.dht.records import RecordRules, Signer, keys_of, subject_of
from swarmnode.wire.dht import Record
from swarmnode.wire.swarm import Signed

_SEQUENCES_PER_BOOT = 2**32
_Slot = tuple[bytes, bytes]  # key and subject


@dataclass(slots=True)
class _Draft:
    record: Record
    unix_offset_s: float
    due_at: float


class Publications:
    """See the module's text. A later draft for the same key and subject takes the place."""

    def __init__(self, signer: Signer, rules: RecordRules, boot_epoch: int, rng: Rng) -> None:
        self._signer = signer
        self._rules = rules
        self._sequence = boot_epoch * _SEQUENCES_PER_BOOT
        self._rng = rng
        self._drafts: dict[_Slot, _Draft] = {}
        self._deadlines: list[tuple[float, _Slot]] = []

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, key: bytes, record: Record, now: float, now_unix_s: float) -> Signed | None:
        """Sign a draft and remember it; None if there are too many.

        Raises:
            ConfigError: the record does not belong under this key.
            LimitExceeded: no node would keep so large a record.
        """
        if key not in keys_of(record, self._signer.peer_id):
            raise ConfigError(f"a {type(record).__name__} cannot be published under this key")
        slot = (key, subject_of(record))
        if slot not in self._drafts and len(self._drafts) >= limits.DHT_PUBLICATIONS_MAX:
            return None
        draft = self._drafts[slot] = _Draft(record, now_unix_s - now, now)
        return self._sign(slot, draft, now)

    def withdraw(self, key: bytes) -> None:
        """Forget every draft for a key."""
        for slot in [slot for slot in self._drafts if slot[0] == key]:
            del self._drafts[slot]

    def hasten(self, now: float) -> None:
        """Let everything be published again now: before, there was hardly a node to keep it."""
        for slot, draft in self._drafts.items():
            self._schedule(slot, draft, now)

    def next_deadline(self) -> float | None:
        """Return when a record is to be published again."""
        while self._deadlines and not self._is_current(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now: float) -> list[tuple[bytes, Signed]]:
        """Return what is to be published now, signed anew, with its key."""
        due: list[tuple[bytes, Signed]] = []
        while (at := self.next_deadline()) is not None and at <= now:
            _, slot = heapq.heappop(self._deadlines)
            due.append((slot[0], self._sign(slot, self._drafts[slot], now)))
        return due

    def _is_current(self, due_at: float, slot: _Slot) -> bool:
        draft = self._drafts.get(slot)
        return draft is not None and draft.due_at == due_at

    def _sign(self, slot: _Slot, draft: _Draft, now: float) -> Signed:
        self._sequence += 1
        issued_at = max(0, int(now + draft.unix_offset_s))
        record = msgspec.structs.replace(draft.record, sequence=self._sequence, issued_at=issued_at)
        signed = self._rules.sign(record, self._signer)
        self._schedule(slot, draft, now + limits.DHT_REPUBLISH_S * self._rng.uniform(0.75, 1.0))
        return signed

    def _schedule(self, slot: _Slot, draft: _Draft, due_at: float) -> None:
        draft.due_at = due_at
        heapq.heappush(self._deadlines, (due_at, slot))
