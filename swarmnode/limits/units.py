"""Units of the bounds."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
