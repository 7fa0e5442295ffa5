"""Flat model vectors and the codecs that carry them; no network, no torch."""
