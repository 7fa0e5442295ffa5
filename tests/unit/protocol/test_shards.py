"""The core of the shards, step by step, and what it reads and writes."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.shards import events
from swarmnode.protocol.shards.core import Owners, ShardCore, scores
from swarmnode.protocol.shards.words import (
    REGISTERS,
    Shard,
    read_element,
    read_progress,
    register_name,
    write_progress,
)

SEED = 11
N_SHARDS = 16
LEASE_S = int(limits.STATE_LEASE_S)
SETTLE_S = limits.SHARD_SETTLE_S
PEERS = [PeerId(hashlib.sha256(b"peer %d" % number).digest()) for number in range(6)]
ME, OTHER, THIRD = PEERS[:3]


def view(members=(ME, OTHER), claims=(), done=(), mine=()):
    """``claims``: pairs of shard and peer."""
    by_shard = {}
    for shard, peer in claims:
        by_shard[shard] = by_shard.get(shard, frozenset()) | {peer}
    return events.View(frozenset(members), by_shard, dict(done), dict(mine))


def rank(shard, peer):
    return scores(SEED, shard.epoch, peer, N_SHARDS)[shard.index], peer


class Peer:
    """A core, and what it has said and assigned."""

    def __init__(self, n_shards=N_SHARDS):
        self.core = ShardCore(ME, SEED, n_shards)
        self.now = 0.0
        self.claims, self.registers, self.assigned, self.withdrawn = {}, {}, [], []
        self.n_said = 0

    def feed(self, event):
        self.core.handle(event, self.now)
        self._drain()

    def up(self, **words):
        """Bring it to where its first two shards are being trained."""
        self.feed(events.WorkerUp())
        self.see(**words)
        self.see(**words)
        self.wait(SETTLE_S)
        return list(self.assigned)

    def see(self, claims=(), **words):
        """Show it the state with its own claims in it."""
        own = [(read_element(element), ME) for element in self.claims]
        self.feed(view(claims=[*claims, *own], **words))

    def wait(self, seconds):
        self.now += seconds
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.core.handle_deadline(self.now)
            self._drain()

    def _drain(self):
        for effect in self.core.poll_effects():
            match effect:
                case events.Say(leases, registers):
                    self.n_said += 1
                    assert all(name == "shard" for name, _ in leases)
                    self.claims |= {element: ttl for (_, element), ttl in leases.items()}
                    self.claims = {e: ttl for e, ttl in self.claims.items() if ttl}
                    self.registers |= registers
                case events.Assign(shard):
                    self.assigned.append(shard)
                case events.Withdraw(shard):
                    self.withdrawn.append(shard)


def test_two_shards_are_claimed_in_one_breath_and_trained_once_seen_for_long_enough():
    peer = Peer()
    peer.feed(events.WorkerUp())
    peer.feed(view())
    assert peer.n_said == 1
    assert list(peer.claims.values()) == [LEASE_S, LEASE_S]
    peer.wait(10 * SETTLE_S)
    assert peer.assigned == [], "no peer has seen the claims yet: the disk may be slow"
    peer.see()
    assert peer.core.next_deadline() == peer.now + SETTLE_S
    peer.wait(SETTLE_S - 0.1)
    assert peer.assigned == []
    peer.wait(0.1)
    assert [shard.element for shard in peer.assigned] == list(peer.claims)
    assert peer.core.next_deadline() is None


def test_without_a_worker_or_a_view_nothing_is_claimed():
    peer = Peer()
    peer.feed(view())
    assert not peer.claims
    peer = Peer()
    peer.feed(events.WorkerUp())
    assert not peer.claims
    peer.feed(view(members=(OTHER,)))
    assert not peer.claims, "the others do not take us for alive"


def test_the_claimed_are_those_that_we_are_preferred_for():
    peer = Peer()
    for shard in peer.up(members=PEERS):
        assert max(PEERS, key=lambda other: rank(shard, other)) == ME


def test_what_others_claim_or_have_done_is_left_to_them_and_the_dead_claim_nothing():
    wanted = Peer().up()
    peer = Peer()
    got = peer.up(claims=[(wanted[0], OTHER)], done={0: 1 << wanted[1].index})
    assert not set(got) & set(wanted)
    assert Peer().up(claims=[(wanted[0], THIRD)]) == wanted


def test_a_finished_shard_is_recorded_and_replaced_in_one_record():
    peer = Peer()
    first, second = peer.up()
    said = peer.n_said
    peer.feed(events.Finished(first))
    assert peer.n_said == said + 1
    assert peer.registers == {"shards.0": f"0:{1 << first.index:x}"}
    assert first.element not in peer.claims
    assert second.element in peer.claims
    assert len(peer.claims) == 2
    peer.feed(events.Finished(second))
    assert peer.registers == {"shards.0": f"0:{1 << first.index | 1 << second.index:x}"}


def test_a_rival_with_a_lower_score_gets_out_of_our_way():
    peer = Peer()
    ours = peer.up(members=PEERS)
    peer.see(members=PEERS, claims=[(shard, rival) for shard in ours for rival in PEERS[1:]])
    assert [shard.element for shard in ours] == list(peer.claims)
    assert peer.withdrawn == []


@pytest.mark.parametrize("rival", PEERS[1:])
def test_a_rival_with_a_higher_score_gets_the_shard_even_from_the_worker(rival):
    theirs = next(
        shard
        for shard in (Shard(0, index) for index in range(N_SHARDS))
        if rank(shard, rival) > rank(shard, ME)
    )
    done = {0: (1 << N_SHARDS) - 1 ^ 1 << theirs.index}
    peer = Peer()
    assert peer.up(members=PEERS, done=done)[0] == theirs
    peer.see(members=PEERS, done=done, claims=[(theirs, rival)])
    assert peer.withdrawn == [theirs]
    assert theirs.element not in peer.claims
    assert len(peer.claims) == 2
    assert peer.core.statistics().lost_total == 1


def test_a_rival_that_is_dead_is_none():
    peer = Peer()
    taken = peer.up(members=(ME,))
    peer.see(members=(ME,), claims=[(shard, other) for shard in taken for other in PEERS[1:]])
    assert peer.withdrawn == []


def test_a_claim_stays_whichever_member_comes():
    peer = Peer()
    before = peer.up(members=(ME,))
    peer.see(members=PEERS)
    assert [shard.element for shard in before] == list(peer.claims)


def test_a_shard_that_another_member_has_done_is_dropped():
    peer = Peer()
    first, _ = peer.up()
    peer.see(done={0: 1 << first.index})
    assert peer.withdrawn == [first]
    peer.feed(events.Finished(first))
    assert peer.registers == {"shards.0": f"0:{1 << first.index:x}"}, "trained is trained"


def test_when_nothing_is_left_the_next_epoch_begins():
    peer = Peer()
    all_done = (1 << N_SHARDS) - 1
    last = Shard(0, 5)
    got = peer.up(done={0: all_done ^ 1 << last.index})
    assert got[0] == last
    assert got[1].epoch == 1


def test_the_shards_of_a_dead_worker_begin_anew_when_it_is_back():
    peer = Peer()
    before = peer.up()
    peer.feed(events.WorkerGone())
    peer.see()
    peer.wait(100.0)
    assert peer.assigned == before
    assert len(peer.claims) == 2
    peer.feed(events.WorkerUp())
    assert peer.assigned == before + before


def test_who_rests_gives_everything_back():
    peer = Peer()
    before = peer.up()
    peer.feed(events.Rest())
    assert peer.withdrawn == before
    assert peer.claims == {}
    peer.see()
    assert peer.claims == {}
    peer.feed(events.WorkerUp())
    assert len(peer.claims) == 2


def test_what_an_earlier_life_has_done_is_said_again_and_not_trained_again():
    wanted = Peer().up()
    peer = Peer()
    bitmap = 1 << wanted[0].index
    peer.feed(view(mine={0: bitmap}, done={0: bitmap}))
    assert peer.registers == {"shards.0": f"0:{bitmap:x}"}
    assert wanted[0] not in peer.up(mine={0: bitmap}, done={0: bitmap})
    assert peer.n_said == 2


def test_registers_go_round_and_an_old_epoch_never_overwrites_a_new_one():
    peer = Peer()
    peer.feed(view())
    for epoch in range(limits.SHARD_EPOCHS_OPEN + 1):
        peer.feed(events.Finished(Shard(epoch, 3)))
    newest = limits.SHARD_EPOCHS_OPEN
    assert peer.registers[register_name(newest)] == f"{newest}:8"
    peer.feed(events.Finished(Shard(0, 4)))
    assert peer.registers[register_name(newest)] == f"{newest}:8"
    assert set(peer.registers) == set(REGISTERS)
    assert peer.core.statistics().epoch == 1
    assert peer.core.statistics().finished_total == newest + 2


def test_a_member_that_names_the_last_epoch_ends_the_sharing_and_no_more():
    peer = Peer()
    last = limits.SHARD_EPOCH_MAX
    everything = (1 << N_SHARDS) - 1
    done = dict.fromkeys(range(last - limits.SHARD_EPOCHS_OPEN + 1, last + 1), everything)
    assert peer.up(done=done) == []
    assert peer.claims == {}, "there is no epoch after the last"


@pytest.mark.parametrize("n_shards", [0, limits.SHARDS_PER_EPOCH_MAX + 1])
def test_a_number_of_shards_out_of_range_is_refused(n_shards):
    with pytest.raises(LocalProtocolError, match=f"1 to 256 shards in an epoch, got {n_shards}"):
        ShardCore(ME, SEED, n_shards)


def test_owners_that_follow_changes_are_those_of_a_fresh_start():
    followed = Owners(SEED, 3, 64)
    for members in (PEERS[:1], PEERS[:4], PEERS[2:5], PEERS, PEERS[5:]):
        followed.follow(frozenset(members))
        fresh = Owners(SEED, 3, 64)
        fresh.follow(frozenset(members))
        shares = [followed.owned_by(peer) for peer in PEERS]
        assert shares == [fresh.owned_by(peer) for peer in PEERS]
        assert sorted(itertools.chain(*shares)) == list(range(64))


def test_scores_are_those_of_the_specification():
    """The example of proto/shards.md."""
    first, second = scores(1, 2, PeerId(bytes(range(32))), 2)
    assert (f"{first:016x}", f"{second:016x}") == ("f7cd14963571ccff", "b5eae83338e78b99")


def test_words_are_read_back_and_nonsense_counts_for_nothing():
    assert read_element(Shard(7, 12).element) == Shard(7, 12)
    for text in ("", "7", "7/", "07/1", "7/01", "-1/2", "7/256", "1000000000/1", "7/1 ", "٧/1"):
        assert read_element(text) is None, text
    for epoch, bitmap in [(0, 0), (5, 1), (limits.SHARD_EPOCH_MAX, (1 << 256) - 1)]:
        assert read_progress(register_name(epoch), write_progress(epoch, bitmap)) == (epoch, bitmap)
    for text in ("", "1:", "1:0x1", "1:F", "01:f", "1:1_0", "1:" + "f" * 65, 1.0):
        assert read_progress("shards.1", text) is None, text
    assert read_progress("shards.2", "1:f") is None, "the register of another epoch"


# --- limits, to the shard, the epoch and the second ----------------------------------------------


def test_a_core_begins_with_nothing_and_counts_what_it_finishes_and_loses():
    peer = Peer()
    assert peer.core.statistics() == events.ShardStatistics(0, 0, 0, 0)
    assert peer.core.next_deadline() is None
    first, second = peer.up()
    assert peer.core.statistics() == events.ShardStatistics(0, 2, 0, 0)
    peer.feed(events.Finished(first))
    assert peer.core.statistics() == events.ShardStatistics(0, 2, 1, 0)
    peer.see(done={0: 1 << first.index | 1 << second.index})
    assert peer.core.statistics() == events.ShardStatistics(0, 2, 1, 1)
    peer.feed(events.Rest())
    assert peer.core.statistics() == events.ShardStatistics(0, 0, 1, 1), "given back, not lost"
    peer.wait(100.0)
    assert peer.core.next_deadline() is None


@pytest.mark.parametrize("index", range(4))
def test_the_one_shard_that_is_left_is_found_whichever_it_is(index):
    others = [Shard(0, other) for other in range(4) if other != index]
    done = sum(1 << shard.index for shard in others)
    for words in (
        {"claims": [(shard, OTHER) for shard in others]},
        {"done": {0: done}},
        {"mine": {0: done}},
        {"claims": [(others[0], OTHER)], "done": {0: 1 << others[1].index},
         "mine": {0: 1 << others[2].index}},
    ):  # fmt: skip
        peer = Peer(4)
        assert peer.up(**words)[0] == Shard(0, index)
        assert peer.core.statistics().lost_total == 0
        assert [read_element(element).epoch for element in peer.claims] == [0, 1]


def test_alone_a_peer_trains_one_epoch_whole_before_the_next():
    peer = Peer(3)
    peer.up(members=(ME,))
    for number in range(6):
        peer.feed(events.Finished(peer.assigned[number]))
        peer.see(members=(ME,))
        peer.wait(SETTLE_S)
    assert sorted(shard.index for shard in peer.assigned[:3]) == [0, 1, 2]
    assert [shard.epoch for shard in peer.assigned] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert len(set(peer.assigned)) == len(peer.assigned), "none twice, though no view says so"


def test_of_those_that_we_are_preferred_for_the_one_with_our_top_score_is_next():
    for epoch in (0, 1, 2):
        done = dict.fromkeys(range(epoch), (1 << N_SHARDS) - 1)
        shards = [Shard(epoch, index) for index in range(N_SHARDS)]
        ours = [s for s in shards if max(PEERS[:3], key=lambda p, s=s: rank(s, p)) == ME]
        expected = sorted(ours, key=lambda s: rank(s, ME), reverse=True)[:2]
        assert len(expected) == 2
        assert Peer().up(members=PEERS[:3], done=done) == expected


def test_where_none_of_ours_is_free_the_top_score_of_all_that_are_is_next():
    shards = [Shard(0, index) for index in range(N_SHARDS)]
    theirs = [s for s in shards if rank(s, OTHER) > rank(s, ME)]
    done = sum(1 << shard.index for shard in shards if shard not in theirs)
    expected = sorted(theirs, key=lambda s: rank(s, ME), reverse=True)[:2]
    assert Peer().up(done={0: done}) == expected


def test_a_claim_settles_from_when_it_was_first_seen_whatever_is_seen_later():
    peer = Peer()
    peer.feed(events.WorkerUp())
    peer.feed(view())
    peer.wait(1.0)
    peer.feed(view())
    assert peer.core.next_deadline() is None, "our claims are not in it"
    peer.see()
    seen_at = peer.now
    peer.wait(SETTLE_S / 2)
    peer.see()
    peer.feed(view())
    assert peer.core.next_deadline() == seen_at + SETTLE_S
    assert peer.assigned == []
    peer.now = seen_at + SETTLE_S
    peer.feed(view())
    assert len(peer.assigned) == 2
    peer.wait(SETTLE_S)
    assert len(peer.assigned) == 2, "each once"


def test_the_next_deadline_is_that_of_the_claim_that_was_seen_first():
    peer = Peer()
    first, second = peer.up()
    peer.feed(events.Finished(first))
    peer.see()
    began = peer.now
    peer.wait(SETTLE_S / 2)
    peer.feed(events.Finished(second))
    assert peer.core.next_deadline() == began + SETTLE_S
    peer.see()
    assert peer.core.next_deadline() == began + SETTLE_S
    peer.wait(SETTLE_S / 2)
    assert len(peer.assigned) == 3
    assert peer.core.next_deadline() == began + SETTLE_S * 1.5


def test_a_claim_that_is_given_back_before_it_was_assigned_takes_nothing_from_the_worker():
    peer = Peer()
    peer.feed(events.WorkerUp())
    peer.feed(view())
    peer.see()
    peer.feed(events.Rest())
    assert peer.claims == {}
    assert peer.withdrawn == []


def test_a_dead_worker_is_assigned_nothing_and_no_deadline_waits_for_it():
    peer = Peer()
    peer.feed(events.WorkerUp())
    peer.feed(view())
    peer.see()
    peer.feed(events.WorkerGone())
    assert peer.core.next_deadline() is None
    peer.now += SETTLE_S
    peer.core.handle_deadline(peer.now)
    assert peer.core.poll_effects() == []


def test_what_was_trained_without_a_claim_is_recorded_and_takes_none_back():
    peer = Peer()
    claimed = peer.up()
    free = next(Shard(0, i) for i in range(N_SHARDS) if Shard(0, i) not in claimed)
    peer.core.handle(events.Finished(free), peer.now)
    said = peer.core.poll_effects()
    assert said == [events.Say({}, {"shards.0": f"0:{1 << free.index:x}"})]
    peer.core.handle(events.Finished(free), peer.now)
    assert peer.core.poll_effects() == [], "it is said once"
    assert peer.core.statistics().finished_total == 2


def test_so_many_epochs_are_open_behind_the_newest_that_any_member_knows():
    n_open = limits.SHARD_EPOCHS_OPEN
    for newest, oldest in ((0, 0), (n_open - 1, 0), (n_open, 1), (n_open + 5, 6)):
        by_others = Peer()
        by_others.feed(view(done={newest: 1}))
        by_us = Peer()
        by_us.feed(view())
        by_us.feed(events.Finished(Shard(newest, 0)))
        for peer in (by_others, by_us):
            assert peer.core.statistics().epoch == oldest
            peer.registers.clear()
            peer.feed(events.Finished(Shard(oldest, 1)))
            assert register_name(oldest) in peer.registers, "the oldest has a register still"
            peer.registers.clear()
            if oldest:
                peer.feed(events.Finished(Shard(oldest - 1, 1)))
                assert peer.registers == {}


def test_the_last_epoch_of_all_is_trained_too():
    last = limits.SHARD_EPOCH_MAX
    everything = (1 << N_SHARDS) - 1
    done = dict.fromkeys(range(last - limits.SHARD_EPOCHS_OPEN + 1, last), everything)
    got = Peer().up(done={**done, last: everything ^ 1 << 7})
    assert got == [Shard(last, 7)]


def test_the_last_shard_of_the_largest_epoch_can_be_named():
    last = limits.SHARDS_PER_EPOCH_MAX - 1
    assert read_element(f"7/{last}") == Shard(7, last)
    assert read_element(f"7/{last + 1}") is None
    done = {0: (1 << last) - 1}
    for n_shards, expected in ((last + 1, Shard(0, last)), (1, Shard(1, 0))):
        assert Peer(n_shards).up(members=(ME,), done=done)[0] == expected
