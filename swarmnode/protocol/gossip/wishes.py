"""The wishes of a node that wait for a partner, and what it gives to whoever asks."""

from __future__ import annotations

from swarmnode.protocol.gossip.events import Available, Topic, Wish
from swarmnode.protocol.gossip.flight import is_as_good


class WishTable:
    """At most one wish and one answer for each tag and fragment; the shell bounds how many."""

    def __init__(self) -> None:
        self._wishes: dict[Topic, Available] = {}
        self._answers: dict[Topic, Available] = {}

    def put(self, available: Available) -> None:
        """Keep a wish or answer in place of the one before."""
        wish = available.wish
        (self._answers if wish.is_open else self._wishes)[wish.topic] = available

    def remove(self, number: int | None) -> None:
        """Forget one, or all."""
        for table in (self._wishes, self._answers):
            for topic, available in list(table.items()):
                if number in (None, available.wish.number):
                    del table[topic]

    def wish(self, topic: Topic) -> Wish | None:
        """Return the wish that waits there."""
        available = self._wishes.get(topic)
        return available.wish if available is not None else None

    def for_offer(self, topic: Topic) -> Available | None:
        """Return what an offer can have: an answer, so that a wish of our own is still served."""
        return self._answers.get(topic) or self._wishes.get(topic)

    def current(self, wish: Wish) -> Wish | None:
        """Return what may now stand for a wish that was offered; None: it is out of date."""
        waiting = self.wish(wish.topic)
        if waiting is not None and (waiting == wish or is_as_good(waiting, wish)):
            return waiting
        return None

    def use_up(self, wish: Wish) -> Wish:
        """Take out what partners have agreed on; return what is given for it."""
        if wish.is_open:
            return wish
        current = self.current(wish)
        if current is None:
            return wish  # it was promised: whoever lends its payload will say that it is gone
        del self._wishes[wish.topic]
        return current

    def __len__(self) -> int:
        return len(self._wishes)
