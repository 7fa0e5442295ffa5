"""What can be known of a swarm before joining it: its manifest proves it, or it is our doing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from swarmnode import __version__
from swarmnode.cli.swarm.equip import words as environment_words
from swarmnode.cli.swarm.manifest import room_bytes
from swarmnode.cli.swarm.recipe import recipe_words
from swarmnode.cli.trust.costs import Measured, habits, measure
from swarmnode.config import NodeConfig, Paths, load_config
from swarmnode.daemon.discovery.rendezvous import parse_version
from swarmnode.daemon.snapshots.blobs import snapshot_bytes_max
from swarmnode.daemon.volunteer.machine import Footprint, computed
from swarmnode.errors import AuthenticationFailed, CorruptRecord
from swarmnode.ids import encode_base32
from swarmnode.protocol.invites import certificate_of, invite_in
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.quantities import show_bytes
from swarmnode.store.invites import load_member_chain
from swarmnode.store.swarms import stored_link
from swarmnode.strategies.installed import InstalledStrategy, installed_strategies
from swarmnode.tasks.installed import InstalledTask, look_at_task
from swarmnode.tasks.packages import how_to_get, is_package
from swarmnode.tensor.formats import find_format
from swarmnode.wire.swarm import Manifest

_DAY_S = 86_400
# Before this machine has trained it: six operations a parameter and token, a thousand tokens a
# step, on a CPU that does 10^11 in a second; and what a step costs however small the model.
_OPERATIONS_PER_PARAMETER = 6 * 1000
_OPERATIONS_PER_S = 1e11
_STEP_S_MIN = 0.005
# A busy or old machine takes ten times as long, as does Python around a small model; a GPU is
# faster, but trains larger models than it would be worth it for.
_SLOWER = 10

OTHERS_SEE = (
    "your IP address and port, and the id of your node, a hash of a key made on this machine",
    "your version of swarmnode, and how far you are: state, steps, tokens, exchanges, losses",
    "that your node is in this swarm: the DHT says so, and the LAN unless that is switched off",
    "members: your node's metrics, such as load, memory, disk, kind of NAT, and why it pauses",
    "your copy of the model, which can remember text that it was trained on",
)
CANNOT_HAPPEN = (
    "no code comes from other nodes, and none is installed from an index before your yes",
    "no file of yours is sent, and none is read to train on but the task's data or --data",
    "nothing is written outside the home of the node, but for a socket if its path is too long",
    "no machine on the way reads or changes what nodes send: it is encrypted, and keys are proved",
    "task, model and rules cannot be changed later: the manifest on your disk is what counts",
)

Access = Literal["open", "member", "invited", "invite ended", "invite not begun", "no invite"]


class Traffic(msgspec.Struct, frozen=True):
    """What exchanges move, in each of both directions."""

    exchange_bytes: int  # of the whole model once, be it in fragments
    every_steps: float | None  # at first; None: this strategy says it in another way
    later_every_steps: float | None  # the most that this grows to
    step_time_s: float
    is_measured: bool  # else it is assumed
    how: str  # it was measured, or why not
    day_bytes: int | None
    day_bytes_least: int | None  # the same, if that is not measured and steps are slow
    snapshot_bytes_max: int  # once, at joining


class Room(msgspec.Struct, frozen=True):
    """Of the disk that has the home: what joining takes at most, and what is free."""

    needed_bytes: int
    free_bytes: int

    @property
    def fits(self) -> bool:
        """Whether there is as much."""
        return self.needed_bytes <= self.free_bytes

    def sentence(self) -> str:
        """Say both in one line."""
        too_much = "" if self.fits else "; that is more than there is"
        return (
            f"needs up to {show_bytes(self.needed_bytes)} ({show_bytes(self.free_bytes)} are free)"
            f"{too_much}"
        )


class Share(msgspec.Struct, frozen=True):
    """What this machine would do of the work; None: not known."""

    day_tokens: int | None = None
    of_target: float | None = None  # each day
    of_members: float | None = None  # this machine among those that train now
    members: int = 0  # that say how fast they are
    why_not: str = ""

    def sentence(self) -> str:
        """Say it in one line."""
        if self.day_tokens is None:
            return f"not known before a step is taken here: {self.why_not}"
        text = f"about {self.day_tokens:,} tokens a day"
        if self.of_target is not None:
            text += f", {self.of_target:.2%} of the swarm's target each day"
        if self.of_members is not None:
            others = "1 member" if self.members == 1 else f"{self.members:,} members"
            return f"{text}; {self.of_members:.1%} of all work, beside {others}"
        return f"{text}; of the members' work not known: none is met before joining"


class TrustReport(msgspec.Struct, frozen=True):
    """What ``swarmnode trust --json`` prints."""

    name: str
    key: str
    created_at: int  # Unix seconds
    expires_at: int | None
    admission: str
    access: Access
    access_until: int | None
    task: str
    task_version: int
    task_settings: dict[str, Any]
    task_package: str  # name and version of the one that its creator has it from, "" if none
    task_installed: str  # package and version, "" if it is not
    task_installed_version: int | None
    strategy: str
    strategy_version: int
    strategy_installed_version: int | None
    strategy_settings: dict[str, Any]
    topology: str
    recipe: str  # in words
    codec: str  # what the strategy sends, which may have codecs of its own
    parameters: int
    traffic: Traffic | None  # None: not known here
    memory: Footprint
    disk: Room
    share: Share
    environment: tuple[str, ...]  # what members are asked to install and fetch, in words
    min_version: str
    version: str
    version_ok: bool
    obstacles: tuple[str, ...]  # why this machine cannot join as it is
    others_see: tuple[str, ...] = OTHERS_SEE
    cannot_happen: tuple[str, ...] = CANNOT_HAPPEN


def make_report(
    manifest: Manifest,
    link: SwarmLink,
    paths: Paths,
    *,
    now_unix_s: float,
    step_time_s: float | None,
    how: str = "",
    memory: Footprint | None = None,
    found_out: Measured | None = None,
) -> TrustReport:
    """Return what is known of a swarm.

    Args:
        manifest: verified.
        step_time_s: as it was measured, None if it was not.
        how: that was measured, or why it was not.
        memory: what joining needs as measured, None if it was not.
        found_out: all that was measured, None if nothing was.

    Raises:
        ConfigError: the invite in the link is damaged, or of another swarm.
    """
    installed = look_at_task(manifest.task)
    strategy = installed_strategies().get(manifest.strategy)
    stored = stored_link(link.name, paths)
    traffic = _traffic(manifest, step_time_s, how)
    if memory is None:
        memory = computed(manifest, NodeConfig(home=paths.home))
    access, until = _access(manifest, link, paths, now_unix_s)
    return TrustReport(
        name=manifest.name,
        key=encode_base32(manifest.swarm_key),
        created_at=manifest.created_at,
        expires_at=manifest.expires_at or None,
        admission=manifest.admission,
        access=access,
        access_until=until,
        task=manifest.task,
        task_version=manifest.task_version,
        task_settings=manifest.task_config,
        task_package=_package(manifest),
        task_installed=installed.package if installed else "",
        task_installed_version=installed.version if installed else None,
        strategy=manifest.strategy,
        strategy_version=manifest.strategy_version,
        strategy_installed_version=strategy.version if strategy else None,
        topology=manifest.topology,
        recipe=recipe_words(manifest.recipe or None),
        strategy_settings=manifest.strategy_settings,
        codec=_codecs(manifest),
        parameters=manifest.numel,
        traffic=traffic,
        memory=memory,
        disk=_room(manifest, paths),
        share=_share(manifest, found_out or Measured(), paths),
        environment=tuple(environment_words(manifest.environment or None)),
        min_version=manifest.min_version,
        version=__version__,
        version_ok=_is_new_enough(manifest),
        obstacles=tuple(
            _obstacles(
                manifest,
                installed,
                strategy,
                access,
                is_name_taken=stored is not None and stored.swarm_key != link.swarm_key,
            )
        ),
    )


def _room(manifest: Manifest, paths: Paths) -> Room:
    folder = paths.home
    while not folder.exists():
        folder = folder.parent
    own = manifest.environment.disk_bytes if manifest.environment else 0
    return Room(max(own, room_bytes(manifest)), shutil.disk_usage(folder).free)


def _share(manifest: Manifest, found: Measured, paths: Paths) -> Share:
    """Return what this machine would do, by the step that it took and what members say."""
    if not (found.here_s and found.tokens_per_step):
        return Share(why_not=found.why_not or "the task does not say its tokens")
    used = load_config({"home": str(paths.home)}, os.environ).cpu_percent / 100
    day_tokens = round(_DAY_S / found.here_s * used * found.tokens_per_step)
    target = manifest.recipe.target_tokens if manifest.recipe else 0
    others = sum(1 / each for each in found.members_s)
    return Share(
        day_tokens,
        min(1.0, day_tokens / target) if target else None,
        used / found.here_s / (used / found.here_s + others) if others else None,
        len(found.members_s),
    )


def _package_named(manifest: Manifest) -> tuple[str, str]:
    return manifest.task_package or "", manifest.task_package_version or ""


def _package(manifest: Manifest) -> str:
    name, version = _package_named(manifest)
    return f"{name} {version}" if is_package(name, version) else ""


def _is_new_enough(manifest: Manifest) -> bool:
    return parse_version(manifest.min_version) <= parse_version(__version__)


def _obstacles(
    manifest: Manifest,
    installed: InstalledTask | None,
    strategy: InstalledStrategy | None,
    access: Access,
    *,
    is_name_taken: bool,
) -> list[str]:
    """Say what keeps this machine from joining, and what would help."""
    found = []
    if not _is_new_enough(manifest):
        found.append(
            f"it wants swarmnode >= {manifest.min_version}, this is {__version__}:"
            " update it: git pull in its clone, then the same pip install again there"
        )
    source = how_to_get(*_package_named(manifest))
    if manifest.environment and manifest.environment.packages:
        pass  # `join` installs it, after a yes
    elif installed is None:
        source = source or "install the package that has it, if you trust that package"
        found.append(
            f"task {manifest.task!r} is not installed here: {source}; as a keeper or monitor you"
            " can join without"
        )
    elif installed.version not in (None, manifest.task_version):
        found.append(
            f"the swarm uses version {manifest.task_version} of the task, version"
            f" {installed.version} is installed here: {source or 'install that version'}"
        )
    if strategy is None:
        found.append(
            f"strategy {manifest.strategy!r} is not known here: a newer swarmnode may have it"
        )
    elif strategy.version != manifest.strategy_version:
        found.append(
            f"the swarm uses version {manifest.strategy_version} of the strategy, version"
            f" {strategy.version} is installed here: install the swarmnode that its creator has"
        )
    if find_format(manifest.codec) is None:
        found.append(f"codec {manifest.codec!r} is not known here: a newer swarmnode may have it")
    if access in ("invite ended", "invite not begun", "no invite"):
        found.append(f"the swarm is closed ({access}): ask its creator for a link with an invite")
    if is_name_taken:
        found.append(
            f"this home already holds another swarm named {manifest.name!r}: use another --home"
        )
    return found


def _access(
    manifest: Manifest, link: SwarmLink, paths: Paths, now_unix_s: float
) -> tuple[Access, int | None]:
    """Return what would let us in, and until when; whether an invite is revoked, members know."""
    if manifest.admission == "open":
        return "open", None
    own = paths.swarm(link.name)
    if own.swarm_key.exists():
        return "member", None
    until = _certificate_end(link, paths)
    if until is not None and now_unix_s < until:
        return "member", until
    invite = invite_in(link)
    if invite is None:
        return "no invite", None
    terms = invite.certificate
    if now_unix_s > terms.not_after:
        return "invite ended", terms.not_after
    if now_unix_s < terms.not_before:
        return "invite not begun", terms.not_before
    return "invited", terms.not_after


def _certificate_end(link: SwarmLink, paths: Paths) -> int | None:
    try:
        chain = load_member_chain(paths.swarm(link.name))
    except CorruptRecord:  # made anew at the next start, if something allows it
        return None
    return certificate_of(chain).not_after if chain is not None else None


def _codecs(manifest: Manifest) -> str:
    known = habits(manifest)
    names = dict.fromkeys(each.name for each in known.sent) if known else {}
    return " and ".join(names) or manifest.codec


def _traffic(manifest: Manifest, measured_s: float | None, how: str) -> Traffic | None:
    found = habits(manifest)
    if found is None:
        return None
    exchange_bytes = sum(codec.payload_bytes(manifest.numel) for codec in found.sent)
    every = found.every_steps or None
    assumed_s = manifest.numel * _OPERATIONS_PER_PARAMETER / _OPERATIONS_PER_S
    step_time_s = measured_s or max(_STEP_S_MIN, assumed_s)
    day_bytes = round(_DAY_S / (step_time_s * every) * exchange_bytes) if every else None
    is_range = day_bytes is not None and measured_s is None
    return Traffic(
        exchange_bytes=exchange_bytes,
        every_steps=every,
        later_every_steps=found.later_every_steps or None,
        step_time_s=step_time_s,
        is_measured=measured_s is not None,
        how=how or ("as measured here" if measured_s else ""),
        day_bytes=day_bytes,
        day_bytes_least=day_bytes // _SLOWER if is_range and day_bytes is not None else None,
        snapshot_bytes_max=snapshot_bytes_max(manifest.numel),
    )


def look_at(
    link: str,
    key: str | None,
    config: NodeConfig,
    tell: Callable[[str], None],
    *,
    may_ask: bool,
    asks_daemon: bool = True,
) -> tuple[SwarmLink, TrustReport]:
    """Fetch the manifest of a swarm, unless this home has it, and measure what it would take here.

    Raises:
        SwarmNodeError: it cannot be found, or is not what the link names.
    """
    from swarmnode.cli.swarm.lookup import look_around, own_node, resolve

    found = resolve(link, key, config, tell, may_ask=may_ask, asks_daemon=asks_daemon)
    manifest = _stored_manifest(found, config)
    if manifest is None:
        also = own_node(config) if asks_daemon else ()
        manifest = look_around(
            config, tell, lambda visitor: visitor.fetch_manifest(found), also=also
        )
    found_out = measure(manifest, config)
    return found, make_report(
        manifest,
        found,
        config.paths,
        now_unix_s=time.time(),
        step_time_s=found_out.step.seconds if found_out.step else None,
        how=found_out.step.how if found_out.step else found_out.why_not,
        memory=found_out.footprint or computed(manifest, config, config.device),
        found_out=found_out,
    )


def _stored_manifest(link: SwarmLink, config: NodeConfig) -> Manifest | None:
    """Return the manifest that this home holds, verified again.

    Raises:
        ConfigError: it is damaged.
        AuthenticationFailed, Refused: it was tampered with, or has expired.
    """
    from swarmnode.protocol.swarm import open_manifest
    from swarmnode.store.swarms import read_signed_manifest

    signed = read_signed_manifest(link.name, config.paths)
    if signed is None or signed.public_key != link.swarm_key:
        return None
    try:
        return open_manifest(signed, swarm_key=link.swarm_key, now_unix_s=time.time())
    except AuthenticationFailed as error:
        path = config.paths.swarm(link.name).manifest
        raise AuthenticationFailed(
            f"{path} was tampered with ({error}): remove it and join again"
        ) from error


def traffic_words(traffic: Traffic | None) -> Iterator[str]:
    """Say what exchanges send."""
    if traffic is None:
        yield "not known, as the strategy or its codec is not"
        return
    size = f"{_size(traffic.exchange_bytes)} each way at an exchange"
    if traffic.every_steps is None or traffic.day_bytes is None:
        yield size
    else:
        later = traffic.later_every_steps or traffic.every_steps
        grows = f" at first, every {later:.3g} in the end" if later > traffic.every_steps else ""
        yield f"{size}, every {traffic.every_steps:.3g} steps{grows}"
        less = "later, and less " if grows else ""
        yield f"{_day(traffic)}; less {less}if the network is slower than that"
    yield f"at most {_size(traffic.snapshot_bytes_max)} once, for the model to begin with"


def _day(traffic: Traffic) -> str:
    """Say what a day takes, and on what that rests."""
    assert traffic.day_bytes is not None
    often = f"if a step takes {traffic.step_time_s:.3g} s"
    if traffic.day_bytes_least is None:
        return f"{_size(traffic.day_bytes)} a day each way {often} ({traffic.how})"
    why = f", not measured: {traffic.how}" if traffic.how else ""
    return (
        f"{_size(traffic.day_bytes_least)} to {_size(traffic.day_bytes)} a day each way, the latter"
        f" {often} (assumed: a CPU, 1,000 tokens a step{why})"
    )


def _size(n_bytes: int) -> str:
    for unit, unit_bytes in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= unit_bytes:
            return f"{n_bytes / unit_bytes:.1f} {unit}"
    return f"{n_bytes} bytes"
