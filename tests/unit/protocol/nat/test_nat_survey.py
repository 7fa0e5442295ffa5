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


# --- step by step ---------------------------------------------------------------------------------

BEGAN_AT = 100.0
FIRST, SECOND = (Endpoint(PUBLIC, port) for port in (50_001, 50_002))  # of our two sockets
OTHER = Endpoint(SERVERS[0].host, OTHER_PORT)


class Steps:
    """A survey whose questions are answered by hand."""

    def __init__(self, servers: list[Endpoint], *, can_probe: bool = True) -> None:
        token = random.Random(4).randbytes
        self.core = NatSurvey(servers, local=LOCAL, token=token, can_probe=can_probe, now=BEGAN_AT)
        self.now = BEGAN_AT

    def sent(self) -> list[Send]:
        return [effect for effect in self.core.poll_effects() if isinstance(effect, Send)]

    def answer(
        self,
        question: Send,
        mapped: Endpoint,
        *,
        other_port: int = 0,
        socket: int | None = None,
        source: Endpoint | None = None,
    ) -> None:
        data = encode_answer(Answer(question.data[8:20], mapped, other_port))
        arrived = question.socket if socket is None else socket
        self.core.handle(Received(arrived, data, source or question.target), self.now)

    def indicate(self, transaction: bytes) -> None:
        data = encode_indication(Indication(transaction))
        self.core.handle(Received(0, data, THIRD_PARTY), self.now)

    def end(self) -> list[Send]:
        """Let the time pass; return what was sent until all was over."""
        sent = []
        while (deadline := self.core.next_deadline()) is not None:
            self.now = deadline
            self.core.handle_deadline(deadline)
            sent += self.sent()
        return sent


def test_a_question_is_sent_again_after_pauses_that_double_until_its_time_is_over() -> None:
    steps = Steps(SERVERS[:1])
    (question,) = steps.sent()
    assert (question.socket, question.target) == (0, SERVERS[0])
    for retries_s in (1, 3):
        deadline = steps.core.next_deadline()
        assert deadline is not None
        assert deadline == pytest.approx(BEGAN_AT + retries_s * limits.STUN_RETRY_S)
        steps.core.handle_deadline(deadline - 0.01)
        assert steps.sent() == []
        steps.core.handle_deadline(deadline)
        assert steps.sent() == [question]
    assert steps.end() == []
    assert steps.now == BEGAN_AT + limits.STUN_ASK_S


def filter_question(steps: Steps) -> Send:
    """Answer what is asked of one server with two ports; return what comes next."""
    (question,) = steps.sent()
    steps.answer(question, FIRST, other_port=OTHER_PORT)
    (at_other_port,) = steps.sent()
    assert at_other_port.target == OTHER
    steps.answer(at_other_port, FIRST)
    (asked,) = steps.sent()
    assert (asked.socket, asked.target) == (1, SERVERS[0])
    return asked


def test_only_the_other_port_of_the_same_host_shows_that_the_filter_lets_it_in() -> None:
    steps = Steps(SERVERS[:1])
    steps.now += 1.0
    steps.answer(filter_question(steps), SECOND, other_port=OTHER_PORT)
    (change,) = steps.sent()
    assert (change.socket, change.target) == (1, SERVERS[0])
    steps.answer(change, SECOND)  # from the port that was asked
    steps.answer(change, SECOND, source=Endpoint(THIRD_PARTY.host, OTHER_PORT))
    steps.answer(change, SECOND, source=OTHER, socket=0)
    assert steps.core.statistics().filtering is PORT
    steps.answer(change, SECOND, source=OTHER)
    assert steps.core.statistics().filtering is ADDRESS
    # It waits for a probe all the same, and says nothing more.
    assert steps.core.next_deadline() == steps.now + limits.STUN_ASK_S
    assert steps.end() == []
    assert steps.now == BEGAN_AT + 1.0 + limits.STUN_ASK_S


def test_a_filter_question_without_an_answer_is_the_end() -> None:
    steps = Steps(SERVERS[:1])
    question = filter_question(steps)
    assert steps.end() == [question, question]
    assert steps.core.statistics().filtering is UNKNOWN
    steps.answer(question, SECOND, other_port=OTHER_PORT)
    assert steps.sent() == []


def test_two_servers_that_see_two_mappings_show_that_it_depends_on_the_address() -> None:
    found = survey(Nat(ADDRESS, other_port=0), servers=SERVERS[:2])
    assert (found.answers, found.mapping) == (2, ADDRESS)


def test_two_others_that_saw_the_same_host_send_a_probe_and_each_socket_knocks_at_the_other() -> (
    None
):
    many = [Endpoint(f"11.0.1.{number}", 4001) for number in range(1, 5)]
    steps = Steps(many)
    for question in steps.sent():
        steps.answer(question, FIRST)
    (asked,) = steps.sent()
    steps.answer(asked, SECOND)
    effects = steps.core.poll_effects()
    probes = [each for each in effects if isinstance(each, AskForProbe)]
    assert [(each.server, each.port) for each in probes] == [(1, SECOND.port), (2, SECOND.port)]
    there, back = (each for each in effects if isinstance(each, Send))
    assert (there.socket, there.target, back.socket, back.target) == (0, SECOND, 1, FIRST)
    assert steps.core.statistics().hairpins is False
    steps.indicate(b"another one.")
    assert steps.core.statistics().filtering is UNKNOWN
    steps.indicate(back.data[8:20])
    assert steps.core.statistics().hairpins is True
    assert steps.core.statistics().filtering is UNKNOWN
    steps.indicate(probes[0].transaction)
    assert steps.core.statistics().filtering is NONE
    assert steps.end() == [], "what was heard is not sent again"


def test_nothing_is_sent_where_two_point_while_most_servers_saw_us_elsewhere() -> None:
    many = [Endpoint(f"11.0.1.{number}", 4001) for number in range(1, 5)]
    steps = Steps(many)
    for number, question in enumerate(steps.sent()):
        steps.answer(question, THIRD_PARTY if number == 1 else FIRST)
    (asked,) = steps.sent()
    assert asked.target == many[0]
    steps.answer(asked, THIRD_PARTY)
    assert steps.sent() == []
    assert steps.core.statistics().hairpins is None
