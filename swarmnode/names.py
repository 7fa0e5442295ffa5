"""Names of nodes, for people. What tells nodes apart is their id; a name is only its owner's word.

A node whose owner chose none is called by two words that follow from its id, so that all
other nodes call it the same, also those that never heard it say so.
"""

from __future__ import annotations

from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.limits import NODE_NAME_CHARACTERS_MAX

# 64 of each: six bits of the id choose one. The order is for ever, as it is part of the names.
_ADJECTIVES = """
amber autumn bold brave breezy bright brisk bronze calm cheerful clear clever copper coral cosmic
crisp curious dapper dawn eager early fair fleet gentle glad golden grand green happy hidden humble
icy indigo jolly keen kind lively lucky lunar mellow merry misty modest nimble noble olive patient
placid proud quiet rapid rosy rustic sage scarlet shiny silver sleepy snowy solar steady sunny swift
witty
"""
_NOUNS = """
acorn badger beacon beaver birch bison brook canyon cedar cloud comet condor cove crane creek daisy
delta dolphin dune eagle elm ember falcon fern finch fjord forest fox garnet glacier harbor hare
heron hill island ivy jasper koala lagoon lake lark lynx maple meadow moon moss otter owl panda
pebble pine puffin raven reef river robin salmon spruce swan thistle tulip valley willow wren
"""


def default_name(peer: PeerId) -> str:
    """Return the two words of a node that has no name of its own, such as ``calm-otter``."""
    adjectives, nouns = _ADJECTIVES.split(), _NOUNS.split()
    return f"{adjectives[peer[0] % len(adjectives)]}-{nouns[peer[1] % len(nouns)]}"


def is_name(text: str) -> bool:
    """Whether this may be shown as a name: it has an end, and moves no cursor."""
    return 0 < len(text) <= NODE_NAME_CHARACTERS_MAX and text.isprintable() and text == text.strip()


def check_node_name(text: str, where: str) -> None:
    """Refuse what is neither "" nor a name. Raises ConfigError that says ``where`` it is."""
    if text and not is_name(text):
        raise ConfigError(
            f"{where}: expected a name of 1 to {NODE_NAME_CHARACTERS_MAX} printable characters, the"
            f" first and the last no space; got {text[:80]!r}"
        )
