"""Views and merges in pieces: the same bits as whole vectors, and nothing is lost in between."""

import random

import pytest
import torch

from swarmnode.strategies.base import Context, Exchange, Kind, Meta, Received, StepInfo, TaskFacts
from swarmnode.strategies.contributions import pair_shares
from swarmnode.strategies.merge import variance_corrected
from swarmnode.strategies.merging.pieces import PIECE_ELEMS, pieces
from swarmnode.strategies.pair_average import Movement
from swarmnode.strategies.registry import build_strategy
from swarmnode.strategies.rounds import Flights, Fragment
from swarmnode.tensor.layout import Layout

ME, PEER = b"a" * 32, b"b" * 32
SIZES = (PIECE_ELEMS + 40, 2 * PIECE_ELEMS + 7, 1000)  # three tensors: no piece ends with one
NUMEL = sum(SIZES)
LAYOUT = Layout.of([(f"t{i}", (numel,), "float32") for i, numel in enumerate(SIZES)])

STRATEGIES = {
    "pair": ("pair-average", {"every": 1}),
    "pair, by tensors": ("pair-average", {"every": 1, "merge": "variance-corrected"}),
    "noloco": ("noloco", {"every": 1}),
    "diloco": ("diloco", {"every": 1}),
    "streaming": ("streaming", {"every": 1, "fragments": 1, "momentum": 0.5}),
    "fragments": ("streaming", {"every": 2, "fragments": 2, "momentum": 0.5, "local_share": 0.3}),
    "in pairs": ("streaming", {"every": 8, "meet": "pair", "fragments": 2, "overlap": 0}),
    "overlap": ("streaming", {"every": 8, "meet": "pair", "fragments": 2, "overlap": 1}),
}


class Side:
    """A strategy over a vector, with a meeting that the test makes up."""

    def __init__(self, name, settings, seed=0, numel=NUMEL, layout=LAYOUT):
        self.rng = torch.Generator().manual_seed(seed)
        self.x = torch.randn(numel, generator=self.rng)
        self.strategy = build_strategy(name, settings, self.x)
        members = (ME, PEER)
        self.strategy.start(Context(ME, 0, random.Random(0), layout, members, TaskFacts("t")))
        self.steps = 0

    def step(self):
        """Take a local step; return what it makes due."""
        self.steps += 1
        self.x.add_(torch.randn(len(self.x), generator=self.rng), alpha=0.1)
        return self.strategy.after_step(StepInfo(self.steps, self.steps, 1.0, 0.1, 100))

    def intent(self):
        found = []
        while not found:
            found = self.step()
        return found[0]

    def views(self, intent):
        return {view.name: torch.full((view.numel,), torch.nan) for view in intent.views}

    def exchange(self, intent, sent):
        """Return one with a peer whose views are a little different."""
        theirs = {
            name: view + 0.1 * torch.randn(len(view), generator=self.rng)
            for name, view in sent.items()
        }
        meta = Meta(self.steps, 100, 0.0, weight=50.0)
        if intent.kind is Kind.GROUP:
            return Exchange(intent, meta, sent, {}, 0, mean=theirs, present=(ME, PEER))
        return Exchange(intent, meta, sent, {PEER: Received(theirs, meta)}, 0)

    def state(self):
        return {"x": self.x, **self.strategy.buffers()}


@pytest.mark.parametrize("name", STRATEGIES)
def test_pieces_with_nothing_in_between_are_the_whole(name):
    side = Side(*STRATEGIES[name])
    intent = side.intent()
    sent = side.views(intent)
    n_pieces = 0
    for view, out in sent.items():
        ends = list(side.strategy.viewing(intent, view, out))
        n_pieces += len(ends)
        assert ends == sorted(ends)
        assert ends[-1] == len(out)
        assert not out.isnan().any()
    exchange = side.exchange(intent, sent)
    before = {key: tensor.clone() for key, tensor in side.state().items()}
    theirs = exchange.mean or exchange.partner.views
    theirs = {name: view.clone() for name, view in theirs.items()}  # they may be overwritten
    expected = textbook(side, before, exchange, theirs)
    merging = side.strategy.applying(exchange)
    n_merged = len(list(merging))
    is_whole = STRATEGIES[name][1].get("merge") == "variance-corrected"
    assert n_pieces > 2
    assert n_merged == 0 if is_whole else n_merged > 2
    found = side.state()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
        assert not torch.equal(before[key], tensor), f"{key}: nothing happened to it"


