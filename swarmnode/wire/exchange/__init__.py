"""Messages of exchanges and merges: pairs, groups, the log, pulls, the end of a run."""
