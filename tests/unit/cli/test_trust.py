"""What is shown of a swarm before joining it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmnode import DISTRIBUTION, __version__
from swarmnode.cli.main import main
from swarmnode.cli.trust.costs import Measured
from swarmnode.cli.trust.report import Share, TrustReport, make_report, traffic_words
from swarmnode.config import Paths
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import make_creator_chain, make_invite
from swarmnode.protocol.swarm import Hint, SwarmLink, sign_manifest
from swarmnode.store.files import make_private_dir, write_atomic
from swarmnode.store.invites import save_member_chain
from swarmnode.store.keys import load_or_create_identity
from swarmnode.store.swarms import save_link
from swarmnode.wire.environment import DataReference, Environment, PinnedPackage
from swarmnode.wire.packing import encode_record
from swarmnode.wire.recipe import Recipe
from swarmnode.wire.swarm import Manifest, Signed

SWARM = Identity.from_seed(b"s" * 32)
PEER = Identity.from_seed(b"p" * 32).peer_id
LINK = SwarmLink("demo", SWARM.public_key, (Hint(PEER, "192.0.2.1:7337"),))
DAY_S = 86_400
NOW = 1_800_000_000.0


def manifest(**changes: Any) -> Manifest:
    base = Manifest(
        name="demo",
        swarm_key=SWARM.public_key,
        task="bytes-lm",
        task_version=1,
        task_config={"dim": 64, "name": "\x1b[2J"},
        numel=64_000,
        layout_hash=bytes(32),
        data_hash=b"",
        strategy="pair-average",
        strategy_settings={"every": 10},
        codec="Q8B64",
        seed=1,
        admission="open",
        min_version="0.1.0",
        created_at=int(NOW) - DAY_S,
        expires_at=0,
    )
    return msgspec.structs.replace(base, **changes)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "home")


def report(
    paths: Paths, link: SwarmLink = LINK, *, step_time_s: float | None = None, **changes: Any
) -> TrustReport:
    return make_report(manifest(**changes), link, paths, now_unix_s=NOW, step_time_s=step_time_s)


def test_an_open_swarm_that_this_machine_can_train(paths: Paths) -> None:
    shown = report(paths)
    assert shown.key == encode_base32(SWARM.public_key)
    assert (shown.access, shown.access_until, shown.expires_at) == ("open", None, None)
    assert shown.task_installed == f"{DISTRIBUTION} {__version__}"
    assert shown.task_installed_version == 1
    assert shown.version_ok
    assert shown.obstacles == ()


def test_the_codec_is_that_of_what_the_strategy_sends(paths: Paths) -> None:
    settings = {
        "every": 11,
        "gamma": 0.0,
        "meet": "group",
        "delta_codec": "T3B320",
        "weights_codec": "Q8B64",
    }
    assert report(paths).codec == "Q8B64"
    own = report(paths, strategy="streaming", strategy_settings=settings)
    assert own.codec == "T3B320"
    assert report(paths, strategy="nosuch").codec == "Q8B64"


def test_rounds_that_grow_cost_less_in_the_end(paths: Paths) -> None:
    settings = {"every": 6, "gamma": 0.0, "meet": "group", "delta_codec": "", "weights_codec": ""}
    said = report(paths, strategy="streaming", strategy_settings=settings | {"lengthen": 45})
    assert said.traffic is not None
    assert (said.traffic.every_steps, said.traffic.later_every_steps) == (6, 36)
    words = " ".join(traffic_words(said.traffic))
    assert "every 6 steps at first, every 36 in the end" in words
    assert "less later, and less if the network is slower" in words
    same = report(paths, strategy="streaming", strategy_settings=settings | {"lengthen": 0})
    assert "at first" not in " ".join(traffic_words(same.traffic))


def test_looking_imports_no_torch_and_writes_nothing(paths: Paths) -> None:
    before = "torch" in sys.modules
    report(paths)
    assert ("torch" in sys.modules) == before
    assert not paths.home.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "nosuch"}, "task 'nosuch' is not installed here"),
        (
            {"task": "nosuch", "task_package": "circle-tasks", "task_package_version": "2.5"},
            "from the package circle-tasks 2.5: links come from strangers, so check first who"
            " publishes that package",
        ),
        (
            {"task": "nosuch", "task_package": "a'; true", "task_package_version": "2.5"},
            "install the package that has it, if you trust that package",
        ),
        ({"task_version": 9}, "uses version 9 of the task, version 1 is installed here"),
        ({"strategy": "nosuch"}, "strategy 'nosuch' is not known here: a newer swarmnode"),
        ({"strategy_version": 2}, "version 2 of the strategy, version 1 is installed here"),
        ({"codec": "X9"}, "codec 'X9' is not known here"),
        ({"min_version": "99.1"}, f"it wants swarmnode >= 99.1, this is {__version__}"),
        ({"admission": "closed"}, "the swarm is closed (no invite)"),
    ],
)
def test_what_is_in_the_way_is_said(paths: Paths, changes: dict[str, Any], words: str) -> None:
    (obstacle,) = report(paths, **changes).obstacles
    assert words in obstacle


def test_another_swarm_of_that_name_is_in_the_way(paths: Paths) -> None:
    save_link(SwarmLink("demo", bytes(32)), paths)
    (obstacle,) = report(paths).obstacles
    assert "this home already holds another swarm named 'demo'" in obstacle


# --- traffic --------------------------------------------------------------------------------


def test_the_bytes_of_a_day_follow_from_the_time_of_a_step(paths: Paths) -> None:
    traffic = report(paths, step_time_s=0.5).traffic
    assert traffic is not None
    assert traffic.exchange_bytes == 64_000 + 2 * 1000  # a byte each, a scale for each 64
    assert traffic.every_steps == 10
    assert traffic.is_measured
    assert traffic.day_bytes == DAY_S / (0.5 * 10) * 66_000


@pytest.mark.parametrize(("numel", "step_time_s"), [(64, 0.005), (1_000_000, 0.06)])
def test_what_was_not_measured_is_assumed(paths: Paths, numel: int, step_time_s: float) -> None:
    traffic = report(paths, numel=numel).traffic
    assert traffic is not None
    assert not traffic.is_measured
    assert traffic.step_time_s == pytest.approx(step_time_s)


@pytest.mark.parametrize("every", [None, 0, -1, "8", True, 1.5])
def test_no_pace_no_sum(paths: Paths, every: object) -> None:
    traffic = report(paths, strategy_settings={"every": every}).traffic
    assert traffic is not None
    assert traffic.every_steps is None
    assert traffic.day_bytes is None


# --- closed swarms --------------------------------------------------------------------------


def invited(expires_at: float, made_at: float = NOW - DAY_S) -> SwarmLink:
    invite = make_invite(
        SWARM, role="trainer", uses=1, expires_at=int(expires_at), now_unix_s=made_at
    )
    return SwarmLink("demo", SWARM.public_key, (), invite.encode())


def test_an_invite_lets_in_until_it_ends(paths: Paths) -> None:
    shown = report(paths, invited(NOW + DAY_S), admission="closed")
    assert (shown.access, shown.access_until) == ("invited", NOW + DAY_S)
    assert shown.obstacles == ()
    for link, access in (
        (invited(NOW - 1), "invite ended"),
        (invited(NOW + 2 * DAY_S, NOW + DAY_S), "invite not begun"),
    ):
        shown = report(paths, link, admission="closed")
        assert shown.access == access
        assert f"the swarm is closed ({access})" in shown.obstacles[0]


def test_members_need_no_invite(paths: Paths) -> None:
    own = paths.swarm("demo")
    make_private_dir(own.directory)
    save_member_chain(make_creator_chain(SWARM, PEER, NOW, role="trainer"), own)
    shown = report(paths, admission="closed")
    assert shown.access == "member"
    assert shown.access_until is not None
    load_or_create_identity(own.swarm_key)
    shown = report(paths, admission="closed")
    assert (shown.access, shown.access_until) == ("member", None)


# --- the verb -------------------------------------------------------------------------------


@pytest.fixture
def home(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Paths:
    for variable in [name for name in os.environ if name.startswith("SWARMNODE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SWARMNODE_HOME", str(paths.home))
    monkeypatch.setenv("SWARMNODE_LAN", "false")
    return paths


def keep(paths: Paths, signed: Signed, link: SwarmLink = LINK) -> None:
    save_link(link, paths)
    write_atomic(paths.swarm("demo").manifest, encode_record(signed))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def test_the_manifest_of_this_home_is_shown(
    capsys: pytest.CaptureFixture[str], home: Paths
) -> None:
    keep(home, sign_manifest(manifest(created_at=int(time.time()) - DAY_S), SWARM))
    code, out, err = run(capsys, "trust", "demo")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "swarm demo, as its key has signed it"
    assert f"  key        {encode_base32(SWARM.public_key)}" in lines
    assert any("task       bytes-lm, version 1; installed here" in line for line in lines)
    assert any("66.0 kB each way at an exchange, every 10 steps" in line for line in lines)
    assert any("assumed: a CPU, 1,000 tokens a step" in line for line in lines)
    assert any("no code comes from other nodes" in line for line in lines)
    assert any("your IP address and port" in line for line in lines)
    assert lines[-1] == "to join: swarmnode join demo"
    assert "\x1b" not in out

    code, out, _ = run(capsys, "trust", str(LINK), "--json")
    assert code == 0
    shown = json.loads(out)
    assert shown["name"] == "demo"
    assert shown["link"] == str(LINK)
    assert shown["obstacles"] == []


def test_an_invite_is_never_shown(capsys: pytest.CaptureFixture[str], home: Paths) -> None:
    link = invited(time.time() + DAY_S, time.time() - 5)
    keep(home, sign_manifest(manifest(created_at=5, admission="closed"), SWARM), link)
    secret = encode_base32(link.invite)
    for arguments in (("demo",), ("demo", "--json"), (str(link),), (str(link), "--json")):
        code, out, err = run(capsys, "trust", *arguments)
        assert code == 0
        assert secret not in out + err
    assert json.loads(out)["access"] == "invited"


def test_obstacles_are_no_error(capsys: pytest.CaptureFixture[str], home: Paths) -> None:
    keep(home, sign_manifest(manifest(created_at=5, task="nosuch"), SWARM))
    code, out, _ = run(capsys, "trust", "demo")
    assert code == 0
    lines = out.splitlines()
    where = lines.index("what keeps this machine from joining:")
    assert "task 'nosuch' is not installed here" in lines[where + 1]
    assert lines[-1] == "to join once that is settled: swarmnode join demo"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"expires_at": 10}, 4, "expired"),
        ({"created_at": 2**40}, 4, "was made in the future"),
    ],
)
def test_a_manifest_that_does_not_count_is_refused(
    capsys: pytest.CaptureFixture[str],
    home: Paths,
    changes: dict[str, Any],
    code: int,
    message: str,
) -> None:
    keep(home, sign_manifest(manifest(**{"created_at": 5, **changes}), SWARM))
    found_code, out, err = run(capsys, "trust", "demo")
    assert (found_code, out) == (code, "")
    assert message in err


def test_a_manifest_that_was_tampered_with_is_named(
    capsys: pytest.CaptureFixture[str], home: Paths
) -> None:
    signed = sign_manifest(manifest(created_at=5), SWARM)
    keep(home, Signed(signed.body + b" ", signed.public_key, signed.signature))
    code, out, err = run(capsys, "trust", "demo")
    assert (code, out) == (4, "")
    assert f"{home.swarm('demo').manifest} was tampered with" in err


# --- whether it fits ----------------------------------------------------------------------


def named(**changes: Any) -> Environment:
    packages = (PinnedPackage("swarmnode-circle", "1.2", (bytes(32),)),)
    return msgspec.structs.replace(Environment(packages, index="lab"), **changes)


def test_the_share_is_what_this_machine_does_beside_those_that_say_how_fast_they_are(
    paths: Paths,
) -> None:
    # Two steps a second here, and six by the others; 100 tokens each.
    measured = Measured(here_s=0.5, tokens_per_step=100, members_s=(0.25, 0.5))
    recipe = Recipe(target_tokens=172_800_000)
    of = manifest(recipe=recipe)
    shown = make_report(of, LINK, paths, now_unix_s=NOW, step_time_s=0.5, found_out=measured)
    assert shown.share == Share(17_280_000, 0.1, 0.25, 2)
    assert shown.share.sentence() == (
        "about 17,280,000 tokens a day, 10.00% of the swarm's target each day; 25.0% of all work,"
        " beside 2 members"
    )


def test_an_owner_who_lends_half_of_the_processor_does_half_of_the_share(paths: Paths) -> None:
    make_private_dir(paths.home)
    paths.config_file.write_text("cpu_percent = 50\n")
    measured = Measured(here_s=0.5, tokens_per_step=100)
    shown = make_report(
        manifest(), LINK, paths, now_unix_s=NOW, step_time_s=0.5, found_out=measured
    )
    assert shown.share.day_tokens == 8_640_000
    assert shown.share.of_members is None
    assert "none is met before joining" in shown.share.sentence()


def test_without_a_step_the_share_is_not_known_and_why_is_said(paths: Paths) -> None:
    measured = Measured(why_not="the task is not installed here")
    shown = make_report(
        manifest(), LINK, paths, now_unix_s=NOW, step_time_s=None, found_out=measured
    )
    assert shown.share.day_tokens is None
    assert shown.share.sentence().endswith("taken here: the task is not installed here")


def test_a_disk_that_is_too_small_is_said(paths: Paths) -> None:
    assert report(paths).disk.fits
    large = report(paths, numel=2**40).disk
    assert not large.fits
    assert "that is more than there is" in large.sentence()
    asked = report(paths, environment=named(disk_bytes=2**60)).disk
    assert asked.needed_bytes == 2**60


def test_what_members_are_asked_to_install_is_said_and_no_obstacle(paths: Paths) -> None:
    data = DataReference("url", "https://192.0.2.1/\x1b[2Ja.csv", "", bytes(32), 1000)
    shown = report(paths, task="nosuch", environment=named(data=data))
    assert shown.obstacles == ()
    assert shown.environment[:2] == (
        "package swarmnode-circle 1.2",
        "from: the index that pip knows here as 'lab'",
    )
    assert "\x1b" not in "".join(shown.environment)
    assert shown.environment[2].endswith(f"1 kB, SHA-256 {bytes(32).hex()}")


def test_the_doctor_says_what_a_swarm_takes_here(
    capsys: pytest.CaptureFixture[str], home: Paths
) -> None:
    keep(home, sign_manifest(manifest(created_at=5, task="nosuch", numel=2**40), SWARM))
    code, out, _ = run(capsys, "doctor", "demo", "--no-torch", "--json")
    assert code == 1
    findings = {each["check"]: each for each in json.loads(out)["findings"]}
    assert "task 'nosuch' is not installed here" in findings["swarm"]["said"]
    for check in ("swarm memory", "swarm disk"):
        assert findings[check]["level"] == "FAIL"
        assert "that is more than there is" in findings[check]["said"]
    assert "a day each way" in " ".join(
        each["said"] for each in json.loads(out)["findings"] if each["check"] == "swarm traffic"
    )
    assert "not known before a step is taken here" in findings["swarm share"]["said"]
