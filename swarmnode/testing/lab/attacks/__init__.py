"""Members that lie, in the laboratory: real strategies, codecs and guards against known attacks.

::

    scene.py       what impostors know when one of them is to send, and what they remember
    fixed.py       attacks that do the same whatever the others do, as their papers have them
    adaptive.py    attacks that know the guards, and go as far as these let them
    named.py       all of them by name
    impostors.py   the members that carry them out, at the place where a payload goes out
    runs.py        ``swarmnode simulate --attack``: with, without, and with guards off

All impostors know each other, what every honest member has sent, and the guards of the one that
they send to. They train like the others, take whatever comes, and go on from what an honest
member would have sent, so that nothing but their payloads tells them apart.
"""
