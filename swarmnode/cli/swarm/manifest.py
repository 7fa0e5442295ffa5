"""The manifest of a new swarm: signed, written to its creator's home, and named by a link."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from swarmnode import __version__, limits
from swarmnode.config import NodeConfig, Paths
from swarmnode.protocol.identity import Signer
from swarmnode.store.files import write_atomic
from swarmnode.store.swarms import save_link
from swarmnode.wire.environment import Environment
from swarmnode.wire.packing import encode_record
from swarmnode.wire.recipe import Recipe
from swarmnode.wire.swarm import Manifest

_SECONDS_PER_DAY = 86_400
_SNAPSHOTS = 2  # that the worker keeps, beside the blobs that others fetch


def _grant_meeting(name: str, swarm: Signer, config: NodeConfig) -> bytes:
    """Let members tell strangers elsewhere where they are; b"" if none could ask."""
    from swarmnode.config import is_loopback
    from swarmnode.protocol.meeting import make_grant
    from swarmnode.store.keys import load_or_create_identity

    is_here = is_loopback(config.listen_address.host) and not config.mainline_nodes
    if is_here or "mainline" not in config.rendezvous:
        return b""
    key_file = config.paths.swarm(name).meeting_key
    return make_grant(name, swarm, load_or_create_identity(key_file).public_key)


def write_swarm(
    name: str,
    config: NodeConfig,
    codec: str,
    described: dict[str, Any],
    *,
    expires_days: int | None,
    is_closed: bool,
    has_own_data: bool = False,
    recipe: Recipe | None = None,
    environment: Environment | None = None,
) -> tuple[str, str]:
    """Sign and write a manifest of what was ``described``; return the link and this node's id."""
    from swarmnode.daemon.transport.reach import reachable_addresses
    from swarmnode.ids import PUBLIC_KEY_BYTES
    from swarmnode.limits import BOOTSTRAP_HINTS_MAX, ZONES_MAX
    from swarmnode.protocol.swarm import Hint, SwarmLink, sign_manifest
    from swarmnode.store.keys import load_or_create_identity
    from swarmnode.tasks.packages import package_of

    paths: Paths = config.paths
    node = load_or_create_identity(paths.node_key)
    addresses = config.advertise or reachable_addresses(config.listen)
    swarm = load_or_create_identity(paths.swarm(name).swarm_key)
    grant = _grant_meeting(name, swarm, config)
    now = int(time.time())
    package, package_version = package_of(described["task"])
    manifest = Manifest(
        name=name,
        swarm_key=swarm.public_key,
        task=described["task"],
        task_version=described["version"],
        task_config=described["config"],
        numel=described["numel"],
        layout_hash=bytes.fromhex(described["layout_hash"]),
        data_hash=bytes.fromhex(described["data_hash"]),
        strategy=described["strategy"],
        strategy_version=described["strategy_version"],
        topology=described["topology"],
        strategy_settings=described["strategy_settings"],
        codec=codec,
        seed=secrets.randbits(32),
        admission="closed" if is_closed else "open",
        min_version=__version__,
        created_at=now,
        expires_at=now + expires_days * _SECONDS_PER_DAY if expires_days else 0,
        task_package=package or msgspec.UNSET,
        task_package_version=package_version or msgspec.UNSET,
        own_data=has_own_data or msgspec.UNSET,
        recipe=recipe or msgspec.UNSET,
        probe_hash=bytes.fromhex(described.get("probe_hash", "")) or msgspec.UNSET,
        grant=grant or msgspec.UNSET,
        environment=environment or msgspec.UNSET,
    )
    manifest = _with_needs(manifest, config)
    own = [Hint(node.peer_id, address) for address in addresses]
    # Behind a NAT the link is of use to others because of these alone.
    hints = tuple(dict.fromkeys((*own, *map(Hint.parse, config.bootstrap))))[:BOOTSTRAP_HINTS_MAX]
    link = SwarmLink(
        name,
        swarm.public_key,
        hints,
        meeting=grant[:PUBLIC_KEY_BYTES],
        zones=config.dns_seeds[:ZONES_MAX],
    )
    save_link(link, paths)
    # The manifest comes last: without it the name is still free for another try.
    write_atomic(paths.swarm(name).manifest, encode_record(sign_manifest(manifest, swarm)))
    return str(link), str(node.peer_id)


def room_bytes(manifest: Manifest) -> int:
    """Return what a member's snapshots take of its disk at most, its own and others'."""
    snapshot = manifest.numel * limits.SNAPSHOT_BYTES_PER_PARAMETER_MAX
    return (_SNAPSHOTS + limits.SNAPSHOT_BLOBS_MAX) * snapshot


def _with_needs(manifest: Manifest, config: NodeConfig) -> Manifest:
    """Say in an environment what memory and disk a member needs, if there is one."""
    if not manifest.environment:
        return manifest
    from swarmnode.daemon.volunteer.machine import computed  # for few swarms

    named = manifest.environment
    data_bytes = named.data.size_bytes if named.data else 0
    needs = msgspec.structs.replace(
        named,
        memory_bytes=computed(manifest, config, "cpu").main_bytes,
        disk_bytes=named.disk_bytes + data_bytes + room_bytes(manifest),
    )
    return msgspec.structs.replace(manifest, environment=needs)
