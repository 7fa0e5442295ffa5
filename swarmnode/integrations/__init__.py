"""Training loops of others that take part in a swarm: plain PyTorch, transformers, Lightning."""
