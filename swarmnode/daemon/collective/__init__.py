"""Exchanges of many members at once: runs on which all that take part agree, and what they carry.

``groups`` the mean of a round's members; ``gathers`` each of them gets what all of them sent;
``log`` rounds of published updates; ``finalize`` one merge of all members' whole models when
an operator asks for it, in files beside training: ``merge_part`` is a part of it. Owns the
runs (``runs``, the core is ``protocol/gossip/group.py``), what one node sends to another in them
(``post``, ``messages``), and which rounds of each kind go on or came to nothing (``rounds``). A run
knows no tensors: what is averaged or agreed on is its cargo's business. It borrows from ``worker``.

For others: ``groups``, ``gathers`` and ``log`` (the handlers of their intents), ``finalize`` and
the ``runs`` that it needs, ``rounds`` (what handlers of rounds share), and ``payload``, whose
chunks pulls send too.
"""
