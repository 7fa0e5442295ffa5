"""The laboratory counts the bytes of a group mean as daemons send them, and codes it alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swarmnode.ipc.records import ViewShape
from swarmnode.strategies.base import Intent, Kind, Selector, Strategy, View
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.tasks import Sgd, Walk
from tests.kits.lessor_kit import Tossed, intent
from tests.unit.daemon.collective.test_group_shell import members

NUMEL = 100_000


class Once(Strategy):
    """Sends two views of a vector once, at step 1."""

    name = "once"

    def after_step(self, info):
        views = (View("delta", "E3M0", 0, NUMEL - 1000), View("phi", "Q8B64", 0, 1000))
        if info.step != 1:
            return ()
        merge = self.merge
        return [Intent(Kind.GROUP, 1, views, tag="model", selector=Selector.ALL, merge=merge)]

    def view(self, intent, name, out):
        out.copy_(self.vector[: out.numel()] if name == "delta" else self.vector[-out.numel() :])

    def apply(self, exchange):
        self.mean = torch.cat([exchange.mean["delta"], exchange.mean["phi"]])


@pytest.mark.parametrize(
    ("n", "merge"),
    [
        *((n, "mean") for n in (2, 3, 5, 24)),
        (10, "best-of"),
        (9, "best-of"),
        (9, "trimmed-mean"),
        (9, "monna"),
        (8, "sybil-mean"),
    ],
)
async def test_laboratory_and_daemons_send_as_many_bytes_for_the_same_mean(
    autojump_clock, n: int, merge: str
) -> None:
    views = (ViewShape("delta", "E3M0", NUMEL - 1000), ViewShape("phi", "Q8B64", 1000))
    async with members(n, numel=NUMEL) as (made, all_of_them):
        for number, member in enumerate(all_of_them):
            member.node.env.rng = Tossed(0.9 * (number % 2))  # every second one is a witness
            member.groups.intent_posted(intent(views=views, merge=merge))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        sent = [member.groups.runs.sent_bytes for member in all_of_them]
        mean = all_of_them[0].mean
        vectors = [m.lessor.vector for m in sorted(all_of_them, key=lambda m: m.node.peer)]

    def make(x):
        made = Once({}, x)
        made.merge = merge
        made.vector = torch.from_numpy(vectors[len(nodes)])
        nodes.append(made)
        return made

    nodes: list[Once] = []
    task = Walk(n, NUMEL, 1, dtype=torch.float32)
    arena = Arena(task, make, seed=1, optimizer=Sgd(task.x, 0.0))
    arena.run(2)
    assert arena.tally.bytes == pytest.approx(sum(sent), rel=0.05)
    assert max(sent) <= 1.25 * sum(sent) / n, "each reduces its part"
    assert np.array_equal(nodes[0].mean.numpy(), mean)
