"""Models that have a name: `swarmnode create NAME --task llama-150m`. Each is a task, configured.

The manifest holds the task and all its settings, so nobody else needs to know the preset. What
`--set` says comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings of a task; ``about`` is for people."""

    task: str
    about: str
    config: dict[str, Any] = field(default_factory=dict)


PRESETS = {
    "gpt-tiny": Preset("bytes-lm", "0.12 M parameters over bytes: for tests, on any CPU"),
    "gpt-15m": Preset(
        "bytes-lm",
        "15 M parameters over bytes: short stories, on a laptop's GPU",
        {"dim": 320, "layers": 12, "heads": 5, "context": 256, "batch": 16, "lr": 1e-3},
    ),
    # The size, depth and width of the 150 M model in A. Douillard et al., "DiLoCo", 2023 (12
    # layers of 896, 16 heads of 64, 32,000 tokens, context 1,024, AdamW at 4e-4), with the
    # blocks of Llama. 512 sequences a step there are 32 nodes here.
    "llama-150m": Preset(
        "llama-lm",
        "150 M parameters over 32,000 tokens: as in the tables of DiLoCo, on a GPU of 24 GB",
        {
            "vocabulary": 32_000,
            "dim": 896,
            "layers": 12,
            "heads": 16,
            "head_dim": 64,
            "hidden": 2400,
            "context": 1024,
            "batch": 16,
            "lr": 4e-4,
        },
    ),
}


def resolve_preset(name: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return (task, settings) for the name of a task or a preset; ``config`` comes on top."""
    preset = PRESETS.get(name)
    return (name, config) if preset is None else (preset.task, preset.config | config)
