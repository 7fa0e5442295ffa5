"""Training runs of ``swarmnode bench learning``: baselines, and swarms in virtual time.

``python -m swarmnode.testing.learning JSON`` runs what :mod:`swarmnode.bench.learning.jobs` says
and answers with one JSON object a line.
"""
