"""Real nodes that may not be here: without an invite, with one taken back, with another's key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode.limits import KEY_CONFLICT_NEW_S
from tests.kits.daemon_kit import Daemon, swarmnode, wait_until
from tests.process.life_kit import NAME, Party, ended, flip_bit, interrupt, on_disk

REFUSED = 4
REVOKED_S_MAX = 30.0
COPY_ENDS_S_MAX = 45.0


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path, admission="closed")
    try:
        yield party
    finally:
        party.close()


def invite(party: Party, *flags: str, via: Daemon) -> tuple[str, str]:
    """Return the link with a new invite that leads to a node, and the invite's id."""
    made = swarmnode(party.folder / "creator", "invite", "create", NAME, "--json", *flags).json
    invite = made["link"].partition("i=")[2].partition("&")[0]
    return f"{party.link(via)}&i={invite}", made["invite"]


def test_an_invite_lets_in_whom_it_is_for_until_it_is_taken_back(party: Party) -> None:
    creator = party.join("creator", "--role", "monitor")
    link, name = invite(party, via=creator)
    member = party.join_by(link, "member")
    member.wait_training()

    code, line = ended(party.join("stranger", "--role", "monitor", via=creator))
    assert code == REFUSED
    assert "this swarm is closed" in line
    assert "it must join with an invite link" in line

    code, line = ended(party.join_by(link, "second", "--role", "monitor"))
    assert code == REFUSED
    assert f"invite {name} is for 1 peer(s), and as many came before" in line

    assert member.status()["peers_connected"] == 1
    revoked = swarmnode(creator.home, "invite", "revoke", NAME, name[:6])
    assert "revoked invite" in revoked.out, revoked
    code, line = ended(member, REVOKED_S_MAX)
    assert code == REFUSED
    assert f"invite {name} was revoked: ask the swarm's creator for another" in line
    interrupt(creator)  # no member needs to tell it again
    code, line = ended(party.join_by(link, "member", "--role", "monitor"))
    assert code == REFUSED
    assert f"invite {name} was revoked" in line


def test_bits_in_a_certificate_and_in_what_is_known_of_others_cost_nothing(party: Party) -> None:
    creator = party.join("creator", "--role", "monitor")
    link, _ = invite(party, via=creator)
    member = party.join_by(link, "member", "--role", "monitor")
    member.wait(lambda s: s["peers_connected"] == 1, "the creator")
    folder = on_disk(member).directory
    wait_until((folder / "admission").exists, "what the member has seen")
    interrupt(member)
    for name in ("member", "admission"):
        flip_bit(folder / name, 0.3)
    member.start()
    member.wait(lambda s: s["peers_connected"] == 1, "the creator again")
    assert "our certificate is made anew" in member.log
    assert "what was known of other members is lost" in member.log


def test_a_copied_home_ends_and_the_original_goes_on(party: Party) -> None:
    creator = party.join("creator", "--role", "monitor")
    link, _ = invite(party, via=creator)
    original = party.join_by(link, "original")
    original.wait_training()
    # Two that began within seconds of each other cannot tell which is the older one.
    step = original.wait(lambda s: s["uptime_s"] > KEY_CONFLICT_NEW_S, "some age")["step"]

    shutil.copytree(original.home, party.folder / "copy", ignore=shutil.ignore_patterns("*.sock"))
    code, line = ended(party.join("copy", via=None), COPY_ENDS_S_MAX)
    assert code == REFUSED
    assert "another node with this node's key is running" in line
    assert "give this one a home of its own (--home)" in line
    original.wait_training(step + 100)


@pytest.mark.slow
def test_a_copy_of_the_creator_that_knows_only_itself_ends_as_well(party: Party) -> None:
    creator = party.join("creator")
    link, _ = invite(party, via=creator)
    creator.wait_training()
    creator.wait(lambda s: s["uptime_s"] > KEY_CONFLICT_NEW_S, "some age")
    shutil.copytree(creator.home, party.folder / "copy", ignore=shutil.ignore_patterns("*.sock"))
    code, line = ended(party.join_by(link, "copy"), COPY_ENDS_S_MAX)
    assert code == REFUSED
    assert "another node with this node's key is running" in line
    creator.wait_training(creator.status()["step"] + 100)
