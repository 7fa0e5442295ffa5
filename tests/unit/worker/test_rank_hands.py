"""What one rank has of a model, and the vector that is looked after."""

from types import SimpleNamespace

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.worker.ranks.hands import PartArena, rows_of
from swarmnode.worker.ranks.team import check_device


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("length", range(10))
def test_rows_are_shared_out_as_torch_does(length, size):
    tensor = torch.arange(length)
    expected = [*torch.chunk(tensor, size), *[tensor[:0]] * size][:size]
    found = [tensor[slice(*rows_of(length, rank, size))] for rank in range(size)]
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@pytest.fixture
def looked_at():
    """Return the arena of a model of six numbers, its room, and the times it was pulled."""
    room, asked = torch.zeros(6), []
    model = torch.nn.Linear(3, 2, bias=False)

    def pull():
        asked.append(1)
        room.fill_(7.0)

    arena = PartArena(model, SimpleNamespace(room=room), pull)
    return arena, room, asked


def test_what_says_nothing_of_its_numbers_brings_none(looked_at):
    arena, _, asked = looked_at
    flat = arena.flat
    assert (flat.shape, flat.dtype, flat.device) == ((6,), torch.float32, torch.device("cpu"))
    assert (flat.numel(), flat.element_size(), arena.numel) == (6, 4, 6)
    assert not asked


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.clone(),
        lambda x: x[2:4],
        lambda x: torch.cat([x, x]),
        lambda x: torch.ones(6) + x,
        lambda x: torch.ones(6).copy_(x),
        lambda x: x.numpy(),
        lambda x: list(x),
    ],
)
def test_what_looks_at_it_finds_what_the_ranks_have(looked_at, look):
    arena, _, asked = looked_at
    assert float(torch.as_tensor(look(arena.flat))[0]) >= 7.0
    assert asked


def test_a_change_is_seen_whichever_way_it_comes(looked_at):
    arena, room, _ = looked_at
    before = room._version
    arena.flat[1:3].add_(1.0)
    assert room._version > before
    assert room.tolist() == [7, 8, 8, 7, 7, 7]
    (part,) = arena.views_of(arena.flat).values()
    part.zero_()
    assert not room.any()


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_one_device_is_not_enough_for_several_ranks(device):
    with pytest.raises(ConfigError, match=f"expected auto, cpu or cuda .* got {device}"):
        check_device(device)
    for shared in ("auto", "cpu", "cuda"):
        check_device(shared)
