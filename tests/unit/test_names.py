"""Names are their owners' word: bounded, printable, and never all that tells two nodes apart."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from swarmnode import limits
from swarmnode.cli.model.card import loss_picture, model_card
from swarmnode.cli.model.export import _facts
from swarmnode.config import Paths, load_config
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.names import check_node_name, default_name, is_name
from swarmnode.protocol.identity import Identity
from swarmnode.telemetry.catalogue import BY_NAME
from swarmnode.telemetry.remote import label_name
from tests.kits.daemon_kit import new_swarm

HOSTILE = ('a"b\n# EOF', 'x} 1\nevil{a="', "\\", "`|<b>", "日本 otter", "a\u202eb")


def test_the_default_is_two_words_that_follow_from_the_id() -> None:
    assert default_name(PeerId(bytes(32))) == "amber-acorn"
    assert default_name(PeerId(b"\x07\x2e" * 16)) == "bronze-otter"
    names = {default_name(Identity.from_seed(bytes([n]) * 32).peer_id) for n in range(100)}
    assert len(names) > 90
    assert all(re.fullmatch("[a-z]+-[a-z]+", name) and is_name(name) for name in names)


def test_the_longest_name_and_what_is_none() -> None:
    for good in ("a", "kitchen-pi", "Ada's Mac", "日本", "x" * limits.NODE_NAME_CHARACTERS_MAX):
        check_node_name(good, "here")
    for bad in ("x" * 33, "a\nb", "\x1b[2J", " a", "a ", "a\u202eb", "a\u200bb"):
        with pytest.raises(ConfigError, match="here: expected a name of 1 to 32 printable"):
            check_node_name(bad, "here")


def test_the_setting(tmp_path: Path) -> None:
    home = {"home": str(tmp_path)}
    assert load_config(home, {}).node_name == ""
    assert load_config(home, {"SWARMNODE_NODE_NAME": "kitchen-pi"}).node_name == "kitchen-pi"
    (tmp_path / "config.toml").write_text('node_name = "a\\u0007"')
    with pytest.raises(ConfigError, match=r"node_name \(.*config\.toml\): expected a name of"):
        load_config(home, {})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_breaks_out_of_no_label(name: str) -> None:
    label = BY_NAME["swarmnode_node_info"].labels[-1]
    assert label.name == "name"
    assert label.allows(label_name(name))
    assert not set('"\\\n{}=`|<>') & set(label_name(name))


def test_the_model_card_lists_contributors_by_name(tmp_path: Path) -> None:
    peers = [
        {"peer": f"sn1{n}", "name": name, "step": 2, "tokens": 3}
        for n, name in enumerate(("calm-otter", "a|b`<img>", "calm-otter"))
    ]
    status = {
        "peer": "sn1me",
        "node_name": "kitchen-pi",
        "exchanges_committed": 1,
        "eval_loss": None,
        "swarm_loss": None,
    }
    written = {"layout_hash": "00", "step": 5, "tokens": 7, "losses": [], "format": "swarmnode"}
    facts = _facts(new_swarm().manifest(), Paths(tmp_path), written, status, peers)
    assert [one["name"] for one in facts["contributors"]] == [
        "kitchen-pi",
        "calm-otter",
        "a|b`<img>",
        "calm-otter",
    ]
    rows = [line for line in model_card(facts, "DIR").splitlines() if line.startswith("| ")]
    assert rows == [
        "| name | peer | steps | tokens |",
        "| kitchen-pi | `sn1me` | 5 | 7 |",
        "| calm-otter | `sn10` | 2 | 3 |",
        "| a&#124;b&#96;&#60;img&#62; | `sn11` | 2 | 3 |",
        "| calm-otter | `sn12` | 2 | 3 |",
    ]


def test_the_model_card_shows_how_the_loss_fell() -> None:
    losses = [[step, 4 - step / 1000] for step in range(0, 2001, 100)]
    written = {"layout_hash": "00", "step": 5, "tokens": 7, "losses": losses, "format": "adapter"}
    facts = _facts(new_swarm().manifest(), Paths(Path("nowhere")), written, None, [])
    card = model_card(facts, "me/mine")
    assert card.startswith("---\nlibrary_name: peft\n")
    assert 'PeftModel.from_pretrained(base, "me/mine")' in card
    assert "| 0 | 4.0000 |" in card
    assert "| 2,000 | 2.0000 |" in card
    assert card.count("\n| ") <= 2 + 13 + 1  # two headings, a table that stays short, this node
    picture = ElementTree.fromstring(loss_picture(losses))
    (line,) = picture.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == len(losses)
    assert points == sorted(points)  # as the loss falls, the line goes down: y grows
