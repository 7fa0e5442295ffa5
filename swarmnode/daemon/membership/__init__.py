"""Our part in one swarm: its members, its shared state, and the shards that are dealt in it.

Owns the hellos, the failure detector, the certificates of closed swarms, the journal of the shared
state, and what this node says of itself in it. What is told of training comes in as values: nothing
here knows a worker or a tensor.

For others: ``swarm`` (:class:`~swarmnode.daemon.membership.swarm.SwarmPart`), ``report`` (what
members say), ``assignment``, ``progress`` (how far the swarm is) and ``target`` (where it ends).
"""
