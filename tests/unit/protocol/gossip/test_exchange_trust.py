"""Offers of a peer that is met in fewer rounds, or that has used up its budget."""

from __future__ import annotations

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.conduct import ConductTable
from swarmnode.protocol.gossip.events import Available, StartTransfer
from swarmnode.protocol.trust import Trust
from swarmnode.wire.exchange import gossip as wire
from tests.unit.protocol.gossip.test_exchange import (
    LARGER,
    LIMIT_S,
    NEXT,
    OFFER,
    OTHER,
    XID,
    Bench,
    busy_in,
    offer_like,
)


def test_an_offer_of_a_peer_that_is_not_met_in_this_round_is_refused_however_often_it_comes() -> (
    None
):
    asked: list[tuple[PeerId, int]] = []

    class MeetsNone(Trust):
        def admits(self, peer: PeerId, number: int, now: float) -> bool:
            asked.append((peer, number))
            return False

    conduct = ConductTable(MeetsNone(b""))
    bench = Bench(conduct=conduct)
    conduct.note_commit(OTHER, bench.now, is_quick=True)
    for xid in (XID, b"y" * 16, b"z" * 16):
        assert busy_in(bench.hear(offer_like(xid=xid))).startswith(
            "busy: it is met in fewer rounds"
        )
    assert len(set(asked)) == 1, "the round is this node's own, whatever the offer says"
    bench.now += limits.PARTNER_SLOW_S
    _, start = bench.hear(offer_like(xid=b"w" * 16))
    assert isinstance(start, StartTransfer), "there is no other"


def test_who_offers_to_us_and_whom_we_offer_to_are_there_though_nothing_comes_of_it() -> None:
    for does_offer in (True, False):
        conduct = ConductTable()
        bench = Bench(conduct=conduct)
        conduct.note_held(LARGER, limits.EXCHANGE_BUDGET_S, bench.now, is_stall=True)
        if does_offer:
            assert busy_in(bench.hear(offer_like(xid=b"o" * 16, fragment=2), peer=OTHER))
        else:
            bench.hear(wire.Busy(bench.begin(OTHER), "busy"), peer=OTHER)
            bench.feed(Available(NEXT, LIMIT_S))
        assert busy_in(bench.hear(OFFER)).startswith("busy: too many")
