"""The chart: its values against its schema, its templates through Helm's own template engine.

Helm itself is in no package source of the tests. Go's templates and sprig are, and are most of it:
see render/main.go.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import jsonschema
import pytest
import yaml

from swarmnode import __version__
from swarmnode.config import NodeConfig, NodeRole
from swarmnode.daemon.status.control import metrics_routes
from tests.deploy.kit import DEPLOY, PROGRAM_DEADLINE_S, load, run

CHART = DEPLOY / "helm" / "swarmnode"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
SPRIG = Path("/usr/share/gocode")  # where Debian puts the sources of Go's libraries
WITH_LINK: dict[str, Any] = {"swarm": {"link": "demo"}}
Documents = dict[tuple[str, str], Any]
Render = Callable[..., Documents]


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``, as Helm merges values: mappings deeply, the rest not."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        is_deep = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if is_deep else value
    return result


def values(changes: dict[str, Any]) -> dict[str, Any]:
    return merged(load(CHART / "values.yaml"), changes)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the renderer."""
    if shutil.which("go") is None or not (SPRIG / "src/github.com/Masterminds/sprig").is_dir():
        pytest.skip("needs golang-go and golang-github-masterminds-sprig-dev")
    folder = tmp_path_factory.mktemp("render")
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": str(SPRIG),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "",
    }
    program = folder / "render"
    source = Path(__file__).parent / "render" / "main.go"
    run("go", "build", "-o", program, source, env=environment)
    return program


@pytest.fixture
def render(engine: Path) -> Render:
    """Return a function from changes of the values to what Kubernetes would be given."""
    chart = load(CHART / "Chart.yaml")

    def rendered(changes: dict[str, Any], name: str = "test") -> Documents:
        jsonschema.validate(values(changes), SCHEMA)
        given = {
            "Values": values(changes),
            "Release": {"Name": name, "Namespace": "default", "Service": "Helm"},
            "Chart": {key[0].upper() + key[1:]: value for key, value in chart.items()},
        }
        done = subprocess.run(
            [engine, CHART],
            input=json.dumps(given),
            capture_output=True,
            encoding="utf-8",
            timeout=PROGRAM_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        documents: Documents = {}
        for file, text in json.loads(done.stdout).items():
            for document in yaml.safe_load_all(text) if file.endswith(".yaml") else ():
                if document is not None:
                    key = (document["kind"], document["metadata"]["name"])
                    assert key not in documents
                    documents[key] = document
        return documents

    return rendered


# --- values -------------------------------------------------------------------------------


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_values_with_a_link_are_valid() -> None:
    jsonschema.validate(values(WITH_LINK), SCHEMA)
    jsonschema.validate(values({"swarm": {"existingSecret": "mine"}}), SCHEMA)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**WITH_LINK, "role": "boss"},
        {**WITH_LINK, "replicas": -1},
        {**WITH_LINK, "storage": {"size": "much"}},
        {**WITH_LINK, "unknown": 1},
        {**WITH_LINK, "settings": {"metrics": "0.0.0.0:1"}},
        {**WITH_LINK, "service": {"type": "Loud"}},
        {
            **WITH_LINK,
            "monitoring": {"serviceMonitor": {"enabled": True}, "swarmScrape": {"enabled": True}},
        },
    ],
    ids=["no link", "role", "replicas", "size", "unknown", "taken", "service", "twice"],
)
def test_what_cannot_work_is_refused_before_it_is_installed(changes: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values(changes), SCHEMA)


def test_roles_and_versions_are_those_of_the_code() -> None:
    assert set(SCHEMA["properties"]["role"]["enum"]) <= set(get_args(NodeRole))
    assert load(CHART / "Chart.yaml")["appVersion"] == __version__


def test_rules_and_dashboards_are_those_of_the_tree() -> None:
    linked = {path.name: path.resolve() for path in (CHART / "files").iterdir()}
    assert {name: path.parent.parent.name for name, path in linked.items()} == {
        "alerts.yml": "prometheus",
        "recording.yml": "prometheus",
        "node.json": "grafana",
        "swarm.json": "grafana",
        "training.json": "grafana",
    }
    assert all(path.is_file() for path in linked.values())


# --- templates ----------------------------------------------------------------------------


