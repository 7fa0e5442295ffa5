"""Nodes of the same local network find each other."""
