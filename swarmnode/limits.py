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
TLS_CONTEXTS_CACHED_MAX = 64  # one node has one; a simulation has many
# A tensor message of 270 kB in one record took 0.21 s of CPU a GB, in two 0.27.
RECORD_PLAINTEXT_BYTES_MAX = 512 * KIB
# GCM's bound is 2^20 records of this size under one key; a change of key costs microseconds.
REKEY_RECORDS = 64 * KIB
FRAME_CONTROL_BYTES_MAX = 512  # the longest is HELLO, about 200
FRAME_DATA_BYTES_MAX = RECORD_PLAINTEXT_BYTES_MAX
# A turn that takes longer is made smaller: what is being sent is what a request waits behind.
SEND_TURN_S = 0.05
SEND_TURN_BYTES_MIN = 32 * KIB
# Below it, copying frames into one record is cheaper than a record for each.
DATA_INLINE_BYTES_MAX = 16 * KIB
RECORD_HEAD_BYTES_MAX = 32 * KIB  # small frames that travel in one record
REASON_BYTES_MAX = 256  # one line for a person
SERVICE_NAME_BYTES_MAX = 64
# What a peer may send before anybody reads: bounds memory at 64 unattended streams to 16 MiB.
STREAM_WINDOW_BYTES = 256 * KIB
# Bandwidth times round trip: 160 MB/s at 50 ms. Granted once a bulk stream is being read.
BULK_WINDOW_BYTES = 8 * MIB
# Two messages and two records that wait, of the size of one record and of one message.
RECYCLED_BUFFERS_MAX = 6
RECYCLED_BUFFER_BYTES_MIN = 16 * KIB  # smaller ones come from the allocator as fast
RECYCLED_BUFFER_BYTES_MAX = 2 * MIB
CREDIT_BYTES_MAX = 1024 * MIB  # more than any window: a sum beyond it is an attack
STREAMS_PER_SIDE_MAX = 64
BULK_STREAMS_PER_SIDE_MAX = 16
HANDLERS_PER_SESSION_MAX = 32
# A peer that opens and resets leaves running handlers behind; the next streams wait here.
ACCEPT_BACKLOG_MAX = 32
REQUEST_BYTES_MAX = MESSAGE_BYTES_MAX  # a request and its answer are one message each
PING_INTERVAL_S = 5.0
SILENCE_S = 15.0  # three lost pings
# A peer that talks but never answers has stopped reading; slow links queue seconds of bulk.
PONG_WAIT_S = 30.0
GOODBYE_LINGER_S = 0.25  # twice at most: to send the last record, then to see it read
MEMORY_LINK_BUFFER_BYTES = 1 * MIB  # like a socket's two buffers
TCP_UNSENT_BYTES_MAX = 256 * KIB  # what a control frame can find queued before it
TCP_BACKLOG_MAX = 128

