"""The composition root: a node is put together, started and stopped here, and nowhere else.

Owns the order in which the parts come up and go down, the lock of the home, the signals of the
process and what a service manager is told. What a part does is that part's business: nothing here
decides about peers, tensors or rules. No other room imports this one.

For others: ``node`` (:class:`~swarmnode.daemon.app.node.Node`) and ``start`` (``run_daemon``).
"""
