"""The experiments by name, in the order of the page, and how one is run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import msgspec
import numpy
import torch

from swarmnode import __version__
from swarmnode.bench.fidelity.finding import Finding
from swarmnode.errors import ConfigError
from swarmnode.tensor.codec import active_isa
from swarmnode.testing.fidelity.convex import dadao
from swarmnode.testing.fidelity.exact import group_mean, one_byte
from swarmnode.testing.fidelity.gossip import a2cid2_digits, a2cid2_rings
from swarmnode.testing.fidelity.merging import final_merge, vanishing_variance
from swarmnode.testing.fidelity.outer import noloco_boundary, noloco_digits, noloco_variance
from swarmnode.testing.fidelity.overlap import codecs, diloco, streaming
from swarmnode.testing.lab.isolation import isolated

EXPERIMENTS: dict[str, Callable[[bool], Finding]] = {
    "dadao": dadao,
    "a2cid2-rings": a2cid2_rings,
    "a2cid2-digits": a2cid2_digits,
    "vanishing-variance": vanishing_variance,
    "final-merge": final_merge,
    "noloco-variance": noloco_variance,
    "noloco-boundary": noloco_boundary,
    "noloco-digits": noloco_digits,
    "streaming": streaming,
    "codecs": codecs,
    "diloco": diloco,
    "one-byte": one_byte,
    "group-mean": group_mean,
}


def run_experiment(name: str, *, is_quick: bool) -> Finding:
    """Run one experiment.

    Raises:
        ConfigError: there is none of that name, or it needs a library that is not installed.
    """
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ConfigError(f"expected an experiment among {known}, or daemons, got {name!r}")
    began_s = time.process_time()
    found = EXPERIMENTS[name](is_quick)
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
        found = EXPERIMENTS[name](is_quick)
    return [check.what for check in found.checks if not check.holds]


def made_with() -> dict[str, str]:
    """Return the versions that figures depend on."""
    return {
        "swarmnode": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "numpy": numpy.__version__,
        "codecs": active_isa(),
    }
