"""swarmnode: train a neural network together with strangers, with no server in the middle.

Importing this package is cheap on purpose: the command line answers in
milliseconds, and a node that only relays or watches never loads torch.
"""

__version__ = "0.1.0"
