"""All attacks by name, and what ``--attack`` may say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmnode.errors import ConfigError
from swarmnode.testing.lab.attacks.adaptive import by_gradient, by_update
from swarmnode.testing.lab.attacks.fixed import FIXED, honest
from swarmnode.testing.lab.attacks.scene import Attack

NONE = "none"
LABEL_FLIP = "label-flip"


@dataclass(frozen=True)
class Named:
    """``make``: an attack for one impostor. ``what``: one line for people."""

    what: str
    make: Callable[[], Attack]
    is_adaptive: bool = False
    is_mislabelled: bool = False


def _fixed(name: str, what: str) -> Named:
    return Named(what, lambda: FIXED[name])


ATTACKS: dict[str, Named] = {
    NONE: Named("attackers behave", lambda: honest),
    "sign-flip": _fixed("sign-flip", "the honest mean with its sign turned"),
    "update-flip": _fixed("update-flip", "the victim's model with ten rounds of learning undone"),
    "ipm": _fixed("ipm", "a tenth of the honest mean with its sign turned"),
    "dissensus": _fixed("dissensus", "away from the honest mean, to drive members apart"),
    "free-rider": _fixed("free-rider", "what the victim itself sends"),
    "alie": _fixed("alie", "the honest mean less 1.5 standard deviations"),
    LABEL_FLIP: Named("honest learning from wrong labels", lambda: honest, is_mislabelled=True),
    "noise": _fixed("noise", "the honest mean with noise of five times its size"),
    "huge": _fixed("huge", "the honest mean with noise of ten thousand"),
    "nan": _fixed("nan", "no numbers"),
    "stale": _fixed("stale", "the honest mean of sixty rounds ago"),
    "init": _fixed("init", "the model before any training"),
    "scaled": _fixed("scaled", "the honest update, ten times and with its sign turned"),
    "mimic": _fixed("mimic", "a copy of one honest member"),
    "adaptive-update": Named("undoes as much as the guards let through", by_update, True),
    "adaptive-gradient": Named("climbs the loss as far as the guards let it", by_gradient, True),
}
# What papers and our notes call some of them.
_ALSO = {
    "foe": "ipm",
    "updflip": "update-flip",
    "free": "free-rider",
    "freerider": "free-rider",
    "adupd": "adaptive-update",
    "adgrad": "adaptive-gradient",
    "labelshuffle": LABEL_FLIP,
    "shuffledlabels": LABEL_FLIP,
}


def find_attacks(text: str) -> list[str]:
    """Return the names that ``text`` has, joined by commas; hyphens do not matter.

    Raises:
        ConfigError: one is not known.
    """
    known = {_plain(name): name for name in ATTACKS} | _ALSO
    found = []
    for word in text.split(","):
        name = known.get(_plain(word))
        if name is None:
            raise ConfigError(
                f"--attack: expected a name or several joined by commas, got {word.strip()!r};"
                f" choose of {', '.join(ATTACKS)}"
            )
        found.append(name)
    return found


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "").replace("_", "")
