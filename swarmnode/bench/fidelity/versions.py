"""With what figures were made: the versions that they depend on, asked without importing torch."""

from __future__ import annotations

import platform
from importlib.metadata import version

from swarmnode import __version__
from swarmnode.tensor.codec import active_isa


def made_with() -> dict[str, str]:
    """Return the versions that figures depend on."""
    return {
        "swarmnode": __version__,
        "Python": platform.python_version(),
        "torch": version("torch").partition("+")[0],
        "numpy": version("numpy"),
        "codecs": active_isa(),
    }
