"""Bounds that swarmnode keeps, each with its reason.

Here is what two or more modules share, what bounds bytes from the network, and what `proto/` or
`docs/` name in capitals. A bound that one module alone keeps stands beside its code.
Units are the suffix of the name. Three modules, and all are read as ``limits.NAME``.
"""

from __future__ import annotations

from swarmnode.limits.network import *
from swarmnode.limits.node import *
from swarmnode.limits.swarm import *
from swarmnode.limits.units import *
