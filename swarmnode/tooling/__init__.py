"""Tools for those who work on swarmnode; the wheel does not have them."""
