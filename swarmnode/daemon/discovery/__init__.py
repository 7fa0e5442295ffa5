"""What can be found without being a member: peers, swarms by name or key, manifests.

Owns the DHT's driver, the beacon of the LAN and the contacts that are remembered. Whatever is found
is a hint, or a claim that is weighed; a manifest alone proves what it says, by the swarm's key.

For others: ``composition`` (what a node stands on before it knows its swarm), ``dht``,
``rendezvous`` (manifests too) and ``lookup`` (swarms by name, and a node that only looks around).
"""
