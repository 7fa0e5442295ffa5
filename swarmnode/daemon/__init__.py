"""The daemon: everything of a node but training itself, in rooms by subject.

::

    app           puts a node together, starts and stops it; only the verbs import it
    status        what a node says of itself, and the routes on which it is asked
    exchange      exchanges between two members, and all kinds together
    snapshots     blobs, and the swarm's snapshots in them
    collective    exchanges of many: groups, gatherings, logs and merges of models
    worker        the daemon's side of the process that trains
    volunteer     the owner's rules, and the machine that they look at
    membership    the swarm: its members, and what they say of themselves
    discovery     the DHT, the LAN and what they know: peers, swarms, manifests
    transport     one session for each peer, and the ways around NATs

A room imports those below it only. Each says in its ``__init__`` what it owns, and which of its
modules the others may use. ``driver.py`` runs the cores of all rooms.
"""
