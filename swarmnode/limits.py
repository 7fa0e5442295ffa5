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
# A link must fit into a chat message or a QR code (version 40 holds 2,953 bytes).
LINK_CHARACTERS_MAX = 2048
BOOTSTRAP_HINTS_MAX = 8
# Volunteers' clocks are wrong by minutes; a day off is a broken clock.
MANIFEST_CLOCK_SKEW_S = 86_400
# Peers we remember: one list of them must fit into MESSAGE_BYTES_MAX.
PEERS_KNOWN_MAX = 256
# Open sessions: every peer may be a partner, and a home router survives this many.
PEERS_CONNECTED_MAX = 64
# Lists are exchanged with one random neighbour this often: news crosses N peers in log2(N) rounds.
PEER_GOSSIP_INTERVAL_S = 2.0
# A peer that nobody has heard of for this long is forgotten as a partner and for dialling.
PEER_RECORD_TTL_S = 120.0
# Own record is signed again this often, so that others see it live and our status fresh.
PEER_RECORD_REFRESH_S = 5.0
# Dial again after a failure: doubled each time, with full jitter, up to the maximum.
REDIAL_BACKOFF_S_MIN = 0.5
REDIAL_BACKOFF_S_MAX = 30.0
# Home routers fall over when a client opens many connections at once.
DIALS_CONCURRENT_MAX = 8
DIAL_DEADLINE_S = 10.0
# A peer list or manifest is a few KiB: more than this is a dead or hostile peer.
PEER_REQUEST_DEADLINE_S = 10.0

# --- ipc, worker -------------------------------------------------------------------------

# --- tensor ------------------------------------------------------------------------------

# --- daemon, http ------------------------------------------------------------------------
