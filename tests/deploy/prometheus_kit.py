"""A real Prometheus for tests: the configuration of the tree, asked over its API."""

from __future__ import annotations

import json
import statistics
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from tests.deploy.kit import DEPLOY, RULES, load
from tests.kits.daemon_kit import LOOPBACK, free_port, wait_until

SCRAPE_S = 5
Samples = dict[str, float]  # by instance


class Prometheus:
    """The server as a process; it scrapes the swarm of the node whose metrics are at a port."""

    def __init__(self, folder: Path, metrics_port: int, host: str = LOOPBACK) -> None:
        folder.mkdir()
        config = load(DEPLOY / "prometheus" / "prometheus.yml")
        config["global"] = {
            "scrape_interval": f"{SCRAPE_S}s",
            "scrape_timeout": f"{SCRAPE_S}s",
            "evaluation_interval": "1s",
        }
        config["rule_files"] = [str(path) for path in RULES]
        (source,) = config["scrape_configs"][0]["http_sd_configs"]
        source |= {"url": f"http://{host}:{metrics_port}/sd", "refresh_interval": "1s"}
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        self._address = f"{LOOPBACK}:{free_port()}"
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = self.start(
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self._address}",
                "--log.level=warn",
                log=log,
            )

    def start(self, *command: str, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        print("--- prometheus", self._log.read_text(errors="replace"), sep="\n")

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the API; None while it does not answer yet."""
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return None

    def query(self, expression: str) -> Samples:
        """Return the values of an instant vector."""
        data = self.get("query", query=expression)
        found = data["result"] if data is not None else []
        return {each["metric"].get("instance", ""): float(each["value"][1]) for each in found}

    def history(self, selector: str, since_s: int = 600) -> dict[str, list[tuple[float, float]]]:
        """Return the samples of series as (Unix time of the scrape in s, value), by instance."""
        data = self.get("query", query=f"{selector}[{since_s}s]")
        found = data["result"] if data is not None else []
        return {
            each["metric"].get("instance", ""): [(at, float(value)) for at, value in each["values"]]
            for each in found
        }

    def scrape_times(self, selector: str) -> str:
        """Return in words how long the scrapes of some targets took that had an answer."""
        up = self.history(f"up{selector}")
        answered = {(name, at) for name, each in up.items() for at, value in each if value}
        took = sorted(
            seconds
            for name, each in self.history(f"scrape_duration_seconds{selector}").items()
            for at, seconds in each
            if (name, at) in answered
        )
        p95 = took[int(0.95 * (len(took) - 1))]
        return (
            f"{len(took)} scrapes with an answer: median {statistics.median(took) * 1000:.0f} ms, "
            f"p95 {p95 * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms"
        )

    def wait(self, expression: str, wanted: Samples, deadline_s: float = 60.0) -> None:
        """Return once ``expression`` has these values."""
        seen: list[Samples] = []

        def holds() -> bool:
            seen[:] = [self.query(expression)]
            return seen[0] == wanted

        try:
            wait_until(holds, expression, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: expected {wanted}, got {seen}") from None
