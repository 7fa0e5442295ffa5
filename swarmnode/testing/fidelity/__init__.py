"""Claims of papers, tried on the algorithms as they are here: ``swarmnode bench fidelity``.

::

    convex.py     DADAO
    gossip.py     A2CiD2 against AD-PSGD
    merging.py    models that never met, and one merge at the end
    outer.py      NoLoCo
    overlap.py    DiLoCo, its eager form, streaming gossip, and their codecs
    on_texts.py   the same on two texts that nothing was tuned on, for 2, 4 and 8 nodes
    texts.py      the runs behind that
    exact.py      what must be equal to the last bit: one byte, group means
    allreduce.py  synchronous data parallelism over torch.distributed, to compare daemons with
    kit.py        what they share

Each experiment is a function ``quick -> Finding``; experiments.py names them.
"""
