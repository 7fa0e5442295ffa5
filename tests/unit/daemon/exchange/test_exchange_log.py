"""What a node that begins again knows of the means of its earlier lives."""

from __future__ import annotations

import random
from pathlib import Path

from swarmnode.daemon.exchange.history import ExchangeLog
from swarmnode.env import Env, real_env
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group import GROUP_OUTCOMES_MAX
from swarmnode.protocol.gossip.group_events import MeanEnded

SWARM = bytes(range(32))


def env() -> Env:
    return real_env(lambda: 0.0)


def mean(number: int, *, is_made: bool = True) -> MeanEnded:
    gid = random.Random(number).randbytes(16)
    result = bytes(32).replace(b"\0", b"r") if is_made else b""
    return MeanEnded(gid, (PeerId(bytes(32)),) if is_made else (), result, "", False, 0.5)


def test_the_last_means_that_were_committed_are_known(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    log = ExchangeLog(path, 1, env(), SWARM)
    assert log.means_before == ()
    log.mean_ended(mean(1))
    log.mean_ended(mean(2, is_made=False))
    log.mean_ended(mean(3))
    assert log.means_before == (), "of earlier lives"
    log.close()
    elsewhere = ExchangeLog(path, 2, env(), bytes(32))
    assert elsewhere.means_before == (), "of another swarm"
    elsewhere.close()
    again = ExchangeLog(path, 2, env(), SWARM)
    assert again.means_before == (mean(1).gid, mean(3).gid)
    for number in range(10, 10 + GROUP_OUTCOMES_MAX):
        again.mean_ended(mean(number))
    again.close()
    last = ExchangeLog(path, 3, env(), SWARM)
    assert last.means_before == tuple(mean(n).gid for n in range(10, 10 + GROUP_OUTCOMES_MAX))
    last.close()


def test_lines_of_versions_before_which_name_no_swarm_count(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    gid = "00112233445566778899aabbccddeeff"
    path.write_text(f'{{"event":"finished","outcome":"committed","present":["p"],"xid":"{gid}"}}\n')
    log = ExchangeLog(path, 1, env(), SWARM)
    assert log.means_before == (bytes.fromhex(gid),)
    log.close()


def test_of_pairs_and_of_damaged_lines_nothing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    path.write_text(
        '{"event":"finished","outcome":"committed","peer":"p","xid":"00112233445566778899aabbccddeeff"}\n'
        '{"event":"finished","outcome":"committed","swarm":"0001020304050607","present":[],"xid":"0011"}\n'
        '{"event":"finished","outcome":"committed","swarm":"0001020304050607","present":[],"xid":7}\n'
        '{"event":"finished","outcome":"committed","present":[]}\n'
        "torn\n"
    )
    log = ExchangeLog(path, 1, env(), SWARM)
    assert log.means_before == ()
    log.close()
