"""What one hostile node can do, by name, and how its parts are put in place of the product's.

================  =============================================================================
none              it behaves
sign-flip, ...    its worker lies about weights: what `swarmnode simulate --attack` has by these
                  names is stronger where it knows what honest members send; a lone node does not
shuffled-text     its worker learns that any byte follows any other
pair-STALL        it holds up pairs (``pairs.py``)
round-STALL       it holds up groups and gatherings (``rounds.py``)
round-claims      it turns updates around, and says that its own is the mean of the group
round-cuts        it tells each member of a group that all others are gone
round-cuts-late   ... in the midst of a run
round-cuts-one    ... that one is, another one for each
round-ousts       ... that two are, the same two for all
round-names-STALL it stalls, and says in time that another one is gone, which it has waited for
round-frames      it holds back its share from one, and says that this one is gone
round-slights     it holds back its share from one, and says nothing
withheld          it announces messages of a gathering and gives none
snapshots         each snapshot that it offers is turned around, and a million steps ahead
snapshots-near    ... or half as far again as the swarm is: so much counts
moments           each has moments of the optimizer that are no numbers, and is as far as that
boasts            its steps, tokens, loss and pace are beyond what any member can have done
addresses         it says that it is reached at sixteen addresses of which none is its own
================  =============================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from swarmnode.daemon.app import node, training
from swarmnode.daemon.collective import gathers, log, rounds
from swarmnode.daemon.collective.messages import GatherRounds
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.membership.swarm import Communicator
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.daemon.worker.link import StartWorker
from swarmnode.ids import PeerId
from tests.kits.hostile.lies import (
    Forge,
    LyingLink,
    Retrain,
    Stale,
    as_told,
    honest,
    huge,
    lying,
    scaled,
    shuffled_text,
    sign_flip,
)
from tests.kits.hostile.pairs import PAIR_STALLS, PairStall, StallingExchanges
from tests.kits.hostile.rounds import (
    ROUND_STALLS,
    ClaimingRuns,
    CuttingLateRuns,
    CuttingOneRuns,
    CuttingRuns,
    FramingRuns,
    NamingRuns,
    OustingRuns,
    RoundStall,
    SlightingRuns,
    StallingRuns,
    WithholdingRounds,
)
from tests.kits.hostile.snapshots import (
    boasting,
    far_ahead,
    half_as_far_again,
    no_moments,
    turned,
)

# Of the documentation's networks (RFC 5737): packets to them go nowhere.
MADE_UP_ADDRESSES = tuple(f"192.0.2.{n}:7337" for n in range(1, 17))


@dataclass(frozen=True)
class Attack:
    """What is replaced in a node.

    Attributes:
        forge: makes what its worker's views become; each node has its own.
        retrain: changes what its worker learns from.
        exchanges, runs, messages, snapshots: in place of the product's parts.
        is_boasting, spoil: see :class:`LyingLink`.
        addresses: that it tells others; empty: its own.
    """

    forge: Callable[[], Forge] = lambda: honest
    retrain: Retrain = as_told
    exchanges: type[Exchanges] = Exchanges
    runs: type[GroupRuns] = GroupRuns
    messages: type[GatherRounds] = GatherRounds
    snapshots: type[Snapshots] = Snapshots
    is_boasting: bool = False
    spoil: Callable[[Path], None] | None = None
    addresses: tuple[str, ...] = ()

    def start_worker(self, start: StartWorker) -> StartWorker:
        """Return what starts this node's workers."""
        return lying(
            start,
            lambda link: LyingLink(
                link, self.forge(), is_boasting=self.is_boasting, spoil=self.spoil
            ),
            self.retrain,
        )

    def find_addresses(self, bound: str) -> tuple[str, ...]:
        """Return where it says that it is reached, bound to an address."""
        return self.addresses or (bound,)


def _pairs(stall: PairStall) -> Attack:
    return Attack(exchanges=type("Stalling", (StallingExchanges,), {"stall": stall}))


def _naming(stall: RoundStall) -> Attack:
    return Attack(runs=type("Naming", (NamingRuns,), {"stall": stall}))


def _rounds(stall: RoundStall) -> Attack:
    return Attack(runs=type("Stalling", (StallingRuns,), {"stall": stall}))


ATTACKS: dict[str, Attack] = {
    "none": Attack(),
    "sign-flip": Attack(forge=lambda: sign_flip),
    "scaled": Attack(forge=lambda: scaled),
    "huge": Attack(forge=lambda: huge),
    "stale": Attack(forge=Stale),
    "shuffled-text": Attack(retrain=shuffled_text),
    **{f"pair-{stall}": _pairs(stall) for stall in PAIR_STALLS},
    **{f"round-{stall}": _rounds(stall) for stall in ROUND_STALLS},
    "round-claims": Attack(forge=lambda: sign_flip, runs=ClaimingRuns),
    "round-cuts": Attack(runs=CuttingRuns),
    "round-cuts-late": Attack(runs=CuttingLateRuns),
    "round-cuts-one": Attack(runs=CuttingOneRuns),
    "round-ousts": Attack(runs=OustingRuns),
    **{f"round-names-{stall}": _naming(stall) for stall in ROUND_STALLS},
    "round-frames": Attack(runs=FramingRuns),
    "round-slights": Attack(runs=SlightingRuns),
    "withheld": Attack(messages=WithholdingRounds),
    "snapshots": Attack(spoil=turned, snapshots=boasting(far_ahead)),
    "snapshots-near": Attack(spoil=turned, snapshots=boasting(half_as_far_again)),
    "moments": Attack(spoil=no_moments, snapshots=boasting(half_as_far_again)),
    "boasts": Attack(is_boasting=True),
    "addresses": Attack(addresses=MADE_UP_ADDRESSES),
}


@contextlib.contextmanager
def replaced_parts(attack: Attack, is_hostile: Callable[[PeerId], bool]) -> Iterator[None]:
    """Let nodes of this process that are put together meanwhile have an attack's parts.

    There is no other way in: which class makes a part is none of a node's arguments.
    """

    def chosen(theirs: Any, ours: Any, communicator: Any, *args: Any, **kwargs: Any) -> Any:
        make = theirs if is_hostile(communicator.self_id) else ours
        return make(communicator, *args, **kwargs)

    def chosen_runs(name: str, communicator: Communicator, *args: Any, **kwargs: Any) -> GroupRuns:
        make = attack.runs if is_hostile(communicator.self_id) else GroupRuns
        return make(name, communicator, *args, **kwargs)

    def chosen_snapshots(*, self_id: PeerId, **kwargs: Any) -> Snapshots:
        make = attack.snapshots if is_hostile(self_id) else Snapshots
        return make(self_id=self_id, **kwargs)

    replaced: list[tuple[Any, str, Any]] = [
        (node, "Snapshots", chosen_snapshots),
        (training, "Exchanges", partial(chosen, attack.exchanges, Exchanges)),
        (rounds, "GroupRuns", chosen_runs),
        (log, "GroupRuns", chosen_runs),
        (gathers, "GatherRounds", partial(chosen, attack.messages, GatherRounds)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    try:
        for module, name, part in replaced:
            setattr(module, name, part)
        yield
    finally:
        for module, name, part in before:
            setattr(module, name, part)
