"""Compares the lineage of this node's slow weights with what the other members say of theirs.

::

    PostedIntent(lineage) -> own chain -> register "lineage" of the shared state -> the others
    a round ends  -> on another lineage than most? -> Stray -> worker -> PULL of one who is on it

The comparison is ``protocol/gossip/lineages.py``. What members say is believed here as far as it
is in a PULL: a node asks for weights of a member whom it would have asked at random else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent, Stray
from swarmnode.protocol.gossip.lineages import Lineage, Standing, judge
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.exchange")


class Lineages:
    """The lineage of this node, and how it stands.

    Args:
        said: what the others who train now say of theirs, as text.
        post: sends a message to the worker.
    """

    def __init__(
        self, said: Callable[[], Mapping[PeerId, str]], post: Callable[[Stray], None]
    ) -> None:
        self._said = said
        self._post = post
        self._own: Lineage | None = None
        self._has_committed = self._has_pulled = False  # since the chain was looked at
        self._may_ask = False  # once a round: what comes of it shows in the next

    @property
    def own(self) -> Lineage | None:
        """This node's chain; None: its strategy has no lineages, or no round has begun."""
        return self._own

    def intent_posted(self, intent: PostedIntent) -> None:
        """A round begins: this is where the worker is."""
        if intent.lineage is None:
            return
        if self._own is None:
            self._own = Lineage.of(intent.lineage, intent.base_version)
        is_next = self._has_committed and not self._has_pulled
        moved = self._own.then(intent.lineage, intent.base_version, is_next=is_next)
        if moved is not self._own:
            self._own = moved
            self._has_committed = False
        self._has_pulled = False
        self._may_ask = True

    def round_ended(self, is_committed: bool) -> None:
        """A mean was applied, or nothing came of the round; ask for another lineage if need be."""
        self._has_committed |= is_committed
        standing = self.standing()
        if standing is None or not standing.is_weaker or not self._may_ask:
            return
        self._may_ask = False
        _log.warning(
            "on another lineage than most",
            alike=standing.n_alike,
            members=standing.n_members,
            strongest=standing.n_strongest,
        )
        self._post(Stray())

    def pulled(self) -> None:
        """The worker may have gone over to what a peer gave."""
        self._has_pulled = True

    def worker_gone(self) -> None:
        """The next worker begins with a snapshot: its chain is not known."""
        self._own = None
        self._has_committed = self._has_pulled = self._may_ask = False

    def standing(self) -> Standing | None:
        """Return how this node's lineage stands now; None if it has none."""
        if self._own is None:
            return None
        read = {peer: Lineage.parse(text) for peer, text in self._said().items()}
        return judge(self._own, {peer: each for peer, each in read.items() if each is not None})

    def preferred(self) -> Collection[PeerId]:
        """Return who is on the lineage that is to stay: whom to ask for slow weights first."""
        standing = self.standing()
        return () if standing is None else standing.strongest
