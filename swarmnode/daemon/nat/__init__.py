"""Where others reach us, and the ways around NATs.

Owns what this node finds out of its NAT and its addresses, the ports that a router maps, the relays
that it holds and the relaying that it does, and the tries at better ways: signals over common
neighbours, TCP punches, WebRTC. A session itself belongs to ``transport``; it is handed a channel.

For others: ``nat`` (:class:`~swarmnode.daemon.nat.nat.Nat`, all of it together), ``reach`` for the
addresses that this machine has, and ``relay`` for benches that measure what relaying costs.
"""
