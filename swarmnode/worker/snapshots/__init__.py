"""Snapshots of the training state: written, judged, restored."""
