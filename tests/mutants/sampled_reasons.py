"""Mutants of ``tests/mutants/sampled.py`` that change nothing that counts, each with its reason."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
