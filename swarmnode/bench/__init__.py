"""The benchmarks of ``swarmnode bench``: no node imports them. One module for each figure."""
