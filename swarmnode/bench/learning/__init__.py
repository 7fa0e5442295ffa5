"""``swarmnode bench learning``: what a swarm keeps of the gain of data parallelism."""
