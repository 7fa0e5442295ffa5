"""The audit of exchange histories: what became of each exchange on all nodes that took part.

The promise is that an exchange counts on both sides or on neither, and that all nodes that finish
a round of many (a group mean, a gathering) hold the same result. A node that gave to a round and
did not finish it takes over what the others have: that is counted, and breaks no promise. A node
that was killed has lost what it did since its last snapshot, and may have lost what it had not
written to its history; a worker that dies takes with it what had committed and was not merged yet.
Both are counted apart, because no protocol can prevent them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swarmnode import limits

Entry = Mapping[str, Any]
# A worker merges in the order of the views, so that an exchange is passed over by those at most
# whose slots were lent before its own was.
_OVERTAKEN_MAX = limits.SLOTS_PER_WORKER - 1


@dataclass(frozen=True)
class Audit:
    """Distinct exchanges over all nodes."""

    committed: int
    aborted: int
    declined: int
    half_applied: tuple[str, ...]  # ids: one living side applied it, the other did not
    lost_in_kill: int
    # The last commits of a node, whose worker had not said that it merged them when the node
    # left or its history was read.
    unconfirmed: int
    left_behind: int = 0  # living contributors of group means that did not finish them


@dataclass
class _Account:
    """One node's history, read in its order."""

    # Outcome, partners, and the hash of a group mean.
    outcomes: dict[str, tuple[str, tuple[str, ...], str]] = field(default_factory=dict)
    # Committed and not merged yet, to how many later ones have been merged.
    pending: dict[str, int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # too many later ones were merged before it
    lost: set[str] = field(default_factory=set)  # committed, and gone with a worker or a boot
    uncertain: set[str] = field(default_factory=set)  # of a boot that may have been killed
    last_boot: int = 0
    was_killed: bool = False

    def take(self, entry: Entry) -> None:
        xid = entry["xid"]
        self._note_boot(entry["boot"])
        match entry["event"]:
            case "applied":
                self._merged(xid)
            case "lost":
                self.pending.pop(xid, None)
                self.lost.add(xid)
            case "finished":
                peers = (entry["peer"],) if "peer" in entry else tuple(entry["present"])
                self.outcomes[xid] = (entry["outcome"], peers, entry.get("result", ""))
                if entry["outcome"] == "committed" and xid not in self.lost:
                    self.pending[xid] = 0

    def close(self, *, is_gone: bool, is_incomplete: bool) -> None:
        """What is more than a worker's slots can hold cannot be on its way any more."""
        if is_gone or is_incomplete:
            self._note_kill()
        if is_incomplete:  # it may have been written nowhere that they were merged
            self.lost |= self.skipped
            self.skipped.clear()
        for xid in list(self.pending)[: -limits.SLOTS_PER_WORKER]:
            self.skipped.add(xid)
            del self.pending[xid]

    def _note_boot(self, boot: int) -> None:
        if self.last_boot not in (0, boot):
            self.was_killed = True
            self._note_kill()
        self.last_boot = boot

    def _note_kill(self) -> None:
        self.lost.update(self.pending)
        self.pending.clear()
        self.uncertain.update(self.outcomes)

    def _merged(self, xid: str) -> None:
        if xid not in self.pending:
            return
        for earlier in list(self.pending):
            if earlier == xid:
                break
            self.pending[earlier] += 1
            if self.pending[earlier] > _OVERTAKEN_MAX:
                self.skipped.add(earlier)
                del self.pending[earlier]
        del self.pending[xid]


def audit_histories(
    histories: Mapping[str, Iterable[Entry]],
    *,
    killed: Collection[str] = (),
    incomplete: Collection[str] = (),
) -> Audit:
    """Compare the histories of the nodes, given by peer id; each in order of writing.

    A node with several boots counts as killed; ``killed`` names those that never came back. What
    those in ``incomplete`` do not say proves nothing: their disk was full for a while.
    """
    untold = {*killed, *incomplete}
    accounts = {node: _Account(was_killed=node in untold) for node in histories}
    for node, entries in histories.items():
        for entry in entries:
            accounts[node].take(entry)
        accounts[node].close(is_gone=node in killed, is_incomplete=node in incomplete)
    half: dict[str, None] = {}
    lost: set[str] = set()
    behind: set[tuple[str, str]] = set()
    for node, account in accounts.items():
        half.update(dict.fromkeys(account.skipped))
        lost |= account.lost
        for xid, (outcome, peers, result) in account.outcomes.items():
            if outcome != "committed":
                continue
            for peer in peers:
                if peer == node or peer not in accounts:
                    continue
                theirs = accounts[peer].outcomes.get(xid)
                if theirs is not None and theirs[0] == "committed":
                    half.update({xid: None} if theirs[2] != result else {})
                elif xid in account.uncertain or (theirs is None and accounts[peer].was_killed):
                    lost.add(xid)
                elif result:
                    behind.add((xid, peer))
                else:
                    half[xid] = None
    return Audit(
        **_count_outcomes(accounts.values()),
        half_applied=tuple(half),
        lost_in_kill=len(lost - half.keys()),
        unconfirmed=sum(len(account.pending) for account in accounts.values()),
        left_behind=len(behind),
    )


def _count_outcomes(accounts: Iterable[_Account]) -> dict[str, int]:
    """Count distinct exchanges by the best that became of them."""
    found: dict[str, set[str]] = {}
    for account in accounts:
        for xid, (outcome, *_) in account.outcomes.items():
            found.setdefault(xid, set()).add(outcome)
    best = [
        next(kind for kind in ("committed", "aborted", "declined") if kind in outcomes)
        for outcomes in found.values()
    ]
    return {kind: best.count(kind) for kind in ("committed", "aborted", "declined")}
