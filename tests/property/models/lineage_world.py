"""Many members that average round after round in one lineage, while they die and come back.

The cores are real, and so are the attempts; steps, and what a peer gives to one that is behind, are
a few lines. A round is about a second; of an enlisting run the grace is that of a daemon.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.daemon.collective.rounds import Attempts
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.testing.group_world import GroupWorld, Member
from swarmnode.wire.exchange import group as wire
from tests.kits.lessor_kit import KEY, intent

_PULL_S = 0.3
_NOTICED_S = 0.5  # all have heard of a death by then
_TRANSFER_S = 3.0
Version = tuple[int, bytes]


@dataclass
class Trainer(Member):
    """A member that wants a mean every ``period_s``."""

    version: Version = (0, b"")
    period_s: float = 1.0
    is_waiting: bool = False
    is_due: bool = False
    died_at: float = -1e9
    life: int = 0
    committed: int = 0
    aborted: int = 0
    attempts: Attempts = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.attempts = Attempts(KEY, self._intent())
        self.period_s = self.world.rng.uniform(0.85, 1.15)

    def _intent(self):
        count, hashed = self.version
        return intent(lineage=count, base_version=count.to_bytes(8, "big") + hashed)

    def train(self) -> None:
        """Be due every period, for this life."""
        life = self.life

        def due() -> None:
            if self.is_up and self.life == life:
                self.is_due = True
                self.post()
                self.world.at(self.world.now + self.period_s, due)

        self.world.at(self.world.now + self.world.rng.uniform(0, self.period_s), due)

    def post(self) -> None:
        if self.is_waiting or not self.is_due:
            return
        self.is_due, self.is_waiting = False, True
        self.attempts.post(self._intent())
        self._begin()

    def _begin(self) -> None:
        members = tuple(
            each.peer_id
            for each in self.world.members
            if each.is_up or each.died_at > self.world.now - _NOTICED_S
        )
        begin = events.Begin(
            self.attempts.gid,
            members,
            len(self.payload),
            self.weight,
            limits.GROUP_ENLIST_S_MIN,
            _TRANSFER_S,
            electorate=members,
            quorum_s=limits.GROUP_ENLIST_S_MAX,
            lineage=self.version[0],
            attempt=self.attempts.number,
        )
        self.feed(begin)

    def feed(self, event: events.Event) -> None:
        match event:
            case events.Received(peer, wire.Enlist() as call) if self.is_up:
                before = self.attempts.gid
                if self.is_enlisting and self.attempts.follow(call):
                    self.is_waiting = False  # what ends here is no failure
                    super().feed(events.Failed(before, "others are at a later attempt"))
                    self.is_waiting = True
                    self._begin()
                elif self.attempts.is_ahead_of(call):
                    self.world.send(self, peer, wire.Leave(call.gid, "behind"))
                    return
        super().feed(event)

    @property
    def is_enlisting(self) -> bool:
        run = self.core._runs.get(self.attempts.gid)
        return self.is_waiting and run is not None and not run.adopted

    def ended(self, how: events.Commit | events.Abort) -> None:
        super().ended(how)
        if how.gid != self.attempts.gid or not self.is_waiting:
            return
        self.is_waiting = False
        if isinstance(how, events.Commit):
            self.committed += 1
            self.attempts.committed()
            self.world.made.setdefault(self.version, set()).add((how.contributors, how.result))
            material = self.version[1] + b"".join(how.contributors)
            self.version = (self.version[0] + 1, hashlib.sha256(material).digest()[:8])
            self.world.at(self.world.now, self.post)
        else:
            self.aborted += 1
            self.attempts.failed()
            self.world.at(self.world.now + _PULL_S, self.pull)

    def pull(self) -> None:
        """Take over what a peer has, if it is further."""
        others = [each for each in self.world.members if each.is_up and each is not self]
        if self.is_up and others:
            given = self.world.rng.choice(others).version
            if given > self.version:
                self.version = given
                self.is_due |= not self.is_waiting
                self.post()

    def come_back(self) -> None:
        """Begin another life with what a peer has, as from its snapshot."""
        self.life += 1
        self.core = GroupCore(self.peer_id)
        self.is_up, self.is_waiting, self.is_due, self.wake_at = True, False, False, None
        self.cut_at.clear()
        self.pull()
        self.train()


class LineageWorld(GroupWorld):
    """``made``: by what a mean stands on, its contributors and its hash."""

    def __init__(self, n: int, seed: int) -> None:
        self.made: dict[Version, set[tuple[tuple[PeerId, ...], bytes]]] = {}
        super().__init__(n, seed, n_pieces=2 * n, make=Trainer)

    def train(self, rounds: int, *, deaths_per_round: float) -> None:
        """Let all train until one has ``rounds`` means behind it; members die and come back."""
        for member in self.members:
            member.train()
        while max(member.version[0] for member in self.members) < rounds:
            until = self.now + self.rng.expovariate(deaths_per_round)
            self.run(until)
            self.now = until
            victim = self.rng.choice(self.survivors)
            if len(self.survivors) > len(self.members) // 2:
                victim.died_at = self.now
                self.kill(victim)
                self.at(self.now + self.rng.uniform(1.0, 4.0), victim.come_back)

    def check_one_lineage(self) -> None:
        """No two means stand on the same, and each stands on the one before."""
        assert all(len(made) == 1 for made in self.made.values())
        counts = [count for count, _ in self.made]
        assert sorted(counts) == list(range(len(counts))), "a second branch"
