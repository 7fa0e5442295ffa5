"""Group means, gatherings and the log of the laboratory.

GROUP: a round waits for every node that is alive, at most ``PATIENCE``, and in a lineage for the
share of the time since the last one that a daemon waits (GROUP_ENLIST_SHARE), or for a step of the
slowest (``Pacer.call_s``). Once half of the nodes have come to one in a lineage, the others are
called, and come as they are. The mean is that of those that came with the same base version and
whose payload arrived, by weight, the same bits for each of them. As in a daemon each part of it is
made by the merge rule and goes through the codec, a round of a lineage has a quorum of the live
nodes or comes to nothing, and one group holds GROUP_MEMBERS_MAX: the others train beside it. A node
that is on another lineage than most is told so (daemon/exchange/intent_handlers.py), here at once.
GATHER: a round as of a node's count, with a quorum, of at most GATHER_MEMBERS_MAX; each gets what
all of them sent, and sends its own to every other one.
LOG: a round closes when every node that is alive has published, at most ``PATIENCE`` after the
first; what comes later is in the next one. Every node sees the same rounds in the same order, each
at its own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial

import torch

from swarmnode import limits
from swarmnode.errors import WorkerError
from swarmnode.protocol.gossip import matching
from swarmnode.protocol.gossip.group_events import has_majority
from swarmnode.protocol.gossip.groups import fair_weights, seats
from swarmnode.protocol.gossip.lineages import Lineage, Standing, judge
from swarmnode.protocol.gossip.witnesses import WITNESS_SHARE
from swarmnode.protocol.pacing import pacer_of
from swarmnode.strategies.base import Exchange, Intent, Kind, Message, Record
from swarmnode.strategies.merging.mixing import Rows
from swarmnode.strategies.merging.rules import candidates, find_rule
from swarmnode.strategies.ranges import not_finite
from swarmnode.tensor.pieces import Part, by_view, count_grains, cut_chunks, cut_pieces
from swarmnode.testing.lab.codecs import RAW, through
from swarmnode.testing.lab.sides import MOST_OTHERS, Side, let_forge, refusal, take_view
from swarmnode.testing.lab.world import Node, World

PATIENCE = 4.0  # units of time that a round waits for its last member

Round = tuple[str, int, int | bytes]  # tag, fragment, round; in a lineage, on what it stands
_OVER_MAX = 64  # means of a topic that a daemon remembers


class Gatherings:
    """Rounds that are open, and the log."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[Round, dict[int, Intent]] = {}
        self._over: dict[tuple[str, int], int] = {}  # the last round that closed
        self._posted_at: dict[int, float] = {}
        self._made: deque[Round] = deque(maxlen=_OVER_MAX)  # in a lineage, and those under way
        self.log: list[tuple[Record, ...]] = []
        self._unlogged: dict[int, Record] = {}
        self._late: list[Record] = []
        self._lineages: dict[int, Lineage] = {}  # as of a node's last intent
        self._moved: dict[int, bool] = {}  # since then, and whether by one mean only
        self._read: dict[int, int] = {}  # rounds of the log that a node has seen

    # --- GROUP ---------------------------------------------------------------------------

    def gather(self, node: Node, intent: Intent) -> None:
        """Come to a round, and close it if no member is missing."""
        in_lineage = intent.lineage is not None
        key = (intent.tag, intent.fragment, intent.base_version if in_lineage else intent.round)
        self._note_lineage(node.number, intent)
        is_over = self._over.get(key[:2], -1) >= intent.round
        if key in self._made if in_lineage else is_over:
            self._world.tally.aborted += in_lineage
            node.strategy.on_abort(intent, "the round is over")
            return
        patience = self._patience(node.number) if in_lineage else PATIENCE
        if key not in self._open:
            self._open[key] = {}
            opened = self._open[key]
            self._world.at(self._world.now + patience, lambda: self._lose_patience(key, opened))
        if not self._has_place(node, intent):
            self._world.tally.aborted += 1
            node.strategy.on_abort(intent, "others have all places of the group")
        else:
            self._open[key][node.number] = intent
            if in_lineage:
                self._call(intent, self._open[key])
        if all(
            other.number in self._open[key] or not self._has_place(other, intent)
            for other in self._world.up
        ):
            self._close(key)

    def _call(self, intent: Intent, callers: Collection[int]) -> None:
        """Let the others come as they are, as ENLISTs of half of all do."""
        members = [each for each in self._world.up if self._has_place(each, intent)]
        if 2 * len(callers) >= len(members):
            for other in members:
                if other.number not in callers:
                    other.strategy.on_call(intent.lineage or 0)

    def _patience(self, number: int) -> float:
        """Return how long a node waits for the others, which comes again to a mean of a lineage."""
        now = self._world.now
        before = self._posted_at.get(number, now)
        self._posted_at[number] = now
        pacer = pacer_of(1)
        pacer.note_step(1 / self._world.nodes[number].speed)
        call_s = pacer.call_s(1 / other.speed for other in self._world.up)
        return max(PATIENCE, limits.GROUP_ENLIST_SHARE * (now - before), call_s)

    def _has_place(self, node: Node, intent: Intent) -> bool:
        """Whether a node takes part where not all can; see ``daemon/collective/groups.py``."""
        if intent.group_size_max and intent.lineage is None:
            return True  # any number of groups
        most = limits.GROUP_MEMBERS_MAX
        if intent.kind is Kind.GATHER:
            most = min(most, limits.GATHER_MEMBERS_MAX)
        size = min(intent.group_size_max or most, most)
        return node.peer_id in seats((other.peer_id for other in self._world.up), size)

    # --- lineages ------------------------------------------------------------------------

    def note_pulled(self, number: int) -> None:
        """A node may have gone over to what another gave."""
        self._moved[number] = False

    def _note_lineage(self, number: int, intent: Intent) -> None:
        if intent.lineage is None:
            return
        own = self._lineages.get(number)
        is_next = self._moved.pop(number, False)
        if own is None:
            self._lineages[number] = Lineage.of(intent.lineage, intent.base_version)
        else:
            self._lineages[number] = own.then(intent.lineage, intent.base_version, is_next=is_next)

    def preferred(self, number: int) -> set[int]:
        """Return the nodes that a stray node asks; none: it is not stray, and asks any."""
        standing = self._standing(number)
        strongest = standing.strongest if standing is not None and standing.is_weaker else ()
        return {self._world.ids.index(peer) for peer in strongest}

    def _standing(self, number: int) -> Standing | None:
        own = self._lineages.get(number)
        if own is None:
            return None
        others = (each for each in self._world.up if each.number != number)
        known = {each.peer_id: self._lineages.get(each.number) for each in others}
        return judge(own, {peer: each for peer, each in known.items() if each is not None})

    def _tell_strays(self) -> None:
        for node in self._world.up:
            if self.preferred(node.number):
                node.strategy.on_stray()

    def _lose_patience(self, key: Round, opened: dict[int, Intent]) -> None:
        if self._open.get(key) is opened:  # not the next attempt at the same mean
            self._close(key)

    def _close(self, key: Round) -> None:
        if key not in self._open:
            return
        world = self._world
        came = self._open.pop(key)
        if isinstance(key[2], bytes):
            self._close_in_lineage(key, came)
            self._tell_strays()
            return
        self._over[key[:2]] = key[2]
        ids = [world.ids[number] for number in came if world.nodes[number].is_up]
        salt = f"{world.seed}/{key[0]}/{key[1]}".encode()
        ordered = [world.ids.index(i) for i in matching.order(salt, key[2], ids)]
        for version in sorted({came[number].base_version for number in ordered}):
            alike = [number for number in ordered if came[number].base_version == version]
            size = max(came[number].group_size_max for number in alike) or len(alike)
            for begin in range(0, len(alike), size):
                self._begin([(world.nodes[i], came[i]) for i in alike[begin : begin + size]])
        self._tell_strays()

    def _close_in_lineage(self, key: Round, came: dict[int, Intent]) -> None:
        """One mean over all nodes that came, if they are a quorum of the live ones."""
        world = self._world
        there = [(world.nodes[number], came[number]) for number in sorted(came)]
        there = [(node, intent) for node, intent in there if node.is_up]
        if not there:
            return  # the node that called it has died since
        live = {node.peer_id for node in world.up if self._has_place(node, there[0][1])}
        if has_majority(live, [node.peer_id for node, _ in there]):
            self._made.append(key)
            self._begin(there, key)
            return
        for node, intent in there:
            world.tally.aborted += 1
            node.strategy.on_abort(intent, "too few are left")

    def _begin(self, group: list[tuple[Node, Intent]], key: Round | None = None) -> None:
        sides = []
        for node, intent in group:
            try:
                if self._world.draw_loss():
                    raise WorkerError("its payload was lost")
                sides.append(take_view(self._world, node, intent))
            except WorkerError as error:
                self._world.tally.aborted += 1
                node.strategy.on_abort(intent, str(error))
        let_forge(self._world, sides)
        latency = self._world.draw_latency()
        if latency:
            self._world.at(self._world.now + latency, lambda: self._end(sides, key))
        else:
            self._end(sides, key)

    def _end(self, sides: list[Side], key: Round | None) -> None:
        present = self._plausible([side for side in sides if side.is_there])
        if len(present) < 2 or not self._has_quorum(present, key):
            if key is not None and key in self._made:
                self._made.remove(key)  # it may be tried again
            for side in present:
                self._world.tally.aborted += 1
                side.node.strategy.on_abort(side.intent, "no other member came")
            return
        is_gathering = present[0].intent.kind is Kind.GATHER
        mean = {} if is_gathering else coded_mean(self._world, present)
        ids = tuple(sorted(side.node.peer_id for side in present))
        self._world.tally.exchanges += 1
        for side in present:
            node, intent = side.node, side.intent
            self._world.tally.means[node.number] += 1
            self._moved.setdefault(node.number, True)
            others = len(present) - 1
            # Of a mean it is a reduce-scatter and an all-gather, both in the codec: each node sends
            # all but its own piece, to witnesses too, and that one's sum to all others.
            sent, times = side.bytes * others, 2 + (intent.merge != "mean") * WITNESS_SHARE
            self._world.tally.bytes += sent if is_gathering else int(times * sent) // len(present)
            exchange = Exchange(
                intent=intent,
                meta=side.meta,
                sent=side.counted,
                got={},
                steps_since=0,  # known when it is applied
                mean={name: tensor.clone() for name, tensor in mean.items()},
                present=ids,
                messages=_messages(present) if is_gathering else (),
            )
            self._world.deliver(node, exchange, side.meta.steps + intent.apply_after_steps)

    def _has_quorum(self, present: list[Side], key: Round | None) -> bool:
        intent = present[0].intent
        live = {node.peer_id for node in self._world.up if self._has_place(node, intent)}
        has_none = key is None and intent.kind is not Kind.GATHER
        return has_none or has_majority(live, [side.node.peer_id for side in present])

    def _plausible(self, sides: list[Side]) -> list[Side]:
        """Drop whose share most of the others refuse: one of them reduces each piece of it.

        A gathering drops what is not finite alone: its merge rule makes no message longer than
        most are.
        """
        kept = []
        for side in sides:
            refusals = self._refusals(side, [other for other in sides if other is not side])
            if refusals:
                self._world.tally.note_refusal(MOST_OTHERS, side.node.number)
                self._world.tally.aborted += 1
                side.node.strategy.on_abort(side.intent, f"local: refused: {refusals[0]}")
            else:
                kept.append(side)
        return kept

    def _refusals(self, side: Side, others: list[Side]) -> list[str]:
        """Return why others refuse what a node sends, if most of them do."""
        if side.intent.kind is Kind.GATHER:
            why = not_finite(side.sent)
            return [why] if why else []
        found = [why for other in others if (why := refusal(self._world, other, side))]
        return found if 2 * len(found) > len(others) else []

    # --- LOG -----------------------------------------------------------------------------

    def publish(self, node: Node, intent: Intent) -> None:
        """Publish a record; one node has at most one in a round."""
        record = Record(node.peer_id, intent.record, intent.round)
        number = node.number

        def arrive() -> None:
            if not self._unlogged:
                round_number = len(self.log)
                self._world.at(self._world.now + PATIENCE, lambda: self._close_log(round_number))
            if number in self._unlogged:
                self._late.append(record)
            else:
                self._unlogged[number] = record
            if all(other.number in self._unlogged for other in self._world.up):
                self._close_log(len(self.log))

        latency = self._world.draw_latency()
        if latency:
            self._world.at(self._world.now + latency, arrive)
        else:
            arrive()

    def join(self, number: int, donor: int) -> None:
        """Let a node go on in the log where the snapshot ends that it came with."""
        self._read[number] = self._read.get(donor, 0)
        self._lineages.pop(number, None)
        self._world.at(self._world.now, lambda: self._read_on(number))

    def _close_log(self, round_number: int) -> None:
        if round_number != len(self.log) or not self._unlogged:
            return
        records = [*self._unlogged.values()]
        self._unlogged.clear()
        self.log.append(tuple(sorted(records, key=lambda record: record.author)))
        late, self._late = self._late, []
        for record in late:
            self._unlogged[self._world.ids.index(record.author)] = record
        for node in self._world.up:
            number = node.number
            self._world.at(
                self._world.now + self._world.draw_latency(),
                lambda number=number: self._read_on(number),  # type: ignore[misc]
            )

    def _read_on(self, number: int) -> None:
        """Hand a node every closed round that it has not seen, in order."""
        node = self._world.nodes[number]
        while node.is_up and self._read.get(number, 0) < len(self.log):
            position = self._read.get(number, 0)
            self._read[number] = position + 1
            self._world.flow(node)
            node.strategy.on_records(position, self.log[position])


