"""Training algorithms: one per file, vector math at step boundaries and nothing else."""
