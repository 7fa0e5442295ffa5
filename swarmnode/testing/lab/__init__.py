"""A laboratory for algorithms: the real strategy objects over a virtual engine in virtual time.

::

    tasks.py, digits.py,  what is trained: all nodes' parameters as one matrix [n, numel]
    prose.py, text.py
    world.py              the nodes, their time and their network
    arena.py              local steps, clocks, crashes: the engine
    meetings.py           which nodes meet, and whether it counts: PAIR and PULL
    gatherings.py         GROUP and LOG
    sides.py              one node's part of an exchange
    faults.py             what goes wrong
    attacks/              members that lie
    codecs.py             what a payload looks like on the other side, and its bytes
    runs.py               one run from settings to figures; ``python -m swarmnode.testing.lab``
"""
