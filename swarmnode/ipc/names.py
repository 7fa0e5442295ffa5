"""Names that daemon and worker both know, beside their messages."""

from __future__ import annotations

# How models become one, see strategies/merge.py.
MERGE_RULES = ("mean", "tokens", "variance-corrected", "rda")

# The task of a swarm whose nodes start no worker: a program of their owner's brings the model, and
# trains it in a loop of its own (swarmnode/integrations).
PROGRAM_TASK = "program"

# Why a worker ended. Kinds that a restart cannot mend end the node with the message; the others are
# restarted.
FATAL_KINDS = frozenset(
    {"torch-missing", "task-unknown", "config", "layout", "data", "too-little-memory"}
)
FAILURE_KINDS = FATAL_KINDS | {"out-of-memory", "disk-full", "diverged", "snapshot", "crash"}

# Why a worker refuses what a peer sent in a pair, see strategies/merging/slot.py.
GUARD_REFUSALS = ("not-finite", "range", "round", "replay", "banned", "distance", "probe")
# Of these what honest members do, too: each has learnt from data of its own, so a merge is harm now
# and then. It costs a peer nothing but this exchange.
HONEST_REFUSALS = frozenset({"distance", "probe"})
# And of what no worker has looked at: it says nothing new of a peer.
UNSEEN_REFUSALS = frozenset({"banned"})
