"""What a strategy, a codec and a topology must have to do with each other; what is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmnode import limits
from swarmnode.cli.trust.costs import habits
from swarmnode.errors import ConfigError, SpecMismatch
from swarmnode.strategies.base import Kind, Meeting, Sent, Strategy
from swarmnode.strategies.fit import check_fit, codecs_sent, members_max, read_topology
from swarmnode.strategies.installed import (
    DEFAULT_STRATEGY,
    check_installed,
    installed_strategies,
    look_at_strategy,
)
from swarmnode.strategies.registry import find_strategy
from swarmnode.tensor.formats import find_format
from tests.unit.cli.test_trust import manifest

TOPOLOGY_CHARACTERS_MAX = 8192  # of a manifest
NAMES = ("a2cid2", "dadao", "diloco", "noloco", "one-byte", "pair-average", "sparse", "streaming")


def fit(
    name: str, codec: str = "Q8B64", topology: str = "", members: int = 0, **settings: Any
) -> None:
    strategy = find_strategy(name)
    value_bytes = 8 if name == "dadao" else 4
    check_fit(strategy, strategy.parse(settings), codec, topology, members, value_bytes)


# --- what is there ----------------------------------------------------------------------------


def test_every_strategy_is_found_by_its_file_alone() -> None:
    installed_strategies.cache_clear()  # as in a process that begins
    assert tuple(installed_strategies()) == NAMES
    for name, found in installed_strategies().items():
        strategy = find_strategy(name)
        assert issubclass(strategy, Strategy)
        assert (strategy.name, strategy.version) == (name, found.version)
    assert DEFAULT_STRATEGY in NAMES


def test_looking_needs_no_torch() -> None:
    code = (
        "import sys; from swarmnode.strategies.installed import installed_strategies;"
        " installed_strategies(); assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_another_version_is_another_algorithm() -> None:
    check_installed("streaming", 2)
    with pytest.raises(SpecMismatch, match="uses version 1 of the strategy streaming, version 2"):
        check_installed("streaming", 1)
    with pytest.raises(ConfigError, match=r"among a2cid2, .*streaming, got 'nosuch'; a newer"):
        look_at_strategy("nosuch")


# --- codecs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if name != "one-byte"])
@pytest.mark.parametrize("codec", ["Q8B64", "BF16", "RAW32"])
def test_fine_codecs_suit_all(name: str, codec: str) -> None:
    fit(name, codec)


@pytest.mark.parametrize("name", ["pair-average", "a2cid2", "noloco"])
@pytest.mark.parametrize("codec", ["E3M0", "Q4B64", "Q2B64", "T3B320"])
def test_whole_weights_want_a_fine_codec(name: str, codec: str) -> None:
    with pytest.raises(ConfigError, match=rf"--codec {codec}: its error is too large .* {name} se"):
        fit(name, codec)


@pytest.mark.parametrize("codec", ["E3M0", "Q4B64", "Q2B64", "T3B320"])
def test_differences_are_content_with_a_coarse_one(codec: str) -> None:
    fit("diloco", codec)
    fit("streaming", codec)
    fit("streaming", codec, delta_codec="", weights_codec="")
    with pytest.raises(ConfigError, match="whole weights"):
        fit("streaming", codec, meet="pair", weights_codec="", reference=False)


@pytest.mark.parametrize("name", ["pair-average", "noloco", "a2cid2"])
@pytest.mark.parametrize("codec", ["SIGN64", "TK4", "TK4K128"])
def test_feedback_is_refused_in_pairs(name: str, codec: str) -> None:
    with pytest.raises(ConfigError, match=f"{codec}: it needs error feedback, which harms where"):
        fit(name, codec)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(ConfigError, match="no codec 'X9': choose RAW32"):
        fit("pair-average", "X9")


def test_one_byte_sends_no_vector() -> None:
    for codec in ("SIGN64", "E3M0", "RAW32"):
        fit("one-byte", codec)


def test_a_gathering_feeds_back_what_it_did_not_send() -> None:
    fit("sparse", "Q8B64", kept=64)
    with pytest.raises(ConfigError, match="TK2: it needs error feedback, which sparse does not do"):
        fit("sparse", "TK2")


def test_strategies_that_agree_on_each_round_have_a_largest_number() -> None:
    for name, most in (("one-byte", 16), ("sparse", 32)):
        fit(name, members=most)
        fit(name)  # how many was not said
        with pytest.raises(ConfigError, match=rf"expected at most {most} for {name}, .* got"):
            fit(name, members=most + 1)
    fit("streaming", members=64)
    for name in ("diloco", "streaming", "pair-average", "noloco", "a2cid2"):
        fit(name, members=4096)


def test_the_codec_of_the_swarm_is_judged_where_only_its_own_is_sent_too() -> None:
    fit("streaming", "Q4B64")
    with pytest.raises(ConfigError, match="SIGN64: it needs error feedback, which streaming does"):
        fit("streaming", "SIGN64")
    with pytest.raises(ConfigError, match="SIGN64: it needs error feedback, which harms where"):
        fit("streaming", "SIGN64", meet="pair")


def test_each_way_to_meet_has_its_own_largest_number() -> None:
    most = {kind: members_max(Meeting(kind, 1.0, ())) for kind in Kind}
    gather = min(limits.GATHER_MEMBERS_MAX, limits.GROUP_MEMBERS_MAX)
    others = dict.fromkeys((Kind.PAIR, Kind.PULL, Kind.GROUP), 0)
    assert most == {**others, Kind.LOG: limits.LOG_MEMBERS_MAX, Kind.GATHER: gather}
    sent = Meeting(Kind.PAIR, 1.0, (Sent("RAW32"), Sent()))
    assert codecs_sent(sent, "Q8B64") == ["RAW32", "Q8B64"]


# --- topologies ---------------------------------------------------------------------------------


def test_graphs_are_for_pairs() -> None:
    for name in ("a2cid2", "pair-average", "noloco", "dadao"):
        fit(name, topology="ring")
    fit("streaming", topology="ring", meet="pair")
    for name in ("diloco", "one-byte", "streaming"):
        with pytest.raises(ConfigError, match=f"meet in pairs, in {name} all who are present"):
            fit(name, topology="ring")


@pytest.mark.parametrize("name", ["ring", "torus", "complete", "star", "exponential", "grid"])
def test_a_graph_is_known_by_its_name(name: str) -> None:
    assert read_topology(name) == name


def test_matching_is_no_graph() -> None:
    assert read_topology("matching") == ""


def test_a_file_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "edges"
    path.write_text("# a triangle with a tail\n1 0\n1 2  # twice\n2 1\n0 2\n\n  # 9 9\n3 2\n")
    written = read_topology(str(path))
    assert written == "0-1 0-2 1-2 2-3"
    assert manifest(topology=written).topology == written


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no edge: write one"),
        ("0 1\n2 3\n", "falls into parts, no way leads from node 0 to node 2"),
        ("0 2\n", "has no edge of node 1: nodes are numbered from 0 on"),
        ("0 0\n", "line 1: node 0 has an edge to itself"),
        ("0 1\n1 x\n", "line 2: expected two nodes as 'i j', got '1 x'"),
        ("0 1 2\n", "line 1: expected two nodes"),
        ("# three\n\n0 1\n1\n", "line 4: expected two nodes"),
        ("0 1\n1 ²\n", "line 2: expected two nodes"),
        ("0 1\n2 3\n3 4\n4 2\n", "falls into parts, no way leads from node 0 to node 2"),
        ("-1 0\n", "line 1: expected two nodes"),
        ("\n".join(f"{i} {i + 1}" for i in range(2000)), "2000 edges, more than fit"),
    ],
)
def test_a_file_that_is_no_graph_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "edges"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_topology(str(path))


def test_a_graph_fits_into_a_manifest_to_the_last_character(tmp_path: Path) -> None:
    edges = [*(f"{i} {i + 1}" for i in range(1040)), "0 2"]
    assert len(read(tmp_path, [*edges, "0 100"])) == TOPOLOGY_CHARACTERS_MAX
    with pytest.raises(ConfigError, match="has 1042 edges, more than fit into a manifest"):
        read(tmp_path, [*edges, "0 1000"])


def read(folder: Path, edges: list[str]) -> str:
    path = folder / "edges"
    path.write_text("\n".join(edges))
    return read_topology(str(path))


def test_neither_a_name_nor_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one of ring, torus, .*, or a file with an edge 'i j'"):
        read_topology(str(tmp_path / "nosuch"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        read_topology(str(tmp_path / "bytes"))


# --- models of float64 --------------------------------------------------------------------------


def fit_wide(name: str, codec: str, **settings: Any) -> None:
    strategy = find_strategy(name)
    check_fit(strategy, strategy.parse(settings), codec, "", value_bytes=8)


def test_models_of_float64_take_their_own_codec_and_no_other_model_does() -> None:
    fit_wide("dadao", "Q8B64")  # its own is RAW64
    for name in ("pair-average", "a2cid2", "noloco"):
        fit_wide(name, "RAW64")
        with pytest.raises(ConfigError, match=r"codec of float64, as the model is.*choose RAW64"):
            fit_wide(name, "RAW32")
        with pytest.raises(ConfigError, match=r"codec of float32, as the model is.*choose Q8B64"):
            fit(name, "RAW64")
    with pytest.raises(ConfigError, match="expected a model of float32, as it sends E3M0"):
        fit_wide("streaming", "RAW64", meet="pair")
    with pytest.raises(ConfigError, match="expected a model of float64, as it sends RAW64"):
        check_fit(find_strategy("dadao"), None, "Q8B64", "")


@pytest.mark.parametrize("name", ["diloco", "sparse"])
def test_models_of_float64_meet_in_pairs(name: str) -> None:
    with pytest.raises(ConfigError, match="expected a model of float32, since its nodes meet all"):
        fit_wide(name, "RAW64")


def test_who_sends_no_vector_trains_a_model_of_float64_too() -> None:
    fit_wide("one-byte", "RAW64")
    fit_wide("one-byte", "Q8B64")


# --- what `trust` says of it --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in NAMES),
        ("pair-average", {"rate": 0.25}),
        ("streaming", {"gamma": 0.0, "delta_codec": ""}),
        ("streaming", {"meet": "pair"}),
    ],
)
def test_trust_says_what_the_strategies_say(name: str, settings: dict[str, Any]) -> None:
    strategy = find_strategy(name)
    config = strategy.parse(settings)
    said = habits(manifest(strategy=name, strategy_settings=msgspec.to_builtins(config)))
    assert said is not None
    meeting = strategy.meeting(config)
    if name != "dadao":
        assert said.every_steps == pytest.approx(meeting.every_steps)
    codecs = [find_format(sent.codec or "Q8B64") for sent in meeting.sent]
    if meeting.kind is Kind.GROUP:  # and sums
        codecs += codecs
    assert list(said.sent) == codecs


def test_nothing_is_known_of_other_versions() -> None:
    assert habits(manifest(strategy="nosuch")) is None
    assert habits(manifest(strategy="streaming", strategy_settings={})) is None
    assert habits(manifest(codec="X9")) is None
    hostile = {"every": 1e308, "rate": float("nan")}
    found = habits(manifest(strategy_settings=hostile))
    assert found is not None
    assert found.every_steps == 0
