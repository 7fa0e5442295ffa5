"""Our part in one swarm: its members, its shared state, and the shards that are dealt in it.

Owns the hellos, the failure detector, the certificates of closed swarms, the journal of the shared
state, and what this node says of itself in it. What is told of training comes in as values: nothing
here knows a worker or a tensor.

For others: ``swarm`` (:class:`~swarmnode.daemon.membership.swarm.SwarmPart`, and its gate),
``report`` (what members say), ``assignment`` and ``progress`` (how far the swarm is, and where it
ends).
"""
