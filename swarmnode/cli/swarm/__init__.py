"""Verbs about swarms: make one, find one, let people in, join."""
