"""What a daemon says of its worker's slow weights, and when it tells it to take over others'."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmnode.daemon.exchange.intent_handlers import Lineages
from swarmnode.daemon.membership.report import PeerReport
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent, Stray

PEERS = tuple(PeerId(bytes([n]) * 32) for n in range(1, 5))


@dataclass
class World:
    """A node's lineages, and what others say."""

    said: dict[PeerId, PeerReport] = field(default_factory=dict)
    posted: list[Stray] = field(default_factory=list)
    lineages: Lineages = field(init=False)

    def __post_init__(self) -> None:
        self.lineages = Lineages(lambda: self.said, self.posted.append)

    def mean(self, count: int, value: float | None, *, branch: int = 0) -> None:
        """A round begins at a place, with a sketch of such a value."""
        hashed = (branch << 16 | count).to_bytes(8, "big")
        intent = PostedIntent(
            number=1,
            kind="group",
            tag="outer",
            fragment=0,
            round=count,
            selector="all",
            base_version=count.to_bytes(8, "big") + hashed,
            lineage=count,
            sketch=None if value is None else (value, 1.0),
        )
        self.lineages.intent_posted(intent)

    def round_of(self, count: int, value: float | None) -> None:
        """... and ends with a mean."""
        self.mean(count, value)
        self.lineages.round_ended(is_committed=True)

    def hear(self, *others: World) -> None:
        self.said = {
            peer: PeerReport(
                peer, lineage=other.lineages.text, sketches=other.lineages.sketches.said
            )
            for peer, other in zip(PEERS, others, strict=False)
        }


def at(*values: float | None) -> World:
    """Return a node that has been at places 1, 2, ... with sketches of such values."""
    world = World()
    for count, value in enumerate(values, 1):
        world.round_of(count, value)
    return world


def test_a_node_says_its_sketches_by_the_places_of_its_lineage() -> None:
    world = at(1.0, 2.0)
    assert world.lineages.text == "2:000002,000001"
    assert world.lineages.sketches.said == "000002:2,000001:1"


def test_one_that_holds_what_others_hold_goes_on() -> None:
    world = at(1.0, 2.0)
    world.hear(at(1.0, 2.0), at(1.0, 2.0, 3.0), at(1.0))
    world.round_of(3, 3.0)
    assert world.posted == []
    assert world.lineages.preferred_here() == ()


def test_one_that_holds_something_else_takes_over_what_most_hold() -> None:
    world = at(1.0, 9.0)
    world.hear(at(1.0, 2.0), at(1.0, 9.0), at(1.0, 2.0), at(1.0, 2.0))
    assert list(world.lineages.preferred()) == [PEERS[0], PEERS[2], PEERS[3]]
    world.mean(3, 9.5)
    world.lineages.round_ended(is_committed=False)
    assert world.posted == [Stray(is_here=True)]
    world.lineages.round_ended(is_committed=False)
    assert world.posted == [Stray(is_here=True)], "once a round"
    world.lineages.pulled()
    world.mean(3, 3.0)
    assert world.lineages.sketches.said == "000003:3", "what it said was of other weights"
    world.hear(at(1.0, 2.0, 3.0), at(1.0, 2.0, 3.0))
    world.lineages.round_ended(is_committed=True)
    assert world.posted == [Stray(is_here=True)]


def test_what_comes_of_no_mean_is_of_other_weights_too() -> None:
    world = at(1.0, 2.0)
    world.mean(7, 7.0)
    assert world.lineages.sketches.said == "000007:7"
    world.lineages.worker_gone()
    assert world.lineages.sketches.said == ""


def test_a_strategy_without_sketches_says_none() -> None:
    world = at(1.0, None)
    assert world.lineages.sketches.said == ""
    world.hear(at(1.0, 2.0), at(1.0, 2.0))
    assert world.lineages.preferred_here() == ()


def test_another_lineage_counts_before_other_weights_on_the_same() -> None:
    world = at(1.0, 9.0)
    others = [at(1.0, 2.0), at(1.0, 2.0)]
    strays = [World(), World(), World()]
    for stray in strays:
        stray.mean(8, 1.0, branch=5)
    world.hear(*others, *strays[:2])
    assert list(world.lineages.preferred()) == [*PEERS[:2]], "these are as many as the node's own"
    world.hear(others[0], *strays)
    assert list(world.lineages.preferred()) == [*PEERS[1:4]]
    world.round_of(3, 9.0)
    assert world.posted == [Stray()]
