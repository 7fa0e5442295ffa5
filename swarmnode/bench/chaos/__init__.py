"""``swarmnode chaos``: real nodes among faults of a seeded plan, and an audit of what is left."""
