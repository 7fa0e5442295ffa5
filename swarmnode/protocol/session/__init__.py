"""The secure session, without IO: records, streams, and what two nodes agree on first.

=============  =====================================================================
records.py     key schedule; sealing and opening of records
opening.py     the checks of version, network and identity; going on over another channel
stream.py      one stream: which direction is over, and what is due
inbox.py       unread bytes of one stream
table.py       which streams there are, which ids may come
outgoing.py    what is sent next, by priority
keepalive.py   pings and dead peers
effects.py     what the core tells its shell
core.py        all of it together: the one class that a shell uses
=============  =====================================================================

The contract is written down in ``proto/session.md``; ``swarmnode.net.session``
is the Trio shell.
"""
