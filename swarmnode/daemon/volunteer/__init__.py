"""The owner's rules at work: when this machine trains, and how much of it is used.

Owns what is looked at on the machine, the verdict that follows, the pauses that a person sets and
the files that keep them. What rests is told by an interface: it knows
neither worker nor session. The core is ``protocol/volunteer.py``.

For others: ``rules`` (:class:`~swarmnode.daemon.volunteer.rules.Volunteer`), ``machine`` (with the
memory that training takes) and ``totals`` (what this node gave).
"""
