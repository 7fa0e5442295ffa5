from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.config import (
    CONFIG_FILE_BYTES_MAX,
    HostPort,
    Paths,
    explain_config,
    is_loopback,
    load_config,
    parse_host_port,
    resolve_home,
)
from swarmnode.errors import ConfigError


def environ(home: Path, **variables: str) -> dict[str, str]:
    return {"SWARMNODE_HOME": str(home), **variables}


def write_config(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text, encoding="utf-8")


def test_defaults_listen_to_peers_everywhere_and_to_scrapes_only_here(tmp_path: Path) -> None:
    config = load_config({}, environ(tmp_path))
    assert config.listen_address == HostPort(None, 7337)
    assert config.metrics_address == HostPort("127.0.0.1", 7338)
    assert config.home == tmp_path
    assert config.paths.node_key == tmp_path / "node.key"


def test_precedence_flag_environment_file_default(tmp_path: Path) -> None:
    write_config(tmp_path, "threads = 1\ndevice = 'cpu'\nlog_format = 'json'\n")
    variables = environ(tmp_path, SWARMNODE_THREADS="2", SWARMNODE_DEVICE="mps")
    origins = {s.name: (s.value, s.origin) for s in explain_config({"threads": 3}, variables)}
    assert origins["threads"] == (3, "--threads")
    assert origins["device"] == ("mps", "SWARMNODE_DEVICE")
    assert origins["log_format"] == ("json", str(tmp_path / "config.toml"))
    assert origins["log_level"] == ("info", "default")
    assert origins["home"] == (tmp_path, "SWARMNODE_HOME")


def test_home_flag_decides_which_file_is_read(tmp_path: Path) -> None:
    write_config(tmp_path, "threads = 5")
    config = load_config({"home": tmp_path}, environ(Path("/nowhere")))
    assert (config.home, config.threads) == (tmp_path, 5)


def test_flag_not_given_and_empty_variable_count_as_absent(tmp_path: Path) -> None:
    config = load_config({"threads": None}, environ(tmp_path, SWARMNODE_DEVICE=""))
    assert (config.threads, config.device) == (0, "auto")


def test_text_is_converted_to_the_type_of_the_setting(tmp_path: Path) -> None:
    variables = environ(
        tmp_path, SWARMNODE_ADVERTISE="a.example:1, [::2]:2", SWARMNODE_METRICS_ALLOW_REMOTE="true"
    )
    config = load_config({"threads": "4"}, variables)
    assert config.advertise == ("a.example:1", "[::2]:2")
    assert config.metrics_allow_remote is True
    assert config.threads == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread = 1", r"config\.toml: unknown setting 'thread': did you mean 'threads'\?"),
        ("zzz = 1", r"unknown setting 'zzz'; known are listen, .*log_level"),
        ("home = '/x'", r"unknown setting 'home'"),
        ("[metrics]\nport = 1", r"config\.toml: metrics: Expected `str`, got `object`"),
        ("threads = '4'", r"config\.toml: threads: Expected `int`, got `str`; got '4'"),
        ("threads = -1", r"config\.toml: threads: Expected `int` >= 0"),
        ("threads = 1025", r"threads: Expected `int` <= 1024"),
        ("log_format = 'xml'", r"log_format: expected text or json; got 'xml'"),
        ("device = 'tpu'", r"device: .*got 'tpu'"),
        ("advertise = ['nowhere']", r"advertise \(.*config\.toml\): expected HOST:PORT"),
        ("advertise = ['*:1']", r"advertise .*expected a host"),
        ("listen = ':7337'", r"listen .*expected HOST:PORT"),
        ("device = 'cpu'\nthreads == 2", r"config\.toml: expected TOML: .*line 2"),
        ("#" * (CONFIG_FILE_BYTES_MAX + 1), r"expected at most 65536 bytes"),
    ],
)
def test_file_is_strict_and_says_where(tmp_path: Path, text: str, message: str) -> None:
    write_config(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        load_config({}, environ(tmp_path))


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="expected UTF-8"):
        load_config({}, environ(tmp_path))


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        load_config({}, environ(tmp_path))


def test_misspelt_variable_is_an_error_and_a_platforms_own_is_not(tmp_path: Path) -> None:
    platform = {"SWARMNODE_SERVICE_HOST": "10.0.0.1", "SWARMNODE_PORT_7337_TCP_PROTO": "tcp"}
    load_config({}, environ(tmp_path, **platform))
    with pytest.raises(ConfigError, match=r"SWARMNODE_LISEN: did you mean SWARMNODE_LISTEN\?"):
        load_config({}, environ(tmp_path, SWARMNODE_LISEN="x"))


def test_wrong_values_name_the_variable_or_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SWARMNODE_THREADS: Expected `int`.*'many'"):
        load_config({}, environ(tmp_path, SWARMNODE_THREADS="many"))
    with pytest.raises(ConfigError, match="--metrics-allow-remote: "):
        load_config({"metrics_allow_remote": "maybe"}, environ(tmp_path))
    with pytest.raises(ConfigError, match="unknown setting 'lisen': did you mean 'listen'"):
        load_config({"lisen": "x"}, environ(tmp_path))


