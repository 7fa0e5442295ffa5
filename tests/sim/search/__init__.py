"""A search for histories of whole daemons that lead their cores through what none did before."""
