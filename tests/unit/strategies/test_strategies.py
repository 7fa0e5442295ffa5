"""The rules that make averaging safe, checked on plain vectors with no engine around them."""

import math
import random
from dataclasses import replace

import msgspec
import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Meta,
    Offer,
    Received,
    StepInfo,
    TaskFacts,
)
from swarmnode.strategies.dadao import Dadao
from swarmnode.strategies.installed import installed_strategies
from swarmnode.strategies.merging.slot import Reason
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.registry import build_strategy, find_strategy
from swarmnode.strategies.topology import build_graph, complete_mixing, graph_over
from swarmnode.tensor.layout import Layout


def nodes(n, numel=257, scale=1.0):
    generator = torch.Generator().manual_seed(7)
    made = [
        PairAverage({"every": 4}, scale * torch.randn(numel, generator=generator)) for _ in range(n)
    ]
    for strategy in made:
        strategy.start(context(IDS[:1], numel=numel))
    return made


def due(strategy, step):
    return strategy.after_step(StepInfo(step, float(step), loss=1.0, seconds=0.1))


def snapshot(strategy, step=4):
    (intent,) = due(strategy, step)
    sent = torch.empty_like(strategy.x)
    strategy.view(intent, "x", sent)
    return intent, sent


def meet(one, two, step=4):
    """Let two nodes exchange; what they do between view and apply comes in between."""
    (intent_one, sent_one), (intent_two, sent_two) = snapshot(one, step), snapshot(two, step)
    yield
    one.apply(exchange(intent_one, sent_one.clone(), sent_two.clone()))
    two.apply(exchange(intent_two, sent_two, sent_one))


def exchange(intent, sent, got):
    meta = Meta(steps=4, tokens=4, t=4.0)
    return Exchange(intent, meta, {"x": sent}, {b"p" * 32: Received({"x": got}, meta)}, 0)


def test_an_exchange_is_due_every_so_many_steps():
    strategy = nodes(1)[0]
    assert [step for step in range(1, 13) if due(strategy, step)] == [4, 8, 12]
    (intent,) = due(strategy, 8)
    assert intent.round == 2
    assert [view.numel for view in intent.views] == [257]


def test_two_nodes_meet_halfway():
    one, two = nodes(2)
    middle = (one.x + two.x) / 2
    list(meet(one, two))
    torch.testing.assert_close(one.x, middle)
    torch.testing.assert_close(two.x, middle)


def test_steps_taken_in_flight_survive_and_the_sum_is_kept():
    one, two = nodes(2)
    before = one.x.double() + two.x.double()
    drift = torch.zeros_like(before)
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        for _in_flight in meet(one, two):
            for strategy in (one, two):
                local = 0.1 * torch.randn(257, generator=generator)
                drift += (strategy.x + local).double() - strategy.x.double()
                strategy.x += local
    after = one.x.double() + two.x.double()
    assert (after - before - drift).abs().max() < 1e-5
    # Overwriting with the mean instead would have thrown the local steps away:
    assert drift.abs().max() > 0.5


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_halves_are_exact_negatives(scale):
    one, two = nodes(2, scale=scale)
    (intent, sent_one), (_, sent_two) = snapshot(one), snapshot(two)
    there = exchange(intent, sent_one.clone(), sent_two.clone()).difference("x")
    back = exchange(intent, sent_two, sent_one).difference("x")
    assert torch.equal(0.5 * there, -(0.5 * back))


def test_apply_works_in_place():
    strategy = nodes(1)[0]
    storage = strategy.x.data_ptr()
    intent, sent = snapshot(strategy)
    strategy.apply(exchange(intent, sent, sent + 1))
    assert strategy.x.data_ptr() == storage


def test_random_matchings_shrink_the_variance_as_theory_says():
    """One matching round of n = 32 leaves (n/2 − 1)/(n − 1) = 0.484 of the variance."""
    generator = torch.Generator().manual_seed(3)
    ratios = []
    for _ in range(400):
        strategies = [PairAverage({}, torch.randn(8, generator=generator)) for _ in range(32)]
        for strategy in strategies:
            strategy.start(context(IDS[:1], numel=8))
        before = spread(strategies)
        order = torch.randperm(32, generator=generator).tolist()
        for a, b in zip(order[::2], order[1::2], strict=True):
            list(meet(strategies[a], strategies[b], step=8))
        ratios.append(spread(strategies) / before)
    assert sum(ratios) / len(ratios) == pytest.approx(15 / 31, abs=0.01)


def spread(strategies):
    stacked = torch.stack([strategy.x for strategy in strategies]).double()
    return float((stacked - stacked.mean(0)).square().sum())


