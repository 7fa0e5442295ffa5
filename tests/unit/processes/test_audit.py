"""What an audit of histories finds: halves, losses, and what is only on its way."""

from __future__ import annotations

from typing import Any

import pytest

from swarmnode import limits
from swarmnode.processes.audit import Audit, Entry, audit_histories


def ended(xid: str, peer: str, outcome: str = "committed", boot: int = 1) -> Entry:
    return {"event": "finished", "xid": xid, "peer": peer, "outcome": outcome, "boot": boot}


def merged(xid: str, boot: int = 1) -> Entry:
    return {"event": "applied", "xid": xid, "boot": boot}


def gone(xid: str, boot: int = 1) -> Entry:
    return {"event": "lost", "xid": xid, "boot": boot}


def good(xid: str, peer: str, boot: int = 1) -> list[Entry]:
    return [ended(xid, peer, boot=boot), merged(xid, boot)]


def expect(audit: Audit, **expected: Any) -> None:
    nothing = {"half_applied": (), "lost_in_kill": 0, "unconfirmed": 0}
    found = {name: getattr(audit, name) for name in nothing}
    assert found == {**nothing, **expected}


def test_both_sides_or_neither_is_fine() -> None:
    a = [*good("1", "b"), ended("2", "b", "aborted"), ended("3", "b", "declined")]
    b = [*good("1", "a"), ended("2", "a", "aborted")]
    audit = audit_histories({"a": a, "b": b})
    expect(audit)
    assert (audit.committed, audit.aborted, audit.declined) == (1, 1, 1)


def test_one_exchange_is_counted_once_and_by_the_best_that_became_of_it() -> None:
    audit = audit_histories({"a": [ended("1", "b", "aborted")], "b": [ended("1", "a", "declined")]})
    assert (audit.committed, audit.aborted, audit.declined) == (0, 1, 0)


@pytest.mark.parametrize("theirs", [[], [ended("1", "a", "aborted")]])
def test_a_commit_that_a_living_partner_does_not_share_is_half_applied(theirs) -> None:
    expect(audit_histories({"a": good("1", "b"), "b": theirs}), half_applied=("1",))


def test_a_commit_that_more_passed_over_than_there_are_slots_is_half_applied() -> None:
    for overtaken in range(limits.SLOTS_PER_WORKER + 2):
        later = [str(number) for number in range(2, 2 + overtaken)]
        a = [ended("1", "b"), *(entry for xid in later for entry in good(xid, "b"))]
        b = [entry for xid in ("1", *later) for entry in good(xid, "a")]
        held = audit_histories({"a": [*a, merged("1")], "b": b})
        audit = audit_histories({"a": a, "b": b})
        if overtaken < limits.SLOTS_PER_WORKER:
            expect(held)
            expect(audit, unconfirmed=1)
        else:
            expect(held, half_applied=("1",))
            expect(audit, half_applied=("1",))


def test_the_last_commits_may_still_be_on_their_way_but_not_many() -> None:
    xids = "1234567"
    assert limits.SLOTS_PER_WORKER == 4
    a = [ended(xid, "b") for xid in xids]
    b = [entry for xid in xids for entry in good(xid, "a")]
    audit = audit_histories({"a": a, "b": b})
    assert sorted(audit.half_applied) == ["1", "2", "3"]
    assert audit.unconfirmed == 4


@pytest.mark.parametrize("told", [[ended("1", "b"), gone("1")], [gone("1"), ended("1", "b")]])
def test_what_died_with_the_worker_is_lost(told: list[Entry]) -> None:
    a = [*told, *good("2", "b")]
    b = [*good("1", "a"), *good("2", "a")]
    expect(audit_histories({"a": a, "b": b}), lost_in_kill=1)


def test_what_a_killed_node_had_not_merged_or_not_written_is_lost() -> None:
    a = [ended("1", "b"), *good("3", "b", boot=2)]
    b = [*good("1", "a"), *good("2", "a"), *good("3", "a")]
    expect(audit_histories({"a": a, "b": b}), lost_in_kill=2)


def test_what_a_killed_node_had_decided_alone_is_lost() -> None:
    a = [*good("1", "b"), *good("2", "b", boot=2)]
    b = [ended("1", "a", "aborted"), *good("2", "a")]
    expect(audit_histories({"a": a, "b": b}), lost_in_kill=1)


def test_a_living_node_alone_is_half_applied_even_if_the_partner_was_killed_later() -> None:
    a = good("1", "b")
    b = [ended("1", "a", "aborted"), *good("2", "c", boot=2)]
    expect(audit_histories({"a": a, "b": b}), half_applied=("1",))


def test_a_node_that_never_came_back_is_named() -> None:
    histories = {"a": good("1", "b"), "b": []}
    expect(audit_histories(histories), half_applied=("1",))
    expect(audit_histories(histories, killed=["b"]), lost_in_kill=1)
    decided = {"a": [], "b": [ended("1", "a")]}
    expect(audit_histories(decided, killed=["b"]), lost_in_kill=1)


def test_a_partner_whose_history_is_not_there_proves_nothing() -> None:
    expect(audit_histories({"a": good("1", "elsewhere")}))


# --- group means --------------------------------------------------------------------------------


def mean(xid: str, present: str, result: str = "aa") -> list[Entry]:
    entry = {"event": "finished", "xid": xid, "present": list(present), "result": result, "boot": 1}
    return [{**entry, "outcome": "committed"}, merged(xid)]


def no_mean(xid: str) -> Entry:
    entry = {"event": "finished", "xid": xid, "present": [], "result": "", "boot": 1}
    return {**entry, "outcome": "aborted"}


def test_a_group_mean_that_all_hold_alike_is_fine() -> None:
    audit = audit_histories({node: mean("1", "abc") for node in "abc"})
    expect(audit)
    assert (audit.committed, audit.left_behind) == (1, 0)


def test_two_results_of_one_mean_are_half_applied() -> None:
    histories = {"a": mean("1", "abc"), "b": mean("1", "abc"), "c": mean("1", "abc", "bb")}
    expect(audit_histories(histories), half_applied=("1",))


def test_a_contributor_that_did_not_finish_is_left_behind_and_breaks_no_promise() -> None:
    audit = audit_histories({"a": mean("1", "abc"), "b": mean("1", "abc"), "c": [no_mean("1")]})
    expect(audit)
    assert (audit.committed, audit.aborted, audit.left_behind) == (1, 0, 1)


def test_a_mean_that_is_not_merged_counts_as_any_exchange() -> None:
    histories = {"a": mean("1", "ab")[:1], "b": mean("1", "ab")}
    expect(audit_histories(histories), unconfirmed=1)
    histories["a"] += [gone("1")]
    expect(audit_histories(histories), lost_in_kill=1)
