"""What the processes that train are asked, and what they answer; free of torch."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from swarmnode.errors import ConfigError

TASK = "bytes-lm"
# What ``create --task bytes-lm`` trains unless told otherwise, in words: what measures says so.
CONFIG: dict[str, Any] = {"dim": 64, "layers": 2, "heads": 4, "context": 64, "batch": 16}


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run.

    Attributes:
        kind: ``data-parallel``: the mean gradient of all nodes at every step, in float32; one node
            alone is a case of it. ``laboratory``: strategy objects in virtual time.
        nodes, steps: how many nodes take how many steps each.
        lr: the highest learning rate. Data parallelism has a warm-up and a cosine down to 0, the
            laboratory follows the recipe of the task.
        seed: of the batches.
        model_seed: of the first weights.
        data: folder of text; empty: what comes with the task.
        strategy, settings, codec: of the laboratory's nodes.
    """

    kind: Literal["data-parallel", "laboratory"]
    nodes: int
    steps: int
    lr: float
    seed: int
    model_seed: int
    config: dict[str, Any] = msgspec.field(default_factory=CONFIG.copy)
    data: str = ""
    strategy: str = ""
    settings: dict[str, Any] = {}
    codec: str = "Q8B64"

    @property
    def cost(self) -> int:
        """What it takes, in batches."""
        return self.nodes * self.steps


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models of a swarm that are to be measured: folders of snapshots."""

    snapshots: list[str]
    config: dict[str, Any]
    data: str = ""


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has come to; losses are held out, in nats per byte.

    Attributes:
        mean_loss: of the mean of all models.
        own_loss: the mean of the nodes' own losses.
        numel: parameters of the model.
        exchange_bytes: what a node has sent for exchanges, a mean over the nodes.
        committed, aborted: exchanges of a node, a mean over the nodes.
    """

    mean_loss: float
    own_loss: float
    numel: int
    exchange_bytes: float = 0.0
    committed: float = 0.0
    aborted: float = 0.0


_ASKED: Any = list[Job] | Evaluation  # msgspec takes what mypy has no word for


def parse_jobs(text: str) -> list[Job] | Evaluation:
    """Return what a process is asked. Raises ConfigError."""
    try:
        found: list[Job] | Evaluation = msgspec.json.decode(text, type=_ASKED)
    except msgspec.ValidationError as error:
        raise ConfigError(f"expected jobs, got {text[:200]!r}: {error}") from error
    return found