# --- gossip ------------------------------------------------------------------------------
# A partner answers an offer from memory: one round trip, and a slow relay takes a second or two.
EXCHANGE_OFFER_S = 5.0
# The upper bound of the adaptive limit: 60 MB at a home router's 1 Mbit/s upstream.
EXCHANGE_TRANSFER_S_MAX = 600.0
# The lower bound of the adaptive limit: a partner whose cores are all busy for seconds.
EXCHANGE_TRANSFER_S_MIN = 10.0
# Before anything was measured: 1 Mbit/s, a home router's upstream.
EXCHANGE_RATE_BYTES_PER_S_MIN = 125_000
# The largest message is a chunk of RAW32: 1 MiB and its header.
EXCHANGE_MESSAGE_BYTES_MAX = 2 * MIB
# More attempts than this and the snapshot is out of date before anybody takes it.
EXCHANGE_CANDIDATES_MAX = 3
# 64 GiB of payload in chunks of 1 MiB; the set of those received stays small.
EXCHANGE_CHUNKS_MAX = 65_536
# COMMIT normally follows READY within the time of the slower transfer's last chunk.
EXCHANGE_STATUS_AFTER_S = 2.0
# Full jitter over this: about forty questions fit into the bound below, so that even a
# network that loses every fifth message leaves no doubt (0.36^40).
EXCHANGE_STATUS_RETRY_S = 1.0
# Silence of the initiator after READY. Longer than a reconnect through a relay, short
# enough that a dead partner costs one exchange and not a minute of gossip.
EXCHANGE_IN_DOUBT_S = 20.0
# When an exchange is over, its last words travel behind one chunk at most: at a home router's
# upstream 2.5 s. A partner that has not ended the stream by then has stopped reading it.
EXCHANGE_LINGER_S = 10.0
# Outcomes are kept thirty times longer than anybody asks for them.
EXCHANGE_OUTCOME_KEEP_S = 600.0
# Per kind of outcome: 13 commits a second for the time above; about 1 MiB each.
EXCHANGE_OUTCOMES_MAX = 8192

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
# Past these, peers that dial us are turned away: newcomers find room where we do not look for it.
PEERS_ACCEPTED_MAX = 128
# Connections whose handshake is not over: 60 KiB each, and a real one takes three round trips.
STRANGERS_MAX = 64
# Refused connections share one line of the log in this time: anybody can cause thousands.
REFUSAL_LOG_INTERVAL_S = 1.0
# Lists are exchanged with one random neighbour this often: news crosses N peers in log2(N) rounds.
PEER_GOSSIP_INTERVAL_S = 2.0
# A peer that nobody has heard of for this long is forgotten as a partner and for dialling.
PEER_RECORD_TTL_S = 120.0
# Own record is signed again this often, so that others see it live and our status fresh.
PEER_RECORD_REFRESH_S = 5.0
# Dial again after a failure: doubled each time, with full jitter, up to the maximum.
REDIAL_BACKOFF_S_MIN = 0.5
REDIAL_BACKOFF_S_MAX = 30.0
# A peer of the link that has left or was silent for long is looked for this often, for ever.
HINT_REDIAL_S = 60.0
# Other peers that went silent: with 256 of them, one dial in two seconds.
LOST_REDIAL_S = 600.0
# 256 records with their keys and signatures fit into one message (MESSAGE_BYTES_MAX).
PEER_RECORD_BYTES_MAX = 900
# A partner that let an offer or a transfer run out of time is asked last for a while.
PARTNER_SLOW_S = 60.0
# Home routers fall over when a client opens many connections at once.
DIALS_CONCURRENT_MAX = 8
DIAL_DEADLINE_S = 10.0
# Two nodes that dial each other at once see both sessions open within this time.
SESSION_CROSSING_S = 5.0
# Leaving takes less than 2 s in all: a neighbour that does not answer is not waited for.
GOODBYE_DEADLINE_S = 0.2
# A newcomer gives up when no peer of its link gave the manifest within a minute.
MANIFEST_FETCH_DEADLINE_S = 60.0
MANIFEST_RETRY_S = 0.25
# A peer list or manifest is a few KiB: more than this is a dead or hostile peer.
PEER_REQUEST_DEADLINE_S = 10.0

# A newcomer fetches a snapshot from one peer; a dead or very slow one must not keep it for ever.
SNAPSHOT_FETCH_IDLE_S = 30.0
SNAPSHOT_PIECE_BYTES = 1 * MIB
# Parameters, two moments of the optimizer, and the swarm's strategy may keep two more.
SNAPSHOT_BYTES_PER_PARAMETER_MAX = 24
SNAPSHOT_EXTRA_BYTES_MAX = 16 * MIB
# Records of peers arrive within a round trip of the session; after that they are not coming.
NEWCOMER_WAIT_S = 2.0
# Each takes upload bandwidth from exchanges; a flash crowd is spread over the swarm.
SNAPSHOT_UPLOADS_MAX = 2
# Asked of this many peers, the most advanced first; then training begins afresh.
SNAPSHOT_SOURCES_MAX = 3

# --- ipc, worker -------------------------------------------------------------------------
# Text that a task reads into memory at once; more is a job for a streaming task.
CORPUS_BYTES_MAX = 1024 * MIB
# One header page names at most this many slots; two are used: one travels, one is filled.
SEGMENT_SLOTS_MAX = 32
SLOTS_PER_WORKER = 2
# 64 GiB of float32: more parameters than one machine trains today, and no overflow.
SEGMENT_NUMEL_MAX = 16 * 1024 * MIB
# What the worker may still owe a daemon that reads slowly: a message per slot, answers to
# a few requests; past this, heartbeats are left out, and past twice this the daemon is dead.
WORKER_OUTBOX_BYTES_MAX = 64 * KIB
# Importing torch, reading data and building a model from a slow disk.
WORKER_START_S = 300.0
# A training worker reports every second; one that is silent this long is stuck in a driver.
WORKER_SILENCE_S = 60.0
# ... except that its steps may be slow: so many times the reported time of a step.
WORKER_SILENCE_STEPS = 10.0
WORKER_PROGRESS_S = 1.0
# A paused or finished worker looks at its messages this often at the latest.
WORKER_IDLE_POLL_S = 0.25
# Between SIGTERM and SIGKILL for a worker that hangs.
WORKER_TERMINATE_S = 10.0
# A node leaves in under two seconds: so long may its worker take to save and exit.
WORKER_STOP_S = 1.5
# A worker that dies this often in this time will die again: give up and say so.
WORKER_RESTARTS_MAX = 5
WORKER_RESTARTS_WINDOW_S = 600.0
WORKER_BACKOFF_S_MIN = 0.5
WORKER_BACKOFF_S_MAX = 30.0
# The worker's output: enough for several tracebacks, nothing that fills a disk.
WORKER_LOG_BYTES_MAX = MIB
WORKER_LOG_KEPT_BYTES = 128 * KIB
# Snapshots: never more often than this, never rarer, and at most this share of the time
# goes into writing them, whatever the size of the model and the speed of the disk.
SNAPSHOT_PERIOD_S_MIN = 10.0
SNAPSHOT_PERIOD_S_MAX = 300.0
SNAPSHOT_TIME_SHARE_MAX = 0.02
# The newest may be torn by a dying disk: the one before it is the way back.
SNAPSHOTS_KEPT = 2
# One bad batch may overflow; this many in a row mean that the model is lost.
DIVERGED_STEPS = 5

