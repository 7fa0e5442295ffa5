"""What a strategy sends, from a manifest alone: torch may not be here, and nothing is to run.

The strategies say the same of themselves (``meeting`` in strategies/base.py); a test compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swarmnode.tensor.formats import Format, find_format
from swarmnode.wire.swarm import Manifest

_SWARM_CODEC = ""
_RAW = "RAW32"
_EVERY_MAX = 10**9
_RATE_MAX = 64


@dataclass(frozen=True)
class Habits:
    """``sent``: for each vector of the model's length, its codec; ``every_steps`` 0: not known."""

    sent: tuple[Format, ...]
    every_steps: float


def habits(manifest: Manifest) -> Habits | None:
    """Return what a node sends, None if strategy, settings or codec are not known here."""
    known = _KNOWN.get(manifest.strategy)
    if known is None:
        return None
    try:
        codecs, every = known(manifest.strategy_settings)
        found = [find_format(codec or manifest.codec) for codec in codecs]
    except KeyError:  # settings of another version
        return None
    sent = tuple(each for each in found if each is not None)
    return Habits(sent, every) if len(sent) == len(found) else None


Said = tuple[tuple[str, ...], float]


def _every(settings: dict[str, Any]) -> float:
    """Return the local steps of a round; 0 for what is no number of steps."""
    stated = settings.get("every")
    return float(stated) if type(stated) is int and 0 < stated <= _EVERY_MAX else 0.0


def _steps_by_rate(settings: dict[str, Any]) -> float:
    """Return the local steps between two exchanges at random times; 0 if there are none."""
    stated = settings.get("rate")
    if not isinstance(stated, int | float) or isinstance(stated, bool):
        return 0.0
    return 1 / stated if 1 / _EVERY_MAX <= stated <= _RATE_MAX else 0.0


def _pair_average(settings: dict[str, Any]) -> Said:
    return (_SWARM_CODEC,), _steps_by_rate(settings) or _every(settings)


def _a2cid2(settings: dict[str, Any]) -> Said:
    return (_SWARM_CODEC,), _steps_by_rate(settings)


def _dadao(settings: dict[str, Any]) -> Said:
    del settings
    return (_SWARM_CODEC,), 0.0


def _noloco(settings: dict[str, Any]) -> Said:
    return (_SWARM_CODEC, _SWARM_CODEC), _every(settings)


def _diloco(settings: dict[str, Any]) -> Said:
    # Shares by codec to those who sum, and sums as they are: each about one model.
    return (_SWARM_CODEC, _RAW), _every(settings)


def _streaming(settings: dict[str, Any]) -> Said:
    delta, phi = str(settings["delta_codec"]), str(settings["weights_codec"])
    codecs: tuple[str, ...] = (delta, phi) if settings["gamma"] else (delta,)
    if settings["meet"] == "group":
        codecs = (*codecs, *(_RAW for _ in codecs))
    return codecs, _every(settings)


def _sparse(settings: dict[str, Any]) -> Said:
    # Once to each other member, of whom a manifest says nothing: as if there were one.
    kept = settings["kept"]
    return ("TK2" if kept == 64 else f"TK2K{kept}",), _every(settings)


_KNOWN: dict[str, Callable[[dict[str, Any]], Said]] = {
    "a2cid2": _a2cid2,
    "dadao": _dadao,
    "diloco": _diloco,
    "noloco": _noloco,
    "one-byte": lambda _settings: ((), 1.0),
    "pair-average": _pair_average,
    "sparse": _sparse,
    "streaming": _streaming,
}
