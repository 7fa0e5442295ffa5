"""All attacks by name, and what ``--attack`` may say.

Fixed ones do the same whatever the others do. The table has, with h̄ and s the mean and the
standard deviation over honest payloads, T the victim's and u the mean honest update of a round
(``Scene.moved``)::

    sign-flip     −h̄                     turns the model or the update around
    update-flip   T − 10 u                undoes ten rounds of the victim's own model
    scaled        h̄ − 10 u; −10 u         of a model; of an update
    alie          h̄ − 1.5 s              M. Baruch, G. Baruch, Y. Goldberg, "A Little Is Enough:
                                          Circumventing Defenses For Distributed Learning", 2019
    ipm           −0.1 h̄                 C. Xie, O. Koyejo, I. Gupta, "Fall of Empires: Breaking
                                          Byzantine-tolerant SGD by Inner Product Manipulation",
                                          2019; also called FOE
    dissensus     T + 1.5 (n−f)/f (T − h̄) L. He, S. P. Karimireddy, M. Jaggi, "Byzantine-Robust
                                          Decentralized Learning via ClippedGossip", 2022, where
                                          all members have the same weight
    free-rider    T                       gives back what it got, and learns nothing
    mimic         the first honest one    S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-Robust
                                          Learning on Heterogeneous Datasets via Bucketing", 2022
    scattered     T − 2 ‖u‖ (.4 u/‖u‖ + .92 g); of an update −2 median lengths of the same: as much
                  against u as liars hide from a rule that looks for likeness, and for the rest g,
                  noise of each one's own, of length 1
    noise         h̄ + 5 rms(h̄) N(0, I)
    huge          h̄ + 10⁴ N(0, I)
    nan           own, every seventh NaN  what no codec carries
    stale         h̄ of 60 rounds ago      an old payload of the round that is due
    init          that of an untrained node

Deviations: a mean over honest members is over what each sent last, which in pairs is up to one
round old. Where several members meet, there is no one victim, and T is what the first honest
one sends. ``label-flip`` is no change of a payload: see ``LabTask`` for what those nodes train.

The two adaptive ones go as far as the guards let them. Both send T − s d, where T is what the
victim itself sends and d a direction in which honest members improve, and look for the largest s
that the guards take: with a copy of what the victim knows they ask before they send.
``adaptive-update`` has the mean honest update for d, ``adaptive-gradient`` minus the gradient of
the victim's loss on data that is not the public probe.

Deviations from the strongest thinkable: the direction is one gradient, and not a path of many
steps against the probe. In a group there is no one victim; there the step is as long as the median
of the honest payloads lets it be, which is what a clip to the median norm lets through whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarmnode.errors import ConfigError
from swarmnode.testing.lab.attacks.scene import UPDATES, Attack, Scene
from swarmnode.testing.lab.world import Payload

NONE = "none"
LABEL_FLIP = "label-flip"

# In rounds of an honest member's progress. Longer ones are as good as no model, and shorter ones
# do nothing.
_STEP_MAX, _STEP_MIN = 64.0, 2.0**-6
_REFINED = 3  # halvings of what lies between a step that is taken and one that is not
_BOLDER = 4.0  # times the last one that was taken is where the next search begins
_ROUNDS_UNDONE = 10.0
_ALIE_DEVIATIONS = 1.5
_IPM_SHARE = 0.1
_DISSENSUS = 1.5
_NOISE_RMS = 5.0
_SCATTERED_SHARE, _SCATTERED_REACH = 0.4, 2.0
_HUGE = 1e4
_NAN_EVERY = 7


def _each(of_view: Callable[[Scene, str], torch.Tensor]) -> Attack:
    """Return the attack that does this to each view."""

    def attack(scene: Scene) -> Payload:
        return {name: of_view(scene, name) for name in scene.own}

    return attack


def _sign_flip(scene: Scene, name: str) -> torch.Tensor:
    return -scene.mean[name]


def _update_flip(scene: Scene, name: str) -> torch.Tensor:
    return scene.victim[name] - _ROUNDS_UNDONE * scene.moved[name]


def _scaled(scene: Scene, name: str) -> torch.Tensor:
    undone = -_ROUNDS_UNDONE * scene.moved[name]
    return undone if name in UPDATES else scene.mean[name] + undone


def _alie(scene: Scene, name: str) -> torch.Tensor:
    deviation = scene.honest[name].std(0, unbiased=False)
    return scene.mean[name] - _ALIE_DEVIATIONS * deviation


def _ipm(scene: Scene, name: str) -> torch.Tensor:
    return -_IPM_SHARE * scene.mean[name]


def _dissensus(scene: Scene, name: str) -> torch.Tensor:
    away = scene.victim[name] - scene.mean[name]
    return scene.victim[name] + _DISSENSUS * scene.ratio * away


def _free_rider(scene: Scene, name: str) -> torch.Tensor:
    return scene.victim[name].clone()


def _mimic(scene: Scene, name: str) -> torch.Tensor:
    return scene.honest[name][0].clone()


def _noise(scene: Scene, name: str) -> torch.Tensor:
    mean = scene.mean[name]
    return mean + _NOISE_RMS * mean.square().mean().sqrt() * scene.noise(name)


def _scattered(scene: Scene, name: str) -> torch.Tensor:
    moved, noise = scene.moved[name], scene.noise(name)
    tiny = torch.finfo(moved.dtype).tiny
    along = _SCATTERED_SHARE * moved / moved.norm().clamp(min=tiny)
    hidden = math.sqrt(1 - _SCATTERED_SHARE**2) * noise / noise.norm().clamp(min=tiny)
    pushed: torch.Tensor = along + hidden
    if name in UPDATES:
        reach = scene.honest[name].norm(dim=1).median()
        pushed *= -_SCATTERED_REACH * reach
        return pushed
    pushed *= -_SCATTERED_REACH * moved.norm()
    return scene.victim[name] + pushed


def _huge(scene: Scene, name: str) -> torch.Tensor:
    return scene.mean[name] + _HUGE * scene.noise(name)


def _nan(scene: Scene, name: str) -> torch.Tensor:
    values = scene.own[name].clone()
    values[::_NAN_EVERY] = torch.nan
    return values


def _stale(scene: Scene, name: str) -> torch.Tensor:
    return scene.stale[name].clone()


def _init(scene: Scene, name: str) -> torch.Tensor:
    return scene.untrained[name].clone()


def honest(scene: Scene) -> Payload:
    """Return what an honest member sends: of those who train on wrong labels, and of none."""
    return scene.own


FIXED: dict[str, Attack] = {
    "sign-flip": _each(_sign_flip),
    "update-flip": _each(_update_flip),
    "ipm": _each(_ipm),
    "dissensus": _each(_dissensus),
    "free-rider": _each(_free_rider),
    "alie": _each(_alie),
    "scattered": _each(_scattered),
    "noise": _each(_noise),
    "huge": _each(_huge),
    "nan": _each(_nan),
    "stale": _each(_stale),
    "init": _each(_init),
    "scaled": _each(_scaled),
    "mimic": _each(_mimic),
}


class Adaptive:
    """One impostor's search; it begins near the step that was taken last."""

    def __init__(self, against: Callable[[Scene], Payload]) -> None:
        """``against``: what is taken off the victim's own payload, for a step of 1."""
        self._against = against
        self._last = _STEP_MAX

    def __call__(self, scene: Scene) -> Payload:
        """Return the payload furthest from the victim's that its guards take."""
        direction = self._against(scene)

        def at(step: float) -> Payload:
            return {name: values - step * direction[name] for name, values in scene.victim.items()}

        step = self._largest(lambda step: scene.is_taken(at(step)))
        return at(step) if step else honest(scene)  # to be refused would only cost a strike

    def _largest(self, is_taken: Callable[[float], bool]) -> float:
        """Return the largest step that is taken, to an eighth; 0, if none is."""
        step = min(_STEP_MAX, _BOLDER * self._last)
        while not is_taken(step):
            step /= 2
            if step < _STEP_MIN:
                return 0.0
        self._last = step
        if step == _STEP_MAX:
            return step
        refused = 2 * step
        for _ in range(_REFINED):
            middle = (step + refused) / 2
            if is_taken(middle):
                step = middle
            else:
                refused = middle
        return step


def by_update() -> Adaptive:
    """Return an impostor that undoes what honest members learn."""
    return Adaptive(lambda scene: scene.moved)


def by_gradient() -> Adaptive:
    """Return an impostor that climbs the victim's loss."""
    return Adaptive(lambda scene: {name: -rise for name, rise in scene.ascent().items()})


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
    "scattered": _fixed("scattered", "against the honest update, each in noise of its own"),
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
