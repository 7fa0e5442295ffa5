"""The survey of our own NAT, against NATs of every kind that are a page of Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from swarmnode import limits
from swarmnode.protocol.nat.behaviour import Dependence, NatBehaviour
from swarmnode.protocol.nat.stun import (
    Answer,
    Endpoint,
    Indication,
    StunServer,
    encode_answer,
    encode_indication,
)
from swarmnode.protocol.nat.survey import AskForProbe, NatSurvey, Received, Send

LOCAL = (Endpoint("192.168.1.2", 40_001), Endpoint("192.168.1.2", 40_002))
PUBLIC = "11.0.0.1"
SERVERS = [Endpoint(f"11.0.1.{number}", 4001) for number in range(1, 4)]
OTHER_PORT = 4002
THIRD_PARTY = Endpoint("6.6.6.6", 6666)  # where a liar would have us send
NONE, ADDRESS, PORT, UNKNOWN = Dependence


@dataclass
class Nat:
    """What is between us and the servers."""

    mapping: Dependence = NONE
    filtering: Dependence = NONE
    is_translating: bool = True
    hairpins: bool = False
    loses: int = 0  # the first so many datagrams that leave
    silent: set[str] = field(default_factory=set)
    liars: set[str] = field(default_factory=set)
    other_port: int = OTHER_PORT
    _mapped: dict[object, int] = field(default_factory=dict)
    _contacts: set[tuple[int, Endpoint]] = field(default_factory=set)
    sent: int = 0

    def leave(self, socket: int, target: Endpoint) -> Endpoint:
        """Return the source that ``target`` sees; it may answer from now on."""
        key: object = {
            NONE: socket,
            ADDRESS: (socket, target.host),
            PORT: (socket, target),
        }[self.mapping]
        port = self._mapped.setdefault(key, 50_000 + len(self._mapped))
        self._contacts.add((socket, target))
        return Endpoint(PUBLIC, port) if self.is_translating else LOCAL[socket]

    def lets_in(self, socket: int, source: Endpoint) -> bool:
        if self.filtering is NONE:
            return True
        if self.filtering is ADDRESS:
            return any(s == socket and t.host == source.host for s, t in self._contacts)
        return (socket, source) in self._contacts


def survey(nat: Nat, *, servers: list[Endpoint] = SERVERS, can_probe: bool = True) -> NatBehaviour:
    """Run a survey to its end in virtual time."""
    rng = random.Random(1)
    now = 0.0
    core = NatSurvey(servers, local=LOCAL, token=rng.randbytes, can_probe=can_probe, now=now)
    owner: dict[int, int] = {}  # public port to socket
    responder = StunServer()

    def deliver(socket: int, data: bytes, source: Endpoint) -> None:
        if nat.lets_in(socket, source):
            core.handle(Received(socket, data, source), now)

    def carry_out(effect: Send | AskForProbe) -> None:
        if isinstance(effect, AskForProbe):
            server = servers[effect.server]
            if server.host not in nat.silent:
                data = encode_indication(Indication(effect.transaction))
                deliver(owner[effect.port], data, server)
            return
        assert effect.target.host != THIRD_PARTY.host
        nat.sent += 1
        source = nat.leave(effect.socket, effect.target)
        owner[source.port] = effect.socket
        if nat.sent <= nat.loses or effect.target.host in nat.silent:
            return
        if effect.target.host == PUBLIC:
            if nat.hairpins and effect.target.port in owner:
                deliver(owner[effect.target.port], effect.data, source)
            return
        seen = THIRD_PARTY if effect.target.host in nat.liars else source
        is_main = effect.target.port != nat.other_port
        other = nat.other_port if is_main else 4001
        reply = responder.answer(effect.data, seen, now, other_port=other)
        if reply is not None:
            port = other if reply.from_other_port else effect.target.port
            deliver(effect.socket, reply.data, Endpoint(effect.target.host, port))

    while True:
        while effects := core.poll_effects():
            for effect in effects:
                carry_out(effect)
        deadline = core.next_deadline()
        if deadline is None:
            assert now <= 3 * limits.STUN_ASK_S
            return core.statistics()
        assert deadline >= now
        now = deadline
        core.handle_deadline(now)


@pytest.mark.parametrize("mapping", [NONE, ADDRESS, PORT])
@pytest.mark.parametrize("filtering", [NONE, ADDRESS, PORT])
@pytest.mark.parametrize("loses", [0, 2])
def test_every_kind_of_nat_is_told_apart(
    mapping: Dependence, filtering: Dependence, loses: int
) -> None:
    found = survey(Nat(mapping, filtering, loses=loses))
    assert found.answers == 3
    assert found.is_translated
    assert found.mapping is mapping
    assert found.filtering is filtering
    assert found.public is not None
    assert found.public.host == PUBLIC


def test_without_a_nat_the_filter_is_still_seen() -> None:
    open_host = survey(Nat(is_translating=False))
    assert open_host.is_translated is False
    assert (open_host.mapping, open_host.filtering) == (NONE, NONE)
    assert open_host.hairpins is None
    assert open_host.public == LOCAL[0]
    firewall = survey(Nat(is_translating=False, filtering=PORT))
    assert firewall.is_translated is False
    assert firewall.filtering is PORT


@pytest.mark.parametrize("hairpins", [True, False])
def test_hairpinning_is_seen_through_a_filter(hairpins: bool) -> None:
    assert survey(Nat(filtering=PORT, hairpins=hairpins)).hairpins is hairpins


def test_no_answer_at_all_is_udp_blocked_or_worse() -> None:
    found = survey(Nat(silent={server.host for server in SERVERS}))
    assert found == NatBehaviour(0, None, UNKNOWN, UNKNOWN, None, None)


def test_one_server_tells_a_little() -> None:
    alone = SERVERS[:1]
    assert survey(Nat(NONE, ADDRESS), servers=alone).mapping is UNKNOWN
    assert survey(Nat(PORT, PORT), servers=alone).mapping is PORT
    assert survey(Nat(NONE, ADDRESS), servers=alone).filtering is ADDRESS
    assert survey(Nat(NONE, PORT), servers=alone).filtering is PORT


def test_a_server_that_is_down_changes_nothing() -> None:
    for down in SERVERS:
        found = survey(Nat(NONE, ADDRESS, silent={down.host}))
        assert (found.answers, found.mapping, found.filtering) == (2, NONE, ADDRESS)
        assert survey(Nat(NONE, NONE, silent={down.host})).filtering is NONE


def test_a_lie_among_honest_answers_changes_nothing() -> None:
    for liar in SERVERS:
        found = survey(Nat(NONE, ADDRESS, liars={liar.host}))
        assert found.mapping is NONE
        assert found.public is not None
        assert found.public.host == PUBLIC
        assert survey(Nat(PORT, PORT, liars={liar.host})).public != THIRD_PARTY
    # Two of three are believed, but nothing is sent where only one of them points.
    survey(Nat(liars={SERVERS[0].host}), servers=SERVERS[:2])
    survey(Nat(liars={SERVERS[1].host}), servers=SERVERS[:2])


def test_without_second_ports_and_probes_the_filter_stays_unknown() -> None:
    assert survey(Nat(other_port=0), can_probe=False).filtering is UNKNOWN
    assert survey(Nat(other_port=0)).filtering is NONE
    assert survey(Nat(NONE, NONE), can_probe=False).filtering is ADDRESS  # at most


def test_forged_answers_are_ignored() -> None:
    rng = random.Random(2)
    core = NatSurvey(SERVERS, local=LOCAL, token=rng.randbytes, can_probe=False, now=0.0)
    sends = [effect for effect in core.poll_effects() if isinstance(effect, Send)]
    transaction = sends[0].data[8:20]
    answer = encode_answer(Answer(transaction, THIRD_PARTY))
    guessed = encode_answer(Answer(bytes(12), THIRD_PARTY))
    core.handle(Received(0, answer, Endpoint("6.6.6.7", 4001)), 0.1)  # of another host
    core.handle(Received(1, answer, SERVERS[0]), 0.1)  # to another socket
    core.handle(Received(0, guessed, SERVERS[0]), 0.1)
    core.handle(Received(0, b"\xff" * 30, SERVERS[0]), 0.1)
    assert core.statistics().answers == 0
    core.handle(Received(0, answer, SERVERS[0]), 0.1)
    assert core.statistics().answers == 1


def test_only_a_few_servers_are_asked() -> None:
    many = [Endpoint(f"11.0.2.{number}", 4001) for number in range(1, 20)]
    core = NatSurvey(many, local=LOCAL, token=random.Random(3).randbytes, can_probe=False, now=0.0)
    assert len(core.poll_effects()) == limits.STUN_SERVERS_MAX
