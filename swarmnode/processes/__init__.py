"""Processes of swarmnode that a person's command starts, asks and ends."""
