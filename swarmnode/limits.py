"""Every bound in swarmnode, each with its reason.

A queue, cache, message or timeout that is not named here does not exist.
Units are the suffix of the name. Sections follow the layers.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- wire: one msgpack control message --------------------------------------------------
# The largest legal one is a full peer list: 256 records of about 400 bytes.
MESSAGE_BYTES_MAX = 256 * KIB
# Task settings in a manifest are the deepest structure that we send (4 levels).
MESSAGE_DEPTH_MAX = 16
TEXT_BYTES_MAX = 4 * KIB
MAP_ENTRIES_MAX = 256
ARRAY_ENTRIES_MAX = 1024

# --- session (protocol.session, net) ------------------------------------------------------

# --- gossip ------------------------------------------------------------------------------

# --- membership --------------------------------------------------------------------------

# --- ipc, worker -------------------------------------------------------------------------

# --- tensor ------------------------------------------------------------------------------

# --- daemon, http ------------------------------------------------------------------------
