"""What strangers are told is proven, bounded, and no more than hints."""

from __future__ import annotations

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, ConfigError, SwarmNodeError
from swarmnode.ids import encode_base32
from swarmnode.protocol import meeting
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink, parse_link
from swarmnode.wire.meeting import MeetingItem
from swarmnode.wire.packing import encode_record

SWARM, MEETING, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
HINTS = [
    Hint(Identity.from_seed(bytes([9, number]) * 16).peer_id, f"192.0.2.{number}:7337")
    for number in range(1, 12)
]
NOW = 1_800_000_000.0
GRANT = meeting.make_grant("demo", SWARM, MEETING.public_key)
DRAFT = MeetingItem("demo", SWARM.public_key, GRANT, int(NOW), 12, 1_700_000_000)


def changed(**changes: object) -> bytes:
    return encode_record(msgspec.structs.replace(DRAFT, **changes))


def test_an_item_names_as_many_members_as_fit_and_is_read_again() -> None:
    value = meeting.encode_item(DRAFT, HINTS)
    assert len(value) <= meeting.ITEM_BYTES_MAX
    item = meeting.decode_item(value, NOW)
    assert meeting.hints_in(item) == HINTS[: limits.BOOTSTRAP_HINTS_MAX]
    long = [Hint(hint.peer, "h" * 200 + ":1") for hint in HINTS]
    value = meeting.encode_item(DRAFT, long)
    assert len(value) <= meeting.ITEM_BYTES_MAX
    assert 0 < len(meeting.hints_in(meeting.decode_item(value, NOW))) < 8


def test_an_item_is_filled_to_the_last_byte() -> None:
    name, largest = "h" * 230, 0
    for length in range(180, 230):
        hints = [Hint(hint.peer, name + ":1") for hint in HINTS[:2]]
        hints.append(Hint(HINTS[2].peer, name[:length] + ":1"))
        value = meeting.encode_item(DRAFT, hints)
        if meeting.hints_in(meeting.decode_item(value, NOW)) == hints:
            largest = len(value)
    assert largest == meeting.ITEM_BYTES_MAX


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1junk",
        changed(name="other"),  # the grant is for another name
        changed(swarm=OTHER.public_key),
        changed(grant=OTHER.public_key + GRANT[32:]),
        changed(grant=GRANT[:32] + bytes(64)),
        changed(peers=(bytes(32),)),  # without an address
        changed(at=int(NOW) + 4000),
        changed(peers=(bytes(32),) * 9, addresses=("a:1",) * 9),
        meeting.encode_item(DRAFT, HINTS) + bytes(1000),
    ],
)
def test_an_item_that_is_not_proven_is_refused(value: bytes) -> None:
    with pytest.raises(SwarmNodeError):
        meeting.decode_item(value, NOW)


def test_an_item_is_written_anew_when_it_is_old_another_swarms_or_names_the_dead() -> None:
    item = meeting.decode_item(meeting.encode_item(DRAFT, HINTS[:4]), NOW)

    def is_due(alive: list[Hint], later_s: float = 0.0, key: bytes = SWARM.public_key) -> bool:
        return meeting.is_due(item, key, alive, NOW + later_s)

    assert not is_due(HINTS[:4])
    assert not is_due(HINTS[:2] + HINTS[4:6])  # half of them live
    assert is_due(HINTS[3:7])
    assert is_due(HINTS[:4], later_s=meeting.ITEM_FRESH_S)
    assert is_due(HINTS[:4], key=OTHER.public_key)
    assert meeting.is_due(None, SWARM.public_key, HINTS, NOW)


def test_only_the_true_seed_of_the_meeting_key_is_taken_from_members() -> None:
    found = meeting.meeting_identity(meeting.seed_text(MEETING), MEETING.public_key)
    assert found is not None
    assert found.public_key == MEETING.public_key
    mixed = f"!{meeting.seed_text(MEETING)}"
    for word in (mixed, meeting.seed_text(OTHER), "", "no base64!", "AAAA", "A" * 10_000, 7, None):
        assert meeting.meeting_identity(word, MEETING.public_key) is None