def test_wrong_names_and_settings_are_named():
    x = torch.zeros(2)
    assert isinstance(build_strategy("pair-average", {"every": 3}, x), PairAverage)
    with pytest.raises(ConfigError, match=r"expected a strategy among .*pair-average, .*'mean'"):
        build_strategy("mean", {}, x)
    with pytest.raises(ConfigError, match="strategy pair-average: unknown setting 'evry'"):
        build_strategy("pair-average", {"evry": 3}, x)
    with pytest.raises(ConfigError, match="setting every: expected `int` >= 1, got 0"):
        build_strategy("pair-average", {"every": 0}, x)
    with pytest.raises(ConfigError, match="setting meet: expected one of pair, group, got 'all'"):
        build_strategy("streaming", {"meet": "all"}, x)
    with pytest.raises(ConfigError, match=r"setting kept: expected one of 32, 64, 128, .*, got 65"):
        build_strategy("sparse", {"kept": 65}, x)


# --- members that come and go ---------------------------------------------------------------------

IDS = tuple(bytes([n]) * 32 for n in range(1, 9))


@pytest.mark.parametrize("name", installed_strategies())
def test_what_is_not_said_is_what_might_be_said(name):
    """A default is checked only where it is said."""
    parse = find_strategy(name).parse
    assert parse(msgspec.to_builtins(parse({}))) == parse({})


