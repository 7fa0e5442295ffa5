"""What a node says of itself: to the command line, to Prometheus, to browsers and to its peers.

Owns the records that are shown, the routes and pages that serve them, and figures that no part of
the node keeps. It reads the parts and changes none: for a change, a route asks the part concerned.

For others: ``phases``, whose records the composition root fills, ``view``
(:class:`~swarmnode.daemon.status.view.NodeView`) and ``readings``; what serves them, ``control``,
``scrape`` and ``dashboard``; and the records that clients read, in ``overview``, ``owner`` and
``netcheck``.
"""
