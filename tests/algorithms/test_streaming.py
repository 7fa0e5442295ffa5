"""Streaming gossip: the papers it joins are special cases, and the whole recipe learns digits."""

import math
from functools import partial

import pytest
import torch

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Exchange, Meta, Received, StepInfo, TaskFacts
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.lineage import lengthened
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.registry import check_strategy
from swarmnode.strategies.rounds import cut
from swarmnode.strategies.streaming import Streaming
from swarmnode.tensor.codec import get_codec
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.codecs import through
from swarmnode.testing.lab.faults import Cut, Faults, Outage
from tests.algorithms.outer_kit import PLAIN, SEEDS, digits

NOLOCO = {**PLAIN, "every": 10, "reference": False}
FACTS = TaskFacts("any")
PAIRS = {"meet": "pair", "every": 20}


def numel(arena):
    return arena.nodes[0].strategy.x.numel()


# --- special cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("latency", [0.0, 7.0])
def test_one_fragment_without_overlap_is_noloco_bit_for_bit(latency):
    faults = Faults(latency=latency)
    one, _ = digits(Streaming, NOLOCO, n=4, steps=60, faults=faults)
    two, _ = digits(NoLoCo, {"every": 10}, n=4, steps=60, faults=faults)
    assert one.tally.exchanges > 6
    assert torch.equal(one.task.x, two.task.x)
    for mine, theirs in zip(one.nodes, two.nodes, strict=True):
        assert torch.equal(mine.strategy.phi, theirs.strategy.phi)


def test_in_groups_it_is_diloco():
    group = {**PLAIN, "every": 10, "meet": "group", "gamma": 0.0, "nesterov": True}
    one, _ = digits(Streaming, {**group, "beta": 0.4, "momentum": 0.9}, n=4, steps=60)
    two, _ = digits(DiLoCo, {"every": 10, "lr": 0.4, "momentum": 0.9}, n=4, steps=60)
    torch.testing.assert_close(one.task.x, two.task.x, atol=2e-5, rtol=1e-4)
    assert one.tally.bytes == two.tally.bytes  # nothing but the pseudo-gradient


def test_rounds_grow_as_the_means_behind_a_lineage_do():
    steps = [lengthened(10, n_means, 20) for n_means in (0, 20, 21, 35, 100, 10**6)]
    assert steps == [10, 10, 10, 20, 10 * limits.ROUND_LONGER_MAX, 10 * limits.ROUND_LONGER_MAX]
    assert lengthened(10, 10**6, 0) == lengthened(10, 10**6, 0, 2) == 10
    by_members = [lengthened(7, 0, 49, n_members) for n_members in (0, 1, 2, 3, 4, 6, 8, 64)]
    assert by_members == [7, 7, 4, 5, 6, 6, 7, 7]  # a mean of two costs half, one of four 3/4
    # They begin to grow at the same step, and grow as far.
    assert [lengthened(7, n_means, 49, 2) for n_means in (85, 200, 10**6)] == [4, 15, 24]


def test_while_rounds_grow_fewer_bytes_are_sent_and_a_few_members_make_more_means():
    group = {"every": 4, "fragments": 1, "lengthen": 5}
    grown, _ = digits(Streaming, group, n=8, steps=120)
    same, _ = digits(Streaming, {**group, "lengthen": 0}, n=8, steps=120)
    lineages = torch.stack([node.strategy.lineage for node in grown.nodes])
    assert bool((lineages == lineages[0]).all())
    # 5 rounds of 4 steps, then each a fifth longer than all before it, of at most 24 steps.
    assert 11 <= int(lineages[0][0]) <= 15
    assert int(same.nodes[0].strategy.lineage[0]) >= 28
    assert grown.tally.bytes < 0.55 * same.tally.bytes
    few, _ = digits(Streaming, {**group, "every": 8, "lengthen": 100}, n=2, steps=120)
    assert 28 <= int(few.nodes[0].strategy.lineage[0]) <= 30  # of 4 steps