def test_a_grant_is_for_one_name_and_one_meeting_key_of_one_swarm() -> None:
    grant = meeting.make_grant("demo", SWARM, MEETING.public_key)
    assert meeting.open_grant(grant, "demo", SWARM.public_key) == MEETING.public_key
    for spoiled, name, key in (
        (grant, "other", SWARM.public_key),
        (grant, "demo", OTHER.public_key),
        (OTHER.public_key + grant[32:], "demo", SWARM.public_key),
    ):
        with pytest.raises(AuthenticationFailed):
            meeting.open_grant(spoiled, name, key)


def test_a_name_leads_to_places_of_its_own_in_each_network() -> None:
    keys = {
        meeting.name_identity(network, name, slot).public_key
        for network in ("main", "lab")
        for name in ("demo", "other")
        for slot in range(meeting.NAME_SLOTS)
    }
    assert len(keys) == 4 * meeting.NAME_SLOTS
    assert meeting.slot_of(SWARM.public_key) in range(meeting.NAME_SLOTS)


def test_of_a_zone_hints_and_links_to_that_swarm_are_taken() -> None:
    link = SwarmLink("demo", SWARM.public_key, (HINTS[0],))
    texts = [
        str(HINTS[1]),
        "v=spf1 -all",
        "sn1junk@host:1",
        str(link),
        str(SwarmLink("other", SWARM.public_key, (HINTS[2],))),
        "swarm:demo?k=damaged",
    ]
    hints, links = meeting.read_txt(texts, "demo", b"")
    assert (hints, links) == ([HINTS[1]], [link])
    assert meeting.read_txt(texts, "demo", OTHER.public_key) == ([HINTS[1]], [])
    many = [f"{HINTS[0].peer}@192.0.2.1:{port}" for port in range(1, 500)]
    assert len(meeting.read_txt(many, "demo", b"")[0]) == limits.ENTRY_NODES_MAX


def test_a_list_counts_with_the_right_signature_and_in_its_time() -> None:
    text = meeting.sign_entries(HINTS[:2], int(NOW) + 60, OTHER)
    key = encode_base32(OTHER.public_key)
    assert meeting.read_entries(text, key, NOW) == HINTS[:2]
    with pytest.raises(ConfigError, match="expired"):
        meeting.read_entries(text, key, NOW + 61)
    with pytest.raises(AuthenticationFailed):
        meeting.read_entries(text, encode_base32(SWARM.public_key), NOW)
    with pytest.raises(AuthenticationFailed):
        meeting.read_entries(text.replace(":7337", ":7338"), key, NOW)
    for damaged in ("", text.partition("signature")[0], "junk\n" + text):
        with pytest.raises(ConfigError):
            meeting.read_entries(damaged, key, NOW)


@pytest.mark.parametrize("length", range(20, 240, 20))
def test_an_item_has_no_room_for_one_hint_more(length: int) -> None:
    hints = [Hint(hint.peer, f"{'h' * length}:1") for hint in HINTS[: limits.BOOTSTRAP_HINTS_MAX]]
    sizes = [len(meeting.encode_item(DRAFT, hints[:count])) for count in range(len(hints) + 1)]
    n_hints = len(meeting.hints_in(meeting.decode_item(meeting.encode_item(DRAFT, hints), NOW)))
    assert [*sorted({*sizes})] == sizes[: n_hints + 1]
    if n_hints < len(hints):
        assert sizes[n_hints] + (sizes[1] - sizes[0]) > meeting.ITEM_BYTES_MAX


def test_an_item_that_is_too_large_without_hints_is_none() -> None:
    with pytest.raises(SwarmNodeError):
        meeting.encode_item(msgspec.structs.replace(DRAFT, name="n" * meeting.ITEM_BYTES_MAX), [])


def test_the_clock_of_an_author_may_be_an_hour_ahead() -> None:
    assert meeting.decode_item(changed(at=int(NOW) + 3600), NOW).at == NOW + 3600
    with pytest.raises(SwarmNodeError, match="future"):
        meeting.decode_item(changed(at=int(NOW) + 3601), NOW)


