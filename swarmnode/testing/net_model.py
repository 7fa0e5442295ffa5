"""A modelled network for the simulator: latency, loss, partitions and NATs, and profiles of runs.

Messages travel over sessions as in a real node: the first one to a peer pays for a dial of
three one-way trips, and a node behind a NAT is reached only over a session that it opened
itself. A session that was not used for ``SESSION_IDLE_S`` is closed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SESSION_IDLE_S = 120.0
_DIAL_TRIPS = 3
_NEAR_S, _FAR_S = 0.004, 0.110  # one way: the same town, the other side of the earth


@dataclass(frozen=True)
class Weather:
    """What the network does to messages.

    Attributes:
        loss: share of messages that never arrive, with their session still open.
        stall: share that comes one to four seconds late: a queue, a radio, a full core.
    """

    loss: float = 0.0
    stall: float = 0.0


CLEAR = Weather()


@dataclass(slots=True)
class Place:
    """Where a node is attached."""

    address: str
    is_nated: bool
    claims_address: bool  # whether it says, rightly or not, that it can be dialled
    x: float  # on a torus of circumference 1
    y: float
    side: int = 0  # of a partition


class NetworkModel:
    """Says whether and when a message arrives."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.weather = weather
        self._rng = rng
        self._is_split = False
        self._places: list[Place] = []
        self._random = rng.random
        self._sessions: list[dict[int, float]] = []  # smaller number: larger one: last used

    def attach(
        self, *, is_nated: bool, is_unaware: bool = False, crowd: float = 0.05
    ) -> tuple[int, Place]:
        """Attach one more node; return its number and place.

        Args:
            is_unaware: it does not know of its NAT and names an address where no node answers.
            crowd: the chance that it shares its /24 with others: machines of one provider.
        """
        rng = self._rng
        if rng.random() < crowd:
            prefix = f"198.18.{rng.randrange(16)}"
        else:
            prefix = f"{rng.randrange(11, 120)}.{rng.randrange(256)}.{rng.randrange(256)}"
        address = f"{prefix}.{rng.randrange(1, 255)}:{rng.randrange(1024, 65536)}"
        side = rng.randrange(2) if self._is_split else 0
        place = Place(
            address, is_nated, is_unaware or not is_nated, rng.random(), rng.random(), side
        )
        self._places.append(place)
        self._sessions.append({})
        return len(self._places) - 1, place

    def place(self, number: int) -> Place:
        """Return where a node is."""
        return self._places[number]

    def detach(self, number: int) -> None:
        """Close every session of a node that died."""
        self._sessions[number].clear()
        for sessions in self._sessions[:number]:
            sessions.pop(number, None)

    def split(self) -> None:
        """Cut the network into two halves; sessions between them break."""
        self._is_split = True
        for place in self._places:
            place.side = self._rng.randrange(2)
        for one, sessions in enumerate(self._sessions):
            side = self._places[one].side
            for other in [each for each in sessions if self._places[each].side != side]:
                del sessions[other]

    def heal(self) -> None:
        """Join the halves again."""
        self._is_split = False
        for place in self._places:
            place.side = 0

    def delay_s(
        self,
        source: int,
        target: int,
        now: float,
        *,
        anew: bool = False,
        by_relay: bool = False,
        is_open: bool = False,
    ) -> float | None:
        """Return how long a message takes, None if it never arrives.

        Args:
            anew: only over a session that the source dials now.
            is_open: over a session that both hold open.
            by_relay: if it cannot be dialled, a relay forwards it, which is as far again.
        """
        here, there = self._places[source], self._places[target]
        if here.side != there.side:
            return None
        if source < target:
            sessions, other = self._sessions[source], target
        else:
            sessions, other = self._sessions[target], source
        used_at = sessions.get(other)
        trip_s = self._trip_s(here, there)
        delay_s = trip_s
        if not is_open and (anew or used_at is None or now - used_at > SESSION_IDLE_S):
            if there.is_nated and not by_relay:
                return None
            delay_s += _DIAL_TRIPS * trip_s
            if there.is_nated:
                delay_s += trip_s
        sessions[other] = now + delay_s
        weather, chance = self.weather, self._random()
        if chance < weather.loss:
            return None
        if chance < weather.loss + weather.stall:
            return delay_s + self._rng.uniform(1.0, 4.0)
        return delay_s

    def close_idle(self, now: float) -> None:
        """Forget sessions that are closed by now, which bounds their number."""
        for sessions in self._sessions:
            idle = [other for other, used_at in sessions.items() if now - used_at > SESSION_IDLE_S]
            for other in idle:
                del sessions[other]

    def _trip_s(self, here: Place, there: Place) -> float:
        dx, dy = abs(here.x - there.x), abs(here.y - there.y)
        if dx > 0.5:
            dx = 1.0 - dx
        if dy > 0.5:
            dy = 1.0 - dy
        distance = dx if dx > dy else dy  # 0 to 0.5
        return (_NEAR_S + distance * 2 * (_FAR_S - _NEAR_S)) * (1.0 + 0.2 * self._random())


@dataclass(frozen=True)
class Profile:
    """What a run is like. In each, some nodes are behind NATs: they dial, and cannot be dialled.

    Attributes:
        faults_s: how long gets and faults go on.
        replaced_per_h: share of the nodes that vanish and are replaced by new ones.
        cut_s: how long the network is in two halves, from a quarter of ``faults_s`` on.
        healed_s: after that, how long until gets must work again.
        grey: share of the nodes that stop answering lookups when the faults begin.
        nated: share of nodes that cannot be dialled.
        unaware: share of those that name an address all the same; the others name none.
        members_max: the largest swarm. The cost of a run is nodes x members x time.
        membership_s: promised time until members agree after the last change.
        state_s: promised time until states are equal after the last word.
        false_deaths: promised share of probes after which live members are declared dead.
    """

    faults_s: float
    weather: Weather = CLEAR
    replaced_per_h: float = 0.0
    cut_s: float = 0.0
    healed_s: float = 60.0
    grey: float = 0.0
    nated: float = 0.2
    unaware: float = 0.2
    members_max: int = 60
    membership_s: float = 30.0
    state_s: float = 60.0
    false_deaths: float = 1.0


PROFILES = {
    "calm": Profile(600.0, false_deaths=0.001),
    # A node that vanishes must be found out first, and may be suspected for 12 to 72 seconds.
    "churn": Profile(
        3600.0, Weather(loss=0.001), replaced_per_h=0.3, members_max=30, membership_s=120.0
    ),
    "partition": Profile(600.0, cut_s=300.0, members_max=64),
    # With every tenth message lost some member is always suspected, wrongly, and refutes.
    "lossy": Profile(600.0, Weather(loss=0.1, stall=0.02), membership_s=120.0, state_s=120.0),
    "grey": Profile(600.0, grey=0.6),
}
