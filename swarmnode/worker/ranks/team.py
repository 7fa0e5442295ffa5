"""The processes of the other ranks: started, given orders, ended. Free of torch.

Each has a socket, over which orders come, and a pipe for its last words. All of them are in the
process group of rank 0, which the daemon kills as a whole; the kernel ends them with rank 0, and
so does the end of the orders. The death of a rank ends rank 0 in the same way: what its training
was amounts to a torn step, which no one waits for.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import Configure
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.worker.failures import EXIT_STATUS, RankFailed
from swarmnode.worker.sandbox import SCRATCH_NAME

_END_S = 1.0  # for a rank that was told to end
# For what rank 0 is in the midst of: a collective over NCCL does not notice that a rank is gone.
_UNWIND_S = 5.0
_LAST_WORDS_BYTES = 4096

_log = logging.getLogger(__name__)


class Team:
    """The other ranks of this worker, as rank 0 sees them.

    Owns: their processes, until the block ends; ``fd``, a piece of memory that all of them map.
    """

    def __init__(self, configure: Configure, threads: int) -> None:
        """Raises ConfigError: the setting of the device is of one rank only."""
        check_device(configure.device)
        self.configure = configure
        self.size = configure.nproc
        self.threads = max(1, threads // self.size)
        self.store = Path(configure.snapshot_dir).with_name(SCRATCH_NAME) / "ranks"
        self.fd = _memory()
        self._ranks: list[_Rank] = []
        self._is_ending = False
        self._failed: RankFailed | None = None
        self._told = threading.Event()

    def __enter__(self) -> Team:
        self.store.parent.mkdir(parents=True, exist_ok=True)
        self.store.unlink(missing_ok=True)
        with ExitStack() as undo:
            undo.callback(self._end)  # whatever the reason: no rank is left behind
            for rank in range(1, self.size):
                self._ranks.append(_Rank(rank, self))
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Raises RankFailed: it is why the block could not go on."""
        if isinstance(error, Exception):  # of a rank, perhaps, which says so at this moment
            self._told.wait(_END_S)
        failed = self._failed
        self._end()
        if failed is not None and isinstance(error, Exception):
            raise failed from error

    def tell(self, rank: int, *order: Any) -> None:
        """Give an order. Raises OSError: that rank is gone.

        Pickled, as batches may be anything: both ends are this program, and nothing of it is of the
        network. By hand, as a ``Connection`` would send tensors as files that the other end opens.
        """
        self._ranks[rank - 1].orders.send_bytes(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))

    def tell_all(self, *order: Any) -> None:
        """Give all other ranks the same order. Raises as :meth:`tell`."""
        octets = pickle.dumps(order, pickle.HIGHEST_PROTOCOL)
        for rank in self._ranks:
            rank.orders.send_bytes(octets)

    def bury(self, rank: _Rank, said: bytes) -> None:
        """A rank has ended (called in its thread): end rank 0, unless all of them are to end."""
        status = rank.popen.wait()
        if self._is_ending:
            return
        name = f"rank {rank.number} (process {rank.popen.pid})"
        if status < 0:
            _log.error("%s was killed by %s: so ends this worker", name, _signal_name(-status))
            os.kill(os.getpid(), signal.SIGKILL)
        kind, message = _words(said)
        self._failed = RankFailed(kind, f"{name} has ended: {message}")
        self._told.set()
        unwinding = threading.Timer(_UNWIND_S, self._end_at_once, (kind,))
        unwinding.daemon = True
        unwinding.start()

    def _end_at_once(self, kind: str) -> None:
        if not self._is_ending:
            _log.error("worker failed (%s): %s", kind, self._failed)
            os._exit(EXIT_STATUS[kind])

    def _end(self) -> None:
        self._is_ending = True
        for rank in self._ranks:
            rank.orders.close()
        for rank in self._ranks:
            rank.end()
        self.store.unlink(missing_ok=True)
        os.close(self.fd)


class _Rank:
    """Owns: one process, our end of its orders, and the thread that waits for its last words."""

    def __init__(self, number: int, team: Team) -> None:
        self.number = number
        self.orders, theirs = Pipe()
        words, said = os.pipe()
        try:
            self.popen = _spawn(number, team, theirs, said)
        finally:
            theirs.close()
            os.close(said)
        self._thread = threading.Thread(target=self._listen, args=(words, team), daemon=True)
        self._thread.start()

    def _listen(self, words: int, team: Team) -> None:
        with os.fdopen(words, "rb") as pipe:
            said = pipe.read(_LAST_WORDS_BYTES)
        team.bury(self, said)

    def end(self) -> None:
        """Wait for the process, whose orders have ended; kill it if it is slow."""
        try:
            self.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def _spawn(number: int, team: Team, orders: Connection, said: int) -> subprocess.Popen[bytes]:
    """Start a rank, from the main thread: the kernel ends it with the thread that started it."""
    # One machine: what the ranks say to each other never leaves it.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    arguments = ["--orders-fd", str(orders.fileno()), "--words-fd", str(said)]
    arguments += ["--memory-fd", str(team.fd), "--store", str(team.store)]
    named = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": team.size}
    named |= {"OMP_NUM_THREADS": team.threads}
    return subprocess.Popen(
        worker_command("swarmnode.worker.ranks.follow", *arguments),
        stdin=subprocess.DEVNULL,
        pass_fds=(orders.fileno(), said, team.fd),
        env=worker_environment() | {key: str(value) for key, value in named.items()},
    )


def check_device(device: str) -> None:
    """Raises ConfigError: it is one device for several ranks."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"device: expected auto, cpu or cuda with --nproc above 1, where each process has a GPU"
            f" of its own, got {device}; name GPUs in the setting gpus"
        )


def _memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("swarmnode-ranks", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="swarmnode-ranks-") as file:
        return os.dup(file.fileno())


def _words(said: bytes) -> tuple[str, str]:
    """Return (kind, message) of a rank that has failed; it may have said nothing."""
    try:
        kind, message = json.loads(said)
    except ValueError:
        return "crash", "it said nothing"
    return (kind if kind in EXIT_STATUS else "crash"), str(message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
