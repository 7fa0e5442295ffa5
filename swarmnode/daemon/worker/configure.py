"""What a worker is told first: the swarm's manifest, and what the owner of the node allows."""

from __future__ import annotations

from dataclasses import dataclass

from swarmnode.config import NodeConfig
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Configure
from swarmnode.quantities import parse_bytes
from swarmnode.store.training_data import TrainingData
from swarmnode.wire.swarm import Manifest


@dataclass(frozen=True)
class TrainingChoice:
    """What the owner of a node decides about its share of the work."""

    device: str = "auto"
    threads: int = 0
    steps_max: int = 0  # 0: until told to stop
    data_dir: str = ""
    own_data: bool = False  # other data than the creator's is meant

    @property
    def remembered(self) -> TrainingData:
        """What of it counts after the next start too, unless something else is said."""
        return TrainingData(self.data_dir, self.own_data)


def configure_of(
    manifest: Manifest, config: NodeConfig, choice: TrainingChoice, self_id: PeerId
) -> Configure:
    """Return it."""
    return Configure(
        task=manifest.task,
        task_config=manifest.task_config,
        strategy=manifest.strategy,
        strategy_settings=manifest.strategy_settings,
        swarm_seed=manifest.seed,
        # Every node has its own stream of batches, and the same one after a restart.
        shard_seed=int.from_bytes(self_id[:4], "big"),
        snapshot_dir=str(config.paths.swarm(manifest.name).snapshots),
        device=choice.device,
        steps_max=choice.steps_max,
        data_dir=choice.data_dir,
        layout_hash=manifest.layout_hash,
        data_hash=manifest.data_hash.hex(),
        own_data=choice.own_data or bool(manifest.own_data),
        task_version=manifest.task_version,
        task_package=manifest.task_package or "",
        task_package_version=manifest.task_package_version or "",
        threads=choice.threads,
        gpus=config.gpus,
        gpu_memory_bytes=parse_bytes(config.gpu_memory),
        self_id=self_id,
        log_format=config.log_format,
        log_level=config.log_level,
        topology=manifest.topology,
    )
