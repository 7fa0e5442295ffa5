"""One worker that is several processes: ranks, each with a GPU of its own or a part of the cores.

Parallelism is torch's: ``ddp`` gives each rank all of the model, ``fsdp2`` an equal part of it, of
its gradients and of what the optimizer keeps. Rank 0 is the worker that the daemon knows, with the
loop, the strategy and the snapshots; it gives orders (``team.py``), and the others do as they are
told (``follow.py``). What a rank holds is in ``hands.py``, what all do together in ``state.py``.

The ranks are children of rank 0, and not of ``torchrun``: its agent would be one more process
between, which starts ranks again by itself, while a worker whose rank is gone is to end as a whole
and go on from its last snapshot; and the daemon could not end grandchildren without it.
"""
