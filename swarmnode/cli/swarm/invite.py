"""``swarmnode invite``: let people into a closed swarm, and take that back."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import click

from swarmnode import limits
from swarmnode.cli.main import print_json
from swarmnode.cli.options import home_option, json_option
from swarmnode.cli.swarm.link import find_link
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError, Refused
from swarmnode.ids import decode_base32, encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.invites import invite_id, make_invite
from swarmnode.protocol.swarm import SwarmLink, check_name
from swarmnode.store.invites import (
    load_admission_state,
    load_invites,
    load_revocations,
    revoke_invite,
    save_invite,
)
from swarmnode.store.keys import load_identity
from swarmnode.store.swarms import read_manifest, resolve_link
from swarmnode.wire.admission import INVITE_ID_BYTES, InviteCertificate, Revocations, Role
from swarmnode.wire.packing import decode_record

# An invite renews its members while it lasts: once a year its owner should think about it.
_INVITE_DAYS_MAX = 366

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_ROW = "{:<17} {:<8} {:>9}  {:<8} {}"


def _duration(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter,  # noqa: ARG001
    text: str,
) -> int:
    """Return the seconds of 90m, 12h, 7d or 4w. Raises BadParameter."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 0 < seconds <= _INVITE_DAYS_MAX * 86_400:
        raise click.BadParameter(
            f"expected a time like 90m, 12h, 7d or 4w, at most {_INVITE_DAYS_MAX}d,"
            f" got {text[:40]!r}"
        )
    return seconds


@click.group()
def invite() -> None:
    """Let people into a closed swarm, on the home that created it."""


@invite.command()
@click.argument("name")
@click.option(
    "--uses",
    type=click.IntRange(1, limits.INVITE_USES_MAX),
    default=1,
    show_default=True,
    help="How many nodes may join with it.",
)
@click.option(
    "--expires",
    "life_s",
    callback=_duration,
    metavar="TIME",
    default="7d",
    show_default=True,
    help="No node joins or renews after that: 90m, 12h, 7d, 4w. Members stay at most 30 days more.",
)
@click.option(
    "--role",
    type=click.Choice(get_args(Role)),
    default="trainer",
    show_default=True,
    help="trainer, keeper, relay or monitor: each may also do what stands after it.",
)
@home_option
@json_option
def create(name: str, uses: int, life_s: int, role: Role, home: Path | None, as_json: bool) -> None:
    """Print a link that lets others join the closed swarm NAME. The link is a secret."""
    paths = Paths(resolve_home(home, os.environ))
    swarm = _swarm_key(name, paths)
    if read_manifest(name, paths).admission != "closed":
        raise Refused(
            f"swarm {name!r} is open: every node with its link may join without an invite;"
            " `swarmnode create --closed` makes a swarm that wants one"
        )
    now = time.time()
    made = make_invite(swarm, role=role, uses=uses, expires_at=int(now) + life_s, now_unix_s=now)
    link = _link_with(made.encode(), name, paths)
    _check_length(link)
    save_invite(made, paths.swarm(name), now_unix_s=now)
    if as_json:
        facts = _facts(made.certificate, used=0, state="valid")
        print_json({"link": str(link), "name": name, **facts})
        return
    text = encode_base32(made.id)
    click.echo(
        f"invite {text}: {uses} node(s) may join {name} as {role} until"
        f" {_date(made.certificate.not_after)}"
    )
    click.echo(f"\n  {link}\n")
    click.echo("this link is a secret: every reader can join in another's place")
    click.echo(f"they: swarmnode join '{link}'")
    click.echo(f"to take it back: swarmnode invite revoke {name} {text}")


