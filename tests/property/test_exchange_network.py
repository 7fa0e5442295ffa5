"""Many cores over a bad network: exchanges stay atomic, and everybody gets free again."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.flight import Flight
from swarmnode.wire.exchange import gossip as wire
from tests.property.models.exchange_model import FRAGMENTS, CoreFactory, Faults, Model

LOSSY = Faults(loss=0.2, delay_s_min=0.005, delay_s_max=0.05)
HOSTILE = Faults(loss=0.15, duplication=0.2, delay_s_min=0.005, delay_s_max=2.0, in_order=False)
SLOW = Faults(duplication=0.2, delay_s_min=0.0, delay_s_max=6.0, in_order=False)


def begin_at_random(model: Model, n_exchanges: int, gap_s: float) -> None:
    """Let random nodes begin with random candidates, about ``gap_s`` apart."""
    begun = 0
    while begun < n_exchanges:
        node = model.nodes[model.rng.choice(model.ids)]
        others = [peer_id for peer_id in model.ids if peer_id != node.peer_id]
        wanted = min(limits.EXCHANGE_CANDIDATES_MAX, len(others))
        candidates = tuple(model.rng.sample(others, wanted))
        begun += model.begin(node, candidates, model.rng.randrange(FRAGMENTS))
        model.run(model.now + model.rng.uniform(0, gap_s))


def lossy_run(seed: int, make_core: CoreFactory = ExchangeCore) -> Model:
    model = Model(16, seed, LOSSY, make_core=make_core)
    begin_at_random(model, 2000, gap_s=0.5)
    model.settle()
    return model


class HastyCore(ExchangeCore):
    """A mutant: as responder it commits when it is ready, without waiting for COMMIT."""

    def _become_ready(self, flight: Flight, now: float) -> None:
        super()._become_ready(flight, now)
        self._commit(flight, now)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sum_is_conserved_exactly_over_2000_lossy_exchanges(seed: int) -> None:
    before = Model(16, seed, LOSSY).total()
    model = lossy_run(seed)
    model.check()
    assert model.total() == before
    assert model.in_doubt() == 0
    # every exchange counts twice here; loss of one chunk in five ends many of them
    assert len(model.commits) > 300


def test_a_responder_that_commits_before_commit_fails_conservation() -> None:
    before = Model(16, 1, LOSSY).total()
    model = lossy_run(1, make_core=HastyCore)
    assert model.total() != before
    with pytest.raises(AssertionError):
        model.check()


@given(
    seed=st.integers(0, 2**32 - 1),
    n_nodes=st.integers(2, 6),
    faults=st.sampled_from([Faults(), LOSSY, HOSTILE, SLOW]),
)
@settings(max_examples=60, deadline=None)
def test_no_crash_means_no_half_applied_exchange(seed: int, n_nodes: int, faults: Faults) -> None:
    model = Model(n_nodes, seed, faults)
    before = model.total()
    for _ in range(12):
        begin_at_random(model, 2, gap_s=3.0)
        trouble(model)
    model.settle()
    model.check()
    assert model.in_doubt() == 0
    assert model.total() == before


@given(
    seed=st.integers(0, 2**32 - 1),
    n_nodes=st.integers(2, 6),
    faults=st.sampled_from([Faults(), LOSSY, HOSTILE]),
)
@settings(max_examples=60, deadline=None)
def test_crashes_and_partitions(seed: int, n_nodes: int, faults: Faults) -> None:
    """Living sides differ only where a cut or a crash outlasted the bound, and it is counted."""
    model = Model(n_nodes, seed, faults)
    for _ in range(12):
        begin_at_random(model, 2, gap_s=1.0)
        trouble(model)
        disaster(model)
        model.run(model.now + model.rng.choice([0.0, 0.02, 1.0, 40.0]))
    for node in model.nodes.values():
        if not node.is_up:
            model.restart(node)
    model.settle()
    model.check()


def trouble(model: Model) -> None:
    """What a shell reports in bad weather: a lost session, a failed transfer, or nothing."""
    kind = model.rng.choice(["session", "local", "nothing"])
    if kind == "session":
        model.lose_session(*model.rng.sample(model.ids, 2))
    elif kind == "local":
        model.fail_locally(model.nodes[model.rng.choice(model.ids)])


def disaster(model: Model) -> None:
    """Crash, restart, cut or heal something."""
    node = model.nodes[model.rng.choice(model.ids)]
    up = sum(other.is_up for other in model.nodes.values())
    kind = model.rng.choice(["crash", "cut", "heal", "nothing"])
    if not node.is_up:
        model.restart(node)
    elif kind == "crash" and up > 1:
        model.crash(node)
    elif kind == "cut":
        model.cut.add(frozenset(model.rng.sample(model.ids, 2)))
    elif kind == "heal":
        model.cut.clear()


def test_a_cut_at_every_moment_is_atomic_or_counted() -> None:
    """Cut two nodes at each of many moments of one exchange, briefly and for too long."""
    for cut_s in (3.0, 100.0):
        doubts = 0
        for moment in range(60):
            model = Model(2, 7, Faults(delay_s_min=0.01, delay_s_max=0.01))
            before = model.total()
            first, second = model.ids
            model.begin(model.nodes[first], (second,))
            model.run(moment * 0.002)
            model.cut.add(frozenset(model.ids))
            model.run(model.now + cut_s)
            model.settle()
            model.check()
            doubts += model.in_doubt()
            assert model.in_doubt() or model.total() == before
        assert (doubts > 0) == (cut_s > limits.EXCHANGE_IN_DOUBT_S)


def crossing(seed: int, delays: Faults) -> Model:
    """Both nodes of a pair offer to each other at the same time."""
    model = Model(2, seed, delays)
    first, second = model.ids
    model.begin(model.nodes[first], (second,))
    model.begin(model.nodes[second], (first,))
    return model


@pytest.mark.parametrize("seed", range(20))
def test_crossing_offers_make_one_exchange_of_the_smaller_id(seed: int) -> None:
    model = crossing(seed, Faults(delay_s_min=0.01, delay_s_max=0.2))
    before = model.total()
    model.settle()
    model.check()
    smaller, larger = model.ids
    committed = [
        (peer_id, finished.role.value)
        for peer_id, _, finished in model.history
        if finished.outcome.value == "committed"
    ]
    assert sorted(committed) == [(smaller, "initiator"), (larger, "responder")]
    assert not any(node.core.statistics().refused_total for node in model.nodes.values())
    assert model.total() == before


def test_all_offering_at_once_ends_without_a_wait() -> None:
    """A ring of offers: refusals are immediate, no node waits for a timeout."""
    model = Model(6, 3, Faults(delay_s_min=0.01, delay_s_max=0.02))
    for place, peer_id in enumerate(model.ids):
        others = model.ids[place + 1 :] + model.ids[:place]
        model.begin(model.nodes[peer_id], tuple(others[:3]))
    model.run(limits.EXCHANGE_OFFER_S / 2)
    model.check()
    assert model.commits


@given(seed=st.integers(0, 2**32 - 1), n_chunks=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_duplicated_and_reordered_chunks_change_nothing(seed: int, n_chunks: int) -> None:
    results = []
    for faults in (Faults(), Faults(duplication=0.7, delay_s_min=0.01, delay_s_max=0.3)):
        model = Model(2, seed, faults, n_chunks=n_chunks)
        shuffle_chunks(model)
        first, second = model.ids
        model.begin(model.nodes[first], (second,))
        model.settle()
        model.check()
        results.append([node.model for node in model.nodes.values()])
    assert results[0] == results[1]
    assert results[0][0][0] == results[0][1][0]  # both hold the mean of fragment 0


def shuffle_chunks(model: Model) -> None:
    """Let chunks, and only chunks, overtake each other once the transfer runs."""
    deliver = model.deliver
    chance = random.Random(model.seed)

    def shuffled(
        source: PeerId, target: PeerId, message: wire.Message, part: Fraction | None
    ) -> None:
        if part is None:
            deliver(source, target, message, part)
            return
        when = model.now + chance.uniform(0, 1.0)
        model.at(when, lambda: deliver(source, target, message, part))

    model.deliver = shuffled  # type: ignore[method-assign]


def test_same_seed_same_history() -> None:
    def run(seed: int) -> str:
        model = Model(5, seed, HOSTILE)
        begin_at_random(model, 60, gap_s=1.0)
        model.settle()
        return model.digest()

    assert run(11) == run(11)
    assert run(11) != run(12)
