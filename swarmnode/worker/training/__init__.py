"""The training loop: batches, steps, rests, and when the strategy acts."""
