"""Mutants of ``sampled.py`` that change nothing that counts, each with its reason.

``equivalent.tsv`` has one in a line: its name, a tab, and the reason.
"""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).with_name("equivalent.tsv")
EQUIVALENT: dict[str, str] = {}
for _line in _FILE.read_text(encoding="utf-8").splitlines():
    _name, _, _reason = _line.partition("\t")
    EQUIVALENT[_name] = _reason