def _messages(sides: list[Side]) -> tuple[Message, ...]:
    """Return what each of them sent, in order of their ids."""
    ordered = sorted(sides, key=lambda side: side.node.peer_id)
    return tuple(
        Message(bytes(side.node.peer_id), partial(_read, next(iter(side.sent.values()))))
        for side in ordered
    )


def _read(sent: torch.Tensor) -> Iterator[torch.Tensor]:
    yield sent.to(torch.float32, copy=True)


def coded_mean(world: World, sides: list[Side]) -> dict[str, torch.Tensor]:
    """Return what the rule of their intent makes of what each sent, as it arrives."""
    intent = sides[0].intent
    codecs = {view.name: view.codec or world.codec for view in intent.views}
    made = weighted_mean(sides) if intent.merge == "mean" else _robust_mean(world, sides)
    return {name: through(codecs[name], mean)[0] for name, mean in made.items()}


def weighted_mean(sides: list[Side]) -> dict[str, torch.Tensor]:
    """Return the mean of what each sent, by weight, summed in float64 in the order given.

    One product, one sum and one division each, as daemons have it (``Codec.encode_mean``): means of
    three often lie in the middle of two float32, and any other order rounds some of them apart.
    """
    weights = fair_weights([side.meta.weight for side in sides])
    means = {}
    for name, first in sides[0].sent.items():
        summed = torch.zeros_like(first, dtype=torch.float64)
        for side, weight in zip(sides, weights, strict=True):
            summed += side.sent[name].double() * weight
        means[name] = (summed / sum(weights)).to(first.dtype)
    return means


