"""Verbs that ask the node that runs here, or tell it what to do. Most load nothing heavy."""
