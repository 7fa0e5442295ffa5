"""What this node says of itself and of its peers in the shared state, and what others say.

===========  ====================================================================
leases       member (its id), role, version, address (each one)
counters     steps, tokens, exchanges, seconds: totals over all its lives
registers    name, state, loss, eval_loss, step_time_s, line_bytes_per_s, met,
             lineage, sketches, target, ramp_begin, ramp_end (progress.py)
maxima       step, tokens (of the whole swarm)
verdicts     on peers of which it has measured ill, see ``protocol/trust.py``
===========  ====================================================================

All but the verdicts is self-reported: it is shown, used to choose peers to ask, and never
believed. What no node could measure counts as not said; what enters sums is bounded by what most
members say (``protocol/plausible.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import trio

from swarmnode import __version__, limits
from swarmnode.daemon.membership.shared_state import ADDRESS, StateKeeper
from swarmnode.env import Env
from swarmnode.errors import LocalProtocolError, StorageError
from swarmnode.ids import PeerId
from swarmnode.names import is_name
from swarmnode.protocol.crdt.document import RegisterContent, SetKey
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.crdt.views import MEMBER
from swarmnode.protocol.trust import NEUTRAL, RECORD, Trust
from swarmnode.store.journal import Journal
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.admission import Role
from swarmnode.wire.membership import PeerState

ROLE, VERSION, MET, LINEAGE, NAME = "role", "version", "met", "lineage", "name"
SKETCHES, TARGET = "sketches", "target"
STEP_TIME_S, LINE_BYTES_PER_S = "step_time_s", "line_bytes_per_s"
_SINCE_START = ("exchanges", "seconds")  # a node counts these from zero in each of its lives
_STATES: tuple[PeerState, ...] = get_args(PeerState)
_ROLES: tuple[Role, ...] = get_args(Role)
# Of numbers that a node can measure: no loss is so large before training is given up, no step so
# short or so long. Any other is a float32, or a count of tokens.
_POSSIBLE = {
    "loss": (-1e6, 1e6),
    "eval_loss": (-1e6, 1e6),
    STEP_TIME_S: (1e-6, 86_400.0),
    LINE_BYTES_PER_S: (1.0, 1e12),
}
_NUMBER_MAX = 1e18
_COUNTERS_MAX = {"steps": limits.TRAINED_STEPS_MAX}
# A crash forgets so much of what was measured; and others hear as often at most.
_TRUST_LOOK_S = 60.0
_SALT_BYTES = 16
_log = get_logger("swarmnode.daemon.membership")


def finite_or_none(value: float | None) -> float | None:
    """JSON and wire have no NaN: no number yet is None."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class SelfReport:
    """What there is to say at one moment."""

    role: Role
    state: PeerState
    addresses: tuple[str, ...]
    counters: dict[str, int]  # exchanges and seconds since the start, the others in all
    numbers: dict[str, float | None]  # None: nothing to say yet
    step: int
    met: str | None = None  # partners that it had lately, see ``status/overview.py``; None: none
    lineage: str = ""  # of its slow weights, see ``protocol/gossip/lineages.py``; empty: none
    sketches: str = ""  # of what is there, see ``protocol/gossip/sketches.py``
    name: str = ""  # what it is called; "": it does not say
    target: str = ""  # the newest extension that it knows, see ``progress.py``; "": none
    swarm_tokens: int = 0  # of all members, those that no member remembers included; 0: not counted

    def update(self, peer: PeerId, earlier: Mapping[str, int]) -> Update:
        """Return all of it as one update; ``earlier`` is what earlier lives have counted."""
        lease_s = int(limits.STATE_LEASE_S)
        leases: dict[SetKey, int] = {
            (MEMBER, str(peer)): lease_s,
            (ROLE, self.role): lease_s,
            (VERSION, __version__): lease_s,
        }
        leases |= {(ADDRESS, address): lease_s for address in self.addresses}
        # Empty ones, too: what an earlier life said of its slow weights must not outlive it.
        registers: dict[str, RegisterContent] = {
            "state": self.state,
            LINEAGE: self.lineage,
            SKETCHES: self.sketches,
        }
        if self.name:
            registers[NAME] = self.name
        if self.target:
            registers[TARGET] = self.target
        if self.met is not None:
            registers[MET] = self.met
        for name, value in self.numbers.items():
            if (finite := finite_or_none(value)) is not None:  # the loss of a model that is lost
                registers[name] = finite
        counters = {name: n + earlier.get(name, 0) for name, n in self.counters.items()}
        maxima = {"step": self.step}
        if self.swarm_tokens:
            maxima["tokens"] = self.swarm_tokens
        return Update(leases, counters, registers, maxima)


