"""Matchings over many rounds: perfect, uniform, and as fast as theory says."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.matching import candidates, order

SWARM = hashlib.sha256(b"swarm").digest()


def members_of(count: int, salt: int = 0) -> list[PeerId]:
    return [PeerId(hashlib.sha256(b"%d/%d" % (salt, i)).digest()) for i in range(count)]


@given(count=st.integers(2, 40), round_number=st.integers(0, 2**40), salt=st.integers(0, 9))
def test_first_candidates_are_a_symmetric_matching(
    count: int, round_number: int, salt: int
) -> None:
    members = members_of(count, salt)
    partner = {m: candidates(m, SWARM, round_number, members)[0] for m in members}
    unmatched = [m for m in members if partner[partner[m]] != m]
    assert len(unmatched) == count % 2
    for member in members:
        chosen = candidates(member, SWARM, round_number, members)
        assert member not in chosen
        assert len(set(chosen)) == len(chosen) == min(3, count - 1)


@given(count=st.integers(1, 20), round_number=st.integers(0, 99), data=st.data())
def test_order_of_the_view_and_duplicates_do_not_matter(
    count: int, round_number: int, data: st.DataObject
) -> None:
    members = members_of(count)
    shuffled = data.draw(st.permutations(members)) + members[:3]
    assert order(SWARM, round_number, shuffled) == order(SWARM, round_number, members)
    others = [m for m in shuffled if m != members[0]]  # own id in the view or not
    assert candidates(members[0], SWARM, round_number, others, 9) == candidates(
        members[0], SWARM, round_number, shuffled, 9
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_partners_are_uniform(seed: int) -> None:
    members = members_of(16, salt=seed)
    n_rounds = 1500
    met = Counter(candidates(members[0], SWARM, r, members, 1)[0] for r in range(n_rounds))
    expected = n_rounds / 15
    chi_square = sum((met[m] - expected) ** 2 / expected for m in members[1:])
    assert chi_square < 36.1  # 14 degrees of freedom, p = 0.001


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_variance_contracts_by_theory(seed: int) -> None:
    """n = 32: the expected factor of a round is (n-2) / 2(n-1) = 0.484."""
    members = members_of(32)
    chance = np.random.default_rng(seed)
    factors = []
    for round_number in range(400):
        values = chance.standard_normal(32)
        before = values.var()
        ordered = order(SWARM, round_number, members)
        index = [members.index(m) for m in ordered]
        pairs = values[index].reshape(16, 2).mean(axis=1)
        factors.append(pairs.var() / before)
    assert 0.44 <= float(np.mean(factors)) <= 0.52
    assert float(np.mean(factors)) == pytest.approx(30 / 62, abs=0.02)
