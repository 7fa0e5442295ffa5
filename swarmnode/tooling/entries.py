"""Signs a list of entry nodes: ``python -m swarmnode.tooling.entries --key FILE HINT…``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from swarmnode.ids import encode_base32
from swarmnode.protocol.meeting import sign_entries
from swarmnode.protocol.swarm import Hint
from swarmnode.store.keys import load_or_create_identity

_DAY_S = 86_400


def main(arguments: list[str] | None = None) -> None:
    """Print the list, and to standard error the key that its readers need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", type=Path, required=True, help="made if it is not there")
    parser.add_argument("--days", type=int, default=90, help="for how long the list is good")
    parser.add_argument("hints", nargs="+", type=Hint.parse, metavar="PEER@HOST:PORT")
    given = parser.parse_args(arguments)
    signer = load_or_create_identity(given.key)
    expires_at = int(time.time()) + given.days * _DAY_S
    sys.stdout.write(sign_entries(given.hints, expires_at, signer))
    sys.stderr.write(f"entry_nodes_key = {encode_base32(signer.public_key)!r}\n")


if __name__ == "__main__":
    main()
