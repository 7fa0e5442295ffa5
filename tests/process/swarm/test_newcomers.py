"""Twenty newcomers to five honest nodes and one that offers a model which is good for nothing.

All of them are processes that talk over TCP. The hashes of what the sixth offers are right, its
numbers are finite, and it says that it is further than all others by a million steps. A newcomer
begins once it has looked at the probe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest

from swarmnode.daemon.exchange.history import letters_of
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import Daemon, wait_until
from tests.process.life_kit import Party, interrupt, peer_of
from tests.process.swarm.hostile_party import DEADLINE_S, Setting, hostile_swarm

pytestmark = pytest.mark.slow

# Few steps a second: it is newcomers that are watched, and torch is what they load.
SETTING = Setting("pair-average", (("every", 16),), steps=500, cpu_percent=10)
NEWCOMERS, AT_ONCE = 20, 2
# A process that imports torch on a machine where none other does takes 3 s, on a busy one 40: what
# it took is printed before it is judged.
BEGINS_S = HANGS_S
# A snapshot is half a minute old, in which the swarm has learnt something.
LOSS_RATIO = 1.25
NO_PROBE = bytes(32)  # no task's: as in a swarm whose task has none


@dataclass(frozen=True)
class Newcomer:
    """How one began.

    Attributes:
        took_s: from its start, torch's import included, until it had looked at the probe.
        joined_s: until it was a member and had a model, before it imported torch.
        loss: then, as a share of what that of the honest members is on average.
        fetched, refused: models that it brought, and of those what its worker did not begin with.
    """

    took_s: float
    joined_s: float
    loss: float
    fetched: int
    refused: int


def swarm_loss(honest: Sequence[Daemon]) -> float:
    return mean(node.status()["eval_loss"] for node in honest)


def newcomers(party: Party, honest: Sequence[Daemon], names: Sequence[str]) -> list[Newcomer]:
    """Start some at once; each leaves after all of them have begun."""
    began_s = time.monotonic()
    nodes = [party.join(name, via=honest[n % len(honest)]) for n, name in enumerate(names)]
    found: dict[Daemon, tuple[float, float]] = {}
    joined_s: dict[Daemon, float] = {}

    def have_begun() -> bool:
        for node in nodes:
            status = node.status()
            if "the model is here" in node.log:
                joined_s.setdefault(node, time.monotonic() - began_s)
            if node not in found and status and status["eval_loss"] is not None:
                found[node] = time.monotonic() - began_s, status["eval_loss"]
        return len(found) == len(nodes)

    wait_until(have_begun, f"{names} have begun", DEADLINE_S)
    usual = swarm_loss(honest)
    interrupt(*nodes)
    return [
        Newcomer(
            took_s=took_s,
            joined_s=joined_s.get(node, took_s),
            loss=loss / usual,
            fetched=node.log.count("fetching the model at step"),
            refused=node.log.count("the model that was fetched is unfit"),
        )
        for node, (took_s, loss) in found.items()
    ]


def wait_for_offers(honest: Sequence[Daemon], liar: Daemon) -> None:
    """Return when all have learnt something, and see a snapshot that the liar says is furthest."""
    letters = letters_of(peer_of(liar))
    for node in honest:
        node.wait(lambda s: s["step"] >= SETTING.steps and s["eval_loss"], "steps", DEADLINE_S)

        def is_offered(node: Daemon = node) -> bool:
            offers = node.get("/overview")["snapshots"]
            return len(offers) > 1 and letters in offers[0]["holders"]

        wait_until(is_offered, "what the liar offers", DEADLINE_S)


def report(attack: str, found: Sequence[Newcomer]) -> None:
    print(
        f"\n{attack}: seconds until it had a model, until it began, loss as a share of the honest,"
    )
    print("fetched, refused")
    for each in found:
        times = f"{each.joined_s:6.1f} {each.took_s:6.1f}"
        print(f"{times} {each.loss:6.3f} {each.fetched:3} {each.refused:3}", flush=True)


def test_twenty_of_twenty_newcomers_begin_well_with_one_liar_of_six(tmp_path: Path) -> None:
    found: list[Newcomer] = []
    with hostile_swarm(tmp_path, "snapshots", SETTING) as (party, honest):
        wait_for_offers(honest, party.nodes[-1])
        for first in range(0, NEWCOMERS, AT_ONCE):
            names = [f"new{n}" for n in range(first, first + AT_ONCE)]
            found += newcomers(party, honest, names)
            report("snapshots", found[-AT_ONCE:])
    assert len(found) == NEWCOMERS
    assert max(each.took_s for each in found) < BEGINS_S
    assert max(each.loss for each in found) <= LOSS_RATIO
    assert not any(each.refused for each in found), "so far ahead counts for nothing: not fetched"


def test_without_a_public_probe_a_newcomer_begins_badly(tmp_path: Path) -> None:
    """Said to be half as far again as the swarm, which counts, and no worker can see what it is.

    So what the liar offers does harm.
    """
    with hostile_swarm(tmp_path, "snapshots-near", SETTING, probe_hash=NO_PROBE) as (party, honest):
        wait_for_offers(honest, party.nodes[-1])
        found = newcomers(party, honest, ["new0", "new1"])
    report("snapshots-near, without a probe", found)
    assert all(each.fetched == 1 and not each.refused for each in found)
    assert min(each.loss for each in found) > LOSS_RATIO
