"""Switches one guard off for a whole run of pytest: ``SWARMNODE_MUTANT=NAME pytest -p ... TEST``.

It is imported before any test is, so that those who import a function by its name get the mutant.
"""

from __future__ import annotations

import importlib
import os

from tests.mutants.table import MUTANTS


def switch_off(name: str) -> None:
    """Put a mutant in the place of its guard. Raises AttributeError: there is no such guard."""
    module_name, _, path = MUTANTS[name].guard.partition(":")
    owner = importlib.import_module(module_name)
    *outer, last = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    getattr(owner, last)
    setattr(owner, last, MUTANTS[name].becomes)


switch_off(os.environ["SWARMNODE_MUTANT"])
