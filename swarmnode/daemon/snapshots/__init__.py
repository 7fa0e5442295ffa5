"""Large files between nodes: the blob service, and the swarm's snapshots in it.

Owns fetches from several holders at once, the turns and limits of uploads, and which snapshots are
offered, copied and fetched; blobs that are in use stand on the store's shelf. The
shared state and the DHT say which peer holds what; a worker only ever sees paths.

For others: ``snapshots`` (:class:`~swarmnode.daemon.snapshots.snapshots.Snapshots`) and ``blobs``
(:class:`~swarmnode.daemon.snapshots.blobs.Blobs`).
"""
