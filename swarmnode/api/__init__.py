"""swarmnode from Python: a node that a program starts, asks and stops. Loads no torch by itself."""
