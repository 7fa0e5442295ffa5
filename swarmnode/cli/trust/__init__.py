"""What a swarm is and asks for, shown before joining it: its manifest, and what it takes."""