@pytest.mark.parametrize(
    ("n_alive", "n_there", "is_due"),
    [
        (0, 0, True),
        (1, 0, True),
        (1, 1, False),
        (2, 1, False),
        (3, 1, True),
        (3, 2, False),
        (7, 3, True),
        (7, 4, False),
        (11, 3, True),  # as of eight, which is as many as an item has
        (11, 4, False),
    ],
)
def test_an_item_is_good_while_half_of_the_members_that_fit_are_in_it(
    n_alive: int, n_there: int, is_due: bool
) -> None:
    alive, there = HINTS[:n_alive], [*HINTS[:n_there], *HINTS[n_alive:]]
    item = meeting.decode_item(meeting.encode_item(DRAFT, there), NOW)
    assert meeting.is_due(item, SWARM.public_key, alive, NOW) == is_due


def test_an_item_is_written_anew_when_half_of_its_time_is_over() -> None:
    item = meeting.decode_item(meeting.encode_item(DRAFT, HINTS[:2]), NOW)
    for later_s, is_due in ((0.0, False), (299.5, False), (300.0, True)):
        assert later_s <= meeting.ITEM_FRESH_S / 2
        assert meeting.is_due(item, SWARM.public_key, HINTS[:2], NOW + later_s) == is_due


def test_a_swarm_writes_the_place_that_its_key_says() -> None:
    slots = [meeting.slot_of(bytes([first, 77]) + bytes(30)) for first in (0, 1, 2, 3, 4, 255)]
    assert slots == [0, 1, 2, 3, 0, 3]


def test_of_a_zone_so_many_records_are_read_and_links_kept_without_zones_and_secrets() -> None:
    link = SwarmLink("demo", SWARM.public_key, (), b"x" * 200, zones=("a.example",))
    (found,) = meeting.read_txt([str(link)], "demo", SWARM.public_key)[1]
    assert found == SwarmLink("demo", SWARM.public_key)
    many = [str(link)] * (2 * limits.BOOTSTRAP_HINTS_MAX)
    assert len(meeting.read_txt(many, "demo", b"")[1]) == limits.BOOTSTRAP_HINTS_MAX
    before = ["v=spf1 -all"] * (limits.TXT_RECORDS_MAX - 1)
    assert meeting.read_txt([*before, *map(str, HINTS[:2])], "demo", b"") == ([HINTS[0]], [])


def test_a_hint_in_a_zone_has_so_many_characters() -> None:
    text = f"{HINTS[0].peer}@".ljust(limits.HINT_CHARACTERS_MAX, "h")
    ((hint,), _) = meeting.read_txt([text + "cut"], "demo", b"")
    assert str(hint) == text


def test_a_list_counts_until_the_second_before_it_expires_and_names_so_many_nodes() -> None:
    key = encode_base32(OTHER.public_key)
    many = [Hint(HINTS[0].peer, f"192.0.2.1:{port}") for port in range(1, 99)]
    text = meeting.sign_entries(many, int(NOW) + 60, OTHER)
    assert meeting.read_entries(text, key, NOW + 59) == many[: limits.ENTRY_NODES_MAX]
    with pytest.raises(ConfigError, match="expired"):
        meeting.read_entries(text, key, NOW + 60)


def test_a_signature_that_is_no_base64_is_none() -> None:
    text = meeting.sign_entries(HINTS[:1], int(NOW) + 60, OTHER)
    for spoiled in (text[:-3] + "\n", text.replace("signature ", "signature !")):
        with pytest.raises(AuthenticationFailed, match="base64"):
            meeting.read_entries(spoiled, encode_base32(OTHER.public_key), NOW)


@pytest.mark.parametrize("address", ["8.8.8.8:1", "[2600::1]:1"])
def test_public_addresses_may_be_published(address: str) -> None:
    assert meeting.is_public(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "10.0.0.1:1", "100.64.0.1:1", "[fe80::1]:1", "224.0.0.1:1", "host:1"]
)
def test_others_are_kept_to_ourselves(address: str) -> None:
    assert not meeting.is_public(address)


def test_a_link_carries_the_meeting_key_and_zones_that_are_some() -> None:
    link = SwarmLink("demo", SWARM.public_key, (HINTS[0],), b"", MEETING.public_key, ("a.example",))
    assert parse_link(str(link)) == link
    more = f"{link}&d=b.example&d=c.example"
    assert parse_link(more).zones == ("a.example", "b.example")
    assert parse_link(f"{link}&d=no%20zone%0a").zones == ("a.example",)
    with pytest.raises(ConfigError, match="r="):
        parse_link(f"swarm:demo?k={encode_base32(SWARM.public_key)}&r=aaaa")
