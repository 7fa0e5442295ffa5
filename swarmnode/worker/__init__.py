"""The worker process: torch, the task's model, and the loop that trains it."""
