"""What is kept and copied: shared state, blobs, shards, what lies on disk."""

from __future__ import annotations

from swarmnode.limits.units import KIB, MIB

# --- shared state (protocol.crdt, store.journal) --------------------------------------------
# One signed record; everything that one author says of itself must fit into one checkpoint.
STATE_RECORD_BYTES_MAX = 8 * KIB
# A checkpoint and the deltas after it: an honest author begins anew long before.
STATE_AUTHOR_BYTES_MAX = 16 * KIB
# What is fetched by every newcomer and held in memory by every node.
STATE_BYTES_MAX = 16 * MIB
# Authors at once: at 4 KiB each they fill the bytes above.
STATE_AUTHORS_MAX = 4096
# Of one author: addresses, roles, a version, claims of shards; and blobs of the last snapshots.
STATE_LEASES_PER_AUTHOR_MAX = 64
STATE_NAMES_PER_AUTHOR_MAX = 16
STATE_SNAPSHOTS_PER_AUTHOR_MAX = 8
# The hash chain needs no more, and a newcomer reads this many records an author at most.
STATE_CHECKPOINT_RECORDS = 16
# A lease is renewed by any record of its author; without other news, by an empty one at a third.
STATE_LEASE_S = 300.0
STATE_LEASE_S_MAX = 86_400
# Volunteers' clocks are wrong by minutes; a day ahead is a broken clock.
STATE_CLOCK_AHEAD_S = 86_400.0
STATE_CLOCK_TICKS_MAX = 65_535  # events within one millisecond
# A machine without a battery learns the time from the network, some seconds after its start.
STATE_CLOCK_LOOK_S = 10.0
# Less is drift, which is not seen in a time of day.
STATE_CLOCK_SET_S = 60.0
# Each costs one small message where two peers agree, and a partition heals within a few.
STATE_SYNC_INTERVAL_S = 10.0
# Rumours told to six reach 99.7 % of a swarm (1 - e^-6); the digests find the rest.
STATE_PUSH_FANOUT = 6
# Fresh records of this time travel together.
STATE_PUSH_DELAY_S = 0.05
# Messages to one neighbour that reads slowly; what is dropped beyond, comparing finds again.
STATE_OUTBOX_MAX = 64
# Records of others that wait for the disk; what is left out comes back from a neighbour.
STATE_WRITES_WAITING_MAX = 1024
# A full disk is tried again this often.
STATE_DISK_RETRY_S = 5.0
# What was sent this lately is on its way, whatever a listing written before says.
STATE_RESEND_S = 10.0
# Up to here a range is listed (13 KiB), above it is split into sixteen.
STATE_LISTING_HEADS = 128
STATE_HEADS_PER_MESSAGE_MAX = 1024
STATE_RECORDS_PER_MESSAGE_MAX = 512
# Records of one message, well below MESSAGE_BYTES_MAX with all their framing.
STATE_PUSH_BYTES_MAX = 160 * KIB
# A message of less is one fresh record, mostly signature and hash: compressed it is no smaller.
STATE_COMPRESS_BYTES_MIN = 1 * KIB
# Honest messages shrink to a third; a few bytes that make a node unpack a quarter MiB do not pass.
STATE_EXPANSION_MAX = 16
# Silent for this long: may be forgotten if room is needed; forgotten anyway after the second.
STATE_SILENT_S = 3600.0
STATE_RETENTION_S = 7 * 86_400.0
# Authors that were forgotten, so that a peer that remembers does not bring them back.
STATE_RETIRED_MAX = 16_384
# Proofs of two records each, kept for newcomers: 4 MiB at worst.
STATE_PROOFS_PER_MESSAGE_MAX = 8
# A journal is read whole into memory at start: the state, four times over.
JOURNAL_BYTES_MAX = 64 * MIB

