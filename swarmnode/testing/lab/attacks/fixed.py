"""Attacks that do the same whatever the others do.

The table has, with h̄ and s the mean and the standard deviation over honest payloads, T the
victim's and u the mean honest update of a round (``Scene.moved``)::

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
    noise         h̄ + 5 rms(h̄) N(0, I)
    huge          h̄ + 10⁴ N(0, I)
    nan           own, every seventh NaN  what no codec carries
    stale         h̄ of 60 rounds ago      an old payload of the round that is due
    init          that of an untrained node

Deviations: a mean over honest members is over what each sent last, which in pairs is up to one
round old. Where several members meet, there is no one victim, and T is what the first honest
one sends. ``label-flip`` is no change of a payload: see ``LabTask`` for what those nodes train.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from swarmnode.testing.lab.attacks.scene import UPDATES, Attack, Scene
from swarmnode.testing.lab.world import Payload

_ROUNDS_UNDONE = 10.0
_ALIE_DEVIATIONS = 1.5
_IPM_SHARE = 0.1
_DISSENSUS = 1.5
_NOISE_RMS = 5.0
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
    "noise": _each(_noise),
    "huge": _each(_huge),
    "nan": _each(_nan),
    "stale": _each(_stale),
    "init": _each(_init),
    "scaled": _each(_scaled),
    "mimic": _each(_mimic),
}
