"""Settings of one node.

A setting comes from the first of these that has it::

    flag of the command line  >  SWARMNODE_<NAME>  >  config.toml in the home  >  default

The file is strict: a key that no setting has is an error that names it. An
environment variable is an error only where it looks like a misspelt setting,
because container platforms make names of their own (``SWARMNODE_SERVICE_HOST``).

This module is imported by every command: it loads nothing but msgspec.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from swarmnode import limits
from swarmnode.closest import closest
from swarmnode.errors import ConfigError
from swarmnode.names import check_node_name
from swarmnode.paths import CONFIG_FILE_NAME as CONFIG_FILE_NAME
from swarmnode.paths import Paths as Paths
from swarmnode.paths import SwarmPaths as SwarmPaths
from swarmnode.quantities import ANY_INTERFACE as ANY_INTERFACE
from swarmnode.quantities import (
    PROXY_EXPECTED,
    PROXY_PATTERN,
    RATE_EXPECTED,
    RATE_PATTERN,
    SIZE_EXPECTED,
    SIZE_PATTERN,
    hide_password,
)
from swarmnode.quantities import HostPort as HostPort
from swarmnode.quantities import is_loopback as is_loopback
from swarmnode.quantities import parse_host_port as parse_host_port

# A settings file is a page of text, a key file is four lines.
CONFIG_FILE_BYTES_MAX = 64 * limits.KIB

ENVIRONMENT_PREFIX = "SWARMNODE_"
HOME_VARIABLE = "SWARMNODE_HOME"
OFF = "off"
# Settings that name addresses, one or several.
_ADDRESSES = (
    *("listen", "advertise", "metrics", "mainline_nodes", "dns_servers", "dashboard_share"),
)

Size = Annotated[str, Meta(pattern=SIZE_PATTERN, description=SIZE_EXPECTED)]
Rate = Annotated[str, Meta(pattern=RATE_PATTERN, description=RATE_EXPECTED)]
Way = Literal["link", "contacts", "mainline", "dns", "entries"]
NodeRole = Literal["trainer", "keeper", "relay", "monitor"]


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a node can choose. Field names are the names of the settings."""

    home: Path
    # Where peers reach us: "*" is every interface, IPv4 and IPv6; port 0 picks a free one.
    listen: str = "*:7337"
    # Addresses that we tell peers besides those we find out, for a port forwarded by hand.
    advertise: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    # A trainer has a worker, and needs torch; a keeper holds snapshots, a relay connects others
    # that cannot reach each other, a monitor only watches.
    role: Annotated[NodeRole, Meta(description="trainer, keeper, relay or monitor")] = "trainer"
    # What this node is called where people see it; "": two words that follow from its id.
    node_name: str = ""
    # Nodes of different networks never talk to each other; each has a DHT of its own.
    network: Annotated[
        str, Meta(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")
    ] = "main"
    # Peers to begin with, besides those of a link and on the LAN: sn1…@HOST:PORT.
    bootstrap: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    # Whether to look for other nodes on the local network, and be found there.
    lan: bool = True
    # Ways to peers besides that, asked side by side; a way that is left out is not used.
    rendezvous: Annotated[tuple[Way, ...], Meta(max_length=5)] = (
        "link",
        "contacts",
        "mainline",
        "dns",
        "entries",
    )
    # HOST:PORT of nodes that introduce us to the mainline BitTorrent DHT; none: well-known ones.
    mainline_nodes: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    # Zones of DNS whose TXT records name nodes, and HOST:PORT of the server to ask; none: ours.
    dns_seeds: Annotated[tuple[str, ...], Meta(max_length=4)] = ()
    dns_servers: Annotated[tuple[str, ...], Meta(max_length=1)] = ()
    # A signed list of entry nodes in place of the one built in, and whose signature counts.
    entry_nodes: Annotated[str, Meta(pattern=r"^(/.+)?$", description="/PATH")] = ""
    entry_nodes_key: Annotated[str, Meta(pattern="^([a-z2-7]{52})?$", description="a key")] = ""
    # Where /metrics answers, or "off".
    metrics: str = "127.0.0.1:7338"
    metrics_allow_remote: bool = False
    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$",
            description="auto, cpu, mps, cuda or cuda:N",
        ),
    ] = "auto"
    # Processes that train as one node, each on a GPU of its own.
    nproc: Annotated[int, Meta(ge=1, le=limits.RANKS_MAX)] = 1
    # What each of them holds: all of the model, or an equal part of it.
    parallel: Annotated[Literal["ddp", "fsdp2"], Meta(description="ddp or fsdp2")] = "ddp"
    # Torch threads; 0 leaves one core to everything else.
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    # What snapshots may take of the line, over all peers; 0 is all that there is.
    snapshot_upload_bytes_per_s: Annotated[int, Meta(ge=0, le=10**12)] = 0
    snapshot_download_bytes_per_s: Annotated[int, Meta(ge=0, le=10**12)] = 0
    # Whether to ask the home router for an open port (PCP, NAT-PMP, UPnP).
    port_mapping: bool = True
    # The HTTP proxy through which others are dialled where the direct way does not lead to them;
    # "auto": that of the environment (HTTPS_PROXY, but for what NO_PROXY names).
    proxy: Annotated[str, Meta(pattern=PROXY_PATTERN, description=PROXY_EXPECTED)] = "auto"
    # Whether others may go through this node; 0 is 2.5 MB/s, and for a relay all that there is.
    relay: bool = True
    relay_bytes_per_s: Annotated[int, Meta(ge=0, le=10**12)] = 0
    log_format: Annotated[Literal["text", "json"], Meta(description="text or json")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="debug, info, warning or error"),
    ] = "info"
    # A file that takes the log instead of standard error, of bounded size; "": none.
    log_file: Annotated[str, Meta(pattern=r"^(/.+)?$", description="/PATH")] = ""
    # Where the page about the swarm is served, on this machine only, or "off".
    dashboard: str = "127.0.0.1:7339"
    # Where it is shown to readers with the token of the home, and the names of these addresses.
    dashboard_share: Annotated[tuple[str, ...], Meta(max_length=limits.DASHBOARD_SHARES_MAX)] = ()
    dashboard_names: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    # What this machine gives: of its CPU, the time of the threads that training may use.
    cpu_percent: Annotated[int, Meta(ge=1, le=100)] = 100
    # NVIDIA GPUs that may be used, as `nvidia-smi` counts them; none named means all.
    gpus: Annotated[tuple[Annotated[int, Meta(ge=0, le=127)], ...], Meta(max_length=64)] = ()
    # Of each GPU's memory.
    gpu_memory: Size = ""
    # Pause while a GPU is hotter than this, in degrees Celsius; 0 leaves that to the driver.
    gpu_temperature_max: Annotated[int, Meta(ge=0, le=120)] = 0
    # What the worker may take of main memory; one that needs more is ended and tried again later.
    ram: Size = ""
    # What all files of this node may take.
    disk: Size = ""
    # What everything that this node sends and receives may take of the line.
    upload: Rate = ""
    download: Rate = ""
    # Send tensors no faster than others on this uplink do not notice it.
    upload_yields: bool = True
    # Bytes of a calendar month, both ways together; after that the node pauses until the next.
    monthly_quota: Size = ""
    # When to train, in local time, such as "mon-fri 22:00-07:00" or "sat,sun"; none means always.
    schedule: Annotated[tuple[str, ...], Meta(max_length=32)] = ()
    # Pause while the machine runs on battery.
    pause_on_battery: bool = True
    # Pause while the connection is metered, as far as NetworkManager knows.
    pause_on_metered: bool = True
    # Pause while other programs use an NVIDIA GPU.
    pause_on_gpu_busy: bool = False
    # Pause until this machine has not been used for so many seconds; 0 pays no attention to that.
    pause_on_user_s: Annotated[int, Meta(ge=0, le=86_400)] = 0
    # The listener on this Unix socket starts the worker, in a sandbox of its own; "": this node.
    worker_socket: Annotated[
        str, Meta(pattern=r"^(/.{1,100})?$", description="the path of a Unix socket, or nothing")
    ] = ""
    # What the worker gives up before it loads a task: what it can here (nothing on a GPU, on which
    # it was not tried); all, or it does not train; all but the network; nothing.
    sandbox: Annotated[
        Literal["auto", "on", "files", "off"], Meta(description="auto, on, files or off")
    ] = "auto"
    # Where to write the metrics for node_exporter's textfile collector; "": nowhere.
    metrics_textfile: Annotated[str, Meta(pattern=r"^(/.+\.prom)?$", description="/PATH.prom")] = ""
    # Where to write what /sd answers, for Prometheus' file_sd_configs; "": nowhere.
    metrics_file_sd: Annotated[str, Meta(pattern=r"^(/.+\.json)?$", description="/PATH.json")] = ""

    @property
    def paths(self) -> Paths:
        """Where this node keeps what it owns."""
        return Paths(self.home)

    @property
    def listen_address(self) -> HostPort:
        """``listen``, taken apart."""
        return parse_host_port(self.listen, setting="listen")

    @property
    def metrics_address(self) -> HostPort | None:
        """``metrics``, taken apart; None if it is off."""
        return None if self.metrics == OFF else parse_host_port(self.metrics, setting="metrics")

    @property
    def dashboard_address(self) -> HostPort | None:
        """``dashboard``, taken apart; None if it is off."""
        off = self.dashboard == OFF
        return None if off else parse_host_port(self.dashboard, setting="dashboard")


