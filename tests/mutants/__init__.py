"""Guards that are switched off, one at a time: a test must turn red for each."""