def test_streaming_diloco_is_what_the_paper_writes():
    """Against the paper's own order of things: per fragment Nesterov, tau steps later, mixing."""
    mu, lr, tau, a, every, p = 0.9, 0.4, 2, 0.5, 12, 3
    settings = {"every": every, "fragments": p, "overlap": tau, "local_share": a, "beta": lr}
    settings |= {"momentum": mu, "gamma": 0.0, "nesterov": True, "meet": "group", "delta_codec": ""}
    generator = torch.Generator().manual_seed(3)
    layout = Layout.of([("w", (64, 7), "float32"), ("b", (200,), "float32")])
    drift = torch.randn(2, 40, layout.numel, generator=generator) * 0.1
    nodes = [begin(Streaming(settings, torch.zeros(layout.numel)), layout) for _ in range(2)]
    fragments = cut(layout, p)

    theta = torch.zeros(2, layout.numel)
    phi, b = torch.zeros(layout.numel), torch.zeros(layout.numel)
    flights, mine = {}, {}
    for step in range(1, 41):
        for i, node in enumerate(nodes):
            theta[i] -= drift[i, step - 1]
            node.x.sub_(drift[i, step - 1])
        for number, fragment in enumerate(fragments):  # what is due to be merged
            if flights.get(number, (-tau,))[0] == step - tau:
                delta = flights.pop(number)[1]
                for i, span in [(i, s) for i in range(2) for s in fragment.spans]:
                    piece = slice(*span)
                    if i == 0:
                        part = delta[piece]
                        b[piece] = mu * b[piece] + part
                        phi[piece] -= lr * (part + mu * b[piece])
                    theta[i, piece] = a * theta[i, piece] + (1 - a) * phi[piece]
                meet(nodes, mine.pop(number), step_of=lambda: tau)
        for number in range(p):
            if (step - number * every // p) % every == 0:
                flights[number] = (step, (phi - theta).mean(0))
        for intents in zip(*(after(node, step) for node in nodes), strict=True):
            mine[intents[0].fragment] = view_all(nodes, intents[0])
        for i, node in enumerate(nodes):
            torch.testing.assert_close(node.x, theta[i], atol=2e-5, rtol=1e-5)
    assert phi.abs().max() > 0.5


def test_without_momentum_it_is_the_mean_of_two():
    settings = {**NOLOCO, "momentum": 0.0, "beta": 1.0, "gamma": 1.0}
    one, _ = digits(Streaming, settings, n=4, steps=60)
    two, _ = digits(PairAverage, {"every": 10}, n=4, steps=60)
    # Not the same partners: their tags differ. So one exchange of two vectors is compared instead.
    layout = Layout.of([("w", (300,), "float32")])
    generator = torch.Generator().manual_seed(1)
    xs = [torch.randn(300, generator=generator) for _ in range(2)]
    pair = [begin(Streaming(settings, torch.zeros(300)), layout) for _ in xs]
    for node, x in zip(pair, xs, strict=True):
        node.x.copy_(x)
    (intent, _) = (after(node, 10)[0] for node in pair)
    exchange_pair(pair, intent)
    for node in pair:
        torch.testing.assert_close(node.x, (xs[0] + xs[1]) / 2)
    assert two.tally.exchanges == one.tally.exchanges


def test_all_of_the_local_share_is_no_exchange():
    _, alone = digits(Streaming, {"meet": "pair", "every": 1000}, n=4, steps=100)
    _, kept = digits(
        Streaming, {**PAIRS, "every": 10, "fragments": 2, "local_share": 1.0}, n=4, steps=100
    )
    assert kept == alone


# --- a bench of a few nodes without an engine ----------------------------------------------------


def begin(node, layout):
    if isinstance(node, Streaming):
        node.fragments = cut(layout, node.config.fragments)
    return node


def after(node, step):
    return node.after_step(StepInfo(step, float(step), 0.0, 0.1))


def view_all(nodes, intent):
    views = []
    for node in nodes:
        found = {view.name: torch.empty(view.numel) for view in intent.views}
        for name, out in found.items():
            node.view(intent, name, out)
        views.append(found)
    return intent, views


def meet(nodes, viewed, step_of=lambda: 0):
    intent, views = viewed
    mean = {name: torch.stack([v[name] for v in views]).mean(0) for name in views[0]}
    for node, sent in zip(nodes, views, strict=True):
        meta = Meta(0, 0, 0.0)
        node.apply(
            Exchange(
                intent,
                meta,
                sent,
                {},
                step_of(),
                {k: v.clone() for k, v in mean.items()},
                (b"1", b"2"),
            )
        )


def exchange_pair(nodes, intent):
    meet_as_pair(nodes, view_all(nodes, intent))


def meet_as_pair(nodes, viewed):
    intent, views = viewed
    meta = Meta(0, 0, 0.0)
    for node, sent, got in zip(nodes, views, views[::-1], strict=True):
        copied = {name: tensor.clone() for name, tensor in got.items()}
        own = {name: tensor.clone() for name, tensor in sent.items()}
        node.apply(Exchange(intent, meta, own, {b"p" * 32: Received(copied, meta)}, 0))


# --- rules ---------------------------------------------------------------------------------------


def test_what_comes_late_counts_as_if_it_had_come_in_time():
    """Steps taken after tau survive whole, whichever order the engine takes step and merge in."""
    layout = Layout.of([("w", (256,), "float32")])
    settings = {**PAIRS, "fragments": 1, "momentum": 0.0, "delta_codec": ""}
    ends = []
    for late in (0, 6):
        pair = [begin(Streaming(settings, torch.zeros(256)), layout) for _ in range(2)]
        for node, value in zip(pair, (1.0, 3.0), strict=True):
            node.x.fill_(value)
        intent = after(pair[0], 20)[0]
        after(pair[1], 20)
        viewed = view_all(pair, intent)
        for step in range(21, 23 + late):
            for node in pair:
                node.x.add_(0.01)
                after(node, step)
        for node, sent, got in zip(pair, viewed[1], viewed[1][::-1], strict=True):
            meta = Meta(0, 0, 0.0)
            copied = {name: tensor.clone() for name, tensor in got.items()}
            node.apply(Exchange(intent, meta, sent, {b"p" * 32: Received(copied, meta)}, 2 + late))
        ends.append([float(node.x[0]) for node in pair])
    assert ends[1] == pytest.approx([end + 6 * 0.01 for end in ends[0]], abs=1e-5)


@pytest.mark.parametrize("codec", ["T3B320", "Q2B64", "E3M0"])
@pytest.mark.parametrize(
    ("make", "meets"),
    [
        (partial(Streaming, {**PLAIN, "every": 10, "meet": "group", "nesterov": False}), meet),
        (partial(DiLoCo, {"every": 10, "lr": 1.0, "momentum": 0.0}), meet),
        (partial(NoLoCo, {"every": 10, "beta": 1.0, "momentum": 0.0}), meet_as_pair),
    ],
    ids=["streaming", "diloco", "noloco"],
)
def test_what_a_codec_leaves_out_is_late_and_not_lost(make, meets, codec):
    """The mean of the models is what it was, however coarse what they sent of themselves is."""
    numel = 640
    layout = Layout.of([("w", (numel,), "float32")])
    generator = torch.Generator().manual_seed(7)
    nodes = [begin(make(torch.zeros(numel)), layout) for _ in range(2)]
    learnt = torch.randn(2, numel, generator=generator)
    for node, x in zip(nodes, learnt, strict=True):
        node.x.copy_(x)
    (intent, _) = (after(node, 10)[-1] for node in nodes)
    _, views = view_all(nodes, intent)
    coarse = [{**v, "delta": through(codec, v["delta"])[0]} for v in views]
    meets(nodes, (intent, coarse))
    assert (nodes[0].phi - learnt.mean(0)).abs().max() > 0.1  # as coarse as it is
    torch.testing.assert_close(nodes[0].x + nodes[1].x, learnt.sum(0), atol=1e-5, rtol=1e-5)


def test_the_pull_of_two_partners_is_exactly_antisymmetric_after_the_codecs():
    generator = torch.Generator().manual_seed(1)
    phis = [torch.randn(1000, generator=generator) for _ in range(2)]
    sent = [through("Q8B64", phi)[0] for phi in phis]
    assert torch.equal(sent[1] - sent[0], -(sent[0] - sent[1]))


def test_four_bits_for_pseudo_gradients():
    """E3M0: largest relative error, share of zeros and direction on N(0, 1); bytes exactly."""
    values = torch.randn(256 * 400, generator=torch.Generator().manual_seed(0))
    decoded, size = through("E3M0", values)
    kept = decoded != 0
    relative = ((decoded - values).abs() / values.abs())[kept]
    assert relative.max() <= 0.415
    assert 0.02 <= 1 - float(kept.float().mean()) <= 0.035
    assert torch.cosine_similarity(values, decoded, dim=0) >= 0.975
    assert size == get_codec("E3M0").payload_bytes(len(values)) == 400 * (4 + 128)


def test_fragments_share_out_the_vector_and_no_send_is_much_larger_than_another():
    layout = Layout.of([("emb", (1000, 64), "float32"), *LAYERS])
    for n in (1, 2, 4, 7, 16):
        fragments = cut(layout, n)
        spans = sorted(span for fragment in fragments for span in fragment.spans)
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == layout.numel
        assert max(f.numel for f in fragments) <= layout.numel / n * 1.15
        # Strided: each holds something of every part of the depth.
        for fragment in fragments:
            gaps = zip([0, *(end for _, end in fragment.spans)], fragment.spans, strict=False)
            assert max(begin - before for before, (begin, _) in gaps) <= layout.numel / 4


LAYERS = [
    (f"{number}.{name}", shape, "float32")
    for number in range(12)
    for name, shape in (("w", (64, 64)), ("b", (64,)))
]


def test_gather_and_add_are_each_others_reverse():
    layout = Layout.of([("w", (100, 9), "float32"), ("b", (77,), "float32")])
    flat = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    other = torch.zeros_like(flat)
    for fragment in cut(layout, 3):
        fragment.add(other, fragment.gather(flat))
    assert torch.equal(other, flat)
    for fragment in cut(layout, 3):
        fragment.add(other, fragment.gather(flat), alpha=-1.0)
    assert other.count_nonzero() == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"meet": "pair", "momentum": 0.9}, r"strategy streaming: expected gamma below 0\.38"),
        (
            {"meet": "pair", "every": 8, "fragments": 4},
            r"expected overlap below every / fragments = 2, .* got 2",
        ),
        ({"every": 2, "fragments": 4, "overlap": 0}, "at most one fragment a step"),
        ({"delta_codec": "TK4"}, "expected a codec that stands alone, .* got 'TK4'"),
        ({"weights_codec": "Q9"}, "got 'Q9'"),
        ({"gamma": 3.5}, "gamma below 2, .* over random groups"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_strategy("streaming", settings, FACTS)


def test_nodes_that_began_from_other_weights_do_not_exchange():
    one = digits(Streaming, {**PAIRS, "every": 10}, n=2, steps=0)[0]
    version = after(one.nodes[0].strategy, 10)[0].base_version
    other = digits(Streaming, {**PAIRS, "every": 10}, n=2, steps=0, seed=2)[0]
    assert after(other.nodes[0].strategy, 10)[0].base_version != version
    assert len(version) == 32


def test_in_pairs_what_is_not_said_is_what_suits_pairs():
    said = Streaming.parse({"meet": "pair"})
    assert (said.gamma, said.local_share, said.overlap, said.nesterov) == (0.7, 0.5, 2, False)
    assert Streaming.parse({"meet": "pair", "gamma": 0.5}).gamma == 0.5
    unsaid = Streaming.parse({})
    assert (unsaid.meet, unsaid.gamma, unsaid.local_share, unsaid.overlap) == ("group", 0.0, 0.0, 0)


def test_a_lone_node_trains_on_as_if_there_were_no_swarm():
    left = Faults(outages=(Outage(1, 0.5, math.inf),))
    alone, _ = digits(Streaming, {}, n=2, steps=100, faults=left)
    apart, _ = digits(Streaming, {"every": 1000}, n=2, steps=100, faults=left)
    assert alone.tally.exchanges == 0
    assert torch.equal(alone.task.x[0], apart.task.x[0])


# --- digits --------------------------------------------------------------------------------------


@pytest.mark.claim
@SEEDS
def test_the_whole_recipe_learns_digits_for_a_fifth_of_the_bytes(seed):
    arena, found = digits(Streaming, PAIRS, seed=seed)
    assert found["loss"] <= 0.17
    assert found["accuracy"] >= 0.955
    assert found["local_accuracy"] >= 0.93  # nodes that never meet know an eighth of the digits
    reference, _ = digits(NoLoCo, {"every": 20}, steps=20)
    fp32 = reference.tally.bytes * 30
    assert arena.tally.bytes <= 0.2 * fp32
    fragments = arena.nodes[0].strategy.fragments
    peak = max(
        get_codec("E3M0").payload_bytes(f.numel) + get_codec("Q8B64").payload_bytes(f.numel)
        for f in fragments
    )
    assert peak <= (0.25 + 0.03) * 8 * numel(arena) * 0.2


class Freezes(Streaming):
    """A known bad idea: only the fragment that is exchanged next is trained."""

    def after_step(self, info):
        due = super().after_step(info)
        since = info.step % self.config.every
        following = (since * len(self.fragments) // self.config.every + 1) % len(self.fragments)
        for number, fragment in enumerate(self.fragments):
            if number not in {following, *(intent.fragment for intent in due)}:
                fragment.add(self.x, fragment.gather(self.phi) - fragment.gather(self.x))
        return due


@SEEDS
def test_mutant_that_freezes_all_but_the_next_fragment_learns_worse(seed):
    """While there is something to learn: digits are learnt to the end in 600 steps either way."""
    _, trained = digits(Streaming, PAIRS, steps=100, seed=seed)
    _, frozen = digits(Freezes, PAIRS, steps=100, seed=seed)
    assert frozen["loss"] > 1.2 * trained["loss"]


def test_a_network_in_two_halves_comes_together_again():
    whole, _ = digits(Streaming, PAIRS, steps=300)
    cut_off, _ = digits(Streaming, PAIRS, steps=300, faults=Faults(cut=Cut(100, 200)))
    assert cut_off.consensus() < 2 * whole.consensus()
    assert cut_off.measure()["accuracy"] >= 0.95
