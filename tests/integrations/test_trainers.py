"""Two Trainers of one library train one model: both exchange, both learn, nothing by halves."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.integrations.kit import committed_on_both
from tests.integrations.programs import BATCH, CONTEXT, EXCHANGES_MIN
from tests.kits.daemon_kit import environment, free_port

DEADLINE_S = 240.0  # both import their library on a busy machine


def start(kind: str, verb: str, home: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integrations.programs", kind, verb, str(home)]
    extra = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(home) | extra,
        cwd=ROOT,
    )


def end(program: subprocess.Popen[str]) -> Any:
    out, err = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 0, f"{out[-2000:]}\n{err[-4000:]}"
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow  # 30 s, most of them for importing the libraries
@pytest.mark.parametrize(("kind", "package"), [("hf", "transformers"), ("lightning", "lightning")])
def test_two_trainers_exchange_and_learn(kind: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install '.[{kind}]' in the clone of swarmnode")
    homes = [tmp_path / "a", tmp_path / "b"]
    where = [f"127.0.0.1:{free_port()}" for _ in homes]
    link = end(start(kind, "create", homes[0], where[0]))["link"]
    done = [tmp_path / "a.done", tmp_path / "b.done"]
    programs = [
        start(kind, "train", home, here, link, str(own), str(other))
        for home, here, own, other in zip(homes, where, done, reversed(done), strict=True)
    ]
    try:
        reports = [end(program) for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    per_step = BATCH * CONTEXT * (1 if kind == "hf" else 2)
    # Of two, one may begin long after the other, with a model that has learnt all there is.
    untrained = max(report["first"] for report in reports)
    for report in reports:
        print(report)
        assert report["exchanges"] >= EXCHANGES_MIN
        assert report["last"] < 0.7 * untrained
        assert report["tokens_per_step"] == per_step
        assert math.isfinite(report["status_loss"])
        assert report["eval_loss"] < math.log(32)
    nodes = {report["peer"]: home for report, home in zip(reports, homes, strict=True)}
    assert committed_on_both(nodes) >= EXCHANGES_MIN
