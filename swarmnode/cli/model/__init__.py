"""Verbs about what was trained: merge it, export it, generate text with it."""
