"""Sessions that pass through a relay, for nodes that cannot be dialled."""