def textbook(side, before, exchange, theirs):
    """Return x, slow weights and momentum as the module texts have them, over whole vectors."""
    strategy, intent, c = side.strategy, exchange.intent, side.strategy.config
    x = before["x"]
    if "phi" not in before:
        if c.merge == "mean":
            return {"x": x + (theirs["x"] - exchange.sent["x"]) * 0.5}
        merged = variance_corrected([exchange.sent["x"], theirs["x"]], LAYOUT)
        return {"x": x + (merged - exchange.sent["x"])}
    fragments = getattr(strategy, "fragments", ())
    spans = fragments[intent.fragment].spans if fragments else ((0, NUMEL),)
    index = torch.cat([torch.arange(begin, end) for begin, end in spans])
    name = "b" if "b" in before else "m"
    phi, m, fast = before["phi"][index], before[name][index], x[index]
    taken = fast if getattr(c, "overlap", 0) else phi - exchange.sent["delta"]
    if "b" in before:
        g = theirs["delta"]
        m = m * c.momentum + g
        phi = torch.sub(phi, torch.add(g, m, alpha=c.momentum), alpha=c.lr)
        share = 1.0
    else:
        if intent.kind is Kind.GROUP:
            g = theirs["delta"] * -c.beta
        else:
            own_share, their_share = shares(exchange)
            g = (theirs["delta"] * their_share + exchange.sent["delta"] * own_share) * -c.beta
            g = torch.add(g, theirs["phi"] - exchange.sent["phi"], alpha=c.gamma / 2)
        m = m * c.momentum + g
        nesterov = getattr(c, "nesterov", False)
        phi = phi + (torch.add(g, m, alpha=c.momentum) if nesterov else m)
        share = 1 - getattr(c, "local_share", 0.0)
    fast = torch.add(fast, phi - taken, alpha=share)
    found = {"x": x.clone(), "phi": before["phi"].clone(), name: before[name].clone()}
    for key, values in (("x", fast), ("phi", phi), (name, m)):
        found[key][index] = values
    return found


def shares(exchange):
    return pair_shares(exchange.meta.weight, exchange.partner.meta.weight)


@pytest.mark.parametrize("name", ["pair", "noloco", "diloco", "streaming", "in pairs"])
def test_what_is_learnt_between_two_pieces_survives_whole(name):
    """Nothing is pulled and no outer step taken, so of each element exactly that is left."""
    side = Side(*STRATEGIES[name])
    strategy, intent = side.strategy, side.intent()
    views = side.views(intent)
    for view, out in views.items():
        began = side.steps
        for _ in strategy.viewing(intent, view, out):
            side.step()
        assert side.steps > began + 2
    is_group = intent.kind is Kind.GROUP  # in pairs what is sent pulls, too
    sent = {view: out if is_group else torch.zeros_like(out) for view, out in views.items()}
    same = {view: torch.zeros_like(out) for view, out in views.items()}
    meta = Meta(side.steps, 100, 0.0)
    if is_group:
        exchange = Exchange(intent, meta, sent, {}, 0, mean=same, present=(ME, PEER))
    else:
        exchange = Exchange(intent, meta, sent, {PEER: Received(same, meta)}, 0)
    before, steps = side.x.clone(), side.steps
    learnt = torch.zeros(NUMEL)
    for _ in strategy.applying(exchange):
        at = side.x.clone()
        side.step()
        learnt += side.x - at
    assert side.steps > steps + 2
    phi = strategy.buffers().get("phi")
    if phi is None:
        torch.testing.assert_close(side.x, before + learnt)
        return
    own = gather_of(strategy, intent)
    share = 1 - getattr(strategy.config, "local_share", 0.0)  # θ as of its piece is φ − Δ
    expected = own(before) + share * sent["delta"] + own(learnt)
    torch.testing.assert_close(own(side.x), expected, atol=1e-5, rtol=0)


def gather_of(strategy, intent):
    """Return what takes of a vector the elements that an intent is about."""
    if strategy.name != "streaming":
        return torch.clone
    return strategy.fragments[intent.fragment].gather


