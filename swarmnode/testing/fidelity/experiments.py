"""The experiments by name, in the order of the page, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module

import msgspec

from swarmnode.bench.fidelity.finding import Finding
from swarmnode.bench.fidelity.versions import made_with
from swarmnode.errors import ConfigError
from swarmnode.testing.lab.isolation import isolated

# Name to where it is, so that one that is run alone loads no other; each takes ``is_quick``.
EXPERIMENTS = {
    "dadao": "swarmnode.testing.fidelity.convex:dadao",
    "a2cid2-rings": "swarmnode.testing.fidelity.gossip:a2cid2_rings",
    "a2cid2-digits": "swarmnode.testing.fidelity.gossip:a2cid2_digits",
    "vanishing-variance": "swarmnode.testing.fidelity.merging:vanishing_variance",
    "variance-corrected": "swarmnode.testing.fidelity.strangers:variance_corrected",
    "final-merge": "swarmnode.testing.fidelity.merging:final_merge",
    "noloco-variance": "swarmnode.testing.fidelity.outer:noloco_variance",
    "noloco-boundary": "swarmnode.testing.fidelity.outer:noloco_boundary",
    "noloco-digits": "swarmnode.testing.fidelity.outer:noloco_digits",
    "streaming": "swarmnode.testing.fidelity.overlap:streaming",
    "codecs": "swarmnode.testing.fidelity.overlap:codecs",
    "diloco": "swarmnode.testing.fidelity.overlap:diloco",
    "streaming-texts": "swarmnode.testing.fidelity.on_texts:streaming_on_texts",
    "codecs-texts": "swarmnode.testing.fidelity.on_texts:codecs_on_texts",
    "diloco-texts": "swarmnode.testing.fidelity.on_texts:diloco_on_texts",
    "noloco-texts": "swarmnode.testing.fidelity.on_texts:noloco_on_texts",
    "one-byte": "swarmnode.testing.fidelity.exact:one_byte",
    "group-mean": "swarmnode.testing.fidelity.exact:group_mean",
}


def run_experiment(name: str, *, is_quick: bool) -> Finding:
    """Run one experiment.

    Raises:
        ConfigError: there is none of that name, or it needs a library that is not installed.
    """
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ConfigError(f"expected an experiment among {known}, daemons or default, got {name!r}")
    began_s = time.process_time()
    found = _experiment(name)(is_quick)
    assert found.name == name, "the page finds a finding by its name"
    if not is_quick:
        found = msgspec.structs.replace(
            found, fails_isolated=failures_isolated(name, is_quick=False)
        )
    taken_s = round(time.process_time() - began_s, 1)
    return msgspec.structs.replace(found, cpu_s=taken_s, made_with=made_with(), is_quick=is_quick)


def failures_isolated(name: str, *, is_quick: bool) -> list[str]:
    """Return which figures are not as expected with exchange switched off."""
    with isolated():
        found = _experiment(name)(is_quick)
    return [check.what for check in found.checks if not check.holds]


def _experiment(name: str) -> Callable[[bool], Finding]:
    module, _, function = EXPERIMENTS[name].partition(":")
    experiment: Callable[[bool], Finding] = getattr(import_module(module), function)
    return experiment