# --- blobs -------------------------------------------------------------------------------------
# One chunk is one unit of checking, of a request, and of what a dying holder costs: 16 s at a home
# router's upstream. Half of it costs a tenth more CPU; a session keeps buffers up to this size.
BLOB_CHUNK_BYTES = 2 * MIB
BLOB_CHUNK_BYTES_MAX = 4 * MIB  # what others may choose; three of them wait in memory for a reader
BLOB_CHUNKS_MAX = 65_536
BLOB_PROOF_MAX = 16  # log2 of the above
BLOB_BYTES_MAX = BLOB_CHUNKS_MAX * BLOB_CHUNK_BYTES_MAX
# One session each, some of them dialled for this; eight fill any home link.
BLOB_HOLDERS_MAX = 16
# In flight from one holder: enough for 8 MiB of bandwidth times round trip.
BLOB_REQUESTS_PER_HOLDER_MAX = 4
# ... and at first, until its rate is known.
BLOB_REQUESTS_PER_HOLDER_MIN = 2
# Asked for as much as a holder sends in this time: a slow one does not sit on many chunks.
BLOB_AHEAD_S = 1.0
# In flight or waiting for the disk, from all: 32 MiB of memory.
BLOB_REQUESTS_MAX = 16
# A holder that owes us chunks and sends nothing of them for this long is dropped.
BLOB_IDLE_S = 20.0
# Idle holders take over a chunk that has been under way this many times longer than is usual.
BLOB_TAKEOVER_TIMES = 4.0
# A bandwidth limit may be overdrawn by what it allows in this time.
BLOB_BURST_S = 1.0
# Hashing, reading and writing at once, for all transfers: a third thread fills the gaps that
# the disk leaves to two cores; a fourth and more only take them from training.
BLOB_THREADS_MAX = 3
# So much may wait for the disk when the last chunk has come: a hard disk writes it in 0.3 s.
BLOB_FLUSH_BYTES = 32 * MIB
# Who holds a blob is asked this often: holders come and go.
BLOB_LOOK_S = 1.0
# ... and one that sent this much since then is at work: less is refusals, or not worth waiting for.
BLOB_LIFE_SIGN_BYTES = 4 * KIB
# A holder that could not be reached, or that left, is tried again after this.
BLOB_RETRY_S = 5.0
# A holder that had not all of it is asked again what it has: it may be fetching, too.
BLOB_REFRESH_S = 5.0
# From dialling (DIAL_DEADLINE_S) to the answer: a holder may have to check a partial blob first.
BLOB_ANSWER_S = 30.0
# Nothing came from any holder for this long: every holder was dialled several times.
BLOB_NO_PROGRESS_S = 60.0
# ... or for this long, if holders say that they are busy: a flash crowd of a hundred and twenty.
BLOB_BUSY_PATIENCE_S = 600.0
# Peers that are sent chunks at once, as with BitTorrent: to have some finish early, who then hold
# the blob too, is better for all than to have all wait for the last chunk.
BLOB_UPLOADS_MAX = 4
# ... and for no longer than this at a stretch while others are turned away.
BLOB_TURN_S = 20.0
# A peer fetches two blobs at once: a new snapshot appears while the last is being fetched.
BLOB_STREAMS_PER_PEER_MAX = 2
# One chunk: the largest takes 34 s at 1 Mbit/s, and four peers may share that.
BLOB_SEND_S = 180.0

# --- shards ------------------------------------------------------------------------------------
# Bits of one register of the shared state: 64 characters, rewritten with every shard.
SHARDS_PER_EPOCH_MAX = 256
# The one in training and the next: more would leave less to others when a peer dies.
SHARD_CLAIMS_MAX = 2
# News crosses 1,000 peers in about 1 s: a rival's claim has been seen by then.
SHARD_SETTLE_S = 2.0
# Registers of each author, one for an epoch: a straggler so many epochs behind holds no other up.
SHARD_EPOCHS_OPEN = 4
# One a second for thirty years, and nine digits in every text.
SHARD_EPOCH_MAX = 10**9 - 1

# --- store, telemetry ---------------------------------------------------------------------
# A settings file is a page of text, a key file is four lines.
KEY_FILE_BYTES_MAX = 4 * KIB
# Lines of the worker that go into that file: a task that prints without end gets this much of it
# between two of its messages, about a second.
LOG_RELAYED_BYTES_MAX = 64 * KIB
