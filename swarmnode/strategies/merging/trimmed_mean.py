"""The mean of what is left of each coordinate without its largest and smallest values.

Source: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed learning:
towards optimal statistical rates", 2018. As long as no more than f are hostile, every coordinate
lies between those of two honest vectors.

Deviations: f is a quarter of those who came. All count the same, whatever their weights are: an
order of values has none. It serves dense vectors only: of sparse messages most values of a
coordinate are zero, and with them goes all that is learnt.
"""

from __future__ import annotations

import numpy as np

from swarmnode.strategies.merging.mixing import Mix, Round


def trimmed_mean(about: Round) -> tuple[Mix, ...]:
    """Return the mean without the f largest and f smallest values of each coordinate."""
    return (Mix(np.eye(about.n), (1.0,) * about.n, about.n_hostile_max),)
