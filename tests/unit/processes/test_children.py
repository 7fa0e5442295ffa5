"""Processes that a verb starts end with it, whenever its end comes."""

from __future__ import annotations

import subprocess
import sys

# As the handler of a signal does that comes before the first child is known: the end of all below,
# then SystemExit. In a process of its own, as it ends whatever that has started.
_INTERRUPTED = """
import subprocess
from swarmnode.ipc.spawn import worker_command
from swarmnode.processes import children

popen = subprocess.Popen

def interrupted(*args, **options):
    global started
    started = popen(*args, **options)
    children.end_children()
    raise SystemExit

subprocess.Popen = interrupted
try:
    children.start_child(worker_command("swarmnode.bench.link"), stdin=subprocess.PIPE)
except SystemExit:
    try:
        started.wait(timeout=5)
    except subprocess.TimeoutExpired:
        started.kill()
        print("it runs on")
"""


def test_a_signal_while_the_first_process_starts_ends_it_too() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        timeout=60,
    ).stdout
    assert "it runs on" not in said
