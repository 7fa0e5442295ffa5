"""Whether a node trains on other data than its swarm's creator, and what to say of it.

Other data is allowed, but not in silence: who forgot `--data` trains on the task's own text, and
everybody else on that too once models are averaged.
"""

from __future__ import annotations

from swarmnode.ipc.control import Configure, WorkerReady


def has_other_data(configure: Configure, ready: WorkerReady | None) -> bool:
    """Whether both fingerprints are known and differ."""
    if ready is None or not configure.data_hash or not ready.data_hash:
        return False
    return ready.data_hash != configure.data_hash


def data_alarm(configure: Configure, ready: WorkerReady | None) -> str:
    """Say that other data is trained on than the creator's, "" where it is not or is meant.

    The folder is not named: the page of the node shows this too.
    """
    if configure.own_data or not has_other_data(configure, ready):
        return ""
    if configure.data_dir:
        why = "the folder of --data has other files than its creator's, or they have changed since"
    else:
        why = "no --data was given, so it is the task's own"
    return (
        f"this node trains on other data than its creator: {why}; join with --data FOLDER and a"
        " copy of the creator's, or with --own-data if that is meant"
    )


def data_in_words(configure: Configure, ready: WorkerReady | None) -> str:
    """Say what is trained on, for `status`."""
    words = configure.data_dir or "the task's own"
    if has_other_data(configure, ready):
        words += "; this node trains on other data than its creator"
        words += ", as is meant" if configure.own_data else ""
    return words
