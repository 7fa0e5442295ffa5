"""How a process that may import torch is started, by the daemon and by the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import swarmnode


def worker_command(module: str, *arguments: str) -> list[str]:
    """Return the command for a module of ``swarmnode.worker``.

    ``-P``: a file named ``torch.py`` where the user happens to stand is not imported.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def worker_environment() -> dict[str, str]:
    """Return our environment, with which the process finds this swarmnode, installed or not."""
    here = str(Path(swarmnode.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(part for part in (here, inherited) if part)
    return os.environ | {"PYTHONPATH": path}
