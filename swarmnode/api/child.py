"""Entry point of a node that belongs to a program: ``python -m swarmnode.api.child FD VERB ...``.

FD is the reading end of a pipe whose other end the program holds. When that closes, also because
the program was killed, the node leaves its swarm as it would on SIGTERM. Not PR_SET_PDEATHSIG:
that fires when the *thread* ends that started the process, and threads of a pool come and go.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Run the command line for as long as the program lives."""
    descriptor = int(sys.argv.pop(1))
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_leave_with_program, args=(descriptor,), daemon=True).start()
    from swarmnode.cli.main import main as run

    run()


def _leave_with_program(descriptor: int) -> None:
    os.read(descriptor, 1)  # nothing is ever written: it returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
