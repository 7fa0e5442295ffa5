"""The virtual engine itself: time, faults, groups, the log, and what things cost."""

import math

import pytest
import torch

from swarmnode.strategies.base import Exchange, Intent, Kind, Selector, StepInfo, Strategy
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.topology import build_graph
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.faults import Cut, Faults, Outage
from swarmnode.testing.lab.setups import still
from swarmnode.testing.lab.tasks import Adam, Quadratic, Sgd, Walk


class Watching(Strategy):
    """Notes what it is told; ``intents`` says what it wants after a step."""

    name = "watching"

    def __init__(self, settings, x, intents=lambda step: ()):
        super().__init__(settings, x)
        self.intents = intents
        self.told = []

    def after_step(self, info: StepInfo):
        self.told.append(("step", info.step, info.t))
        return [
            Intent(views=(self.whole("x"),), **intent)
            if "record" not in intent
            else Intent(**intent)
            for intent in self.intents(info.step)
        ]

    def view(self, intent, name, out):
        out.copy_(self.x)

    def apply(self, exchange: Exchange):
        self.told.append(("apply", exchange.intent.round, exchange.steps_since, exchange))

    def on_abort(self, intent, why):
        self.told.append(("abort", intent.round, why))

    def on_records(self, round_number, records):
        self.told.append(("records", round_number, [record.payload for record in records]))

    def on_membership(self, members):
        self.told.append(("members", len(members)))

    def heard(self, what):
        return [told[1:] for told in self.told if told[0] == what]


def watching(n, intents, **kwargs):
    task = Walk(n, 4, seed=1)
    return Arena(task, lambda x: Watching({}, x, intents), optimizer=Sgd(task.x, 0.0), **kwargs)


def pair(round_number, **kwargs):
    return {"kind": Kind.PAIR, "round": round_number, **kwargs}


# --- time ---------------------------------------------------------------------------------


def test_nodes_step_at_their_own_speed_and_count_time_in_own_steps():
    arena = watching(3, lambda step: (), speeds=[1.0, 0.5, 1 / 3])
    arena.run(12)
    assert [node.steps for node in arena.nodes] == [12, 6, 4]
    assert arena.tally.gradients == 22
    for node in arena.nodes:
        assert [t for _, t in node.strategy.heard("step")] == pytest.approx(
            list(range(1, node.steps + 1))
        )


def test_what_is_to_wait_so_many_steps_waits():
    def intents(step):
        return [pair(step, apply_after_steps=3)] if step % 10 == 0 else ()

    arena = watching(2, intents)
    arena.run(30)
    for node in arena.nodes:
        assert [(r, since) for r, since, _ in node.strategy.heard("apply")] == [(10, 3), (20, 3)]


def test_random_times_have_the_rate_that_was_asked_for():
    arena = still(PairAverage, {"rate": 2.0}, n=16, graph="torus")
    arena.run(200)
    assert arena.tally.exchanges == pytest.approx(16 * 200, rel=0.05)
    wanted = arena.graph.with_node_rate(2.0).mixing()
    assert arena.observed().mixing().chi1 == pytest.approx(wanted.chi1, rel=0.15)


# --- which nodes meet ---------------------------------------------------------------------


def test_on_a_graph_only_neighbours_meet():
    arena = watching(8, lambda step: [pair(step)], graph=build_graph("ring", 8))
    arena.run(50)
    assert set(arena.tally.edges) == set(build_graph("ring", 8).edges)
    assert arena.tally.exchanges >= 50 * 3, "a maximal matching of a ring of 8 has 3 or 4 edges"


def test_of_an_odd_number_one_is_left_over():
    arena = watching(5, lambda step: [pair(step)])
    arena.run(20)
    assert arena.tally.exchanges == 40
    assert arena.tally.aborted >= 15, "the next round replaces its intent"


def test_partners_of_other_fragments_rounds_or_bases_do_not_meet():
    intents = iter(
        [
            pair(1, fragment=0), pair(1, fragment=1),
            pair(1), pair(5, round_skew_max=2),
            pair(1, base_version=b"a"), pair(1, base_version=b"b"),
        ]
    )  # fmt: skip
    arena = watching(2, lambda step: [next(intents)])
    arena.run(3)
    assert arena.tally.exchanges == 0


