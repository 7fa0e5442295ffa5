"""The secure session, without IO: records, streams, and what two nodes agree on first.

=============  =====================================================================
records.py     key schedule; sealing and opening of records
hello.py       the checks of version, network and identity
stream.py      one stream: which direction is over, and what is due
inbox.py       unread bytes of one stream
core.py        all streams of a session, priorities, keepalive
=============  =====================================================================

The contract is written down in ``proto/session.md``; ``swarmnode.net.session``
is the Trio shell.
"""
