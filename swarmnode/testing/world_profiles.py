"""Profiles of ``swarmnode simulate``: how long a run is, and what goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.testing.net_model import Weather

CLEAR = Weather()


@dataclass(frozen=True)
class Profile:
    """What a run is like. In each, some nodes are behind NATs: they dial, nobody dials them.

    Attributes:
        faults_s: how long gets and faults go on.
        replaced_per_h: share of the nodes that vanish and are replaced by new ones.
        cut_s: how long the network is in two halves, from a quarter of ``faults_s`` on.
        healed_s: after that, how long until gets must work again.
        grey: share of the nodes that stop answering lookups when the faults begin.
        nated: share of nodes that nobody can dial.
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
    # Whoever vanishes must be found out first, and may be suspected for 12 to 72 seconds.
    "churn": Profile(
        3600.0, Weather(loss=0.001), replaced_per_h=0.3, members_max=30, membership_s=120.0
    ),
    "partition": Profile(600.0, cut_s=300.0, members_max=64),
    # With every tenth message lost somebody is always being suspected, wrongly, and refutes.
    "lossy": Profile(600.0, Weather(loss=0.1, stall=0.02), membership_s=120.0, state_s=120.0),
    "grey": Profile(600.0, grey=0.6),
}
