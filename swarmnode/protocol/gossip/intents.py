"""The intents of a node that wait for a partner, and what it gives to whoever asks."""

from __future__ import annotations

from swarmnode.protocol.gossip.events import Available, PairIntent, Topic
from swarmnode.protocol.gossip.flight import is_as_good


class IntentTable:
    """At most one intent and one answer for each tag and fragment; the shell bounds how many."""

    def __init__(self) -> None:
        self._intents: dict[Topic, Available] = {}
        self._answers: dict[Topic, Available] = {}

    def put(self, available: Available) -> None:
        """Keep an intent or answer in place of the one before."""
        intent = available.intent
        (self._answers if intent.is_open else self._intents)[intent.topic] = available

    def remove(self, number: int | None) -> None:
        """Forget one, or all."""
        for table in (self._intents, self._answers):
            for topic, available in list(table.items()):
                if number in (None, available.intent.number):
                    del table[topic]

    def intent(self, topic: Topic) -> PairIntent | None:
        """Return the intent that waits there."""
        available = self._intents.get(topic)
        return available.intent if available is not None else None

    def for_offer(self, topic: Topic) -> Available | None:
        """Return what an offer can have: an answer, so that an intent of ours is still served."""
        return self._answers.get(topic) or self._intents.get(topic)

    def current(self, intent: PairIntent) -> PairIntent | None:
        """Return what may now stand for an intent that was offered; None: it is out of date."""
        waiting = self.intent(intent.topic)
        if waiting is not None and (waiting == intent or is_as_good(waiting, intent)):
            return waiting
        return None

    def use_up(self, intent: PairIntent) -> PairIntent:
        """Take out what partners have agreed on; return what is given for it."""
        if intent.is_open:
            return intent
        current = self.current(intent)
        if current is None:
            return intent  # it was promised: whoever lends its payload will say that it is gone
        del self._intents[intent.topic]
        return current

    def __len__(self) -> int:
        return len(self._intents)
