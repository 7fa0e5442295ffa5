"""Exchanges of tensors between two members, and all kinds of exchange together.

``pair`` two at a time, atomically; ``pull`` one takes what another has. ``intent_handlers`` puts
all kinds together, those of ``collective`` too, and knows whether training together stands still.
Owns the history of exchanges. It borrows from ``worker`` and sends over ``membership``; which kinds
a swarm needs its strategy says, by its intents.

For others: ``intent_handlers``, ``pair.exchanges``; what is counted, ``pair.transfer`` and
``history``; what is shown, ``mixing``.
"""
