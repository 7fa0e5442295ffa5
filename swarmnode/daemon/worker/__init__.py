"""The daemon's side of the process that trains: one at a time, kept alive, lent from.

Owns the worker's start and end, its restarts and how batches are cut to fit into memory, the socket
and the segment to it, and the slots that it lends. It knows no peer: intents go to handlers that
are registered by kind, and what comes of them is a lease that is applied or given back.

For others: ``trainer`` (:class:`~swarmnode.daemon.worker.trainer.Trainer`), ``leases`` (what an
exchange sees of a worker), ``link`` (messages, and questions about merges), ``briefing`` (what a
worker is told); and for the composition root what a worker is started by: ``process``, ``foreign``.
"""
