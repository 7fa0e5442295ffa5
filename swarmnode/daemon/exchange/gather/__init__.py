"""Gatherings: every member sees every message of a round, and all apply the same set of them.

``rounds`` brings messages from whoever has them (``protocol/gossip/gather.py``), ``cargo`` lets a
group run agree on the set, ``gathers`` serves intents.
"""