@invite.command("list")
@click.argument("name")
@home_option
@json_option
def list_(name: str, home: Path | None, as_json: bool) -> None:
    """List the invites to the swarm NAME that were made on this home.

    `used` is how many nodes this home's node has seen use it.
    """
    paths = Paths(resolve_home(home, os.environ))
    _swarm_key(name, paths)
    own = paths.swarm(name)
    used: dict[bytes, int] = {}
    for kept in load_admission_state(own).claims:
        if kept.chain.invite is not None:
            key = invite_id(kept.chain.member.public_key)
            used[key] = used.get(key, 0) + 1
    signed = load_revocations(own)
    revoked = decode_record(signed.body, Revocations).revoked if signed else ()
    now = time.time()
    rows = []
    for key, terms in load_invites(own).items():
        state = "revoked" if key in revoked else "expired" if now > terms.not_after else "valid"
        rows.append(_facts(terms, used=used.get(key, 0), state=state))
    if as_json:
        print_json(rows)
        return
    click.echo(_ROW.format("invite", "role", "used", "state", "expires"))
    for row in rows:
        uses = f"{row['used']} of {row['uses']}"
        expires = _date(row["expires_at"])
        click.echo(_ROW.format(row["invite"], row["role"], uses, row["state"], expires))


@invite.command()
@click.argument("name")
@click.argument("invite")
@home_option
@json_option
def revoke(name: str, invite: str, home: Path | None, as_json: bool) -> None:
    """Take back INVITE, by its id or the first letters of it: who joined with it must go.

    This home's node tells the members that it meets, and they tell others.
    """
    paths = Paths(resolve_home(home, os.environ))
    swarm = _swarm_key(name, paths)
    key = _find(invite, list(load_invites(paths.swarm(name))))
    signed = revoke_invite(paths.swarm(name), swarm, key, time.time())
    revocations = decode_record(signed.body, Revocations)
    if as_json:
        facts = {"revoked": len(revocations.revoked), "sequence": revocations.sequence}
        print_json({"invite": encode_base32(key), "name": name, **facts})
        return
    click.echo(
        f"revoked invite {encode_base32(key)}: no node joins with it any more, and one that did is"
        f" no member once the news has come; {len(revocations.revoked)} invite(s) are revoked now"
    )


def _link_with(token: bytes, name: str, paths: Paths) -> SwarmLink:
    """Return the link with an invite, and with as many of today's peers as fit beside it."""
    found = find_link(name, paths)
    if not found.is_fresh:
        return replace(resolve_link(name, paths), invite=token)
    link = replace(found.link, invite=token)
    while len(str(link)) > limits.LINK_CHARACTERS_MAX and link.hints:
        link = replace(link, hints=link.hints[:-1])
    return link


def _swarm_key(name: str, paths: Paths) -> Identity:
    """Return the key that makes invites. Raises Refused where it is not."""
    path = paths.swarm(check_name(name)).swarm_key
    try:
        return load_identity(path)
    except FileNotFoundError as error:
        raise Refused(
            f"only the home that created swarm {name!r} can invite and revoke, {path} is not"
            " here: go there, or name it with --home"
        ) from error


def _find(text: str, known: list[bytes]) -> bytes:
    """Return the invite that a person means. Raises ConfigError."""
    matching = [key for key in known if text and encode_base32(key).startswith(text.lower())]
    if len(matching) == 1:
        return matching[0]
    if not matching and len(text) == len(encode_base32(bytes(INVITE_ID_BYTES))):
        # Made on another home with a copy of the key, or before this disk was restored.
        return decode_base32(text, what="invite")
    what = "none" if not matching else f"{len(matching)} of them"
    raise ConfigError(
        f"expected the id of an invite or its first letters, {text[:40]!r} fits {what}:"
        " `swarmnode invite list` shows them"
    )


def _check_length(link: SwarmLink) -> None:
    if len(str(link)) > limits.LINK_CHARACTERS_MAX:
        raise ConfigError(
            f"with the invite the link has {len(str(link))} characters, at most"
            f" {limits.LINK_CHARACTERS_MAX} are allowed: create the swarm with fewer --advertise"
        )


def _facts(terms: InviteCertificate, *, used: int, state: str) -> dict[str, Any]:
    return {
        "invite": encode_base32(invite_id(terms.invite_key)),
        "role": terms.role,
        "uses": terms.uses,
        "used": used,
        "state": state,
        "created_at": terms.not_before,
        "expires_at": terms.not_after,
    }


def _date(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
