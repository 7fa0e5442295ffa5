"""Means over the members of a round's group, and the runs that also the log and merges use.

``runs`` drives the core ``protocol/gossip/group.py`` and knows no tensors: what is averaged or
agreed on is its cargo's business. ``payload`` is the cargo of a round, ``groups`` serves intents.
"""
