"""What a swarm trains: the Task base class, a registry, and the built-in tasks."""
