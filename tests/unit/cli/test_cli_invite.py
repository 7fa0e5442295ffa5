"""`swarmnode invite` on a home that created a swarm, and on one that did not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.cli.main import main
from swarmnode.config import Paths
from swarmnode.errors import CorruptRecord
from swarmnode.protocol.admission import Admission
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import (
    NotAdmitted,
    Reason,
    invite_in,
    make_invite,
    make_member_chain,
    open_revocations,
)
from swarmnode.protocol.swarm import Hint, SwarmLink, parse_link, sign_manifest, swarm_id
from swarmnode.store import invites as store
from swarmnode.store.files import write_atomic, write_new
from swarmnode.store.keys import load_or_create_identity
from swarmnode.store.swarms import save_link
from swarmnode.wire.packing import encode_record
from tests.unit.protocol.test_swarm import make_manifest

PEER = Identity.from_seed(bytes(32)).peer_id
DAY_S = 86_400
NOW = 1_800_000_000.0


def set_time(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr("swarmnode.cli.swarm.invite.time", SimpleNamespace(time=lambda: now))


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A home that created the closed swarm `demo` and the open one `public`, at a fixed time."""
    for variable in [name for name in os.environ if name.startswith("SWARMNODE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path))
    set_time(monkeypatch, NOW)
    own = Paths(tmp_path)
    for name, admission in (("demo", "closed"), ("public", "open")):
        key = load_or_create_identity(own.swarm(name).swarm_key)
        save_link(SwarmLink(name, key.public_key, (Hint(PEER, "192.0.2.1:7337"),)), own)
        manifest = make_manifest(name=name, swarm_key=key.public_key, admission=admission)
        write_atomic(own.swarm(name).manifest, encode_record(sign_manifest(manifest, key)))
    return own


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["invite", *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == code, err
    return out if code == 0 else err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def admission_of(paths: Paths) -> Admission:
    key = load_or_create_identity(paths.swarm("demo").swarm_key).public_key
    return Admission(swarm_id(key), key, store.load_admission_state(paths.swarm("demo")))


def test_a_printed_link_lets_a_peer_in(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "create", "demo", "--uses", "3", "--expires", "12h", "--role", "keeper")
    assert "3 node(s) may join demo as keeper until 2027-01-15 20:00 UTC" in out
    assert "this link is a secret" in out
    (text,) = (line.strip() for line in out.splitlines() if line.startswith("  swarm:"))
    link = parse_link(text)
    assert link.hints == (Hint(PEER, "192.0.2.1:7337"),)
    made = invite_in(link)
    assert made is not None
    assert made.certificate.not_after == NOW + 12 * 3600
    chain = make_member_chain(made, PEER, NOW)
    assert admission_of(paths).admit(PEER, chain, NOW) == "keeper"


def test_the_secret_is_not_kept(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    made = invite_in(parse_link(run_json(capsys, "create", "demo")["link"]))
    assert made is not None
    stored = [path.read_bytes() for path in paths.home.rglob("*") if path.is_file()]
    assert not any(made.identity.seed() in data for data in stored)
    assert any(made.signed.signature in data for data in stored)


def test_invites_are_listed_with_their_uses(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_json(capsys, "list", "demo") == []
    first = run_json(capsys, "create", "demo", "--expires", "90m")
    set_time(monkeypatch, NOW + 3600)
    second = run_json(capsys, "create", "demo", "--uses", "2")
    third = run_json(capsys, "create", "demo", "--role", "relay")
    book = admission_of(paths)
    made = invite_in(parse_link(second["link"]))
    assert made is not None
    book.admit(PEER, make_member_chain(made, PEER, NOW + 3600), NOW + 3600)
    store.save_admission_state(book.state(), paths.swarm("demo"))
    run(capsys, "revoke", "demo", third["invite"])
    set_time(monkeypatch, NOW + 7200)
    rows = {row["invite"]: row for row in run_json(capsys, "list", "demo")}
    assert next(iter(rows)) == first["invite"]
    assert {row["state"] for row in rows.values()} == {"expired", "valid", "revoked"}
    assert rows[first["invite"]]["state"] == "expired"
    assert rows[third["invite"]]["state"] == "revoked"
    assert (rows[second["invite"]]["used"], rows[second["invite"]]["uses"]) == (1, 2)
    assert rows[second["invite"]]["expires_at"] == NOW + 3600 + 7 * DAY_S
    shown = run(capsys, "list", "demo")
    assert "1 of 2" in shown
    assert "2027-01-22 09:00 UTC" in shown


def test_a_revoked_invite_admits_no_node(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    made = invite_in(parse_link(run_json(capsys, "create", "demo")["link"]))
    assert made is not None
    out = run(capsys, "revoke", "demo", run_json(capsys, "list", "demo")[0]["invite"][:6])
    assert "1 invite(s) are revoked now" in out
    book = admission_of(paths)
    signed = store.load_revocations(paths.swarm("demo"))
    assert signed is not None
    assert book.take_revocations(signed)
    with pytest.raises(NotAdmitted) as caught:
        book.admit(PEER, make_member_chain(made, PEER, NOW), NOW)
    assert caught.value.reason is Reason.REVOKED


def test_revoking_goes_on_from_what_the_node_has_seen(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the disk was lost, say: the swarm still has the list."""
    swarm = load_or_create_identity(paths.swarm("demo").swarm_key)
    signed = store.revoke_invite(paths.swarm("demo"), swarm, b"1" * 10, NOW + DAY_S)
    book = admission_of(paths)
    book.take_revocations(signed)
    store.save_admission_state(book.state(), paths.swarm("demo"))
    for path in (paths.swarm("demo").directory / "revocations").iterdir():
        path.unlink()
    answer = run_json(capsys, "revoke", "demo", "a" * 16)
    assert answer["revoked"] == 2
    assert answer["sequence"] == NOW + DAY_S + 1
    again = run_json(capsys, "revoke", "demo", "a" * 16)
    assert again == answer


def test_two_that_revoke_at_once_both_do(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    own = paths.swarm("demo")
    swarm = load_or_create_identity(own.swarm_key)
    interrupted: list[bool] = []

    def late(path: Path, data: bytes) -> bool:
        if not interrupted:
            interrupted.append(True)
            store.revoke_invite(own, swarm, b"2" * 10, NOW)
        return write_new(path, data)

    monkeypatch.setattr("swarmnode.store.invites.write_new", late)
    signed = store.revoke_invite(own, swarm, b"1" * 10, NOW)
    found = open_revocations(signed, network=swarm_id(swarm.public_key), swarm_key=swarm.public_key)
    assert set(found.revoked) == {b"1" * 10, b"2" * 10}
    assert store.load_revocations(own) == signed


def test_a_full_list_lets_go_of_invites_that_are_over(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REVOCATIONS_MAX", 1)
    old = run_json(capsys, "create", "demo")["invite"]
    new = run_json(capsys, "create", "demo", "--expires", "52w")["invite"]
    run(capsys, "revoke", "demo", old)
    message = run(capsys, "revoke", "demo", new, code=4)
    assert "1 invites are revoked already, and none of them is over" in message
    set_time(monkeypatch, NOW + 38 * DAY_S)
    assert run_json(capsys, "revoke", "demo", new)["revoked"] == 1
    run(capsys, "create", "demo")  # forgets what is over and on no list
    listed = [row["invite"] for row in run_json(capsys, "list", "demo")]
    assert new in listed
    assert old not in listed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "public"), 4, "swarm 'public' is open: every node with its link may join"),
        (("create", "nosuch"), 4, "only the home that created swarm 'nosuch' can invite"),
        (("list", "nosuch"), 4, "name it with --home"),
        (("revoke", "nosuch", "a"), 4, "only the home that created swarm"),
        (("create", "NO"), 2, "a swarm's name has 1-64 of"),
        (("create", "demo", "--uses", "0"), 2, "0 is not in the range"),
        (("create", "demo", "--uses", "1001"), 2, "1001 is not in the range"),
        (("create", "demo", "--expires", "7"), 2, "expected a time like 90m, 12h, 7d or 4w"),
        (("create", "demo", "--expires", "0d"), 2, "expected a time like 90m, 12h, 7d or 4w"),
        (("create", "demo", "--expires", "99w"), 2, "at most 366d, got '99w'"),
        (("create", "demo", "--role", "king"), 2, "'king' is not one of"),
        (("revoke", "demo", "zz"), 2, "'zz' fits none: `swarmnode invite list` shows them"),
        (("revoke", "demo", ""), 2, "fits none"),
        (("revoke", "demo", "1" * 16), 2, "invite: not base32"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    paths: Paths,
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = run(capsys, *arguments, code=code)
    assert message in err
    assert err.count("\n") == 1
    assert store.load_invites(paths.swarm("demo")) == {}


def test_letters_that_fit_two_invites_are_refused(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"\0" * 9 + b"1", b"\0" * 9 + b"2"]
    monkeypatch.setattr("swarmnode.cli.swarm.invite.load_invites", lambda _own: dict.fromkeys(keys))
    assert "'aaa' fits 2 of them" in run(capsys, "revoke", "demo", "aaa", code=2)


def test_a_link_that_is_too_long_is_not_made(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    key = load_or_create_identity(paths.swarm("demo").swarm_key).public_key
    hints = (Hint(PEER, f"{'h' * 210}:7337"),) * 6
    save_link(SwarmLink("demo", key, hints), paths)
    message = run(capsys, "create", "demo", code=2)
    assert "create the swarm with fewer --advertise" in message
    assert store.load_invites(paths.swarm("demo")) == {}


def test_what_a_node_keeps_comes_back_and_damage_is_named(paths: Paths) -> None:
    own = paths.swarm("demo")
    swarm = load_or_create_identity(own.swarm_key)
    made = make_invite(swarm, role="trainer", uses=1, expires_at=int(NOW) + DAY_S, now_unix_s=NOW)
    assert store.load_member_chain(own) is None
    chain = make_member_chain(made, PEER, NOW)
    store.save_member_chain(chain, own)
    assert store.load_member_chain(own) == chain
    book = admission_of(paths)
    book.admit(PEER, chain, NOW)
    store.save_admission_state(book.state(), own)
    assert store.load_admission_state(own) == book.state()
    store.save_invite(made, own, now_unix_s=NOW)
    store.revoke_invite(own, swarm, made.id, NOW)
    damaged = [path for path in own.directory.rglob("*") if path.name in ("member", "admission")]
    damaged += list((own.directory / "revocations").iterdir())
    damaged += list((own.directory / "invites").iterdir())
    assert len(damaged) == 4

    def load_all() -> None:
        store.load_member_chain(own)
        store.load_admission_state(own)
        store.load_revocations(own)
        store.load_invites(own)

    for path in damaged:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CorruptRecord, match=f"{path.name}.* is damaged"):
            load_all()
        path.write_bytes(whole)
    load_all()


def test_an_invite_that_another_process_forgets_meanwhile_is_passed_over(paths: Paths) -> None:
    own = paths.swarm("demo")
    swarm = load_or_create_identity(own.swarm_key)
    made = [
        make_invite(swarm, role="trainer", uses=1, expires_at=int(NOW) + DAY_S, now_unix_s=NOW)
        for _ in range(2)
    ]
    for invite in made:
        store.save_invite(invite, own, now_unix_s=NOW)
    (own.directory / "invites" / "gone").symlink_to("nowhere")
    assert set(store.load_invites(own)) == {invite.id for invite in made}


def test_an_invite_leads_to_todays_members(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = SwarmLink("demo", load_or_create_identity(paths.swarm("demo").swarm_key).public_key)
    hints = tuple(Hint(PEER, f"{'h' * 150}{number}:7337") for number in range(8))
    fresh = {"link": str(replace(stored, hints=hints)), "closed": True}
    monkeypatch.setattr("swarmnode.processes.client.ControlClient.get", lambda *_, **__: fresh)
    link = parse_link(run_json(capsys, "create", "demo")["link"])
    # The invite needs room: as many of them as fit beside it, the first ones.
    assert 0 < len(link.hints) < 8
    assert link.hints == hints[: len(link.hints)]
    assert link.invite
