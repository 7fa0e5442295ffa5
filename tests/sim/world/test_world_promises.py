"""Canaries: for each promise that the simulator checks, a bug that breaks it is seen.

That of buckets is in test_world_dht.py, together with the exit code.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from swarmnode.protocol.crdt.chains import OwnChain
from swarmnode.protocol.crdt.courier import Courier
from swarmnode.protocol.crdt.document import Counters
from swarmnode.protocol.crdt.ledger import Judgement, Ledger, Verdict
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.protocol.dht.operations import GetOperation
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.protocol.membership.health import SuspicionTimes
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.protocol.membership.table import MemberTable
from swarmnode.testing.simulate import Result, run_simulation


def broken(profile: str = "calm") -> tuple[Result, set[str]]:
    """Run, and return the result with the promises that were broken."""
    result, violations = run_simulation(24, profile, seed=3, real=False)
    assert result.violations == len(violations)
    return result, {line.split()[1] for line in violations}


def test_without_a_bug_nothing_is_broken() -> None:
    assert broken()[1] == set()


def test_states_that_differ_where_vectors_agree_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = Counters.merge
    n_merged: Counter[Counters] = Counter()

    def merge_most(self: Counters, other: Any) -> set[str]:
        n_merged[self] += 1  # in an order that differs between replicas
        return merge(self, other) if n_merged[self] % 5 else set()

    monkeypatch.setattr(Counters, "merge", merge_most)
    result, kinds = broken()
    assert "I1" in kinds
    assert result.state_converged_s is None


def test_a_record_that_is_taken_in_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Ledger.accept
    again: set[int] = set()  # once for each replica, or they would tell each other for ever

    def accept_twice(self: Ledger, *args: Any) -> Judgement:
        judgement = accept(self, *args)
        if judgement.verdict is Verdict.DUPLICATE and id(self) not in again:
            again.add(id(self))
            return Judgement(Verdict.ACCEPTED, judgement.opened)
        return judgement

    monkeypatch.setattr(Ledger, "accept", accept_twice)
    assert "I2" in broken()[1]


def test_a_sequence_that_is_signed_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    persisted = OwnChain.persisted

    def forgotten(self: OwnChain, sequence: int) -> Any:
        opened = persisted(self, sequence)
        if sequence == 4 and self.epoch == 1:
            self.sequence -= 1  # as after a crash before the record was on disk
        return opened

    monkeypatch.setattr(OwnChain, "persisted", forgotten)
    monkeypatch.setattr(Ledger, "_link", link_anything)
    assert "I2" in broken()[1]


LINK = Ledger._link


def link_anything(self: Ledger, opened: Any, now: float, heard_at: float) -> Judgement:
    """A ledger that does not look for contradictions, so that no peer is banned first."""
    judgement = LINK(self, opened, now, heard_at)
    if judgement.verdict is Verdict.EQUIVOCATION:
        return Judgement(Verdict.ACCEPTED, opened)
    return judgement


def test_an_honest_member_that_is_punished_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Ledger._screen

    def strict(self: Ledger, opened: Any, *args: Any) -> Verdict | None:
        is_picked_on = opened.sequence == 5 and opened.actor.peer != self._self_id
        return Verdict.FORGED if is_picked_on else screen(self, opened, *args)

    monkeypatch.setattr(Ledger, "_screen", strict)
    assert "I3" in broken()[1]


def test_a_record_that_belongs_to_another_key_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take = GetOperation.take
    taken: list[OpenRecord] = []

    def take_the_first(self: GetOperation, record: OpenRecord) -> None:
        taken.append(record)
        take(self, taken[0])  # of any lookup, whatever this one has asked for

    monkeypatch.setattr(GetOperation, "take", take_the_first)
    assert "I7" in broken()[1]


def test_a_lookup_that_is_not_sorted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    closest = Lookup.closest
    monkeypatch.setattr(Lookup, "closest", lambda self: closest(self)[::-1])
    assert "I8" in broken()[1]


def hear_no_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwimCore, "_acked", lambda self, peer, seq: None)


def test_an_incarnation_that_falls_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    renew = MemberTable.renew
    first: dict[bytes, Any] = {}

    def renew_backwards(self: MemberTable, member: Any, claim: Any, *args: Any) -> None:
        earlier = first.setdefault(claim.key, claim)
        renew(self, member, earlier if claim.incarnation == 3 else claim, *args)

    monkeypatch.setattr(MemberTable, "renew", renew_backwards)
    hear_no_ack(monkeypatch)  # so that all refute
    assert "I9" in broken()[1]


def test_live_members_that_are_declared_dead_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuspicionTimes, "timeout_s", lambda self, confirmations: 0.0)
    hear_no_ack(monkeypatch)
    assert "I12" in broken()[1]


def test_a_command_without_an_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Lookup.is_finished
    monkeypatch.setattr(
        Lookup, "is_finished", lambda self: self.target % 16 != 5 and finished(self)
    )
    assert "I14" in broken()[1]


def test_halves_that_never_meet_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberTable, "dead_to_call", lambda self: None)
    result, kinds = broken("partition")
    assert kinds == {"R4"}
    assert result.membership_converged_s is None
    assert result.state_converged_s is None


def test_states_that_are_not_compared_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Courier, "compare_with", lambda self, peer, now: None)
    result, kinds = broken("partition")
    assert kinds == {"R4"}
    assert result.membership_converged_s is not None
    assert result.state_converged_s is None or result.state_converged_s > 60.0
