"""One session for each peer, over whatever channel there is.

Owns the sessions, the listener, the races in which addresses are dialled, and the
search for another channel when one breaks. It knows addresses and how to open them, relayed ones
too; how an address comes about, and who is worth dialling, others say.

For others: ``network`` (:class:`~swarmnode.daemon.transport.network.Network`) and ``key_guard``,
which notices a second process with our key.
"""