@dataclass
class Reporter:
    """Says what has changed, at once if it is our state, else now and then.

    Args:
        make: what there is to say now.
        n_members: of the swarm; the larger it is, the rarer each speaks.
    """

    state: StateKeeper
    peer: PeerId
    make: Callable[[], SelfReport]
    n_members: Callable[[], int]
    _said: Update = field(default_factory=Update)
    _said_at: float = -math.inf
    _earlier: Mapping[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Report until cancelled; the journal has been read before."""
        totals = self.state.view.counters_of(self.peer)
        self._earlier = {name: totals[name] for name in _SINCE_START if name in totals}
        while True:
            self.say_now()
            await self._wait()

    def say_now(self) -> None:
        """Say what is new since last time."""
        whole, now = self.make().update(self.peer, self._earlier), trio.current_time()
        news = _difference(self._said, whole)
        if _is_empty(news) or (_is_only_time(news) and now < self._said_at + limits.REPORT_TIME_S):
            return
        try:
            self.state.say(news)
        except LocalProtocolError as error:  # an address that no record can hold, for example
            _log.error("not said in the shared state", why=str(error))
        self._said, self._said_at = whole, now

    def say_goodbye(self) -> None:
        """Take back that we are here; totals stay."""
        leases = dict.fromkeys(self._said.leases, 0)
        self.state.say(Update(leases, registers={"state": "left"}))

    async def _wait(self) -> None:
        """Return when the usual pause is over, or the state of the node has changed."""
        pause_s = max(limits.REPORT_S_MIN, limits.REPORT_MEMBER_S * self.n_members())
        until = trio.current_time() + pause_s
        said = self._said.registers.get("state")
        while trio.current_time() < until and self.make().state == said:  # noqa: ASYNC110
            await trio.sleep(limits.REPORT_LOOK_S)


class TrustKeeper:
    """What this node makes of its peers: kept over restarts, said to others, and heard from them.

    Attributes:
        book: to be read, and told what was measured.
    """

    def __init__(self, state: StateKeeper, journal: Path, env: Env) -> None:
        self.book = Trust(env.rng.randbytes(_SALT_BYTES))
        self._state, self._path, self._env = state, journal, env
        self._said: dict[PeerId, int] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the journal, then write and say what is new, until cancelled.

        Raises:
            StorageError: the journal cannot be opened.
        """
        journal = await self._env.in_thread(Journal, self._path)
        try:
            self._restore(journal)
            task_status.started()
            while True:
                await trio.sleep(_TRUST_LOOK_S)
                records, is_whole = self._to_write(journal)
                if records:
                    await self._env.in_thread(_write_trust, journal, records, is_whole)
                self._say()
        finally:  # a few records of 64 bytes, and the node goes
            _write_trust(journal, *self._to_write(journal))
            journal.close()

    def heard(self, author: PeerId) -> None:
        """A member has said something else of its peers."""
        neutral = limits.STATE_VERDICT_NEUTRAL
        said = self._state.view.verdicts_of(author)
        self.book.told(author, {peer: NEUTRAL * each / neutral for peer, each in said.items()})

    def _restore(self, journal: Journal) -> None:
        found = journal.recovered
        now, unix_s = self._env.monotonic(), self._env.wall()
        n_bad = self.book.restore(found.records, now, unix_s)
        journal.let_go()
        if n_bad or found.cut_bytes:
            _log.warning(
                "the journal of trust was damaged; some peers are neutral again",
                records=n_bad,
                cut_bytes=found.cut_bytes,
                why=found.reason,
            )

    def _to_write(self, journal: Journal) -> tuple[list[bytes], bool]:
        """Return what is new, or all there is for a new generation."""
        now, unix_s = self._env.monotonic(), self._env.wall()
        changed = self.book.take_changed(now, unix_s)
        if journal.needs_rotation(RECORD.size * len(self.book)):
            return self.book.records(now, unix_s), True
        return changed, False

    def _say(self) -> None:
        """Say which verdicts are new, and take back those that are none any more."""
        now_said = self.book.verdicts(self._env.monotonic())
        news = {peer: each for peer, each in now_said.items() if self._said.get(peer) != each}
        news |= dict.fromkeys(self._said.keys() - now_said.keys(), limits.STATE_VERDICT_NEUTRAL)
        if not news:
            return
        try:
            self._state.say(Update(verdicts={bytes(p): each for p, each in news.items()}))
            self._said = now_said
        except LocalProtocolError as error:  # no room beside all else that this node says
            _log.error("verdicts are not said in the shared state", why=str(error))


def _write_trust(journal: Journal, records: list[bytes], is_whole: bool) -> None:
    """What a full disk does not take is written with the next change of that peer."""
    try:
        if is_whole:
            journal.rotate(records)
            return
        for record in records:
            journal.append(record)
        if records:
            journal.sync()
    except StorageError as error:
        _log.warning("what was measured of peers is not written down", why=str(error))


@dataclass(frozen=True)
class PeerReport:
    """What the shared state holds of one peer, with defaults for what it does not say."""

    peer: PeerId
    state: PeerState | None = None
    role: Role | None = None
    version: str = ""
    addresses: tuple[str, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    met: str = ""
    lineage: str = ""
    sketches: str = ""
    name: str = ""  # what it says that it is called; nothing, if that is no name
    target: str = ""  # a signed extension, not verified


def state_of(state: StateKeeper, peer: PeerId) -> PeerState | None:
    """Return in which state a peer says that it is."""
    return _state_among(state.view.registers_of(peer))


def role_of(state: StateKeeper, peer: PeerId, now: float) -> Role | None:
    """Return which role a peer says that it has."""
    return _role_among(state.view.elements_of(peer, ROLE, now))


def _state_among(registers: Mapping[str, RegisterContent]) -> PeerState | None:
    said = registers.get("state")
    return next((each for each in _STATES if each == said), None)


def _role_among(said: Sequence[str]) -> Role | None:
    return next((each for each in _ROLES if each in said), None)


def peer_report(state: StateKeeper, peer: PeerId, now: float) -> PeerReport:
    """Read what a peer says; what makes no sense counts as not said."""
    view = state.view
    leased = view.of(peer, now)
    registers = view.registers_of(peer)
    return PeerReport(
        peer=peer,
        state=_state_among(registers),
        role=_role_among(leased.get(ROLE, ())),
        version=next(iter(leased.get(VERSION, ())), ""),
        addresses=leased.get(ADDRESS, ()),
        counters={
            name: min(total, _COUNTERS_MAX.get(name, total))
            for name, total in view.counters_of(peer).items()
        },
        numbers={
            name: value
            for name, value in registers.items()
            if isinstance(value, float) and _is_possible(name, value)
        },
        met=_text(registers.get(MET)),
        lineage=_text(registers.get(LINEAGE)),
        sketches=_text(registers.get(SKETCHES)),
        name=name if isinstance(name := registers.get(NAME), str) and is_name(name) else "",
        target=_text(registers.get(TARGET)),
    )


def _is_possible(name: str, value: float) -> bool:
    low, high = _POSSIBLE.get(name, (-_NUMBER_MAX, _NUMBER_MAX))
    return low <= value <= high


def _text(content: RegisterContent | None) -> str:
    return content if isinstance(content, str) else ""


def _difference(said: Update, whole: Update) -> Update:
    """Return what of ``whole`` was not said yet, and what is no longer so."""
    leases = {key: ttl for key, ttl in whole.leases.items() if key not in said.leases}
    leases |= {key: 0 for key in said.leases if key not in whole.leases}
    return Update(
        leases,
        {k: v for k, v in whole.counters.items() if said.counters.get(k) != v},
        {k: v for k, v in whole.registers.items() if said.registers.get(k) != v},
        {k: v for k, v in whole.maxima.items() if said.maxima.get(k) != v},
    )


def _is_empty(news: Update) -> bool:
    return not (news.leases or news.counters or news.registers or news.maxima)


def _is_only_time(news: Update) -> bool:
    """Whether nothing has happened but that time went by."""
    return not (news.leases or news.registers or news.maxima) and set(news.counters) == {"seconds"}
