"""``swarmnode demo``: a whole swarm on this machine."""
