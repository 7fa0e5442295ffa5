"""What ``offline`` runs for the command line: a trial, a benchmark, a description, checks."""
