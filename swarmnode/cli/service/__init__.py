"""``swarmnode service``: the node as a service of this machine."""