# --- tensor ------------------------------------------------------------------------------
# 1 MiB of float32 stays in a core's L2 cache from the encoder through encryption to the socket;
# a multiple of the 64 elements of a codec's block.
CODEC_CHUNK_ELEMS = 262_144
# A transformer has about ten tensors a layer; mixtures of experts a few thousand in all.
LAYOUT_TENSORS_MAX = 65_536
LAYOUT_DIMS_MAX = 8
LAYOUT_NAME_BYTES_MAX = 512
# 64 GiB of float32: far more than a volunteer's machine averages as one vector.
LAYOUT_ELEMS_MAX = 2**34

# --- daemon, trainer, http ------------------------------------------------------------------------
# To one worker at most: a message per slot and the requests of a few people.
TRAINER_OUTBOX_MAX = 64
# Often enough to see that it goes on, rare enough for a log that is kept for months.
PROGRESS_LINE_S = 30.0
# Leaving: an exchange that is almost through may end, so that it counts on both sides.
LEAVE_DRAIN_S = 0.3
# ... and one that waits for the partner's decision gets a few round trips more: whoever
# leaves in that state applies nothing, and the partner may.
LEAVE_DECISION_S = 0.7
# A snapshot of some GiB on a slow disk.
SNAPSHOT_REQUEST_DEADLINE_S = 120.0
# What browsers and proxies send fits into 8 KiB; h11's own default is the double.
HTTP_HEADER_BYTES_MAX = 16 * KIB
# The largest request is a manifest or task settings, each one wire message at most.
HTTP_BODY_BYTES_MAX = MIB
# The largest answer is the whole peer book as JSON, well below a MiB.
HTTP_ANSWER_BYTES_MAX = 16 * MIB
# A person, a dashboard, Prometheus and a few scripts; each costs a file descriptor.
HTTP_CONNECTIONS_MAX = 64
HTTP_QUERY_FIELDS_MAX = 32
# From the first byte of a request to its last: a slow client may not hold a connection.
HTTP_RECEIVE_DEADLINE_S = 10.0
# A handler reads memory; verbs that wait for a snapshot bring their own deadline.
HTTP_HANDLER_DEADLINE_S = 10.0
# One write: a client that reads nothing for this long is gone.
HTTP_SEND_DEADLINE_S = 10.0
# Longer than the usual scrape interval of 60 s, so that a scraper keeps its connection.
HTTP_IDLE_S = 75.0
# After a refusal, read this long and this much so that the refusal is not lost in a reset.
HTTP_LINGER_S = 1.0
HTTP_LINGER_BYTES_MAX = 256 * KIB
HTTP_RECEIVE_CHUNK_BYTES = 16 * KIB
# A Unix socket address holds 108 bytes on Linux and 104 elsewhere, with the closing zero.
UNIX_PATH_BYTES_MAX = 103

# --- store, telemetry ---------------------------------------------------------------------
# A settings file is a page of text, a key file is four lines.
CONFIG_FILE_BYTES_MAX = 64 * KIB
KEY_FILE_BYTES_MAX = 4 * KIB
# One exchange is about 300 bytes: 16 MiB is a day of one exchange every 1.5 s, and a second
# such file is kept.
HISTORY_FILE_BYTES_MAX = 16 * MIB
HISTORY_LINE_BYTES_MAX = 64 * KIB
# A temporary file this old was left by a crash: nothing that we write takes an hour.
STALE_TEMPORARY_S = 3600.0
# One value in a log line: text from a peer may not fill the log.
LOG_VALUE_CHARACTERS_MAX = 1024
