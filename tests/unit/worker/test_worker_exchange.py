"""What the worker exchanges: every message of the contract, with the daemon's side played here."""

import math

import pytest
import torch

from swarmnode import limits
from swarmnode.errors import InvariantViolation, LocalProtocolError
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Drop,
    Members,
    NoView,
    Pause,
    PostedIntent,
    Progress,
    Release,
    Resume,
    RoundSteps,
    SlotReady,
    Stop,
    TakeView,
    Weigh,
    Weighed,
)
from swarmnode.ipc.records import LogRecord, Partner, Records
from swarmnode.ipc.segment import StaleSlot
from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.base import Intent, Kind, Selector, Strategy, View
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.merging.slot import Verdict
from swarmnode.strategies.one_byte import OneByte
from swarmnode.strategies.sparse import Sparse
from swarmnode.strategies.streaming import Streaming
from swarmnode.tasks.least_squares import LeastSquares
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.tensor.codec import get_codec
from swarmnode.worker.training.clocks import CLOCK_RINGS_MAX
from tests.kits.worker_kit import DIM, ME, PEER, THIRD, XID, Rig


class Noted(Strategy):
    """Intents what the test tells it to, and notes what it is told. Payloads move no parameter."""

    name = "noted"

    def __init__(self, settings, x):
        super().__init__(settings, x)
        self.due, self.open, self.refusal, self.events = [], [], None, []

    def after_step(self, info):
        due, self.due = self.due, []
        return due

    def answers(self):
        return self.open

    def finalize(self):
        return [intent_of(tag="last")]

    def view(self, intent, name, out):
        out.copy_(self.x)

    def accept(self, offer):
        self.events.append(("accept", offer))
        return self.refusal

    def apply(self, exchange):
        self.events.append(("apply", exchange))

    def on_abort(self, intent, why):
        self.events.append(("abort", intent.tag, why))

    def on_membership(self, members):
        self.events.append(("members", members))

    def set_round_steps(self, steps):
        self.events.append(("round steps", steps))

    def of(self, kind):
        return [event[1:] for event in self.events if event[0] == kind]


def intent_of(kind=Kind.PAIR, tag="t", number=0, numel=DIM, **more):
    return Intent(kind, number, (View("x", "", 0, numel),), tag=tag, **more)


