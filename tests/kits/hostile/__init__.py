"""A node of a swarm that means harm, out of the parts of a real one.

It has a key, says hello, answers probes, reports of itself, trains, offers and accepts; one of its
parts is replaced by one that lies or keeps others waiting. ``attacks`` has them by name, and
``program`` is such a node as a process.
"""