def test_by_itself_it_is_a_node_and_two_services(render: Render) -> None:
    documents = render(WITH_LINK)
    assert set(documents) == {
        ("Secret", "test-swarmnode-link"),
        ("Service", "test-swarmnode"),
        ("Service", "test-swarmnode-metrics"),
        ("StatefulSet", "test-swarmnode"),
    }
    spec = documents["StatefulSet", "test-swarmnode"]["spec"]
    pod = spec["template"]
    (container,) = pod["spec"]["containers"]
    assert spec["serviceName"] == "test-swarmnode-metrics"
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert container["args"][:4] == ["join", "$(LINK)", "--role", "keeper"]
    assert documents["Secret", "test-swarmnode-link"]["stringData"] == {"link": "demo"}
    for name in ("test-swarmnode", "test-swarmnode-metrics"):
        service = documents["Service", name]["spec"]
        ports = {port["name"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["ports"]} <= ports
        assert service["selector"] == spec["selector"]["matchLabels"]


def test_it_has_no_rights_that_it_does_not_need(render: Render) -> None:
    pod = render(WITH_LINK)["StatefulSet", "test-swarmnode"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in image
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
        re.findall(r"SWARMNODE_HOME=(\S+)", image)[0],
        "/tmp",
    }


def test_probes_ask_what_the_node_answers(render: Render) -> None:
    documents = render(WITH_LINK)
    pod = documents["StatefulSet", "test-swarmnode"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {
        "startup": "/-/healthy",
        "liveness": "/-/healthy",
        "readiness": "/-/ready",
    }
    assert set(paths.values()) <= {route.path for route in metrics_routes(cast(Any, None))}
    # A node that no peer reaches until it is a member would never be one.
    assert documents["Service", "test-swarmnode"]["spec"]["publishNotReadyAddresses"] is True


def test_settings_become_environment_variables_that_exist(render: Render) -> None:
    settings = {"bootstrap": "sn1x@host:1", "snapshot_upload_bytes_per_s": 5, "lan": True}
    documents = render({**WITH_LINK, "settings": settings, "role": "trainer", "replicas": 3})
    (container,) = documents["StatefulSet", "test-swarmnode"]["spec"]["template"]["spec"][
        "containers"
    ]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["SWARMNODE_BOOTSTRAP"] == "sn1x@host:1"
    assert given["SWARMNODE_SNAPSHOT_UPLOAD_BYTES_PER_S"] == "5"
    names = {name.removeprefix("SWARMNODE_").lower() for name in given} - {"link"}
    assert names <= set(NodeConfig.__struct_fields__)


def test_a_secret_of_the_owner_is_used_instead(render: Render) -> None:
    documents = render({"swarm": {"existingSecret": "mine", "secretKey": "url"}}, "swarmnode")
    assert not any(kind == "Secret" for kind, _ in documents)
    pod = documents["StatefulSet", "swarmnode"]["spec"]["template"]["spec"]
    source = pod["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]
    assert source == {"name": "mine", "key": "url"}


def test_the_whole_swarm_is_scraped_as_outside_of_a_cluster(render: Render) -> None:
    documents = render({**WITH_LINK, "monitoring": {"swarmScrape": {"enabled": True}}})
    scrape = documents["ScrapeConfig", "test-swarmnode"]["spec"]
    (job,) = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert scrape["jobName"] == job["job_name"]
    assert scrape["sampleLimit"] == job["sample_limit"]
    assert scrape["targetLimit"] == job["target_limit"]
    for theirs, ours in (
        ("relabelings", "relabel_configs"),
        ("metricRelabelings", "metric_relabel_configs"),
    ):
        assert [_snake(each) for each in scrape[theirs]] == job[ours]
    (source,) = scrape["httpSDConfigs"]
    host = re.findall(r"http://([^.]+)\.([^.]+)\.default\.svc:7338/sd", source["url"])
    assert host == [("test-swarmnode-0", "test-swarmnode-metrics")]


def test_rules_and_dashboards_arrive_unchanged(render: Render) -> None:
    watched: dict[str, Any] = {name: {"enabled": True} for name in ("prometheusRule", "dashboards")}
    watched["serviceMonitor"] = {"enabled": True, "labels": {"release": "prom"}}
    documents = render({**WITH_LINK, "monitoring": watched})
    groups = documents["PrometheusRule", "test-swarmnode"]["spec"]["groups"]
    wanted = [load(DEPLOY / "prometheus/rules" / name) for name in ("recording.yml", "alerts.yml")]
    assert groups == [group for file in wanted for group in file["groups"]]
    boards = documents["ConfigMap", "test-swarmnode-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    for file in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        assert json.loads(boards["data"][f"swarmnode-{file.name}"]) == json.loads(file.read_text())
    monitor = documents["ServiceMonitor", "test-swarmnode"]
    service = documents["Service", "test-swarmnode-metrics"]["metadata"]["labels"]
    other = documents["Service", "test-swarmnode"]["metadata"]["labels"]
    wanted_labels = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted_labels <= service.items()
    assert not wanted_labels <= other.items()
    assert monitor["metadata"]["labels"]["release"] == "prom"


def _snake(config: dict[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda m: "_" + m[0].lower(), key): v for key, v in config.items()}