def test_a_strategy_may_refuse():
    arena = watching(2, lambda step: [pair(step)])
    arena.nodes[1].strategy.accept = lambda offer: "not now"
    arena.run(3)
    assert arena.tally.exchanges == 0


def test_an_exchange_brings_what_both_sent():
    arena = watching(2, lambda step: [pair(step)])
    arena.run(1)
    for node, other in (arena.nodes, arena.nodes[::-1]):
        ((_, _, exchange),) = node.strategy.heard("apply")
        assert torch.equal(exchange.sent["x"], node.strategy.x)
        assert torch.equal(exchange.got[other.peer_id].views["x"], other.strategy.x)
        assert exchange.partner.meta.steps == 1


# --- faults -------------------------------------------------------------------------------


def test_loss_is_the_share_of_exchanges_that_come_to_nothing():
    arena = watching(2, lambda step: [pair(step)], faults=Faults(loss=0.3))
    arena.run(1000)
    assert arena.tally.exchanges == pytest.approx(700, abs=45)
    assert arena.tally.exchanges + arena.tally.aborted / 2 == 1000


def test_a_cut_network_has_exchanges_within_its_halves_only():
    arena = watching(4, lambda step: [pair(step)], faults=Faults(cut=Cut(10, 40)))
    arena.run(9)
    arena.tally.edges.clear()
    arena.run(30)
    assert set(arena.tally.edges) == {(0, 1), (2, 3)}
    arena.run(30)
    assert (0, 2) in arena.tally.edges


def test_a_node_that_comes_back_has_a_peers_parameters_and_steps():
    arena = watching(3, lambda step: [pair(step)], faults=Faults(outages=(Outage(1, 5.5, 20.5),)))
    arena.run(10)
    assert [node.number for node in arena.up] == [0, 2]
    old = arena.nodes[1].strategy
    arena.run(20)
    back = arena.nodes[1]
    assert back.strategy is not old
    assert (back.steps, arena.nodes[0].steps) == (29, 30)
    assert torch.equal(back.strategy.x, arena.nodes[0].strategy.x) or torch.equal(
        back.strategy.x, arena.nodes[2].strategy.x
    )
    assert arena.nodes[0].strategy.heard("members") == [(2,), (3,)]


def test_who_dies_on_the_way_takes_the_exchange_with_it():
    arena = watching(
        2, lambda step: [pair(step)] if step == 5 else (),
        faults=Faults(latency=4.0, outages=(Outage(1, 5.5, math.inf),)),
    )  # fmt: skip
    arena.run(20)
    assert arena.tally.exchanges == 0
    assert len(arena.nodes[0].strategy.heard("abort")) == 1


# --- bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "bytes_each"), [("RAW", 64 * 4), ("Q8B64", 66), ("Q4B64", 34)])
def test_bytes_are_those_of_the_codec_both_ways(codec, bytes_each):
    arena = still(
        PairAverage, {"every": 1}, n=2, graph="matching", numel=64, dtype=torch.float32, codec=codec
    )
    arena.run(10)
    assert arena.tally.bytes == 10 * 2 * bytes_each


def test_what_is_not_finite_is_not_sent():
    arena = still(
        PairAverage, {"every": 1}, n=2, graph="matching", dtype=torch.float32, codec="Q8B64"
    )
    arena.task.x[0, 3] = math.nan
    arena.run(1)
    assert arena.tally.exchanges == 0
    assert torch.isfinite(arena.task.x[1]).all()


# --- GROUP and LOG ------------------------------------------------------------------------


def group(round_number, **kwargs):
    return {"kind": Kind.GROUP, "round": round_number, "selector": Selector.ALL, **kwargs}


