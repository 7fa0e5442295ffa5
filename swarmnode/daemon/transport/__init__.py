"""One session for each peer, over whatever channel there is, and the ways around NATs.

Owns the sessions, the channels that are dialled and taken in, and the search for another channel
when one breaks; what this node finds out of its NAT and its addresses, the ports that a router
maps, the relays that it holds and the relaying that it does, and the tries at better ways: signals
over common neighbours, TCP punches, WebRTC. Which peers are worth dialling, other parts say.

For others: ``network`` (:class:`~swarmnode.daemon.transport.network.Network`) and ``key_guard``,
which notices a second process with our key; ``nat`` (:class:`~swarmnode.daemon.transport.nat.Nat`,
all that reaches through NATs together), ``reach`` for the addresses that this machine has, and
``relay`` for benches that measure what relaying costs.
"""