DEFAULTS = {
    "a2cid2": {"rate": 1.0, "cap": 2.0},
    "dadao": {"safety": 0.5, "guard": 0.5},
    "pair-average": {"every": 8, "rate": 0.0, "merge": "mean"},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_not_said_stays_what_it_was_in_this_version(name):
    assert msgspec.to_builtins(find_strategy(name).parse({})) == DEFAULTS[name]


@pytest.mark.parametrize("name", installed_strategies())
def test_a_snapshot_is_read_in_passing_and_a_late_partner_stands_aside_where_that_is_safe(name):
    """With settings as they are by default."""
    dtype = torch.float64 if name == "dadao" else torch.float32
    strategy = build_strategy(name, {}, torch.zeros(4096, dtype=dtype))
    read = {"diloco", "noloco", "pair-average", "streaming"}
    assert strategy.reads_in_passing == (name in read)
    assert strategy.adds_up == (name == "pair-average")


def context(members, topology="", numel=3):
    return Context(
        self_id=IDS[0],
        seed=0,
        rng=random.Random(0),
        layout=Layout.of([("x", (numel,), "float32")]),
        members=members,
        facts=TaskFacts("lsq", 0.5, 2.0),
        topology=graph_over(topology, len(members)),
    )


def test_a_pair_is_weighed_where_the_swarm_says_so_and_nowhere_else():
    nonsense = torch.full((3,), math.nan)
    for weighs, refusal in ((None, None), (True, Reason.NOT_FINITE)):
        strategy = PairAverage({"every": 4}, torch.zeros(3))
        begun = context(IDS[:2])
        strategy.start(begun if weighs is None else replace(begun, weighs=weighs))
        intent, sent = snapshot(strategy)
        assert strategy.weigh(exchange(intent, sent, nonsense)).refusal is refusal


def test_how_far_a_pair_may_be_follows_from_pairs_of_the_same_fragment():
    settings = {"meet": "pair", "every": 8, "fragments": 2, "overlap": 0, "gamma": 0.0}
    strategy = build_strategy("streaming", settings, torch.zeros(256))
    strategy.start(replace(context(IDS[:2], numel=256), weighs=True))
    still, moving = (intent for step in range(1, 9) for intent in due(strategy, step))
    assert still.fragment != moving.fragment
    generator, meta = torch.Generator().manual_seed(1), Meta(steps=8, tokens=8, t=8.0)

    def refusal(intent, peer, moved):
        numel = intent.views[0].numel
        own, theirs = (moved * torch.randn(numel, generator=generator) for _ in range(2))
        got = {peer: Received({"delta": theirs}, meta)}
        return strategy.weigh(Exchange(intent, meta, {"delta": own}, got, 0)).refusal

    assert {refusal(still, peer, 0.01) for peer in IDS[1:6]} == {None}
    assert refusal(moving, IDS[6], 1.0) is None
    assert refusal(still, IDS[7], 1.0) is Reason.DISTANCE


def test_a2cid2_tunes_itself_to_the_members_that_are_there():
    strategy = A2CiD2({"rate": 2.0}, torch.zeros(3))
    strategy.start(context(IDS[:1]))
    assert (strategy.eta, strategy.alpha_tilde) == (0.0, 0.5), "plain pair averaging, alone"
    strategy.on_membership(IDS)
    complete = build_graph("complete", len(IDS)).with_node_rate(2.0).mixing()
    assert strategy.eta == pytest.approx(1 / (2 * complete.acceleration))
    assert strategy.alpha_tilde == pytest.approx(0.5)
    strategy.start(context(IDS, "ring"))
    ring = build_graph("ring", len(IDS)).with_node_rate(2.0).mixing()
    assert strategy.alpha_tilde == pytest.approx(math.sqrt(ring.chi1 / ring.chi2) / 2)
    strategy.start(context(IDS[:3], "0-1 2-3"))
    assert (strategy.eta, strategy.alpha_tilde) == (0.0, 0.5), "the graph is in two parts"


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_what_a2cid2_lets_flow_does_not_depend_on_how_often_that_is_done(cap):
    found = []
    for times in ((1.5,), (0.25, 0.5, 1.5)):
        strategy = A2CiD2({"cap": cap}, torch.zeros(3))
        strategy.start(context(IDS, "ring"))
        strategy.x_tilde.fill_(1.0)
        for t in times:
            strategy.flow(t)
        found.append(strategy.x)
    assert 0.1 < float(found[0][0]) < 0.5
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_mixing_of_a_complete_graph_is_known_without_one(n):
    found = build_graph("complete", n).with_node_rate(1.5).mixing()
    known = complete_mixing(n, 1.5)
    assert (known.lambda2, known.chi1, known.chi2) == pytest.approx(
        (found.lambda2, found.chi1, found.chi2)
    )


def test_a_topology_over_members():
    assert graph_over("", 5) is None
    assert graph_over("matching", 5) is None
    assert graph_over("ring", 1) is None
    assert graph_over("ring", 4).edges == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert graph_over("0-1 2-1 3-7", 5).edges == ((0, 1), (1, 2)), "edges beyond them are absent"
    for bad in ("0-0", "0-1-2", "1"):
        with pytest.raises(ConfigError, match="expected an edge"):
            graph_over(bad, 5)
    with pytest.raises(ConfigError, match="expected a topology among"):
        graph_over("circle", 5)


def dadao(members, topology=""):
    strategy = Dadao({}, torch.zeros(3, dtype=torch.float64))
    strategy.start(context(members, topology))
    return strategy


def dadao_exchange(strategy, intent, got):
    meta = Meta(steps=0, tokens=0, t=0.0)
    sent = torch.zeros(3, dtype=torch.float64)
    strategy.apply(Exchange(intent, meta, {"y+z": sent}, {IDS[1]: Received({"y+z": got}, meta)}, 0))


@pytest.mark.parametrize("topology", ["", "ring"])
def test_dadao_begins_with_its_duals_anew_when_members_change(topology):
    strategy = dadao(IDS[:4], topology)
    (old,) = strategy.answers()
    dadao_exchange(strategy, old, torch.ones(3, dtype=torch.float64))
    z = strategy.buffers()["z"].clone()
    assert z.any()
    strategy.start(context(IDS[:4], topology))
    assert torch.equal(strategy.buffers()["z"], z), "the same members: nothing changed"

    if topology:
        strategy.start(context(IDS[:5], topology))
    else:
        strategy.on_membership(IDS[:5])
    assert not any(strategy.buffers()[name].any() for name in ("y", "y_tilde", "z", "z_tilde"))
    dadao_exchange(strategy, old, torch.ones(3, dtype=torch.float64))
    assert not strategy.buffers()["z"].any(), "what began before does not count after"
    (new,) = strategy.answers()
    meta = Meta(0, 0, 0.0)
    assert strategy.accept(Offer(IDS[1], new, meta)) is None
    assert strategy.accept(Offer(IDS[1], old, meta)) == "base: it knows of other members"
    later = Offer(IDS[1], replace(new, round=9), meta)
    assert strategy.accept(later) == "round: it was not there, so that epoch 10 begins"
    assert strategy.accept(later) == "round: expected epoch 10, got 9"
    assert strategy.accept(Offer(IDS[1], replace(new, round=12), meta)) is None, "it goes over"


def test_dadao_alone_takes_gradients_and_calls_no_peer():
    strategy = dadao(IDS[:1])
    assert strategy.clock_rate() == 0.0
    strategy.flow(1.0)
    strategy.local_update(torch.ones(3, dtype=torch.float64))
    assert (strategy.x < 0).all()
    strategy.on_membership(IDS[:2])
    assert strategy.clock_rate() > 0
    assert strategy.pace() == 1.0, "at full speed until exchanges fail"