def test_a_group_has_one_mean_of_the_members_present():
    arena = watching(
        5, lambda step: [group(step)] if step % 10 == 0 else (),
        faults=Faults(outages=(Outage(4, 5, math.inf),)),
    )  # fmt: skip
    arena.run(10)
    expected = arena.x.mean(0)
    for node in arena.up:
        ((_, _, exchange),) = node.strategy.heard("apply")
        assert torch.allclose(exchange.mean["x"], expected, atol=1e-15)
        assert exchange.present == tuple(arena.ids[:4])


def test_a_group_does_not_wait_for_ever_for_a_slow_member():
    arena = watching(
        3, lambda step: [group(step // 10)] if step % 10 == 0 else (), speeds=[1, 1, 0.1]
    )
    arena.run(20)
    (first,) = arena.nodes[0].strategy.heard("apply")
    assert len(first[2].present) == 2
    arena.run(90)
    assert "the round is over" in arena.nodes[2].strategy.heard("abort")[0]


def test_groups_of_limited_size_are_means_of_their_own():
    arena = watching(8, lambda step: [group(step, group_size_max=4)])
    arena.run(1)
    assert arena.tally.exchanges == 2
    sizes = {len(node.strategy.heard("apply")[0][2].present) for node in arena.nodes}
    assert sizes == {4}


@pytest.mark.parametrize("latency", [0.0, 1.0])
def test_the_log_is_the_same_for_all(latency):
    def intents(step):
        return [{"kind": Kind.LOG, "round": step, "record": bytes([step % 256])}]

    arena = watching(
        4,
        intents,
        faults=Faults(latency=latency, outages=(Outage(2, 10, 20),)),
        speeds=[1, 1, 1, 0.7],
    )
    arena.run(40)
    logs = [node.strategy.heard("records") for node in arena.nodes]
    shortest = min(len(logs[i]) for i in (0, 1, 3))
    assert shortest > 20
    assert logs[0][:shortest] == logs[1][:shortest] == logs[3][:shortest]
    joined_at = logs[2][0][0]
    longest = max(logs, key=len)
    assert logs[2] == longest[joined_at : joined_at + len(logs[2])], "it reads on, without a gap"


# --- tasks --------------------------------------------------------------------------------


def test_gradients_of_digits_are_those_of_autograd():
    task = Digits(3, seed=1, same_init=False)
    probe = [torch.Generator().set_state(g.get_state()) for g in task._generators]
    losses, gradients = task.gradients([0, 1, 2])
    for node in range(3):
        share = task._shares[node]
        chosen = share[torch.randint(len(share), (32,), generator=probe[node])]
        x = task.x[node].clone().requires_grad_()
        out = task._forward(x[None], task._pixels[chosen][None].clone())[1][-1][0]
        loss = torch.nn.functional.cross_entropy(out, task._labels[chosen])
        (expected,) = torch.autograd.grad(loss, x)
        assert float(losses[node]) == pytest.approx(float(loss.detach()), rel=1e-5)
        torch.testing.assert_close(gradients[node], expected, atol=1e-6, rtol=1e-4)


def test_least_squares_is_at_rest_in_its_optimum():
    task = Quadratic.conditioned(4, 16.0, seed=3)
    assert task.facts.smoothness / task.facts.strong_convexity == pytest.approx(16.0)
    task.x.copy_(task.optimum)
    assert float(task.gradients(range(4))[1].sum(0).norm()) < 1e-12
    assert float(task.gradients([2])[1][0] @ task.x[2]) == pytest.approx(
        float(task.gradients(range(4))[1][2] @ task.x[2])
    )


def test_optimizers_are_those_of_torch():
    start = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(2))
    for ours, theirs in (
        (lambda x: Sgd(x, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (lambda x: Adam(x, 0.1), lambda p: torch.optim.Adam(p, 0.1, betas=(0.9, 0.99))),
    ):
        x = start.clone()
        optimizer = ours(x)
        parameter = torch.nn.Parameter(start.clone())
        reference = theirs([parameter])
        for gradient in gradients:
            x -= optimizer.steps([0, 1], gradient.clone())
            parameter.grad = gradient.clone()
            reference.step()
        torch.testing.assert_close(x, parameter.data)
