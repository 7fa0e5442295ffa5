"""Whoever dies, and whenever: the others finish, with the same bits, and those are the mean."""

import random

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError, RemoteProtocolError
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GROUP_OUTCOMES_MAX, GROUP_RUNS_MAX, GroupCore
from swarmnode.protocol.gossip.group_events import Phase
from swarmnode.protocol.gossip.group_run import Run
from swarmnode.testing.group_world import GID, GroupWorld
from swarmnode.wire.exchange import group as wire


def survive(n, seed, *, has_witnesses=False, **kwargs):
    world = GroupWorld(n, seed, **kwargs)
    world.has_witnesses = has_witnesses
    world.begin()
    world.run()
    world.check()
    return world


def test_without_deaths_every_member_has_the_weighted_mean_of_all_after_a_few_trips():
    for n in (2, 3, 4, 8, 16):
        world = survive(n, 1, n_pieces=16)
        assert all(len(m.outcome.contributors) == n for m in world.members)
        assert max(m.ended_at for m in world.members) < 1.0  # one trip takes up to 0.1 s
        # A scattered and gathered mean: at most two vectors each way, however many members.
        assert sum(m.numbers_sent for m in world.members) == 2 * 16 * (n - 1)


@pytest.mark.parametrize("has_witnesses", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_one_may_die_before_any_event(n, has_witnesses):
    """With witnesses a sum that came while the view changed ended a node."""
    quiet = survive(n, 0, has_witnesses=has_witnesses)
    slowest = 0.0
    for number in range(quiet.events + 2):
        for victim in range(n):
            world = survive(n, 0, deaths=[(number, victim)], has_witnesses=has_witnesses)
            if len(world.survivors) > 1:
                ended = max(m.ended_at for m in world.survivors)
                slowest = max(slowest, ended - world.died_at)
    assert slowest < 2.0  # s, of which up to 0.3 until the death is noticed


def test_several_may_die_at_any_moment():
    rng = random.Random(5)
    finished = 0
    for seed in range(300):
        n = rng.randrange(3, 9)
        victims = rng.sample(range(n), rng.randrange(1, n - 1))
        deaths = [(rng.randrange(150), victim) for victim in victims]
        world = survive(n, seed, deaths=deaths, has_witnesses=bool(seed % 2))
        finished += any(isinstance(m.outcome, events.Commit) for m in world.survivors)
    assert finished == 300


def test_deaths_and_lost_messages_together():
    rng = random.Random(6)
    for seed in range(100):
        world = GroupWorld(5, seed, deaths=[(rng.randrange(150), rng.randrange(5))])
        drop_control_messages(world, 0.05)
        world.begin()
        world.run()
        world.check()


def drop_control_messages(world, share):
    """Lose messages, but no payload: a payload goes over a stream, which tells when it breaks."""
    send = world.send

    def lossy(source, target, message, payload=()):
        is_bulk = isinstance(message, wire.Share | wire.Sum)
        # A Leave is the one message that no member repeats; without it the other side waits longer.
        if is_bulk or isinstance(message, wire.Leave) or world.rng.random() >= share:
            send(source, target, message, payload)

    world.send = lossy


def test_a_late_member_is_waited_for_and_one_that_never_comes_is_not():
    world = GroupWorld(4, 3)
    world.begin(at=lambda number: 2.0 * (number == 3))
    world.run()
    world.check()
    assert all(len(m.outcome.contributors) == 4 for m in world.members)

    world = GroupWorld(4, 3)
    world.begin(at=lambda number: 9.0 * (number == 3))
    world.run()
    assert [isinstance(m.outcome, events.Commit) for m in world.members] == [True] * 3 + [False]
    assert not world.members[3].outcome.in_doubt
    assert all(len(m.outcome.contributors) == 3 for m in world.members[:3])


def test_members_that_do_not_know_of_all_others_meet_in_what_they_have_in_common():
    world = GroupWorld(5, 4)
    world.begin(members=lambda number, ids: ids[:4] if number == 0 else ids)
    world.run()
    committed = [m for m in world.members if isinstance(m.outcome, events.Commit)]
    assert len({m.outcome.result for m in committed}) == 1
    assert len(committed) >= 3  # the two that do not know each other may both be left out
    assert not any(m.outcome.in_doubt for m in world.members if m not in committed)


@pytest.mark.parametrize("seed", range(40))
def test_who_cannot_reach_one_another_never_apply_two_means_of_one_plan(seed):
    world = GroupWorld(4, seed)
    world.begin()
    rng = random.Random(seed)
    one, two = rng.sample(range(4), 2)
    world.at(rng.uniform(0, 0.6), lambda: world.cut(one, two))
    world.run()
    assert all(m.outcomes == 1 for m in world.members)
    by_plan = {}
    for m in world.members:
        if isinstance(m.outcome, events.Commit):
            by_plan.setdefault(m.outcome.plan, set()).add(m.outcome.result)
            world.check_mean(m)
    assert all(len(results) == 1 for results in by_plan.values())
    assert by_plan, "the three that still reach each other, or two of them, finish"


def test_a_network_in_two_halves_ends_with_a_mean_in_each():
    world = GroupWorld(4, 1)
    world.begin()
    for one in (0, 1):
        for two in (2, 3):
            world.at(0.12, lambda one=one, two=two: world.cut(one, two))
    world.run()
    assert all(isinstance(m.outcome, events.Commit) for m in world.members)
    assert world.members[0].outcome.result == world.members[1].outcome.result
    assert world.members[2].outcome.result == world.members[3].outcome.result


# --- known bugs, which the deaths above must find -----------------------------------------------


def deaths_find_it(n=4):
    quiet = survive(n, 0)
    for number in range(quiet.events + 2):
        for victim in range(n):
            try:
                survive(n, 0, deaths=[(number, victim)])
            except AssertionError:
                return True
    return False


def test_canary_finishing_before_all_are_prepared_is_found(monkeypatch):
    def hasty(self, now):
        plan = self._plan
        if plan is not None and plan.is_prepared and self.phase is Phase.RUN:
            self._end(events.Commit(self.gid, plan.plan, plan.contributors, plan.result, 0.0))

    monkeypatch.setattr(Run, "_finish_if_all_are_prepared", hasty)
    assert deaths_find_it()


def test_canary_a_plan_that_forgets_what_was_prepared_is_found(monkeypatch):
    adopt = Run._adopt

    def forgetful(self, view, now):
        if self._plan is not None:
            self._plan.is_prepared = False
        adopt(self, view, now)

    monkeypatch.setattr(Run, "_adopt", forgetful)
    assert deaths_find_it()


def test_canary_going_on_before_all_have_agreed_on_the_view_is_found(monkeypatch):
    adopt = Run._adopt

    def impatient(self, view, now):
        adopt(self, view, now)
        if self.phase is Phase.FLUSH and len(self.adopted) > 1:
            self._flushes = {peer: self._flushes.get(peer, ()) for peer in self.view}
            self._agree(now)

    monkeypatch.setattr(Run, "_adopt", impatient)
    assert deaths_find_it()


# --- rules -----------------------------------------------------------------------------------


def begin_pair(n_pieces=4):
    world = GroupWorld(2, 0, n_pieces=n_pieces)
    world.begin()
    return world, world.members[0], world.members[1]


def test_hashes_that_differ_are_not_applied_anywhere():
    world, _, _ = begin_pair()
    send = world.send

    def corrupt(source, target, message, payload=()):
        wrong = tuple(value + 1e-3 * isinstance(message, wire.Sum) for value in payload)
        send(source, target, message, wrong)

    world.send = corrupt
    world.run()
    for member in world.members:
        assert isinstance(member.outcome, events.Abort)
        assert member.outcome.why.startswith("the hashes of the mean differ") or (
            member.outcome.why == "no other member is left"
        )


def test_a_member_that_fails_leaves_the_others_to_it():
    world = GroupWorld(4, 2)
    world.begin()
    world.at(0.25, lambda: world.members[1].feed(events.Failed(GID, "not finite")))
    world.run()
    assert world.members[1].outcome.why == "local: not finite"
    others = [m for m in world.members if m is not world.members[1]]
    assert len({m.outcome.result for m in others}) == 1


def test_no_other_member_there():
    core = GroupCore(GroupWorld(1, 0).members[0].peer_id)
    core.handle(events.Begin(GID, (), 4, 1.0, 5.0, 5.0), 0.0)
    (abort,) = core.poll_effects()
    assert (abort.why, abort.in_doubt) == ("no other member is there", False)
    assert core.statistics().aborted_total == {"no other member is there": 1}
    # No member was told anything yet: it may begin again. A run of which a view was told may not.
    assert core.may_begin(GID)
    world = survive(2, 1)
    core = world.members[0].core
    assert not core.may_begin(GID)
    with pytest.raises(LocalProtocolError, match="begins once"):
        core.handle(events.Begin(GID, (), 4, 1.0, 5.0, 5.0), 0.0)


def test_pieces_out_of_range_change_nothing():
    world, one, two = begin_pair()
    world.run(until=0.3)
    with pytest.raises(RemoteProtocolError, match="expected pieces below 4, got 9"):
        one.core.handle(events.Received(two.peer_id, wire.Share(gid=GID, piece=9, weight=1.0)), 0.3)


def test_a_payload_that_broke_off_costs_its_own_run_only():
    ids = [m.peer_id for m in GroupWorld(2, 0).members]
    core = GroupCore(ids[0])
    for gid in (GID, b"2" * 16):
        core.handle(events.Begin(gid, tuple(ids), 4, 1.0, 5.0, 5.0), 0.0)
    core.handle(events.PeerLost(ids[1], GID), 1.0)
    assert core.statistics().running == 1


def test_only_what_was_asked_for_is_taken():
    world, one, two = begin_pair()
    world.run(until=0.05)
    plan = events.plan_id(GID, (one.peer_id, two.peer_id))
    share = wire.Share(gid=GID, piece=0, weight=1.0, plan=plan)
    assert not one.core.expects(two.peer_id, share)
    one.core.handle(events.Received(two.peer_id, share), 0.05)
    assert not any(isinstance(e, events.KeepShare) for e in one.core.poll_effects())
    taken = set()
    settle = one.settle

    def watch():
        for p in range(4):
            if one.core.expects(two.peer_id, wire.Share(GID, p, 1.0, plan)):
                taken.add(p)
            assert not one.core.expects(two.peer_id, wire.Share(GID, p, 1.0, bytes(16)))
            assert not one.core.expects(two.peer_id, wire.Share(GID, p, 1.0))
        settle()

    one.settle = watch
    world.run()
    world.check()
    assert taken == {sorted(world.by_id).index(one.peer_id)}
    assert not one.core.expects(two.peer_id, share), "it is over"


# --- weights -----------------------------------------------------------------------------------


def mean_by(world, weights):
    """Return the mean of each piece over all members by these weights."""
    return [
        sum(w * m.payload[piece] for w, m in zip(weights, world.members, strict=True))
        / sum(weights)
        for piece in range(len(world.members[0].payload))
    ]


def test_who_claims_a_huge_weight_does_not_replace_the_mean():
    world = GroupWorld(5, 1)
    for number, member in enumerate(world.members):
        member.weight = 1e18 if number == 2 else 1.0
    world.begin()
    world.run()
    counted = [1.0, 1.0, limits.GROUP_WEIGHT_MEDIANS_MAX, 1.0, 1.0]
    for member in world.members:
        assert member.mean == pytest.approx(mean_by(world, counted), rel=1e-12)
    # The members that are left after a death have another median: the bound is theirs.
    world = GroupWorld(5, 2, deaths=[(40, 0)])
    for member, weight in zip(world.members, [1.0, 1.0, 2.0, 2.0, 1e18], strict=True):
        member.weight = weight
    world.begin()
    world.run()
    assert len(world.survivors[0].outcome.contributors) == 4
    counted = [0.0, 1.0, 2.0, 2.0, 2 * limits.GROUP_WEIGHT_MEDIANS_MAX]
    assert world.survivors[0].mean == pytest.approx(mean_by(world, counted), rel=1e-12)


def test_who_had_time_for_less_counts_for_less():
    world = GroupWorld(5, 1)
    weights = [400.0, 100.0, 400.0, 200.0, 400.0]
    for member, weight in zip(world.members, weights, strict=True):
        member.weight = weight
    world.begin()
    world.run()
    world.check()
    for member in world.members:
        assert member.mean == pytest.approx(mean_by(world, weights), rel=1e-12)


def test_where_all_know_the_weights_no_member_can_say_otherwise():
    world = GroupWorld(3, 1)
    ids, agreed = tuple(m.peer_id for m in world.members), (1.0, 100.0, 3.0)
    for number, member in enumerate(world.members):
        claim = 1e18 if number == 2 else agreed[number]
        event = events.Begin(GID, ids, len(member.payload), claim, 5.0, 3.0, weights=agreed)
        world.at(0.0, lambda member=member, event=event: member.feed(event))
    world.run()
    for member in world.members:
        assert member.mean == pytest.approx(mean_by(world, agreed), rel=1e-12)
    with pytest.raises(LocalProtocolError, match="out of its limits"):
        world.members[0].core.handle(
            events.Begin(b"2" * 16, ids, 4, 1.0, 5.0, 3.0, weights=agreed[:2]), 9.0
        )


# --- electorates -------------------------------------------------------------------------------


def begin_with_electorate(world, electorate):
    ids = tuple(m.peer_id for m in world.members)
    for m in world.members:
        event = events.Begin(GID, ids, len(m.payload), m.weight, 5.0, 3.0, electorate)
        world.at(0.0, lambda m=m, event=event: m.feed(event))


@pytest.mark.parametrize("seed", range(60))
def test_with_an_electorate_only_one_part_of_a_network_can_finish(seed):
    rng = random.Random(seed)
    n = rng.randrange(2, 7)
    world = GroupWorld(n, seed)
    ids = sorted(world.by_id)
    begin_with_electorate(world, tuple(ids))
    side = set(rng.sample(range(n), rng.randrange(1, n)))
    cut_at = rng.uniform(0, 0.8)
    for one in side:
        for two in set(range(n)) - side:
            world.at(cut_at, lambda one=one, two=two: world.cut(one, two))
    world.run()
    assert all(m.outcomes == 1 for m in world.members)
    committed = [m for m in world.members if isinstance(m.outcome, events.Commit)]
    assert len({m.outcome.result for m in committed}) <= 1
    sides = ({world.members[i].peer_id for i in side}, {world.members[i].peer_id for i in range(n)})
    strong = max((sides[0], sides[1] - sides[0]), key=lambda s: (2 * len(s), ids[0] in s))
    reachable = [m for m in committed if m.peer_id in strong]
    assert reachable == [m for m in world.members if m.peer_id in strong] or len(strong) == 1


def test_half_of_an_electorate_finishes_if_it_has_the_smallest_id():
    for has_smallest in (True, False):
        world = GroupWorld(4, 1)
        ordered = sorted(world.members, key=lambda m: m.peer_id)
        begin_with_electorate(world, tuple(m.peer_id for m in ordered))
        gone = ordered[2:] if has_smallest else ordered[:2]
        world._deaths = [(30, world.members.index(m)) for m in gone]
        world.run()
        kinds = {type(m.outcome) for m in world.survivors}
        assert kinds == ({events.Commit} if has_smallest else {events.Abort})


def test_runs_are_bounded_and_outcomes_are_forgotten():
    ids = [m.peer_id for m in GroupWorld(2, 0).members]
    core = GroupCore(ids[0])
    for number in range(GROUP_RUNS_MAX):
        core.handle(events.Begin(bytes([number] * 16), tuple(ids), 4, 1.0, 5.0, 5.0), 0.0)
    with pytest.raises(LocalProtocolError, match="at most 8 group means"):
        core.handle(events.Begin(bytes([99] * 16), tuple(ids), 4, 1.0, 5.0, 5.0), 0.0)
    core.handle(events.PeerLost(ids[1]), 1.0)
    assert core.statistics().running == 0
    for number in range(2 * GROUP_OUTCOMES_MAX):
        gid = (1000 + number).to_bytes(16, "big")
        core.handle(events.Begin(gid, tuple(ids), 4, 1.0, 5.0, 5.0), 2.0)
        core.handle(events.Received(ids[1], wire.Enlist(gid, wants_answer=False)), 2.0)
        core.handle(events.PeerLost(ids[1]), 2.0)
    assert core.statistics().outcomes_kept == GROUP_OUTCOMES_MAX


def test_a_member_that_still_asks_is_told_the_outcome():
    world = survive(3, 7)
    one, two, _ = world.members
    flush = wire.Flush(GID, view=(one.peer_id, two.peer_id), prepared=())
    one.core.handle(events.Received(two.peer_id, flush), 300.0)
    (answer,) = one.core.poll_effects()
    assert answer.message == wire.Finished(GID, one.outcome.plan, one.outcome.result)
