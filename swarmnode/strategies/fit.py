"""Whether codec, topology and size suit a strategy: asked once, when a swarm is created."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swarmnode.errors import ConfigError
from swarmnode.limits import GATHER_MEMBERS_MAX, GROUP_MEMBERS_MAX, LOG_MEMBERS_MAX
from swarmnode.strategies.base import Kind, Meeting
from swarmnode.strategies.parts import SettingsPart
from swarmnode.strategies.topology import TOPOLOGIES, build_graph
from swarmnode.tensor.formats import FORMATS, Format, find_format

_TOPOLOGY_CHARACTERS_MAX = 8192  # of a manifest
_LEVELS_MIN = 100  # of a step of 1 % of the largest weight in a block
_FLOAT32_BYTES = 4
_SMALL = 4  # every graph is a legal one over so many nodes


def check_fit(
    strategy: type[SettingsPart],
    config: Any,
    codec: str,
    topology: str,
    members: int = 0,
    value_bytes: int = 4,
) -> None:
    """Refuse what would train badly, or never.

    Args:
        codec: that the swarm's manifest names.
        topology: as :func:`read_topology` returns it.
        members: how many are to train at most; 0: it is not said.
        value_bytes: of each number of the model: 4, float32, or 8, float64.

    Raises:
        ConfigError: with what would suit.
    """
    meeting = strategy.meeting(config)
    check_width(strategy.name, meeting, value_bytes)
    for sent in meeting.sent:
        _check_codec_width(strategy.name, sent.codec, _find(sent.codec or codec), value_bytes)
    if topology and meeting.kind is not Kind.PAIR:
        raise ConfigError(
            f"--topology: expected a strategy whose nodes meet in pairs, in {strategy.name} all"
            " who are present meet at once: leave the topology out, or choose another strategy"
        )
    most = members_max(meeting)
    if most and members > most:
        raise ConfigError(
            f"--members: expected at most {most} for {strategy.name}, whose nodes all agree on"
            f" each round, got {members}: choose another strategy, such as streaming, or make"
            " several swarms"
        )
    for name in dict.fromkeys((codec, *codecs_sent(meeting, codec))):
        is_fed_back = meeting.kind is Kind.GATHER and name != codec
        if _find(name).needs_error_feedback and meeting.sent and not is_fed_back:
            _refuse_feedback(strategy, name, in_pairs=meeting.kind is Kind.PAIR)
    for sent in meeting.sent:
        found = _find(sent.codec or codec)
        if not sent.is_difference and _is_coarse(found):
            raise ConfigError(
                f"--codec {found.name}: its error is too large for whole weights, which"
                f" {strategy.name} sends: choose Q8B64, BF16 or RAW32, or the strategy streaming,"
                " whose differences it suits"
            )


def check_width(strategy: str, meeting: Meeting, value_bytes: int) -> None:
    """Refuse a model of float64 where nodes do not meet in pairs. Raises ConfigError."""
    if value_bytes != _FLOAT32_BYTES and meeting.kind not in (Kind.PAIR, Kind.LOG):
        raise ConfigError(
            f"strategy {strategy}: expected a model of float32, since its nodes meet all at once,"
            " got one of float64: choose dadao, a2cid2 or pair-average"
        )


def _check_codec_width(strategy: str, its_own: str, codec: Format, value_bytes: int) -> None:
    if codec.value_bytes == value_bytes:
        return
    if its_own:
        raise ConfigError(
            f"strategy {strategy}: expected a model of float{8 * codec.value_bytes}, as it sends"
            f" {its_own}, got one of float{8 * value_bytes}: choose another strategy for this task"
        )
    suits = "RAW64" if value_bytes != _FLOAT32_BYTES else "Q8B64"
    raise ConfigError(
        f"--codec {codec.name}: expected a codec of float{8 * value_bytes}, as the model is,"
        f" got one of float{8 * codec.value_bytes}: choose {suits}"
    )


def members_max(meeting: Meeting) -> int:
    """Return how many can take part at most; 0: any number."""
    if meeting.kind is Kind.GATHER:
        return min(GATHER_MEMBERS_MAX, GROUP_MEMBERS_MAX)
    return LOG_MEMBERS_MAX if meeting.kind is Kind.LOG else 0


def codecs_sent(meeting: Meeting, codec: str) -> list[str]:
    """Return the codec of each vector that goes; ``codec`` is the one of the manifest."""
    return [sent.codec or codec for sent in meeting.sent]


def read_topology(text: str) -> str:
    """Return what a manifest says of the graph NAME, or of the one in a FILE of lines ``i j``.

    Raises:
        ConfigError: it is neither, or the graph of the file is not connected.
    """
    if text in TOPOLOGIES:
        return text if build_graph(text, _SMALL) is not None else ""
    path = Path(text)
    if not path.is_file():
        raise ConfigError(
            f"--topology: expected one of {', '.join(TOPOLOGIES)}, or a file with an edge"
            f" 'i j' on each line, got {text[:120]!r}"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--topology: cannot read {path}: {error}") from error
    edges = sorted(
        {_edge(line, number, path) for number, line in enumerate(lines, 1) if _says(line)}
    )
    _check_connected(edges, path)
    written = " ".join(f"{i}-{j}" for i, j in edges)
    if len(written) > _TOPOLOGY_CHARACTERS_MAX:
        raise ConfigError(
            f"--topology: {path} has {len(edges)} edges, more than fit into a manifest"
            f" ({_TOPOLOGY_CHARACTERS_MAX} characters): use a graph with a name"
        )
    return written


def _find(name: str) -> Format:
    found = find_format(name)
    if found is None:
        raise ConfigError(f"no codec {name!r}: choose {', '.join(FORMATS)}")
    return found


def _refuse_feedback(strategy: type[SettingsPart], codec: str, *, in_pairs: bool) -> None:
    why = (
        "which harms where partners are drawn at random"
        if in_pairs
        else f"which {strategy.name} does not do"
    )
    raise ConfigError(
        f"--codec {codec}: it needs error feedback, {why}: choose Q8B64, BF16 or RAW32"
    )


def _is_coarse(codec: Format) -> bool:
    """Whether its steps are coarser than about a percent of the largest element of a block."""
    return codec.bits_per_elem < 8 or 0 < codec.levels < _LEVELS_MIN


def _says(line: str) -> bool:
    return bool(line.partition("#")[0].strip())


def _edge(line: str, number: int, path: Path) -> tuple[int, int]:
    words = line.partition("#")[0].split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(
            f"--topology: {path}, line {number}: expected two nodes as 'i j', got {line[:60]!r}"
        )
    i, j = sorted(map(int, words))
    if i == j:
        raise ConfigError(f"--topology: {path}, line {number}: node {i} has an edge to itself")
    return i, j


def _check_connected(edges: Iterable[tuple[int, int]], path: Path) -> None:
    """Models of two parts of a graph never meet. Nodes are 0 to the highest one named."""
    neighbours: dict[int, set[int]] = {}
    for i, j in edges:
        neighbours.setdefault(i, set()).add(j)
        neighbours.setdefault(j, set()).add(i)
    if not neighbours:
        raise ConfigError(f"--topology: {path} has no edge: write one as 'i j' on each line")
    missing = next((node for node in range(len(neighbours)) if node not in neighbours), None)
    if missing is not None:
        raise ConfigError(
            f"--topology: {path} has no edge of node {missing}: nodes are numbered from 0 on"
        )
    reached, waiting = {0}, [0]
    while waiting:
        news = neighbours[waiting.pop()] - reached
        reached |= news
        waiting += news
    lost = next((node for node in neighbours if node not in reached), None)
    if lost is not None:
        raise ConfigError(
            f"--topology: {path} falls into parts, no way leads from node 0 to node {lost}:"
            " add an edge"
        )