class Setting(NamedTuple):
    """One setting, its value and where that came from, for people to look at."""

    name: str
    value: Any
    origin: str

    @property
    def shown(self) -> Any:
        """The value without a password that may be in it."""
        return hide_password(self.value) if self.name == "proxy" else self.value


def resolve_home(flag: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Return the absolute home: the flag, ``SWARMNODE_HOME``, or the user's data directory."""
    chosen = flag or environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path  # 14 ms, for people without SWARMNODE_HOME only

    return user_data_path("swarmnode", appauthor=False)


def load_config(flags: Mapping[str, Any], environ: Mapping[str, str]) -> NodeConfig:
    """Return the settings of a node.

    Args:
        flags: By setting name; None means that the flag was not given.
        environ: Usually ``os.environ``; an empty variable counts as absent.

    Raises:
        ConfigError: A key is unknown, a value is out of its range, the file is no TOML, or
            metrics would be open to other machines without ``metrics_allow_remote``.
    """
    settings = explain_config(flags, environ)
    return NodeConfig(**{setting.name: setting.value for setting in settings})


def explain_config(flags: Mapping[str, Any], environ: Mapping[str, str]) -> list[Setting]:
    """Like :func:`load_config`, with the origin of each value, in the order of the fields."""
    home = _home_setting(flags.get("home"), environ)
    found = {
        **_from_file(home.value / CONFIG_FILE_NAME),
        **_from_environment(environ),
        **_from_flags(flags),
    }
    settings = {"home": home}
    for name, default in _DEFAULTS.items():
        settings[name] = found.get(name) or Setting(name, default, "default")
    _check_addresses(settings)
    _check_schedule(settings["schedule"])
    _, name, origin = settings["node_name"]
    check_node_name(name, f"node_name ({origin})")
    return list(settings.values())


_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(NodeConfig) if field.name != "home"
}
_DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for field in msgspec.structs.fields(NodeConfig)
    if field.name != "home"
}


