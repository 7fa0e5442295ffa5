"""Tools for people who work on swarmnode; the wheel does not have them."""
