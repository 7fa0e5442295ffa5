"""Which members average in groups, and by which weights, without asking any of them.

Source of the grids: M. Ryabinin, E. Gorbunov, V. Plokhotnyuk, G. Pekhimenko, "Moshpit SGD", 2021.
Deviation: a grid there is exact when n is a power of the group's size; the weights here make it
exact for any n.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import matching

GROUP_SIZE_MAX = (
    limits.FINALIZE_GROUP_MEMBERS_MAX // 2
)  # a line may be one longer than others: see grid


@dataclass(frozen=True)
class Group:
    """Members that average by these weights."""

    members: tuple[PeerId, ...]
    weights: tuple[float, ...]


def weights_of(
    contributors: Sequence[PeerId], agreed: Mapping[PeerId, float], told: Mapping[PeerId, float]
) -> tuple[float, ...]:
    """Return what each counts: as all knew ``agreed`` beforehand, if so, else as they have told."""
    if agreed:
        return tuple(agreed[peer] for peer in contributors)
    return fair_weights([told[peer] for peer in contributors])


def fair_weights(
    claimed: Sequence[float],
    *,
    most: float = limits.GROUP_WEIGHT_MEDIANS_MAX,
    least: float = limits.GROUP_WEIGHT_MEDIANS_MIN,
) -> tuple[float, ...]:
    """Return what weights that members claim count, in units of their median.

    None counts for more than ``most``: as long as fewer than half of them lie, the median lies
    between honest weights, whatever the others say. None counts for less than ``least``. Those
    between keep their ratios. Of an even number the lower one in the middle is the median.

    ``claimed``: one or more, above 0.
    """
    median = sorted(claimed)[(len(claimed) - 1) // 2]
    return tuple(max(least, min(weight / median, most)) for weight in claimed)


def seats(members: Iterable[PeerId], n_seats: int) -> tuple[PeerId, ...]:
    """Return the members that take part where not all can: the same in every round, in id order.

    Slices of the round's order would each close their own round: a lineage each, for good.
    """
    return tuple(sorted(members)[:n_seats])


def grid(
    salt: bytes,
    members: Iterable[PeerId],
    size: int,
    weights: Mapping[PeerId, float] | None = None,
) -> tuple[tuple[Group, ...], ...]:
    """Return the groups of each round after which all members hold the exact mean over all.

    Members lie in lines of at most ``size``, and lines in a grid with sides of ``size``. In the
    first round each line averages, in each later one all lines along one axis of the grid. Where
    lines are not equally long, two members of a longer one stand in one group, with half of its
    weight each, so a group has up to 2 ``size`` members. Rounds: log n / log size, rounded up.

    ``weights``: of the members in the mean, above 0; None: all the same.

    Raises:
        ConfigError: ``size`` is not 2 to GROUP_SIZE_MAX.
    """
    if not 2 <= size <= GROUP_SIZE_MAX:
        raise ConfigError(f"expected groups of 2 to {GROUP_SIZE_MAX}, got {size}")
    ordered = matching.order(salt, 0, members)
    n_lines, axes = 1, 0
    while n_lines * size < len(ordered):
        n_lines, axes = n_lines * size, axes + 1
    lines = [tuple(ordered[number::n_lines]) for number in range(n_lines)]
    own = {peer: 1.0 if weights is None else weights[peer] for peer in ordered}
    first = tuple(Group(line, tuple(own[peer] for peer in line)) for line in lines)
    masses = [sum(own[peer] for peer in line) for line in lines]
    return (first, *(_along(lines, masses, size, axis) for axis in range(axes)))


def _along(
    lines: list[tuple[PeerId, ...]], masses: list[float], size: int, axis: int
) -> tuple[Group, ...]:
    """Return the groups of the lines that differ in their place along one axis only.

    ``masses``: the weight of all members of each line together.
    """
    stride = size**axis
    n_rows = min(len(line) for line in lines)
    groups = []
    for begin in range(len(lines)):
        if begin // stride % size:
            continue
        peers = [begin + step * stride for step in range(size)]
        # What a line holds by now is the mean of its whole block along the axes before.
        weights = [
            sum(masses[other] for other in range(len(lines)) if other // stride == p // stride)
            for p in peers
        ]
        for row in range(n_rows):
            members: list[PeerId] = []
            shares: list[float] = []
            for line, weight in zip(peers, weights, strict=True):
                standing = lines[line][row::n_rows]
                members += standing
                shares += [weight / len(standing)] * len(standing)
            groups.append(Group(tuple(members), tuple(shares)))
    return tuple(groups)
