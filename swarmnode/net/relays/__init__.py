"""Sessions that pass through a relay, for those who cannot be dialled."""
