"""How far it is from a wheel to the first training, on a machine without a GPU.

``python -m tests.process.first_training [--wheel FILE]``: an empty environment, what the README's
two commands install, from the index, with an empty cache, and then a node until its third step.
Each line is JSON: what came over the network, that of torch apart, and how long each step took, on
the clock and in time of the CPU, which tells more where others use the machine. Without
``--wheel`` one is built of the last commit. Exit status 1: more than 600 MB
besides torch, or more than 60 s from the files that were downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.kits.daemon_kit import free_port

DOWNLOADS_BYTES_MAX, TOTAL_S_MAX = 600_000_000, 60.0
STEPS = 3
DEADLINE_S = 600.0
LOOK_S = 0.2
# Builds of torch for GPUs bring these along.
OF_TORCH = ("torch-", "triton-", "nvidia_", "cuda_")


class Clock:
    """What has gone by since the last look: on the clock, and of the CPU in ended processes."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), _children_s()
        self.total_s = 0.0

    def say(self, what: str, **more: Any) -> None:
        """Print how long it took."""
        wall_s, cpu_s = time.monotonic(), _children_s()
        took_s = wall_s - self._wall_s
        said = {"step": what, "seconds": round(took_s, 1), "cpu_s": round(cpu_s - self._cpu_s, 1)}
        print(json.dumps(said | more), flush=True)
        self.total_s += took_s
        self._wall_s, self._cpu_s = wall_s, cpu_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(*command: str | Path, **more: Any) -> str:
    """Run a command to its end; return what it printed."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def built_wheel(folder: Path) -> Path:
    """Return a wheel of what the last commit holds."""
    source = folder / "source"
    source.mkdir(parents=True)
    run("git", "-C", ROOT, "archive", "-o", folder / "source.tar", "HEAD")
    run("tar", "-xf", folder / "source.tar", "-C", source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def fetched(python: Path, wheel: Path, folder: Path) -> dict[str, int]:
    """Fetch what the wheel needs to train, into an empty folder; return the bytes of each file."""
    constraints = ROOT / ".ci" / "constraints.txt"
    run(python, "-m", "pip", "download", "-q", "--no-cache-dir", "--only-binary", ":all:",
        "-c", constraints, "-d", folder, f"{wheel}[torch]")  # fmt: skip
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != wheel.name}


def train(swarmnode: Path, home: Path) -> dict[str, Any]:
    """Create a swarm and take part until the node has trained; return its status."""
    at = ("--home", home)
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    run(swarmnode, "create", "first", "--task", "bytes-lm", *listen, *at)
    # Nothing of it leaves the machine.
    alone = (*listen, "--no-lan", "--metrics", "off", "--dashboard", "off")
    with subprocess.Popen(
        [swarmnode, "join", "first", *alone, *at], stderr=subprocess.DEVNULL
    ) as node:
        try:
            until_s = time.monotonic() + DEADLINE_S
            while time.monotonic() < until_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.wait(LOOK_S)
                asked = subprocess.run(
                    [swarmnode, "status", "--json", *at],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                status: dict[str, Any] = json.loads(asked.stdout or "{}")
                if status.get("step", 0) >= STEPS:
                    return status
                if node.poll() is not None:
                    raise SystemExit(f"the node ended: {asked.stdout}")
            raise SystemExit(f"no step after {DEADLINE_S:.0f} s")
        finally:
            node.terminate()


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description="from a wheel to the first training")
    parser.add_argument("--wheel", type=Path, help="[default: one of the last commit]")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # or pip finds swarmnode installed, in this checkout
    with tempfile.TemporaryDirectory(prefix="swarmnode-first-") as name:
        work = Path(name)
        wheel = arguments.wheel or built_wheel(work / "built")
        clock = Clock()
        run(sys.executable, "-m", "venv", work / "venv")
        programs = work / "venv" / "bin"
        clock.say("environment")
        files = fetched(programs / "python", wheel.absolute(), work / "files")
        ours = sum(size for file, size in files.items() if not file.startswith(OF_TORCH))
        largest = sorted(files.items(), key=lambda item: -item[1])[:4]
        clock.say("download", bytes_besides_torch=ours, bytes_of_torch=sum(files.values()) - ours,
                  files=len(files), largest=dict(largest))  # fmt: skip
        network_s, clock.total_s = clock.total_s, 0.0
        run(programs / "pip", "install", "-q", "--no-cache-dir", "--no-index", "-f", work / "files",
            f"{wheel.absolute()}[torch]")  # fmt: skip
        clock.say("install")
        status = train(programs / "swarmnode", work / "home")
        clock.say("create, join and train", steps=status["step"], loss=status["loss"])
        is_small = ours <= DOWNLOADS_BYTES_MAX
        is_quick = clock.total_s <= TOTAL_S_MAX
        said = {
            "seconds_without_network": round(clock.total_s, 1),
            "network_s": round(network_s, 1),
        }
        print(json.dumps(said | {"bytes_besides_torch": ours, "reached": is_small and is_quick}))
        return 0 if is_small and is_quick else 1


if __name__ == "__main__":
    sys.exit(main())
