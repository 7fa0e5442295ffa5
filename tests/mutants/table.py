"""Which guards there are, what each becomes, and the test that must then turn red."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from swarmnode import limits


@dataclass(frozen=True)
class Mutant:
    """``guard``: ``module:name`` or ``module:Class.name``. ``test``: arguments of pytest."""

    guard: str
    becomes: Callable[..., Any]
    test: str


def _accept_all(_guard: object, _pair: object) -> object:
    from swarmnode.strategies.merging.slot import ACCEPTED

    return ACCEPTED


_GOSSIP = "swarmnode.protocol.gossip"
_GOSSIP_TESTS = "tests/unit/protocol/gossip"
_ROUNDS = "tests/property/hostile/test_round_stallers.py"
_PLAUSIBLE = "swarmnode.protocol.plausible"
_PLAUSIBLE_TESTS = "tests/unit/protocol/test_plausible.py"
_JUDGE = "tests/unit/worker/test_judge.py"
_HOSTS = "swarmnode.protocol.hosts"
_HOSTS_TESTS = "tests/unit/protocol/test_hosts.py"
_WITNESSES = "tests/property/merging/test_witnesses.py"
_GROUP_LIARS = "tests/property/hostile/test_group_liars.py"
_MERGING = "swarmnode.strategies.merging"
_RULES_TESTS = "tests/unit/strategies/test_merge_rules.py"
_TRUST = "swarmnode.protocol.trust:Trust"
_TRUST_TESTS = "tests/unit/protocol/test_trust.py"

MUTANTS: dict[str, Mutant] = {
    # What one peer can hold.
    "budget": Mutant(
        f"{_GOSSIP}.conduct:ConductTable.may_hold",
        lambda *_: True,
        f"{_GOSSIP_TESTS}/test_conduct.py",
    ),
    "avoided": Mutant(
        f"{_GOSSIP}.conduct:ConductTable.is_avoided",
        lambda *_: False,
        f"{_GOSSIP_TESTS}/test_conduct.py",
    ),
    "patience-answer": Mutant(
        f"{_GOSSIP}.patience:Patience.answer_s",
        lambda *_: limits.EXCHANGE_OFFER_S,
        f"{_GOSSIP_TESTS}/test_patience.py",
    ),
    "patience-transfer": Mutant(
        f"{_GOSSIP}.patience:Patience.transfer_s",
        lambda *_: math.inf,
        f"{_GOSSIP_TESTS}/test_patience.py",
    ),
    "patience-decision": Mutant(
        f"{_GOSSIP}.patience:Patience.decision_s",
        lambda *_: limits.EXCHANGE_DECISION_S_MAX,
        f"{_GOSSIP_TESTS}/test_patience.py",
    ),
    "patience-round": Mutant(
        f"{_GOSSIP}.round_patience:RoundPatience.limit_s",
        lambda _, transfer_s, *__: transfer_s,
        f"{_ROUNDS} -k any_stall[share-1.0]",
    ),
    "budget-round": Mutant(
        f"{_GOSSIP}.round_patience:RoundPatience.waited_for",
        lambda _, members, *__: members,
        f"{_ROUNDS} -k any_stall[share-1.0]",
    ),
    # What may count.
    "magnitude": Mutant(
        "swarmnode.tensor.magnitude:refusal", lambda *_: "", "tests/unit/tensor/test_magnitude.py"
    ),
    "safe-merge": Mutant(
        "swarmnode.strategies.merging.safe_merge:SafeMerge.weigh",
        _accept_all,
        "tests/unit/strategies/test_safe_merge.py",
    ),
    "weights-claimed": Mutant(
        f"{_GOSSIP}.groups:fair_weights",
        lambda claimed, **_: tuple(claimed),
        f"{_GOSSIP_TESTS}/test_groups.py",
    ),
    "kept-mean": Mutant(
        f"{_GOSSIP}.witnesses:kept_mean",
        lambda claims: next(filter(None, claims), ()),
        _GROUP_LIARS,
    ),
    "flush": Mutant(f"{_GOSSIP}.group_run:check_flush", lambda *_: None, _GROUP_LIARS),
    "hashes": Mutant(f"{_GOSSIP}.group_run:dissenters", lambda *_: frozenset(), _GROUP_LIARS),
    "witnesses": Mutant(f"{_GOSSIP}.witnesses:differing", lambda *_: (), _WITNESSES),
    "doubts": Mutant(f"{_GOSSIP}.witnesses:Doubts.faulty", lambda *_: frozenset(), _WITNESSES),
    "clipping": Mutant(
        f"{_MERGING}.clipped_mean:clipping", lambda norms, *_: norms * 0 + 1.0, _RULES_TESTS
    ),
    "outsized": Mutant(
        f"{_MERGING}.rules:without_outsized",
        lambda rule, about: rule(about),
        "tests/unit/daemon/collective/test_robust_groups.py -k too_large",
    ),
    "votes": Mutant(f"{_MERGING}.sybil_mean:_alike", lambda c: np.eye(len(c)), _RULES_TESTS),
    "opposed": Mutant(
        f"{_MERGING}.sybil_mean:_agreement", lambda cosines, _: np.ones(len(cosines)), _RULES_TESTS
    ),
    "agreed": Mutant(f"{_MERGING}.sybil_mean:_credit", lambda t: np.ones(len(t)), _RULES_TESTS),
    "copies": Mutant(
        f"{_GOSSIP}.gather_set:copies",
        lambda _: frozenset(),
        f"{_GOSSIP_TESTS}/test_gather_set.py",
    ),
    # Who is met.
    "trust-chance": Mutant(f"{_TRUST}.chance", lambda *_: 1.0, _TRUST_TESTS),
    "trust-left-out": Mutant(f"{_TRUST}.left_out", lambda *_: frozenset(), _TRUST_TESTS),
    "trust-hearsay": Mutant(f"{_TRUST}.heard_of", lambda *_: 0.5, _TRUST_TESTS),
    # What is said.
    "step-claimed": Mutant(
        f"{_PLAUSIBLE}:claimed_step", lambda said, _middle: said, _PLAUSIBLE_TESTS
    ),
    "steps": Mutant(
        f"{_PLAUSIBLE}:bounded_steps", lambda steps, _step: dict(steps), _PLAUSIBLE_TESTS
    ),
    "times": Mutant(f"{_PLAUSIBLE}:bounded_times", dict, _PLAUSIBLE_TESTS),
    "losses": Mutant(f"{_PLAUSIBLE}:bounded_losses", list, _PLAUSIBLE_TESTS),
    "first-minute": Mutant(f"{_PLAUSIBLE}:FirstMinute.complaint", lambda *_: "", _PLAUSIBLE_TESTS),
    # Snapshots.
    "snapshot": Mutant("swarmnode.worker.snapshots.atoms:refusal", lambda *_: "", _JUDGE),
    "snapshot-finite": Mutant("swarmnode.strategies.ranges:not_finite", lambda *_: None, _JUDGE),
    "snapshot-large": Mutant("swarmnode.strategies.ranges:too_large", lambda *_: None, _JUDGE),
    "snapshot-counts": Mutant("swarmnode.strategies.ranges:outside", lambda *_: None, _JUDGE),
    # Addresses and keys.
    "dials": Mutant(f"{_HOSTS}:DialBudget.wait_s", lambda *_: 0.0, _HOSTS_TESTS),
    "identities": Mutant(f"{_HOSTS}:Identities.admit", lambda *_, **__: True, _HOSTS_TESTS),
    "blocks": Mutant(f"{_HOSTS}:block_of", lambda _address: "", _HOSTS_TESTS),
}
