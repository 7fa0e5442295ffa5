"""How a process that may import torch is started, by the daemon and by the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import swarmnode

# In the folder of a swarm's environment, written when it is whole.
ENVIRONMENT_MARK = "swarmnode-environment"


def worker_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """Return the command for a module of ``swarmnode.worker``.

    ``python``: of a swarm's environment; "": ours.

    ``-P``: a file named ``torch.py`` where the user happens to stand is not imported.
    """
    return [python or sys.executable, "-P", "-m", module, *arguments]


def worker_environment(python: str = "") -> dict[str, str]:
    """Return our environment, with which the process finds this swarmnode, installed or not.

    The Python of a swarm's environment knows our paths, and has them after its own.
    """
    prefix = Path(python).parent.parent if python else Path(sys.prefix)
    if (prefix / ENVIRONMENT_MARK).exists():
        return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    here = str(Path(swarmnode.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(part for part in (here, inherited) if part)
    return os.environ | {"PYTHONPATH": path}


def own_paths() -> list[str]:
    """Return where this Python finds what is no part of it: swarmnode, torch and all others."""
    import site  # for environments of swarms only

    here = str(Path(swarmnode.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    shared = site.getsitepackages() + (
        [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    )
    found = [str(Path(path).absolute()) for path in (*inherited, here, *shared) if path]
    return [path for path in dict.fromkeys(found) if Path(path).is_dir()]
