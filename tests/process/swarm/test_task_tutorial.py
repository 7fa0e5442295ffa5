"""The tutorial of docs/task.md, from its first step to its last, on a swarm of two nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from swarmnode.ipc.spawn import worker_command
from tests.kits.daemon_kit import DEADLINE_S, environment, free_port, swarmnode
from tests.unit.test_docs import ROOT, blocks, install, text_of


def test_the_tutorial_works(tmp_path: Path) -> None:
    page = text_of(ROOT / "docs" / "task.md")
    packages = tmp_path / "packages"
    packages.mkdir()
    assert install(packages, page) == "circle"
    home, env = tmp_path / "home", {"PYTHONPATH": str(packages)}

    alone = subprocess.run(
        worker_command("swarmnode.worker.offline", "alone", "--task", "circle", "--steps", "300"),
        env=environment(home, env),
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert float(alone.stdout.splitlines()[-1].split(b'"eval_loss": ')[1].rstrip(b"}")) < 0.3

    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    command = ["create", "rings", "--task", "circle", "--set", "hidden=64", "--listen", first]
    created = swarmnode(home, *command, "--json", env=env)
    assert created.code == 0, created.err
    program = blocks(page, "python")[1]
    assert "127.0.0.1:7401" in program
    program = program.replace("127.0.0.1:7401", first).replace("127.0.0.1:7402", second)
    (tmp_path / "rings.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "rings.py"), created.json["link"], str(home)],
        env=environment(home, env),
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    *reports, names = done.stdout.splitlines()
    assert len(reports) == 2
    for line in reports:
        step, exchanges, loss = line.split()
        assert int(step) >= 500
        assert int(exchanges) >= 10
        assert float(loss) < 0.5
    assert names == "['0.bias', '0.weight', '2.bias', '2.weight']"
