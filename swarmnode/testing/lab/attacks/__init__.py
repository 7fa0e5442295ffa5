"""Members that lie, in the laboratory: real strategies, codecs and guards against known attacks.

::

    scene.py       what impostors know when one of them is to send, and what they remember
    named.py       the attacks by name: those of papers, and those that know the guards
    impostors.py   the members that carry them out, at the place where a payload goes out
    runs.py        ``swarmnode simulate --attack``: with, without, and with guards off

All impostors know each other, what every honest member has sent, and the guards of the one that
they send to. They train like the others, take whatever comes, and go on from what an honest
member would have sent, so that nothing but their payloads tells them apart.
"""