def _home_setting(flag: str | None, environ: Mapping[str, str]) -> Setting:
    origin = "--home" if flag else HOME_VARIABLE if environ.get(HOME_VARIABLE) else "default"
    return Setting("home", resolve_home(flag, environ), origin)


def _from_file(path: Path) -> dict[str, Setting]:
    text = _read_config_file(path)
    if text is None:
        return {}
    import tomllib  # 10 ms, only where there is a file

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error
    for key in table:
        if key not in _TYPES:
            raise ConfigError(f"{path}: unknown setting {key!r}{_suggestion(key)}")
    return {
        key: Setting(key, _convert(value, key, f"{path}: {key}", strict=True), str(path))
        for key, value in table.items()
    }


def _read_config_file(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > CONFIG_FILE_BYTES_MAX:
        raise ConfigError(f"{path}: expected at most {CONFIG_FILE_BYTES_MAX} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    settings = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or not value or variable == HOME_VARIABLE:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in _TYPES:
            converted = _convert(value, name, variable, strict=False)
            settings[name] = Setting(name, converted, variable)
        elif close := closest(name, _TYPES):
            raise ConfigError(
                f"unknown environment variable {variable}: "
                f"did you mean {ENVIRONMENT_PREFIX}{close.upper()}?"
            )
    return settings


def _from_flags(flags: Mapping[str, Any]) -> dict[str, Setting]:
    settings = {}
    for name, value in flags.items():
        if value is None or name == "home":
            continue
        if name not in _TYPES:
            raise ConfigError(f"unknown setting {name!r}{_suggestion(name)}")
        flag = "--" + name.replace("_", "-")
        settings[name] = Setting(name, _convert(value, name, flag, strict=False), flag)
    return settings


def _convert(value: Any, name: str, origin: str, *, strict: bool) -> Any:
    """Check one value against its field; text from outside a file may spell any type."""
    wanted = _TYPES[name]
    plain = value
    if not strict and isinstance(value, str) and isinstance(_DEFAULTS[name], tuple):
        # An entry of the schedule may have commas of its own.
        comma = ";" if name == "schedule" else ","
        plain = [item.strip() for item in value.split(comma) if item.strip()]
    try:
        return msgspec.convert(plain, wanted, strict=strict)
    except msgspec.ValidationError as error:
        described = [meta.description for meta in getattr(wanted, "__metadata__", ())]
        expected = f"expected {described[0]}" if any(described) else error
        got = hide_password(str(value)) if name == "proxy" else str(value)
        raise ConfigError(f"{origin}: {expected}; got {got[:80]!r}") from error


def _check_addresses(settings: Mapping[str, Setting]) -> None:
    _check_dashboard(settings["dashboard"])
    for name in _ADDRESSES:
        _, value, origin = settings[name]
        for address in value if isinstance(value, tuple) else [value]:
            if (name, address) != ("metrics", OFF):
                host, _ = parse_host_port(address, setting=f"{name} ({origin})")
            if name == "advertise" and host is None:
                raise ConfigError(f"advertise ({origin}): expected a host, not {ANY_INTERFACE!r}")
    proxy = settings["proxy"]
    if "://" in proxy.value:
        address = proxy.value.strip("/").rpartition("/")[2].rpartition("@")[2]
        parse_host_port(address, setting=f"proxy ({proxy.origin})")
    metrics, file_sd = settings["metrics"], settings["metrics_file_sd"]
    if file_sd.value and metrics.value == OFF:
        raise ConfigError(
            f"metrics_file_sd ({file_sd.origin}): its targets would be this node, whose metrics are"
            f" off ({metrics.origin}): give metrics an address such as 127.0.0.1:7338"
        )
    is_open = metrics.value != OFF and not settings["metrics_allow_remote"].value
    if is_open and not is_loopback(parse_host_port(metrics.value, setting="metrics").host):
        raise ConfigError(
            f"metrics ({metrics.origin}): {metrics.value} can be reached from other machines and "
            "asks for no password: use 127.0.0.1:PORT, or set metrics_allow_remote = true"
        )


def _check_dashboard(setting: Setting) -> None:
    where = f"dashboard ({setting.origin})"
    if setting.value == OFF or is_loopback(parse_host_port(setting.value, setting=where).host):
        return
    _, port = parse_host_port(setting.value, setting=where)
    raise ConfigError(
        f"{where}: {setting.value} can be reached from other machines, and the page asks for no"
        f" password: use 127.0.0.1:{port}, and from elsewhere `swarmnode dashboard --share`"
    )


def _check_schedule(setting: Setting) -> None:
    if setting.value:
        from swarmnode.schedule import parse_schedule  # only where one is set

        parse_schedule(setting.value)


def _suggestion(name: str) -> str:
    close = closest(name, _TYPES)
    return f": did you mean {close!r}?" if close else f"; known are {', '.join(_TYPES)}"