@pytest.mark.parametrize("address", ["0.0.0.0:7338", "*:7338", "[::]:1", "node.example:1"])
def test_metrics_open_to_others_must_be_wanted(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics \(--metrics\).*metrics_allow_remote = true"):
        load_config({"metrics": address}, environ(tmp_path))
    config = load_config({"metrics": address, "metrics_allow_remote": True}, environ(tmp_path))
    assert config.metrics == address


@pytest.mark.parametrize(
    "text",
    ["auto", "off", "http://proxy:3128", "http://u:p%40@10.0.0.1:8080/", "http://[2001:db8::1]:80"],
)
def test_a_proxy_is_taken(tmp_path: Path, text: str) -> None:
    assert load_config({}, environ(tmp_path, SWARMNODE_PROXY=text)).proxy == text


@pytest.mark.parametrize(
    "text",
    [
        "proxy:3128",
        "https://u:swordfish@proxy:3128",
        "http://u:swordfish@proxy",
        "http://u:sword@fish@proxy:1",
        "http://u:swordfish@proxy:99999",
        "u:swordfish@proxy:3128",
    ],
)
def test_no_proxy_is_refused_without_saying_its_password(tmp_path: Path, text: str) -> None:
    for write in (f'proxy = "{text}"\n', ""):
        write_config(tmp_path, write)
        variables = {} if write else {"SWARMNODE_PROXY": text}
        with pytest.raises(ConfigError, match=r"(?i)proxy.*expected") as caught:
            load_config({}, environ(tmp_path, **variables))
        assert "fish" not in str(caught.value)
        assert "sword" not in str(caught.value)


def test_metrics_off(tmp_path: Path) -> None:
    assert load_config({"metrics": "off"}, environ(tmp_path)).metrics_address is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:0", HostPort("127.0.0.1", 0)),
        ("[::1]:65535", HostPort("::1", 65535)),
        ("*:1", HostPort(None, 1)),
        ("node.example:7337", HostPort("node.example", 7337)),
    ],
)
def test_host_and_port(text: str, expected: HostPort) -> None:
    assert parse_host_port(text, setting="x") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":1", "a", "a:", "a:b", "a:65536", "a:-1", "a:１"),
        *("::1:80", "a:1:2", "[:1", "[]:1", "a b:1"),
    ],
)
def test_no_host_and_port(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x: expected HOST:PORT"):
        parse_host_port(text, setting="x")


def test_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "LOCALHOST", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, [None, "", "0.0.0.0", "::", "localhost.example", "10.0.0.1"]))


def test_home_is_absolute_and_knows_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert resolve_home("~/node", {}) == tmp_path / "node"
    assert resolve_home("node", {}) == tmp_path / "node"
    assert resolve_home(None, {"SWARMNODE_HOME": "/a"}) == Path("/a")
    default = resolve_home(None, {"SWARMNODE_HOME": ""})
    assert default.is_relative_to(tmp_path)
    assert default.name == "swarmnode"


def test_control_socket_fits_into_an_address() -> None:
    assert Paths(Path("/h")).control_socket == Path("/h/run/control.sock")
    long, other = Paths(Path("/" + "x" * 100)), Paths(Path("/" + "y" * 100))
    assert len(str(long.control_socket)) <= limits.UNIX_PATH_BYTES_MAX
    assert long.control_socket == Paths(long.home).control_socket
    assert long.control_socket != other.control_socket


def test_paths_of_a_swarm_stay_in_the_home() -> None:
    paths = Paths(Path("/h"))
    swarm = paths.swarm("tiny-shakespeare.v1")
    assert swarm.manifest == Path("/h/swarms/tiny-shakespeare.v1/manifest")
    assert swarm.worker_log.parent == swarm.snapshots.parent == swarm.swarm_key.parent
    for name in ("", "..", ".", "a/b", "A", "-a", "a" * 65, "a\n"):
        with pytest.raises(ConfigError, match="expected a swarm name"):
            paths.swarm(name)


def test_files_of_metrics_have_the_endings_that_their_readers_want() -> None:
    for variable, good, bad in (
        ("SWARMNODE_METRICS_TEXTFILE", "/var/lib/node_exporter/swarmnode.prom", "/tmp/x.txt"),
        ("SWARMNODE_METRICS_FILE_SD", "/etc/prometheus/swarmnode.json", "relative.json"),
    ):
        config = load_config({"home": "/tmp/x"}, {variable: good})
        assert good in (config.metrics_textfile, config.metrics_file_sd)
        with pytest.raises(ConfigError, match=rf"{variable}: expected /PATH\."):
            load_config({"home": "/tmp/x"}, {variable: bad})
    with pytest.raises(ConfigError, match=r"metrics_file_sd \(.*\): its targets would be"):
        load_config(
            {"home": "/tmp/x", "metrics": "off"}, {"SWARMNODE_METRICS_FILE_SD": "/tmp/x.json"}
        )
