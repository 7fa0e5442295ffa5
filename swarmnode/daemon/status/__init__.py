"""What a node says of itself: to the command line, to Prometheus, to browsers and to its peers.

Owns the records that are shown, the routes and pages that serve them, and figures that no part of
the node keeps. It reads the parts and changes none: what a route changes, it asks of whoever can.

For others: ``view`` (:class:`~swarmnode.daemon.status.view.NodeView`), ``words`` and ``readings``;
what serves them, ``control``, ``scrape``, ``dashboard`` and ``peer_metrics``; and the records that
clients read, in ``overview``, ``owner``, ``netcheck`` and ``fresh_link``.
"""