def _robust_mean(world: World, sides: list[Side]) -> dict[str, torch.Tensor]:
    sides = sorted(sides, key=lambda side: side.node.peer_id)
    intent, weights = sides[0].intent, fair_weights([side.meta.weight for side in sides])
    chunks = cut_chunks(intent.views, world.codec if world.codec != RAW else "RAW32")
    means = {name: torch.empty_like(first) for name, first in sides[0].sent.items()}
    rule = find_rule(intent.merge)
    for piece, whole in enumerate(cut_pieces(chunks, min(count_grains(chunks), len(sides)))):
        for number, parts in by_view(whole).items():
            name, begin = intent.views[number].name, parts[0].begin_in_view
            rows = partial(_rows, parts, sides, name)
            found = [*map(torch.from_numpy, candidates(rule, rows, weights, own=piece))]
            best = len(found) - 1
            if best and number == 0:
                best = sides[piece].node.strategy.prefer(intent, begin, found)
            end = begin + sum(part.numel for part in parts)
            means[name][begin:end] = found[best]
    return means


def _rows(parts: Sequence[Part], sides: list[Side], name: str) -> Iterator[Rows]:
    for part in parts:
        begin, end = part.begin_in_view, part.begin_in_view + part.numel
        yield torch.stack([side.sent[name][begin:end] for side in sides]).numpy()
