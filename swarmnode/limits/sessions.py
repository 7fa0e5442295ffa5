"""Sessions and what travels on them: messages, records, streams, what peers say of themselves."""

from __future__ import annotations

from swarmnode.limits.units import KIB, MIB

# --- wire: one msgpack control message --------------------------------------------------
# The largest legal ones are a page of failure detection and a push of shared state.
MESSAGE_BYTES_MAX = 256 * KIB
TEXT_BYTES_MAX = 4 * KIB
MAP_ENTRIES_MAX = 256
ARRAY_ENTRIES_MAX = 1024

# --- session (protocol.session, net) ------------------------------------------------------
# From the first byte to both HELLOs: several round trips over a slow relayed path.
HANDSHAKE_S = 10.0
# RFC 8446, 5.2: 2^14 bytes and at most 256 of expansion.
TLS_RECORD_BYTES_MAX = 16 * KIB + 256
# Nine are enough for both flights with a one-kilobyte certificate each.
TLS_HANDSHAKE_RECORDS_MAX = 32
# A tensor message of 270 kB in one record took 0.21 s of CPU a GB, in two 0.27.
RECORD_PLAINTEXT_BYTES_MAX = 512 * KIB
FRAME_CONTROL_BYTES_MAX = 512  # the longest is HELLO, about 200
FRAME_DATA_BYTES_MAX = RECORD_PLAINTEXT_BYTES_MAX
# Below it, copying frames into one record is cheaper than a record for each.
DATA_INLINE_BYTES_MAX = 16 * KIB
RECORD_HEAD_BYTES_MAX = 32 * KIB  # small frames that travel in one record
REASON_BYTES_MAX = 256  # one line for a person
SERVICE_NAME_BYTES_MAX = 64
# What a peer may send before a task reads (flow control): 16 MiB for 64 unattended streams.
STREAM_WINDOW_BYTES = 256 * KIB
# Bandwidth times round trip: 160 MB/s at 50 ms. Granted once a bulk stream is being read.
BULK_WINDOW_BYTES = 8 * MIB
RECYCLED_BUFFER_BYTES_MAX = 2 * MIB
CREDIT_BYTES_MAX = 1024 * MIB  # more than any window: a sum beyond it is an attack
STREAMS_PER_SIDE_MAX = 64
BULK_STREAMS_PER_SIDE_MAX = 16
REQUEST_BYTES_MAX = MESSAGE_BYTES_MAX  # a request and its answer are one message each
# A peer that was not heard of for so long is asked for a sign of life ...
PING_QUIET_S = 5.0
# ... and any peer this often, for the round trip: each of dozens of sessions wakes both nodes.
PING_INTERVAL_S = 30.0
SILENCE_S = 15.0  # three lost pings
# Nothing came for so long, a ping was sent and should be answered: look for another way. A NAT that
# forgot us says nothing; what is left of 15 s is for dialling.
SUSPECT_S = 9.0
# A session without a channel is kept for a laptop that sleeps a little, and a router that restarts.
RESUME_S = 60.0
RESUME_HANDSHAKE_S = 5.0
# Who dialled tries first, and most often gets through; then the other side, with jitter.
RESUME_SERVER_WAIT_S = 0.5
RESUME_RETRY_S = 1.0  # at most
# So often, a pause apart, a machine must say that nothing listens: a peer that has moved to another
# address asks us meanwhile.
RESUME_REFUSALS = 2
RESUME_ADDRESSES_MAX = 8  # of a peer: what a contact book keeps of one
RESUME_STAGGER_S = 0.25  # between dialling one and the next (RFC 8305): the first mostly answers
# Half of what a bulk window may have under way; more than two turns of half a megabyte.
UNACKNOWLEDGED_BYTES_MAX = 4 * MIB
# Rare enough: at 256 KiB ACKs cost 5 % of the CPU time of bulk. And with each ping and pong.
ACK_EVERY_BYTES = 1 * MIB
GOODBYE_LINGER_S = 0.25  # twice at most: to send the last record, then to see it read
TCP_UNSENT_BYTES_MAX = 256 * KIB  # what a control frame can find queued before it
TCP_BACKLOG_MAX = 128

# --- what comes from peers and files ------------------------------------------------------
# A step a millisecond for thirty years; names of snapshots have twelve digits for it.
TRAINED_STEPS_MAX = 10**12
# A node that every partner has refused so often, and none has met, is alone in its swarm.
BASE_REFUSALS_ALARM = 5

# --- names and totals of nodes ------------------------------------------------------------
# Fits beside an id in a table; the shared state would hold 256.
NODE_NAME_CHARACTERS_MAX = 32
# How often it is looked what this node gave: seconds of training are counted in such parts.
TOTALS_LOOK_S = 5.0
# With the look before it a `kill -9` costs 30 s of the totals at most; a write is one small file.
TOTALS_SAVE_S = 25.0
