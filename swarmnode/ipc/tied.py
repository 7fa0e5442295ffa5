"""Become a command that ends with its parent: ``python -I -S tied.py PARENT COMMAND...``.

A program of its own, which imports nothing of swarmnode, so that next to no time passes before
the system knows: a parent that is killed with SIGKILL cannot end its children any more. The process
stays the same one; Linux keeps what is asked for here when it becomes COMMAND.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: str, *command: str) -> None:
    """Ask for SIGKILL when the parent is gone, and become ``command``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it was gone before we had asked
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 -- what our own parent asks for


if __name__ == "__main__":
    main(*sys.argv[1:])
