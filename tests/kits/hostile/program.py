"""A hostile node as a process: ``python -m tests.kits.hostile.program ATTACK join LINK ...``.

After the name of the attack comes what ``swarmnode`` takes. Nothing but the parts of the attack is
other than in any node: its key, its home, its sessions over TCP, its worker.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from swarmnode.cli.main import main
from swarmnode.daemon.app import start
from swarmnode.daemon.app.node import Node
from swarmnode.daemon.worker.process import start_worker_process
from tests.kits.hostile.attacks import ATTACKS, Attack, replaced_parts


def run(name: str, arguments: list[str]) -> None:
    """Run the command line of a node with an attack."""
    attack = ATTACKS[name]
    start.start_worker_process = partial(_start_worker, attack)  # type: ignore[assignment]
    if attack.addresses:
        start.Node = partial(Node, find_addresses=attack.find_addresses)  # type: ignore[misc,assignment]
    with replaced_parts(attack, lambda _peer: True):
        sys.argv = ["swarmnode", *arguments]
        main()


def _start_worker(attack: Attack, *args: Any, **kwargs: Any) -> Any:
    return attack.start_worker(start_worker_process(*args, **kwargs))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