@pytest.fixture
def make_rig(tmp_path):
    """Rigs with snapshots in folders of their own, closed at the end."""
    rigs = []

    def make(*arguments, **options):
        rigs.append(Rig(tmp_path / str(len(rigs)), *arguments, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def noted(make_rig):
    return make_rig(strategy=Noted, settings={})


def lend(rig, intent=None, **about):
    """Have the strategy post an intent, and borrow for it; return the slot."""
    rig.strategy.due = [intent or intent_of()]
    rig.step()
    ready = rig.ask(rig.intent(), **about)
    assert isinstance(ready, SlotReady)
    return ready


# --- intents and views
# -----------------------------------------------------------------------------


def test_an_intent_is_posted_and_its_view_taken_only_when_asked_for(make_rig):
    rig = make_rig()
    rig.step(2)
    intent = rig.intent()
    assert (intent.kind, intent.tag, intent.round, intent.selector) == (
        "pair",
        "gossip",
        1,
        "matching",
    )
    assert (intent.step, intent.tokens, intent.numel, intent.is_open) == (2, 16, DIM, False)
    rig.step(1)
    assert rig.received(SlotReady) == []

    ready = rig.ask(intent)
    assert (ready.step, ready.tokens) == (3, 24)
    own, _ = rig.halves(ready)
    assert torch.equal(own, rig.x), "as of now, not of the intent"
    rig.step(1)
    assert not torch.equal(own, rig.x), "training goes on beside the copy"


def test_apply_adds_half_of_the_difference_to_the_parameters_as_they_are_now(make_rig):
    rig = make_rig()
    rig.step(2)
    ready = rig.ask(rig.intent())
    rig.step(1)
    before = rig.x.clone()
    own, room = rig.halves(ready)
    difference = torch.linspace(-1, 1, DIM)
    own.zero_()  # as the codec left it
    room.copy_(difference)
    rig.apply(ready)
    assert torch.equal(rig.x, before + difference / 2)
    assert rig.received(Applied) == [Applied(xid=XID, step=3, staleness_steps=1)]


def test_a_stranger_s_model_is_merged_by_the_rule_of_the_settings(make_rig):
    dim = 1024
    rig = make_rig(settings={"every": 2, "merge": "variance-corrected"}, dim=dim)
    rig.x.copy_(torch.randn(dim, generator=torch.Generator().manual_seed(1)))
    rig.step(2)
    ready = rig.ask(rig.intent())
    own, room = rig.halves(ready)
    room.copy_(torch.randn(dim, generator=torch.Generator().manual_seed(2)))
    before, target = rig.x.clone(), (own.var() + room.var()) / 2
    rig.apply(ready)
    assert float(rig.x.var()) == pytest.approx(float(target), rel=0.01)
    assert float(rig.x @ before) > 0.4 * float(before @ before)


def test_numbers_of_float64_go_through_a_slot_as_they_are(make_rig):
    rig = make_rig(task_type=LeastSquares, settings={"every": 1})
    assert rig.x.dtype == torch.float64
    rig.step()
    intent = rig.intent()
    assert [view.value_bytes for view in intent.views] == [8]
    ready = rig.ask(intent)
    own, room = rig.halves(ready)
    assert torch.equal(own, rig.x)
    room.copy_(own + 1e-13)
    before = rig.x.clone()
    rig.apply(ready)
    torch.testing.assert_close(rig.x - before, torch.full_like(before, 5e-14), rtol=0.01, atol=0)


def test_the_next_intent_of_the_same_takes_the_place_of_one_that_no_peer_came_for(noted):
    for round_number in range(3):
        noted.strategy.due = [intent_of(number=round_number), intent_of(tag="other")]
        noted.step()
    intents = noted.received(PostedIntent)
    assert len({intent.number for intent in intents}) == 6, "numbers are unique"
    assert noted.strategy.of("abort") == 2 * [
        ("t", "no peer came before the next round"),
        ("other", "no peer came before the next round"),
    ]
    assert noted.ask(intents[0]).why == "no-wish: it is over here"
    assert isinstance(noted.ask(intents[4]), SlotReady)


def test_a_dropped_intent_has_come_to_nothing_once(noted):
    noted.strategy.due = [intent_of()]
    noted.step()
    intent = noted.intent()
    noted.tell(Drop(number=intent.number, why="nobody has time"), Drop(number=99, why="never made"))
    assert isinstance(noted.ask(intent), NoView)
    noted.tell(Drop(number=intent.number, why="again"))
    assert noted.strategy.of("abort") == [("t", "nobody has time")]


def test_more_intents_than_a_daemon_holds_lose_the_oldest(noted):
    n = limits.INTENTS_MAX + 2
    noted.strategy.due = [intent_of(fragment=number) for number in range(n)]
    noted.step()
    assert noted.strategy.of("abort") == 2 * [("t", "too many intents at once")]
    intents = noted.received(PostedIntent)
    assert [isinstance(noted.ask(intent), NoView) for intent in intents[1:3]] == [True, False]


def test_a_payload_larger_than_said_is_a_bug(noted):
    noted.strategy.due = [intent_of(numel=DIM + 1)]
    with pytest.raises(InvariantViolation, match="at most payload_numel"):
        noted.step()


def test_one_slot_of_the_same_tag_and_fragment_at_a_time(noted):
    ready = lend(noted)
    noted.strategy.due = [intent_of(number=1), intent_of(fragment=1)]
    noted.step()
    same, other = noted.received(PostedIntent)
    assert noted.ask(same).why == "busy: in another exchange of the same"
    assert isinstance(noted.ask(other), SlotReady)
    assert noted.strategy.of("abort") == [("t", "busy: in another exchange of the same")]
    noted.release(ready)
    assert noted.ask(same).why.startswith("no-wish: "), "what was refused is over"


def test_where_merges_add_up_another_pair_begins_and_ends_before_one_in_doubt(make_rig):
    """What they add up to is the same in any order: the sum over all partners is kept."""
    rig = make_rig()
    lent = []
    for _ in range(2):
        rig.step(2)
        intent = rig.intent()
        assert intent.adds_up
        lent.append(rig.ask(intent))
    for ready in lent:
        own, room = rig.halves(ready)
        own.zero_()
        room.fill_(ready.step)
    before = rig.x.clone()
    for ready in reversed(lent):
        rig.apply(ready)
    assert torch.equal(rig.x, before + 4 / 2 + 2 / 2)


def test_with_all_slots_away_a_view_is_refused(noted):
    noted.strategy.due = [intent_of(fragment=n) for n in range(limits.SLOTS_PER_WORKER + 1)]
    noted.step()
    *first, last = noted.received(PostedIntent)
    slots = [noted.ask(intent) for intent in first]
    assert len({ready.slot for ready in slots}) == limits.SLOTS_PER_WORKER
    assert noted.ask(last).why == "busy: all slots are lent"
    noted.release(slots[2])
    again = lend(noted, intent_of(tag="later"))
    assert (again.slot, again.generation) == (slots[2].slot, slots[2].generation + 1)


def test_a_released_slot_is_an_aborted_exchange(noted):
    noted.release(lend(noted), why="timeout: nothing came")
    assert noted.strategy.of("abort") == [("t", "timeout: nothing came")]


def test_the_strategy_may_refuse_a_partner(noted):
    noted.strategy.due = [intent_of(number=5)]
    noted.strategy.open = [intent_of(tag="open")]
    noted.step()
    noted.loop.intents.offer_answers(noted.state)
    intent, answer = noted.received(PostedIntent)
    noted.strategy.refusal = "round: not with you"
    assert noted.ask(answer).why == "round: not with you"
    noted.strategy.events.clear()
    assert noted.ask(intent, round=7, step=70, tokens=9, weight=2.0).why == "round: not with you"
    ((offer,),) = noted.strategy.of("accept")
    assert (offer.peer, offer.intent.round, offer.intent.tag) == (PEER, 7, "t")
    assert (offer.meta.steps, offer.meta.tokens, offer.meta.weight) == (70, 9, 2.0)
    assert noted.strategy.of("abort") == [("t", "round: not with you")]
    noted.strategy.refusal = None
    assert isinstance(noted.ask(answer), SlotReady), "an answer is there for the next"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_never_lent(noted, bad):
    noted.strategy.due = [intent_of()]
    noted.step()
    intent = noted.intent()
    noted.x[0] = bad
    assert noted.ask(intent).why.startswith("local: ")
    assert noted.strategy.of("abort") == [("t", "local: the parameters are not finite")]
    noted.x[0] = 0.0
    assert isinstance(lend(noted), SlotReady), "the slot is free again"


def test_an_apply_for_a_slot_that_was_not_handed_back_changes_nothing(noted):
    ready = lend(noted)
    partner = Partner(peer=PEER, step=0, tokens=0)
    with pytest.raises(StaleSlot):
        noted.loop.obey(Apply(ready.slot, ready.generation, XID, partner))
    assert noted.strategy.of("apply") == []


@pytest.mark.parametrize(
    ("kind", "who"),
    [(Kind.PAIR, {"peer": None}), (Kind.GROUP, {}), (Kind.GROUP, {"peer": None, "present": ()})],
)
def test_an_apply_that_names_no_intent_is_refused(noted, kind, who):
    ready = lend(noted, intent_of(kind), peer=None if kind is Kind.GROUP else PEER)
    with pytest.raises(LocalProtocolError, match="expected who took part"):
        noted.apply(ready, **who)


# --- what is weighed before it counts ------------------------------------------------------------


class Probed(Synthetic):
    """Its public probe: rows of what all nodes train on, with the loss of that."""

    name = "probed"

    def public_probe(self):
        return next(self.batches(7))

    def trivial_loss(self):
        return 10.0  # the model begins at half of that


def test_what_comes_is_weighed_between_two_steps_and_the_slot_stays_the_daemons(make_rig):
    rig = make_rig(task_type=Probed, has_public_probe=True)
    rig.step(2)
    for better, refusal in ((False, ""), (False, "distance"), (True, "")):
        ready = rig.ask(rig.intent())
        own, room = rig.halves(ready)
        step = (0.01 if better else -1.0) * (rig.state.task.optimum() - own)
        room.copy_(own + step)
        before = rig.x.clone()
        assert rig.weigh(ready).refusal == refusal
        assert torch.equal(rig.x, before), "nothing has been merged yet"
        rig.halves(ready)  # raises StaleSlot if it is not the daemon's
        if refusal:
            rig.release(ready, f"local: refused: {refusal}")
        else:
            rig.apply(ready)
            taken = step / 2 if better else torch.zeros_like(step)
            assert torch.allclose(rig.x, before + taken)
        rig.step(2)
    assert rig.strategy.guard.totals.refused == {"distance": 1}


def test_models_that_began_apart_are_merged_though_the_first_mean_is_worse(make_rig):
    """They are far from each other and their mean is no model yet, which a guard takes for harm."""
    taken = {}
    for merge in ("variance-corrected", "mean"):
        settings = {"every": 2, "merge": merge}
        rig = make_rig(task_type=Probed, has_public_probe=True, settings=settings)
        rig.step(2)
        ready = rig.ask(rig.intent())
        own, room = rig.halves(ready)
        room.copy_(own - 3.0 * (rig.state.task.optimum() - own))
        before = rig.x.clone()
        assert not rig.weigh(ready).refusal
        rig.apply(ready)
        taken[merge] = not torch.equal(rig.x, before)
    assert taken == {"variance-corrected": True, "mean": False}


def test_a_slot_that_is_given_back_before_it_is_weighed_is_no_bug(noted):
    ready = lend(noted)
    weigh = Weigh(ready.slot, ready.generation, Partner(peer=PEER, step=0, tokens=0))
    noted.tell(weigh, Release(ready.slot, ready.generation, "aborted"))
    assert noted.received(Weighed) == [Weighed(ready.slot, ready.generation)]
    assert noted.strategy.of("abort") == [("t", "aborted")]


def test_no_more_of_what_came_counts_than_the_verdict_says(noted):
    noted.strategy.weigh = lambda _exchange: Verdict(share=0.25)
    ready = lend(noted)
    own, room = noted.halves(ready)
    room.copy_(own + 4.0)
    assert noted.weigh(ready).refusal == ""
    noted.apply(ready)
    ((exchange,),) = noted.strategy.of("apply")
    assert torch.allclose(exchange.partner.views["x"], exchange.sent["x"] + 1.0)


def test_a_convex_task_is_averaged_exactly_and_weighs_nothing(make_rig):
    rig = make_rig(task_type=LeastSquares, dim=4)
    assert rig.strategy.guard is None


def test_a_banned_peer_is_refused_before_a_slot_is_lent(make_rig):
    rig = make_rig()
    rig.step(2)
    for _ in range(3):
        ready = rig.ask(rig.intent())
        rig.halves(ready)[1].fill_(math.nan)
        assert rig.weigh(ready).refusal == "not-finite"
        rig.release(ready)
        rig.step(2)
    assert rig.ask(rig.intent()).why.startswith("other: banned")


# --- when an exchange is merged -------------------------------------------------------------------


def test_an_exchange_is_held_back_until_its_steps_are_taken(noted):
    ready = lend(noted, intent_of(apply_after_steps=3))
    noted.step()
    noted.apply(ready)
    noted.strategy.due = [intent_of(number=1)]
    noted.step()
    assert noted.strategy.of("apply") == []
    assert noted.ask(noted.intent()).why.startswith("busy: "), "it is still out"
    noted.step()
    ((exchange,),) = noted.strategy.of("apply")
    assert exchange.steps_since == 3
    assert noted.received(Applied) == [Applied(xid=XID, step=4, staleness_steps=3)]


def test_late_enough_it_is_merged_at_once(noted):
    ready = lend(noted, intent_of(apply_after_steps=3))
    noted.step(4)
    noted.apply(ready)
    assert noted.received(Applied) == [Applied(xid=XID, step=5, staleness_steps=4)]


def test_a_pause_merges_what_is_held(noted):
    ready, other = lend(noted, intent_of(apply_after_steps=9)), lend(noted, intent_of(tag="other"))
    noted.apply(ready)
    noted.tell(Pause())
    assert [applied.step for applied in noted.received(Applied)] == [2]
    noted.apply(other, xid=b"y" * 16)
    assert [applied.xid for applied in noted.received(Applied)] == [b"y" * 16], "at once"
    noted.tell(Resume())


@pytest.mark.parametrize("end", ["stop", "death"])
def test_the_end_merges_what_is_held_before_it_saves(make_rig, end):
    rig = make_rig(
        strategy=Streaming, settings={"meet": "pair", "every": 8, "overlap": 4, "fragments": 1}
    )
    rig.step(8)
    ready = rig.ask(rig.intent())
    rig.halves(ready)[1].fill_(0.5)
    rig.apply(ready)
    assert rig.received(Applied) == []
    before = rig.x.clone()
    if end == "stop":
        rig.send(Stop())
    else:
        rig.socket.close()
    rig.loop.run(shard_seed=1)
    assert not torch.equal(rig.x, before)
    restored = rig.store.paths()[0]
    assert restored.name == "snapshot-000000000008.safetensors"
    rig.store.restore(rig.state, rig.strategy)
    assert rig.strategy.m.abs().max() > 0, "the snapshot holds it"


def test_the_last_step_merges_what_is_held_and_makes_the_last_intents(make_rig):
    rig = make_rig(steps_max=2, strategy=Noted, settings={})
    ready = lend(rig, intent_of(apply_after_steps=9))
    rig.apply(ready)
    rig.step()
    assert rig.loop.finished
    assert len(rig.strategy.of("apply")) == 1
    (last,) = rig.received(PostedIntent)
    assert last.tag == "last"
    assert isinstance(rig.ask(last), SlotReady)


# --- answers, PULL, GROUP -------------------------------------------------------------------------


def test_answers_are_offered_first_and_serve_every_caller(noted):
    noted.strategy.open = [intent_of(selector=Selector.NEIGHBOUR)]
    noted.send(Stop())
    noted.loop.run(shard_seed=1)
    (answer,) = noted.received(PostedIntent)
    assert answer.is_open
    for number, peer in enumerate((PEER, THIRD)):
        noted.loop.stopping = False
        ready = noted.ask(answer, peer=peer, round=7 + number, base_version=b"theirs")
        noted.apply(ready, peer=peer)
        (exchange,) = noted.strategy.of("apply")[-1]
        assert (exchange.intent.round, exchange.intent.base_version) == (7 + number, b"theirs")
        assert list(exchange.got) == [peer]


def test_an_answer_that_changes_with_the_members_is_offered_again(noted):
    noted.strategy.open = [
        intent_of(base_version=b"one"),
        intent_of(Kind.PULL, base_version=b"one"),
    ]
    noted.loop.intents.offer_answers(noted.state)
    noted.strategy.open = [
        intent_of(base_version=b"two"),
        intent_of(Kind.PULL, base_version=b"two"),
    ]
    noted.tell(Members(members=(ME, PEER)))
    pair, pull, again = noted.received(PostedIntent)
    assert (pair.kind, pull.kind, again.kind) == ("pair", "pull", "pair")
    assert again.base_version == b"two"


def diloco(make_rig):
    rig = make_rig(strategy=DiLoCo, settings={"every": 4})
    rig.loop.intents.offer_answers(rig.state)
    (answer,) = rig.received(PostedIntent)
    return rig, answer


def test_who_missed_a_round_pulls_what_a_peer_gives(make_rig):
    behind, _ = diloco(make_rig)
    ahead, answer = diloco(make_rig)
    ahead.strategy.phi += 1.0
    ahead.strategy.lineage += torch.tensor([3.0, 77.0])
    ahead.strategy.rounds.catch_up(5)
    behind.step(4)
    behind.tell(Drop(number=behind.intent().number, why="timeout: nobody came"))
    behind.step()
    pull = behind.intent()
    assert (pull.kind, pull.tag, pull.is_open) == ("pull", "catch-up", False)
    assert answer.numel == pull.numel == 2 * DIM + 3

    takes = behind.ask(pull)
    gives = ahead.ask(answer, peer=ME, base_version=pull.base_version, round=pull.round)
    own, _ = ahead.halves(gives)
    assert torch.equal(own[:DIM], ahead.strategy.phi)
    before = behind.x - behind.strategy.phi
    behind.halves(takes)[1].copy_(own)
    ahead.release(gives, why="")
    behind.apply(takes)
    assert torch.equal(behind.strategy.phi, ahead.strategy.phi)
    torch.testing.assert_close(behind.x - behind.strategy.phi, before, msg="its own steps are kept")
    assert behind.strategy.lineage.tolist() == [3.0, 77.0]
    assert behind.strategy.rounds.number == 5


def test_giving_is_no_hindrance_and_its_end_no_abort(noted):
    noted.strategy.open = [intent_of(Kind.PULL)]
    noted.loop.intents.offer_answers(noted.state)
    answer = noted.intent()
    gives = noted.ask(answer)
    assert noted.ask(answer, peer=THIRD).why.startswith("busy: "), "one reader at a time"
    takes = lend(noted, intent_of(Kind.PULL))
    assert noted.strategy.of("accept") == [noted.strategy.events[0][1:]], "only the giver is asked"
    noted.release(gives, why="")
    noted.apply(takes)
    ((exchange,),) = noted.strategy.of("apply")
    assert dict(exchange.sent) == {}
    assert noted.strategy.of("abort") == []


def test_a_group_brings_the_mean_of_the_members_present(noted):
    ready = lend(noted, intent_of(Kind.GROUP, selector=Selector.ALL, weight=3.0), peer=None)
    own, room = noted.halves(ready)
    own.fill_(1.0)
    room.fill_(2.0)
    noted.apply(ready, peer=None, present=(ME, PEER, THIRD))
    ((exchange,),) = noted.strategy.of("apply")
    assert exchange.present == (ME, PEER, THIRD)
    assert exchange.meta.weight == 3.0
    assert exchange.mean["x"].tolist() == [2.0] * DIM
    assert exchange.sent["x"].tolist() == [1.0] * DIM
    assert dict(exchange.got) == {}
    assert noted.strategy.of("accept") == []


def test_a_gathering_brings_the_messages_of_the_members_present(make_rig):
    rig = make_rig(strategy=Sparse, settings={"every": 2, "kept": 64})
    rig.step(2)
    intent = next(each for each in rig.received(PostedIntent) if each.kind == "gather")
    ready = rig.ask(intent, peer=None)
    own, room = rig.halves(ready)
    codec = get_codec("TK2")
    payloads = []
    for sign in (1.0, -1.0, 1.0):
        payload = bytearray(codec.payload_bytes(DIM))
        codec.encode((own[:DIM] * sign).numpy(), payload)
        payloads.append(bytes(payload))
    coded = b"".join(payloads)
    memoryview(room.numpy()).cast("B")[: len(coded)] = coded
    codec.decode(payloads[0], own[:DIM].numpy())
    sent, phi = own[:DIM].clone(), rig.strategy.phi.clone()
    rig.apply(ready, peer=None, present=(ME, PEER, THIRD))
    torch.testing.assert_close(rig.strategy.phi, phi - 2.0 * sent / 3, atol=1e-6, rtol=1e-5)
    assert rig.strategy.lineage[0] == 1


def test_the_public_probe_says_what_parameters_are_worth_and_changes_nothing(make_rig):
    rig = make_rig(task_type=Probed, has_public_probe=True)
    before, worth = rig.x.clone(), rig.state.probe_loss()
    probe = rig.strategy.ctx.probe
    assert probe(rig.x) == probe(rig.x.clone()) == worth
    assert probe(rig.x + 1.0) != worth
    assert torch.equal(rig.x, before)
    assert make_rig().strategy.ctx.probe is None, "a swarm without one, or another one"


def test_several_views_lie_one_after_the_other(make_rig):
    rig = make_rig(
        strategy=Streaming, settings={"meet": "pair", "every": 8, "fragments": 2, "overlap": 0}
    )
    rig.strategy.phi += 3.0
    rig.step(8)
    intent = rig.intent()
    assert [(view.name, view.codec, view.numel) for view in intent.views] == [
        ("delta", "E3M0", DIM),
        ("phi", "Q8B64", DIM),
    ]
    own, _ = rig.halves(rig.ask(intent))
    assert torch.equal(own[:DIM], rig.strategy.phi - rig.x)
    assert torch.equal(own[DIM : 2 * DIM], torch.full((DIM,), 3.0))


# --- the log --------------------------------------------------------------------------------------


def one_byte(make_rig):
    return make_rig(strategy=OneByte, settings={"lr": 0.05})


def test_records_are_applied_in_order_and_once(make_rig):
    first, second = one_byte(make_rig), one_byte(make_rig)
    rounds = []
    for number in range(3):
        first.step()
        intent = first.intent()
        assert (intent.kind, intent.round, len(intent.record), intent.views) == (
            "log",
            number,
            1,
            (),
        )
        records = (LogRecord(author=ME, payload=intent.record, round=intent.round),)
        rounds.append(Records(round=number, records=records, digest=bytes([number]) * 32))
        first.tell(rounds[-1])
    second.tell(rounds[1], rounds[0], rounds[0], rounds[2], rounds[1])
    assert first.strategy.log_round() == 3
    assert second.strategy.log_round() == 2, "a round out of turn was ignored"
    assert second.state.log_head == bytes([1]) * 32
    second.tell(rounds[2])
    assert torch.equal(first.x, second.x), "the same bits"


def test_a_round_that_is_open_is_measured_once_and_records_are_no_abort(make_rig):
    rig = one_byte(make_rig)
    before = rig.x.clone()
    rig.step(3)
    assert torch.equal(rig.x, before), "no optimizer, no gradient"
    assert all(parameter.grad is None for parameter in rig.state.model.parameters())
    assert len(rig.received(PostedIntent)) == 1
    assert rig.state.step == 3


# --- the swarm ------------------------------------------------------------------------------------


def test_members_and_round_steps_reach_the_strategy(noted):
    members = Members(members=(ME, PEER))
    noted.tell(Members(members=(ME,)), members, members, RoundSteps(steps=12))
    assert noted.strategy.of("members") == [((ME, PEER),)], "no news are none"
    assert noted.strategy.of("round steps") == [(12,)]


def test_a_topology_is_laid_over_the_members_as_they_come(make_rig):
    rig = make_rig(strategy=A2CiD2, settings={}, topology="ring")
    assert (rig.strategy.eta, rig.strategy.alpha_tilde) == (0.0, 0.5), "alone"
    members = tuple(bytes([n]) * 32 for n in range(1, 17))
    rig.tell(Members(members=members))
    assert rig.strategy.ctx.members == members
    assert rig.strategy.ctx.topology.neighbours(0) == {1: 1.0, 15: 1.0}
    assert rig.strategy.alpha_tilde > 1.5, "a ring is accelerated"


def test_figures_of_the_strategy_are_finite_and_few(noted):
    figures = {f"figure{n:02}": float(n) for n in range(40)} | {"figure03": math.nan}
    noted.strategy.metrics = lambda: figures
    noted.loop.reporter._figures = noted.strategy.metrics
    noted.send(Stop())
    noted.loop.run(shard_seed=1)
    (progress,) = noted.received(Progress)
    assert len(progress.strategy) == limits.STRATEGY_FIGURES_MAX
    assert "figure03" not in progress.strategy


# --- clocks ---------------------------------------------------------------------------------------


def test_a2cid2_by_its_clock_keeps_the_sum_of_both_vectors(make_rig):
    """Two nodes with noisy gradients: Σ (x + x̃) moves by 2 Σ v and by nothing else."""
    one, two = (make_rig(strategy=A2CiD2, settings={"rate": 1.0}) for _ in range(2))
    for rig in (one, two):
        rig.tell(Members(members=(ME, PEER)))
        rig.loop.intents.offer_answers(rig.state)
    two.step(3)  # the nodes differ
    answer = two.received(PostedIntent)[-1]
    start = sum((r.x + r.strategy.x_tilde).double() for r in (one, two))
    learnt = torch.zeros(DIM, dtype=torch.float64)
    rings = 0
    for _ in range(400):
        for rig in (one, two):
            before = (rig.x + rig.strategy.x_tilde).double()
            rig.step()
            learnt += (rig.x + rig.strategy.x_tilde).double() - before
        one.loop.ring_clock()
        for intent in one.received(PostedIntent):
            if not intent.is_open:
                rings += 1
                swap(one, one.ask(intent), two, two.ask(answer, peer=ME))
    end = sum((r.x + r.strategy.x_tilde).double() for r in (one, two))
    assert (end - start - learnt).abs().max() < 1e-4
    assert 160 < rings < 240, "a clock of half the rate; a partner's gives the other half"
    assert one.loop.clocks.t == 400
    assert one.strategy.metrics()["exchange_rate_ratio"] == rings / 400
    assert (one.x - two.x).norm() < 0.2


def swap(one, first, two, second):
    (own, room), (their, their_room) = one.halves(first), two.halves(second)
    room.copy_(their)
    their_room.copy_(own)
    one.apply(first)
    two.apply(second, peer=ME)


def test_rings_are_made_up_for_when_the_intent_before_has_begun(make_rig):
    rig = make_rig(strategy=A2CiD2, settings={"rate": 64.0})
    rig.step()
    assert rig.loop.clocks.rings == CLOCK_RINGS_MAX
    for _ in range(3):
        rig.loop.ring_clock()
    intent = rig.intent()
    assert rig.loop.clocks.rings == CLOCK_RINGS_MAX - 1, "one waits at a time"
    rig.tell(Drop(number=intent.number, why="busy"))
    rig.loop.ring_clock()
    assert rig.intent().number > intent.number


def test_a_view_is_asked_for_by_a_message_that_survives_the_wire(noted):
    noted.strategy.due = [intent_of()]
    noted.step()
    noted.tell(TakeView(ticket=7, number=noted.intent().number))
    (ready,) = noted.received(SlotReady)
    assert (ready.ticket, noted.strategy.of("accept")) == (7, []), "for a group it is not asked"
