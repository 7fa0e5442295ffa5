"""Exchanges of tensors with other members, a file or a folder for each kind.

``pair`` two at a time, atomically; ``group`` the mean of a round's members; ``gather`` each of them
gets what all of them sent; ``pull`` one takes what another has; ``log`` rounds of published
updates; ``merge`` one mean of all whole models. Owns what runs of them, and whether training
together stands still. It borrows from ``worker`` and sends over ``membership``; which kinds a swarm
needs its strategy says, by its intents.

For others: ``intent_handlers`` (all kinds together), ``pair.exchanges``, ``merge.finalize``; what
is counted, ``pair.transfer`` and ``history``; what is shown, ``mixing``.
"""