def test_of_a_large_fragment_the_fast_weights_are_looked_at_over_several_steps():
    """So many as were due when the exchange came; the others count as of then."""
    numel = 20 * PIECE_ELEMS + 5
    fragment = Fragment(((3, 3 + PIECE_ELEMS // 2), (PIECE_ELEMS, numel)))
    flights, x = Flights(overlap=2), torch.zeros(numel)
    flights.begin(0, fragment, x)
    flights.note_step(1, x.fill_(1))
    assert len(flights.end(0)) == 0, "it is not due yet"

    flights.begin(0, fragment, x)  # at step 1: due at step 3
    for step in range(2, 5):
        flights.note_step(step, x.fill_(step))
    looked_at = flights.end(0)
    first = PIECE_ELEMS // 2 + 7 * PIECE_ELEMS
    assert len(looked_at) == first + 8 * PIECE_ELEMS
    assert (looked_at[:first] == 3).all()
    assert (looked_at[first:] == 4).all()

    flights.begin(0, fragment, x)
    for step in range(5, 12):
        flights.note_step(step, x.fill_(step))
    assert len(flights.end(0)) == fragment.numel
    assert len(flights.end(0)) == 0, "it is forgotten"


@pytest.mark.parametrize("name", ["diloco", "streaming"])
def test_the_next_mean_waits_until_the_last_piece_is_merged(name):
    side = Side(*STRATEGIES[name])
    strategy, intent = side.strategy, side.intent()
    sent = side.views(intent)
    for view, out in sent.items():
        strategy.view(intent, view, out)
    merging = strategy.applying(side.exchange(intent, sent))
    next(merging)
    assert side.step() == [], "its base would be slow weights of which half are of the next mean"
    assert strategy.buffers()["lineage"][0] == 0
    assert list(merging)
    assert strategy.buffers()["lineage"][0] == 1
    (following,) = side.step()
    assert following.lineage == 1


def test_a_pair_keeps_its_sum_whatever_steps_come_between_the_pieces():
    """Of each element, and the two take their pieces at different moments."""
    sides = [Side("pair-average", {"every": 1}, seed) for seed in (1, 2)]
    intents = [side.intent() for side in sides]
    sent = [side.views(intent) for side, intent in zip(sides, intents, strict=True)]
    for side, intent, views in zip(sides, intents, sent, strict=True):
        for _ in side.strategy.viewing(intent, "x", views["x"]):
            side.step()
    before = [side.x.clone() for side in sides]
    for number, side in enumerate(sides):
        theirs = Received({"x": sent[1 - number]["x"].clone()}, Meta(0, 0, 0.0))
        own = {"x": sent[number]["x"].clone()}
        side.strategy.apply(Exchange(intents[number], Meta(0, 0, 0.0), own, {PEER: theirs}, 0))
    total = [x.double() for x in before]
    torch.testing.assert_close(
        sides[0].x.double() + sides[1].x.double(), sum(total), atol=1e-6, rtol=0
    )


def test_what_comes_of_a_mean_ahead_of_time_is_kept_outside_of_the_slot():
    """The eager form needs the others' share in the next round: the slot is another's by then."""
    side = Side("diloco", {"every": 1, "eager": True})
    intent = side.intent()
    sent = side.views(intent)
    side.strategy.view(intent, "delta", sent["delta"])
    exchange = side.exchange(intent, sent)
    side.strategy.apply(exchange)
    twin = Side("diloco", {"every": 1, "eager": True})
    intent = twin.intent()
    sent = twin.views(intent)
    twin.strategy.view(intent, "delta", sent["delta"])
    twin.strategy.apply(twin.exchange(intent, sent))
    exchange.mean["delta"].fill_(1e6)  # the next exchange comes into the same memory
    side.step()
    twin.step()
    assert torch.equal(side.strategy.phi, twin.strategy.phi)


def test_an_eager_node_that_takes_over_slow_weights_adds_no_share_of_those_it_left():
    layout = Layout.of([("t", (64,), "float32")])
    side = Side("diloco", {"every": 1, "eager": True}, numel=64, layout=layout)
    strategy, intent = side.strategy, side.intent()
    sent = side.views(intent)
    strategy.view(intent, "delta", sent["delta"])
    strategy.apply(side.exchange(intent, sent))
    (question,) = strategy.answers()
    phi = torch.ones(64)
    theirs = {"phi": phi, "b": torch.zeros(64), "place": torch.tensor([5.0, 1.0, 5.0])}
    meta = Meta(side.steps, 100, 0.0)
    strategy.apply(Exchange(question, meta, {}, {PEER: Received(theirs, meta)}, 0))
    following = side.intent()
    assert following.lineage == 5
    assert torch.equal(strategy.phi, phi), "the next step is of what comes of this round"


def test_the_movement_of_a_round_is_measured_by_pieces_as_by_the_whole():
    x, whole = (torch.randn(NUMEL, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    by_pieces, at_once = Movement(), Movement()
    pulled = torch.randn(NUMEL, generator=torch.Generator().manual_seed(2))
    for movement, values in ((by_pieces, x), (at_once, whole)):
        movement.begin_round(values)
    for at in pieces(NUMEL):
        by_pieces.merge(x, at, pulled[at])
    at_once.merge(whole, slice(0, NUMEL), pulled)
    for movement, values in ((by_pieces, x), (at_once, whole)):
        values.add_(0.25)
        movement.begin_round(values)
    assert by_pieces.norm == at_once.norm
    assert by_pieces.norm == pytest.approx(0.25 * NUMEL**0.5, rel=1e-3)


def test_the_movement_of_a_small_model_is_that_of_each_of_its_parameters():
    movement, x = Movement(), torch.zeros(5)
    movement.begin_round(x)
    for number, moved in enumerate((3.0, 4.0)):
        x[number] += moved
    movement.begin_round(x)
    assert movement.norm == 5.0
