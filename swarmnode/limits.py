"""Bounds that swarmnode keeps, each with its reason.

Here is what two or more modules share, what bounds bytes from the network, and what `proto/` or
`docs/` name in capitals. A bound that one module alone keeps stands beside its code.
Units are the suffix of the name. Sections follow the layers.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

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
# What a peer may send before anybody reads: bounds memory at 64 unattended streams to 16 MiB.
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
# So often, a pause apart, a machine must say that nobody listens: a peer that has moved to another
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

# --- gossip ------------------------------------------------------------------------------
# A partner answers an offer from memory: one round trip, and a slow relay takes a second or two.
EXCHANGE_OFFER_S = 5.0
# The upper bound of the adaptive limit: 60 MB at a home router's 1 Mbit/s upstream.
EXCHANGE_TRANSFER_S_MAX = 600.0
# For both workers to give what they send, each at its next step boundary: a slow volunteer's step.
EXCHANGE_VIEW_S = 60.0
# The lower bound of the adaptive limit: a partner whose cores are all busy for seconds.
EXCHANGE_TRANSFER_S_MIN = 10.0
# Before anything was measured: 1 Mbit/s, a home router's upstream.
EXCHANGE_RATE_BYTES_PER_S_MIN = 125_000
# The largest message is a chunk of plain float32, just under 2 MiB, and its header.
EXCHANGE_MESSAGE_BYTES_MAX = 2 * MIB
# More attempts than this and the snapshot is out of date before anybody takes it.
EXCHANGE_CANDIDATES_MAX = 3
# 120 GiB of float32 in chunks of 2 MiB; the set of those received stays small.
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

# --- dht ---------------------------------------------------------------------------------
# k of the Kademlia paper: twenty peers chosen at random do not all leave within an hour.
DHT_BUCKET_CONTACTS = 20
# α of the paper: more in flight finds hardly sooner what fewer find.
DHT_LOOKUP_PARALLEL = 3
# An attacker who owns one path must own two more before it can hide a record.
DHT_LOOKUP_PATHS = 3
# A lookup among a million nodes asks about 40; this many means that somebody invents peers.
DHT_LOOKUP_REQUESTS_MAX = 128
# Waiters behind a full bucket: what a bucket needs until it is next refreshed.
DHT_REPLACEMENTS_MAX = 8
# Peers of one /24 or /48 usually have one owner: a table must not depend on one.
DHT_GROUP_BUCKET_MAX = 2
DHT_GROUP_TABLE_MAX = 10
# One loss is weather, three in a row are an absence.
DHT_UNANSWERED_MAX = 3
# IPv4, IPv6, a mapped port and a relay.
DHT_ADDRESSES_MAX = 4
# From when a peer stops holding up a lookup; between them, measured round trips decide.
DHT_SLOW_S_MIN = 0.25
DHT_SLOW_S_MAX = 3.0
# From when an answer is not expected any more: a dial may take DIAL_DEADLINE_S.
DHT_GONE_S = 10.0
# Between the checks of a contact that did not answer: it is gone in under a minute.
DHT_RECHECK_S = 5.0
# The contact heard of least lately is checked this often if it was silent that long.
DHT_CHECK_INTERVAL_S = 30.0
DHT_CHECK_SILENCE_S = 300.0
# Hourly in the paper; our own neighbourhood more often, as others store there.
DHT_REFRESH_S = 3600.0
DHT_SELF_LOOKUP_S = 600.0
# So many new neighbours between two self-lookups are another half of the network.
DHT_NEW_NEIGHBOURS = 5
DHT_SELF_LOOKUP_PAUSE_S = 10.0
# Bootstrap: self-lookups until two agree, no more than this many in a row.
DHT_BOOTSTRAP_LOOKUPS_MAX = 6
# Peers of the link, of the disk and lost ones, tried one by one: a healed network finds itself.
DHT_REJOIN_S = 20.0
DHT_REMEMBERED_MAX = 64
# A record holds four addresses and a name; 1 KiB leaves room for newer fields.
DHT_RECORD_BYTES_MAX = KIB
DHT_RECORD_TTL_S = 7200
DHT_RECORD_TTL_S_MAX = 86_400
# Four times within a record's life: three may fail.
DHT_REPUBLISH_S = 1800.0
# Volunteers' clocks are wrong by minutes; a day off is a broken clock.
DHT_CLOCK_SKEW_S = 86_400
# 32 records of 1 KiB fit into one answer. 5 MiB in all, with what Python adds.
DHT_RECORDS_PER_KEY_MAX = 32
DHT_RECORDS_MAX = 4096
# One node publishes itself, some swarms and blobs, on nodes spread over the key space.
DHT_RECORDS_PER_AUTHOR_MAX = 64
# Of one swarm under its name: others of that name must be seen as well.
DHT_RECORDS_PER_SUBJECT_MAX = 4
DHT_PUBLICATIONS_MAX = 256
# A record is stored once the closest peers on each path have answered: two, as one may lie.
DHT_NEAR_ANSWERS = 2
# So many holders are enough to go on while the rest of k get it: more than twice the quorum.
DHT_PUT_REPLICAS = 8
# Peers that must give a record of one author before it is taken for the newest.
DHT_QUORUM = 3
# A lookup that waits for slow peers to the last; whoever asked gets an error then.
DHT_COMMAND_S = 60.0
# Between two writings of the good peers to disk: what a crash forgets is a few minutes of news.
DHT_REMEMBER_S = 300.0

# --- lookup: swarms by name, for people -----------------------------------------------------------
# A list on a screen, largest first; more than that is somebody who floods a name.
SWARMS_LISTED_MAX = 64
# Names of one question: those of a home and a few more; so many operations run at once.
LOOKUP_NAMES_MAX = 16
# A visitor hears of its LAN after LAN_ANSWER_DELAY_S and LAN_ANSWER_GAP_S, and what dialling takes.
LOOKUP_LAN_S = 1.0
# ... and somebody of the DHT has answered by then: three slow peers one after the other.
LOOKUP_BOOTSTRAP_S = 5.0
# A lookup in the DHT: a few rounds, most of them with peers that have to be dialled.
LOOKUP_DHT_S = 8.0
# All who may have the manifest are asked at once: a dial and an answer through a slow relay.
LOOKUP_MANIFEST_S = 8.0

# --- membership --------------------------------------------------------------------------
# A link must fit into a chat message or a QR code (version 40 holds 2,953 bytes).
LINK_CHARACTERS_MAX = 2048
BOOTSTRAP_HINTS_MAX = 8
# Of a package that has a task, as a manifest names it: longer than any on the public index.
PACKAGE_NAME_CHARACTERS_MAX = 128
PACKAGE_VERSION_CHARACTERS_MAX = 64
# Volunteers' clocks are wrong by minutes; a day off is a broken clock.
MANIFEST_CLOCK_SKEW_S = 86_400
# What it says itself and what the link says.
CONTACT_ADDRESSES_MAX = 8
# Open sessions: every peer may be a partner, and a home router survives this many.
PEERS_CONNECTED_MAX = 64
# Past these, whoever was not asked lately makes room for peers that dial us.
SESSIONS_MAX = 128
# Sessions that one question of the DHT opened are closed when nobody asked another for so long.
SESSION_IDLE_S = 120.0
SESSION_SWEEP_S = 15.0
# Two processes show one key: the session of the first must answer within this to be alive.
KEY_CHECK_S = 2.0
# The last reasons why somebody could not be reached, for people who ask why.
DIAL_ERRORS_KEPT_MAX = 256
# Connections whose handshake is not over: 60 KiB each, and a real one takes three round trips.
STRANGERS_MAX = 64
# Refused connections share one line of the log in this time: anybody can cause thousands.
REFUSAL_LOG_INTERVAL_S = 1.0
# Dial again after a failure: doubled each time, with full jitter, up to the maximum.
REDIAL_BACKOFF_S_MIN = 0.5
REDIAL_BACKOFF_S_MAX = 30.0
# A peer of the link that has left or was silent for long is looked for this often, for ever.
HINT_REDIAL_S = 60.0
# Other peers that went silent: with 256 of them, one dial in two seconds.
LOST_REDIAL_S = 600.0
# A partner that let an offer or a transfer run out of time is not asked while there are others.
PARTNER_SLOW_S = 60.0
# Home routers fall over when a client opens many connections at once.
DIALS_CONCURRENT_MAX = 8
DIAL_DEADLINE_S = 10.0
# ... besides those for sessions that have lost their channel, which must not wait for strangers.
SEARCH_DIALS_CONCURRENT_MAX = 4
# ... and never in step with each other.
DIAL_JITTER_S = 0.1
# One address of a peer mostly answers before the next one is tried (RFC 8305).
DIAL_STAGGER_S = 0.25
# Whoever was connected to first, and says nothing, keeps the others waiting no longer than this:
# two round trips over a satellite, and a busy machine.
RACE_TURN_S = 3.0
# A relay waits that long for the direct addresses of the same peer.
RELAY_HEAD_START_S = 0.3
# Two nodes that dial each other at once see both sessions open within this time.
SESSION_CROSSING_S = 5.0
# ... and requests that are under way on the one too many are answered by then.
SESSION_RETIRE_S = 1.0
# Leaving takes less than 2 s in all: a neighbour that does not answer is not waited for.
GOODBYE_DEADLINE_S = 0.2
# The DHT is asked for peers of the swarm: at first often, then rarely, for the shared state names
# them all; a node with few neighbours asks more often, as two halves must find each other.
SWARM_SEARCH_S_MIN = 1.0
SWARM_SEARCH_S_LONELY = 30.0
SWARM_SEARCH_S = 600.0
SWARM_LONELY_NEIGHBOURS = 3
SWARM_CANDIDATES_MAX = 64
# Our entry in the list of swarms is written anew when the number of members is out by a quarter,
# or twice as many nodes can keep it: in a growing swarm, as often as it doubles.
SWARM_REPUBLISH_S_MIN = 10.0
# Certificates are renewed, revocations passed on, and old members parted from this often.
ADMISSION_REFRESH_S = 10.0
# Which shards are free is looked at anew at most this often, however fast the state changes.
SHARD_REFRESH_S = 0.2
# Words about ourselves: at most four a second in the whole swarm, so that a large one says the
# same in a larger time, and never more often than this.
REPORT_S_MIN = 2.0
REPORT_MEMBER_S = 0.25
# ... but for a change of state, which is looked for this often.
REPORT_LOOK_S = 0.5
# That time goes by is no news: who does nothing else says it as often as it renews its lease.
REPORT_TIME_S = 100.0
# Certificates and records allow for a day; who is an hour off should know long before that.
CLOCK_ALARM_S = 3600.0
# A conflict of keys seen as soon as we hear others: we are the younger of the two nodes and stop.
# Later it was the other that began, unless peers that know both turn us away.
KEY_CONFLICT_NEW_S = 5.0
KEY_CONFLICT_YOUNG_S = 60.0
KEY_CONFLICT_WAIT_S = 3.0
# A newcomer gives up when no peer of its link gave the manifest within a minute.
MANIFEST_FETCH_DEADLINE_S = 60.0
MANIFEST_RETRY_S = 0.25
# Then whoever was found meanwhile is asked as well; slow dials go on.
MANIFEST_ROUND_S = 3.0
# A hello or a manifest is a few KiB: who takes longer than this is dead or hostile.
PEER_REQUEST_DEADLINE_S = 10.0

# Hashed and written at a time: large enough for the disk, small enough for the cache.
SNAPSHOT_PIECE_BYTES = 1 * MIB
# Parameters, two moments of the optimizer, and the swarm's strategy may keep two more.
SNAPSHOT_BYTES_PER_PARAMETER_MAX = 24
SNAPSHOT_EXTRA_BYTES_MAX = 16 * MIB
# The first word of a neighbour about the state comes within a round trip of the session; a dial
# through the DHT takes a few more.
NEWCOMER_WAIT_S = 5.0
# A swarm that trains writes its first snapshot within SNAPSHOT_PERIOD_S_MIN.
SNAPSHOT_WAIT_S = 20.0
# Holders that died, a snapshot that is none: then training begins from the swarm's seed.
SNAPSHOT_TRIES_MAX = 5
# Roots of snapshots that the worker could not begin with: a swarm has a handful at a time.
SNAPSHOTS_BAD_MAX = 64
# A holder of whom only the shared state knows may be gone for minutes; a dial takes 10 s.
SNAPSHOT_ABANDONED_S = 12.0
SNAPSHOT_LOOK_S = 0.25
# Whoever comes back after a longer absence begins with the swarm's model, not with its own.
SNAPSHOT_STALE_S = 600.0
# Progress of a fetch is said in tenths, if it takes more than a moment.
SNAPSHOT_SAY_BYTES = 32 * MIB
# Newcomers want a recent model; hashing one of some GB takes seconds of a core.
SNAPSHOT_OFFER_S = 30.0
# So many members hold the newest snapshot, so that it outlives whoever wrote it.
SNAPSHOT_REPLICAS = 3
SNAPSHOT_REPLICATE_LOOK_S = 5.0
# A trainer copies at most at 1 Mbit/s on average, a keeper at ten times that.
SNAPSHOT_REPLICATE_S = 60.0
SNAPSHOT_REPLICATE_BYTES_PER_S = 125_000
# Blobs on disk: those of our own and of others that are kept, and one of each that comes in.
SNAPSHOT_BLOBS_MAX = 6

# --- failure detection (SWIM, Lifeguard) -----------------------------------------------------
# One member is probed in each period. A relayed path takes a second and more for a round trip,
# and a volunteer's idle node may spend one small message a second.
SWIM_PERIOD_S = 2.0
# After this, helpers are asked; the rest of the period is theirs. Three slow round trips.
SWIM_ACK_S = 1.0
# Periods are jittered by this share, so that nodes started together do not probe in step.
SWIM_JITTER = 0.1
# Das et al. use 3: with 5 % of nodes bad, all helpers are bad once in 8,000 times.
SWIM_HELPERS = 3
# A helper says "not so far" at this share of the time that the asker waits for it.
SWIM_NACK_SHARE = 0.8
# So many members warn one that is suspected: four are lost together once in 10,000 times at a
# tenth of lost messages, and each of them costs one ping.
SWIM_WARNINGS = 4
# Shortest suspicion: this many periods for each power of ten of members, so that a refutation
# crosses the swarm there and back. 12 s at 100 members, 18 s at 1,000.
SWIM_SUSPICION_PERIODS = 3.0
# A single accuser waits this many times longer (Lifeguard's beta).
SWIM_SUSPICION_SPREAD = 6.0
# Independent confirmations that bring a suspicion down to the shortest (Lifeguard's K).
SWIM_CONFIRMATIONS = 3
SWIM_ACCUSERS_MAX = SWIM_CONFIRMATIONS + 1
# Lifeguard's S: a node in trouble probes up to nine times slower.
SWIM_HEALTH_MAX = 8
# Our own clock was late by this much: the machine slept or was overloaded, not the others.
SWIM_STALL_S = 1.0
# What arrived while we slept is read before anybody is judged.
SWIM_STALL_GRACE_S = 1.0
# Each piece of news is sent this many times log2(members) by each who has it; what that misses,
# comparing digests finds.
SWIM_RETRANSMIT = 2
# A claim is about 180 bytes: 6 KiB, a fraction of a second on any link, and only while there is
# news. After a partition every member is news at once.
SWIM_NEWS_MAX = 32
# Views are compared with one random member, so that news that got lost is found again. While
# there is more news than pings carry, in every period.
SWIM_SYNC_S = 10.0
# Likewise for this long after somebody came back from the dead: who heals a partition of a
# thousand has the last claims after twenty seconds, and one that returned costs fifteen digests.
SWIM_MENDING_S = 30.0
# 512 claims of at most 450 bytes fit into MESSAGE_BYTES_MAX; larger swarms send pages in turn.
SWIM_SYNC_CLAIMS_MAX = 512
# So often a node may call a dead member, with the share of the dead as probability: two halves of
# a swarm find each other after a partition, and one dead address gets one call a second from all.
SWIM_RECALL_S = 1.0
# Dead and left ones are remembered for a lunch break with the lid closed.
SWIM_GONE_KEEP_S = 3600.0
# About 1 KiB each; beyond, gone and never answering members make room, then nobody new gets in.
SWIM_MEMBERS_MAX = 4096
# Who leaves tells this many: they spread it, and the leaver may be gone within 0.2 s.
SWIM_FAREWELLS = 8

# --- lan -----------------------------------------------------------------------------------------
# Below every MTU in use, with room for tunnels: a beacon is never fragmented. The largest legal
# one has 836 bytes.
LAN_BEACON_BYTES_MAX = 1200
# What fits; a volunteer is in one or two.
LAN_SWARMS_MAX = 4
# A few hundred bytes: nothing, also on a wireless LAN that sends multicast at its slowest rate.
LAN_BEACON_S = 30.0
# Nodes that started together do not go on in step.
LAN_JITTER = 0.1
# At start; UDP may lose one, and a sleeping radio wakes up for the second.
LAN_HELLOS = 3
LAN_HELLO_S = 0.25
# A newcomer hears of us after this at the latest, plus the gap if we spoke just now: in all less
# than a second. It also bounds what a stranger with many keys makes us send.
LAN_ANSWER_DELAY_S = 0.2
LAN_ANSWER_GAP_S = 0.5
# Of hundreds on one LAN only so many answer; the others heard the newcomer and may dial it.
LAN_ANSWERS_ENOUGH = 8
# Three beacons missed, each as late as the jitter allows, and a second for the way.
LAN_SILENCE_S = 3 * LAN_BEACON_S * (1 + LAN_JITTER) + 1.0
# One beacon on all interfaces, IPv4 and IPv6, arrives within this; later it is a replay.
LAN_COPY_S = 1.0
# IPv4, IPv6, both by cable and by radio.
LAN_HOSTS_PER_PEER_MAX = 4
# About 2 KiB each; the one silent for longest goes.
LAN_PEERS_MAX = 256
# Nodes on one machine, or made-up keys of one sender: they cannot crowd out the other machines.
LAN_PEERS_PER_HOST_MAX = 64
# 32 nodes on one machine that start at once are still heard. Checking one takes 0.07 ms,
# so a flood costs 2 % of a core.
LAN_DATAGRAMS_PER_HOST_PER_S_MAX = 128
LAN_DATAGRAMS_PER_S_MAX = 256
# A cable plugged in or a network joined is noticed in this time.
LAN_RESCAN_S = 30.0

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
# Less is drift, that nobody sees in a time of day.
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
# ... and whoever sent this much since then is at work: less is refusals, or not worth waiting for.
BLOB_LIFE_SIGN_BYTES = 4 * KIB
# A holder that could not be reached, or that left, is tried again after this.
BLOB_RETRY_S = 5.0
# A holder that had not all of it is asked again what it has: it may be fetching, too.
BLOB_REFRESH_S = 5.0
# From dialling (DIAL_DEADLINE_S) to the answer: a holder may have to check a partial blob first.
BLOB_ANSWER_S = 30.0
# Nothing came from anybody for this long: every holder was dialled several times.
BLOB_NO_PROGRESS_S = 60.0
# ... or for this long, if holders say that they are busy: a flash crowd of a hundred and twenty.
BLOB_BUSY_PATIENCE_S = 600.0
# Peers that are sent chunks at once, as with BitTorrent: to have some finish early, who then hold
# the blob too, is better for all than to have everybody wait for the last chunk.
BLOB_UPLOADS_MAX = 4
# ... and for no longer than this at a stretch while others are turned away.
BLOB_TURN_S = 20.0
# A peer fetches two blobs at once: a new snapshot appears while the last is being fetched.
BLOB_STREAMS_PER_PEER_MAX = 2
# One chunk: the largest takes 34 s at 1 Mbit/s, and four peers may share that.
BLOB_SEND_S = 180.0

# --- admission ---------------------------------------------------------------------------
# A link that leaks is of use to nobody for longer than this after its invite has ended.
MEMBER_CERTIFICATE_DAYS_MAX = 30
# One class of students; every member remembers each of them.
INVITE_USES_MAX = 1000
# Of the body of an invite or a certificate: about 165 bytes, and room for fields to come.
CERTIFICATE_BYTES_MAX = 512
# Twelve bytes each in a list that everybody passes on; dead invites leave it.
REVOCATIONS_MAX = 256
REVOCATIONS_BYTES_MAX = 4 * KIB
# Chains of other members in one message: at 1.3 KiB each at most, a third of MESSAGE_BYTES_MAX.
CREDENTIALS_HEARD_MAX = 64
# Members, and uses of invites, that a node remembers: as many as authors of the shared state.
ADMISSION_MEMBERS_MAX = 4096
# Volunteers' clocks are wrong by minutes; a day off is a broken clock.
ADMISSION_CLOCK_SKEW_S = 86_400
# News of a new member reaches everybody who is online sooner than this; who claims to have
# joined longer ago than that, and was not heard of, is not believed.
ADMISSION_BACKDATE_S = 86_400

# --- shards ------------------------------------------------------------------------------------
# Bits of one register of the shared state: 64 characters, rewritten with every shard.
SHARDS_PER_EPOCH_MAX = 256
# The one in training and the next: more would leave less to others when a peer dies.
SHARD_CLAIMS_MAX = 2
# News crosses 1,000 peers in about 1 s: a rival's claim has been seen by then.
SHARD_SETTLE_S = 2.0
# Registers of each author, one for an epoch: a peer so many epochs behind holds nobody up.
SHARD_EPOCHS_OPEN = 4
# One a second for thirty years, and nine digits in every text.
SHARD_EPOCH_MAX = 10**9 - 1

# --- rtc (net.rtc), stun (net.stun) ----------------------------------------------------------
# Every host, its reflexive address, and some to spare: what a stranger's offer can make us send to.
RTC_CANDIDATES_MAX = 8
# ... and sources that checks with the right password came from: a NAT that changes ports adds some.
RTC_REMOTE_ADDRESSES_MAX = 2 * RTC_CANDIDATES_MAX
# Port numbers below are services that somebody else runs: nobody has a NAT mapping there.
RTC_PORT_MIN = 1024
# Eight candidates of 30 bytes, passwords and a fingerprint.
RTC_DESCRIPTION_BYTES_MAX = 1 * KIB
# From an offer to its answer: gathering there, and two ways through a slow relay.
RTC_ANSWER_S = 10.0
# Checks, DTLS and SCTP: 1 s at 100 ms of round trip; 5 s with lost checks.
RTC_CONNECT_S = 10.0
# Bandwidth times round trip: aiortc reaches 20 MB/s on a LAN and 3 MB/s at 50 ms.
RTC_WINDOW_BYTES = 1 * MIB
# What a message costs besides its bytes, so that tiny ones cannot fill the memory.
RTC_MESSAGE_COST_BYTES = 256
# Larger messages are no faster, and every stack takes these.
RTC_MESSAGE_BYTES_MAX = 32 * KIB
# A ping behind 128 KiB waits 25-55 ms, behind 1 MiB 50-120 ms; less starves the sender.
RTC_SEND_BUFFER_BYTES = 256 * KIB
# Chunks that wait for one before them: as many as a window of tiny messages has.
RTC_CHUNKS_WAITING_MAX = RTC_WINDOW_BYTES // RTC_MESSAGE_COST_BYTES + 64
# A network carries 1500 bytes.
RTC_DATAGRAM_BYTES_MAX = 2 * KIB
# With data queued and no byte acknowledged: five retransmissions at the least interval.
RTC_STALLED_S = 10.0
# Closing: what is queued may still go out; then the sockets are closed.
RTC_LINGER_S = 1.0
RTC_SHUT_S = 2.0
# All connections at once, when the node stops.
RTC_STOP_S = 5.0
# Without an IP header what every network carries (RFC 8489, 6.1).
STUN_BYTES_MAX = 548
# More than the largest answer (68 bytes), so that no answer is ever larger than its question.
STUN_QUESTION_BYTES = 96
# A node behind a NAT asks ten times at its start; a carrier's NAT may have a hundred behind it.
STUN_ANSWERS_PER_HOST_PER_S_MAX = 32
# 1 Mbit/s at the most.
STUN_ANSWERS_PER_S_MAX = 1024
# Lost questions are asked again after this long, then after twice as long ...
STUN_RETRY_S = 0.3
# ... for so long: three questions.
STUN_ASK_S = 2.0
# Three see whether a mapping depends on the server; one may be down, one may lie.
STUN_SERVERS_MAX = 4

# --- relay ---------------------------------------------------------------------------------------
# Renewed at half of it, so that a relay forgets who is gone and no client is busy renewing.
RELAY_RESERVATION_S = 3600.0
# Each is a session that is kept open: half of all that a node has.
RELAY_RESERVATIONS_MAX = 64
# A household; a carrier's NAT has more behind it, who then use other relays.
RELAY_RESERVATIONS_PER_HOST_MAX = 8
# Each costs two sockets, and two buffers of RELAY_PIECE_BYTES once it is used.
RELAY_CIRCUITS_MAX = 64
# A node behind a symmetric NAT reaches every partner this way, over two or three relays.
RELAY_CIRCUITS_PER_PEER_MAX = 16
# From the question to the last byte of both sides' greeting; within DIAL_DEADLINE_S.
RELAY_SETUP_S = 8.0
# Sessions ping every PING_INTERVAL_S: whoever is silent for four of these is gone.
RELAY_IDLE_S = 120.0
# Then the two look for a better way, or for a relay that has not had its share yet.
RELAY_CIRCUIT_S = 6 * 3600.0
# What is read and sent on at once, per direction: all that a slow reader can keep here.
RELAY_PIECE_BYTES = 256 * KIB
# A volunteer gives a fifth of a 100 Mbit/s line, and to one peer no more than half of that.
RELAY_BYTES_PER_S = 2_500_000
# Questions for circuits: all partners at once after a restart, then one now and then.
# Connections whose first bytes have not come: they are a relayed one's, or a session's.
RELAY_UNSORTED_MAX = 64
# A node that cannot be dialled keeps a second relay: when one dies, it is reached by the other.
RELAYS_HELD = 2
# A node that is there to relay gives so many times as many places.
RELAY_ROLE_FACTOR = 16
# ... and listens where the strictest firewalls let their people out.
RELAY_PORTS = (443, 80)
# Circuits to us that are being taken up: a relay that offers more is not believed.
RELAY_INCOMING_MAX = 32

# --- signals, dial-back --------------------------------------------------------------------------
# An offer of WebRTC is 1 KiB, addresses for a punch less.
SIGNAL_BYTES_MAX = 4 * KIB
# Volunteers' clocks are wrong by minutes; what is older than this is not believed, nor newer.
SIGNAL_WINDOW_S = 600.0
# One from an author whose clock is ahead is good for twice that time; clocks are set meanwhile.
SIGNAL_NONCE_KEEP_S = 2.5 * SIGNAL_WINDOW_S
# All that can come in that time, so that nothing is taken twice: 5 a second of all authors.
SIGNAL_NONCES_MAX = 8192
# Three round trips over a slow relay.
SIGNAL_DEADLINE_S = 5.0
# A port below it, but these, belongs to a service that somebody else runs.
DIALBACK_PORT_MIN = 1024
DIALBACK_PORTS_LOW = (80, 443)
# A dial-back is a connection to whoever asks; a node asks three peers now and then.
DIALBACKS_CONCURRENT_MAX = 4
DIALBACKS_PER_S = 0.5
DIALBACKS_BURST = 16
DIALBACKS_PER_HOST_PER_S = 1 / 60
DIALBACKS_PER_HOST_BURST = 4
DIALBACK_HOSTS_MAX = 1024
DIALBACK_DIAL_S = 5.0
DIALBACK_DEADLINE_S = 8.0
# So many peers of different networks must say the same: two of them may lie, or be one person's.
REACH_VOTES = 3
REACH_VOTERS_MAX = 16
# A NAT's address changes once a day where it changes at all; a session's end is noticed earlier.
REACH_RECHECK_S = 1800.0
REACH_RETRY_S = 30.0
# What a peer said longer ago than this counts for nothing.
REACH_VOTE_S = 2 * 3600.0

# --- port mapping (protocol.nat, net.portmap) ----------------------------------------------------
# Renewed at half of it; what a crash leaves behind is gone in an hour.
PORTMAP_LEASE_S = 3600
# Datagrams that are no answer, while one is waited for: a LAN has some chatter, a flood is more.
PORTMAP_DATAGRAMS_MAX = 64
PORTMAP_DATAGRAM_BYTES_MAX = 2 * KIB
# Cheap routers write their description with a 300 MHz processor.
PORTMAP_HTTP_HEAD_BYTES_MAX = 8 * KIB
# Descriptions have 2 to 20 KiB, and some hundred elements at most eight deep.
PORTMAP_HTTP_BODY_BYTES_MAX = 64 * KIB
PORTMAP_URL_BYTES_MAX = 512

# --- TCP hole punching (protocol.nat.punch, net.punch) -------------------------------------------
# One address in each family as the internet sees it, one of the LAN in each: what a stranger can
# make us send a few packets to.
PUNCH_ADDRESSES_MAX = 4
# Ports below belong to services that somebody else runs: no NAT gives them out.
PUNCH_PORT_MIN = 1024
# One SYN each, as the kernel repeats it after a second; longer where the round trip is long.
PUNCH_ATTEMPT_S = 0.6
PUNCH_ATTEMPT_S_MAX = 2.0
PUNCH_ATTEMPT_ROUND_TRIPS = 2.0
# Two sides that just miss each other do not go on in step.
PUNCH_PAUSE_S_MIN = 0.02
PUNCH_PAUSE_S_MAX = 0.12
# A router that refuses early packets is tried again at once, then less and less: nine times in 5 s.
PUNCH_REFUSED_GROWTH = 1.5
# All attempts together; 97.6 % of those that succeed do so at once (Trautwein et al., 2025).
PUNCH_S = 5.0
PUNCH_ATTEMPTS_MAX = 12
# The other side says which of several connections it takes after a round trip, or nothing came.
PUNCH_CHOICE_S = 2.0
# From the offer to the word to begin: an answer and two ways through a slow relay.
PUNCH_OFFER_S = 10.0
# More round trip than this is no path for a session.
PUNCH_ROUND_TRIP_MS_MAX = 10_000
# Home routers fall over when a client opens many connections at once.
PUNCHES_CONCURRENT_MAX = 4

# --- from a relay to a better way (daemon.upgrade, daemon.nat, net.where) ------------------------
# One line each way.
WHERE_S = 5.0
# The asker keeps it open while its punch takes place.
WHERE_HOLD_S = 2 * PUNCH_OFFER_S + PUNCH_S
# ... and such connections are idle meanwhile: a descriptor each.
WHERE_ASKERS_MAX = 64
# Ways to a better path under way at once: each is a punch and a few dozen packets.
UPGRADES_CONCURRENT_MAX = 4
# The first try comes at once; networks change, so it is tried again, rarer and rarer.
UPGRADE_PAUSE_S_MIN = 30.0
UPGRADE_PAUSE_S_MAX = 1800.0
# The whole of one try of one kind: for direct ones one packet lost; else gathering, the signals,
# and all attempts.
UPGRADE_TRY_S = {"direct": 3.0, "punched-tcp": 20.0, "rtc": 30.0}
# How soon the side that is asked sees that the session has moved.
UPGRADE_LOOK_S = 0.05
# `swarmnode netcheck` waits for a survey: three questions of STUN_ASK_S each, one after the other.
NETCHECK_S = 8.0

# --- ipc, worker -------------------------------------------------------------------------
# Text that a task reads into memory at once; more is a job for a streaming task.
CORPUS_BYTES_MAX = 1024 * MIB
# One header page names at most this many slots. Four are used: a pair and a group at a time, and
# two that wait for their step; memory that nobody has touched costs nothing.
SLOTS_PER_WORKER = 4
# Figures of a strategy in a heartbeat; each is a series in the metrics.
STRATEGY_FIGURES_MAX = 32
# A record of the log: one byte where it is a slope, at most a hash and a signature.
LOG_RECORD_BYTES_MAX = 64
# Wishes of a strategy that wait for a partner, over tags and fragments: 64 fragments are the most.
WISHES_MAX = 128
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
# one is being written, whatever the size of the model and the speed of the disk.
SNAPSHOT_PERIOD_S_MIN = 10.0
SNAPSHOT_PERIOD_S_MAX = 300.0
SNAPSHOT_TIME_SHARE_MAX = 0.02
# Names, shapes and hashes: about 250 bytes a tensor, and a model has a few thousand.
SNAPSHOT_HEADER_BYTES_MAX = 16 * MIB
# Twelve digits in the name of a snapshot: a million steps a second for eleven days.
STEP_MAX = 10**12 - 1
# The newest may be torn by a dying disk: the one before it is the way back.
SNAPSHOTS_KEPT = 2

# --- tensor ------------------------------------------------------------------------------
# Its Q8B64 payload, 523,776 bytes, and the headers just fill one record: measured 57-64 ms for
# 50 M parameters against 72 ms with 262,144 and 97 ms with 131,072, where what each message
# costs in the event loop outweighs the cache. A multiple of the 4096 elements of the largest block
# of a codec, TK4 (the others have 1, 64 and 256).
CODEC_CHUNK_ELEMS = 507_904

# --- what comes from peers and files ------------------------------------------------------
# A step a millisecond for thirty years; names of snapshots have twelve digits for it.
TRAINED_STEPS_MAX = 10**12
# A node that every partner has refused so often, and none has met, is alone in its swarm.
BASE_REFUSALS_ALARM = 5

# --- group means, pacing ------------------------------------------------------------------
# Of one group: each more costs a message to all others at every change, and their bulk meets at
# one node's link. Larger sets go through several rounds of groups.
GROUP_MEMBERS_MAX = 16
# A member's weight counts up to so many times the median of its group's. Honest ones differ by how
# fast they train, and in one round seldom by as much; who lies cannot replace the mean by its own.
GROUP_WEIGHT_MEDIANS_MAX = 8.0
# The vector is reduced in so many parts: with any number of members up to 16 all have work.
GROUP_PIECES = 16
# From the first look for the others to the roll being closed without those who are missing.
GROUP_ENLIST_S_MAX = 120.0
# A change of the view is one small message each way; who is silent that long is gone.
GROUP_FLUSH_S = 5.0
# Shares and sums at home uplinks; the shell passes what fits the size, this bounds it.
GROUP_TRANSFER_S_MAX = 600.0
# A control message that was lost is sent again after so long: ten times before its sender is
# taken for gone, and more than a trip around the earth, so that it is rarely sent in vain.
GROUP_RESEND_S = 0.5
# How long the outcome is told to members that still ask, as with pairs.
GROUP_OUTCOME_KEEP_S = 600.0
# Control messages to one peer that wait for a slow session; the oldest are dropped, and what
# matters is said again. A change of the view is a handful.
GROUP_OUTBOX_MAX = 256
# A stream of control messages stays open this long after the last: the next phase comes sooner.
GROUP_LINGER_S = 1.0
# The roll stays open for this share of the time between two rounds: nothing waits meanwhile
# but the wish, which the next round's replaces, so half leaves time for the mean itself.
GROUP_ENLIST_SHARE = 0.5
# ... and not shorter than a few round trips and the resending of what was lost.
GROUP_ENLIST_S_MIN = 2.0
# Pulls that are answered at once, each with a payload in memory while it is sent.
PULL_ANSWERS_MAX = 2
# A round of the log: 16 members, each with a record of 64 bytes, take 2.6 kB.
LOG_ROUND_BYTES_MAX = 4 * KIB
# Rounds kept for those who lag: an hour of nine a second. Of four members one takes 400 bytes.
LOG_ROUNDS_KEPT = 32_768
# Rounds in one answer, and their bytes: it is one message.
LOG_ROUNDS_GIVEN_MAX = 512
LOG_GIVEN_BYTES_MAX = 128 * KIB
# Own records that wait for a round to be in; a strategy publishes one in a round.
LOG_PENDING_MAX = 16
# A round waits for a member that has nothing to say yet, if it had in the last one: two of its
# usual pauses, and at most this. Then it takes part with nothing.
LOG_GRACE_S_MAX = 5.0
# ... and others wait so long for it to say even that.
LOG_ENLIST_S = 10.0
# A share and a round are a few kB: a slow relay takes a second.
LOG_TRANSFER_S = 5.0
# A member answers from memory where it is in the log.
LOG_ASK_S = 5.0
# Between two attempts at a round that came to nothing, with jitter, and between two looks while
# there is no majority.
LOG_RETRY_S = 0.25
LOG_WAIT_S = 2.0
# A node that has just started looks so long for somebody who has the log, and begins one then.
LOG_FOUND_S = 5.0
# Local steps of a round at the least, as a share of what the settings say: peers with up to eight
# times the speed do not wait.
PACING_FEWEST_SHARE = 1 / 8
# Between two looks at the speed of the others, and by how much the steps of a round then have to
# differ: measures vary by a few percent, and a round lasts longer.
PACING_TOLD_S = 5.0
PACING_CHANGE_SHARE = 0.1
# Who can take so many of a full round's steps takes all: of equal machines that do other things
# beside, the fastest one of the moment always seems faster, and rounds that all the others shorten
# cost bytes. Nobody waits for what is left unequal.
PACING_EQUAL_SHARE = 0.6

# --- daemon, trainer, http ---------------------------------------------------------------
# Views that the worker is asked for and has not given: one a step for each pair and group that
# runs, and for those that were given up while its step took long.
TICKETS_MAX = 16
# To one worker at most: a message per slot, ticket and wish, and as many requests of a few people.
TRAINER_OUTBOX_MAX = 512
# Between two messages about who trains: in a large swarm somebody always comes or goes.
MEMBERS_TOLD_S = 1.0
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
# A person, a dashboard, Prometheus and a few scripts; each costs a file descriptor.
HTTP_CONNECTIONS_MAX = 64
# After a refusal, read this long and this much so that the refusal is not lost in a reset.
HTTP_LINGER_BYTES_MAX = 256 * KIB
# A Unix socket address holds 108 bytes on Linux and 104 elsewhere, with the closing zero.
UNIX_PATH_BYTES_MAX = 103

# --- names and totals of nodes ------------------------------------------------------------
# Fits beside an id in a table; the shared state would hold 256.
NODE_NAME_CHARACTERS_MAX = 32
# How often it is looked what this node gave: seconds of training are counted in such parts.
TOTALS_LOOK_S = 5.0
# With the look before it a `kill -9` costs 30 s of the totals at most; a write is one small file.
TOTALS_SAVE_S = 25.0

# --- how the swarm mixes ------------------------------------------------------------------
# Exchanges of this time say whom a node meets now: dozens, at one every few seconds.
MET_WINDOW_S = 600.0
# Of them, the newest: what a node on a LAN has in some minutes.
MET_KEPT_MAX = 2048
# A random graph with 16 partners a node mixes nearly as fast as a complete one; 240 characters.
MET_PARTNERS_MAX = 16
# What is said of it changes no more often than this: it is a picture, not a log.
MET_SAY_S = 60.0
# Figures of the graph are computed again after this time, and not over more members: O(n³),
# half a second of one core at 512.
MIXING_KEEP_S = 60.0
MIXING_MEMBERS_MAX = 512

# --- finalize: one merge of all members' models ---------------------------------------------
# Members of one merge: two rounds of groups of 8 are 64, three are 512; the list of them is 9 KiB.
FINALIZE_MEMBERS_MAX = 256
# Members of one group of a larger merge; a line of a grid may be one longer.
FINALIZE_GROUP_SIZE = 8
# A member that dies between two rounds of a grid spoils it: again, with those who are left.
FINALIZE_ATTEMPTS_MAX = 3
# A slow step, and a model copied to disk; evaluating it afterwards takes as long again.
FINALIZE_WORKER_S = 120.0
# Members that have taken their model wait so long for what is to be done with it.
FINALIZE_WAIT_S = 180.0
# All have said that they take part: who does not come within this has died meanwhile.
FINALIZE_ENLIST_S = 20.0
# The whole of one attempt, as whoever asked for it waits: three rounds of slow uplinks.
FINALIZE_MERGE_S = 3600.0
# Of a model's loss: noise, where all models are about the same; more is a barrier between them.
MERGE_BARRIER_SHARE_MAX = 0.05
# A person waits no longer, whatever is still under way.
FINALIZE_DEADLINE_S = 2 * FINALIZE_MERGE_S
# A merge costs everybody a model up and down: no member takes part in the next one before.
FINALIZE_PAUSE_S = 20.0

# --- the volunteer's controls -------------------------------------------------------------------
# What is cheap to read, from files of the system; a laptop that was unplugged stops within this.
MACHINE_LOOK_S = 5.0
# What takes a process or a walk over files.
MACHINE_SLOW_LOOK_S = 30.0
MACHINE_TOOL_DEADLINE_S = 5.0
# A reason that is over by the clock may need a look before it is gone: no spinning until then.
CLOCK_WAIT_S_MIN = 0.1
# The worker's memory: what a model grows by within a second is little beside a limit.
MEMORY_LOOK_S = 1.0
# Traffic is counted for the month this often: what a crash may leave uncounted.
QUOTA_LOOK_S = 5.0
QUOTA_SAVE_S = 60.0
# CUDA's own part of a process, which torch's limit does not count.
GPU_CONTEXT_BYTES = 512 * MIB
# `finish`: exchanges that run may end, however slow the line.
FINISH_S = 180.0
# A worker that gives its memory back merges first what has committed.
UNLOAD_DRAIN_S = 30.0

# --- a node of a program's ------------------------------------------------------------------
# The first start on a machine fetches a model and loads torch from a cold disk.
NODE_READY_S = 300.0
NODE_LOOK_S = 0.1
NODE_ASK_DEADLINE_S = 10.0

# --- store, telemetry ---------------------------------------------------------------------
# A settings file is a page of text, a key file is four lines.
KEY_FILE_BYTES_MAX = 4 * KIB
# Lines of the worker that go into that file: a task that prints without end gets this much of it
# between two of its messages, about a second.
LOG_RELAYED_BYTES_MAX = 64 * KIB

# --- metrics --------------------------------------------------------------------------------
# A series each: the nearest neighbours tell what the rest would.
METRICS_GPUS_MAX = 16
# A snapshot of another node: twice of what the catalogue has, for versions to come.
METRICS_FAMILIES_MAX = 200
METRICS_SAMPLES_MAX = 64
METRICS_LABELS_MAX = 8
METRICS_HISTOGRAMS_MAX = 8
METRICS_BUCKETS_MAX = 32
# About 10 kB today.
METRICS_SNAPSHOT_BYTES_MAX = 64 * KIB
# Prometheus waits 10 s, and is to see a silent peer as down, not this node.
METRICS_PEER_DEADLINE_S = 6.0
METRICS_SCRAPE_TIME_SHARE = 0.8  # of the time that Prometheus says it waits
# Who asks at the same time costs a peer one question; who asks every two seconds, as fast as
# anybody scrapes, is to see each time what is, so that the dead are down at the second look.
METRICS_PEER_KEEP_S = 1.5
# What others are answered: however many ask, it is made twice a second at most.
METRICS_ANSWER_KEEP_S = 0.5
# Silent peers hold a place for the whole deadline; the others must get theirs meanwhile.
METRICS_FETCHES_MAX = 32
# Targets in /sd: a larger swarm is seen in part, those first that we know best.
METRICS_TARGETS_MAX = 1000
# Files for node_exporter and file_sd: as often as it is usually scraped.
METRICS_FILE_S = 15.0
# Disk, processes and GPUs are looked at as often at most: Prometheus asks each 15 s.
METRICS_MACHINE_S = 5.0
# Of the vectors of an exchange: 3 % off at worst, in a tenth of a millisecond.
TRANSFER_SAMPLE_ELEMS = 1024

# --- dashboard ------------------------------------------------------------------------------
# A page shows as many members as a person scrolls through: 40 KB of JSON a second.
DASHBOARD_MEMBERS_MAX = 200
DASHBOARD_EDGES_MAX = 400
DASHBOARD_SNAPSHOTS_MAX = 12
DASHBOARD_HOLDERS_MAX = 8
# One sentence each, cut after that: the reason for a state, an alarm.
DASHBOARD_TEXT_CHARACTERS_MAX = 400
DASHBOARD_VERSION_CHARACTERS_MAX = 32
# As often as a node says something new of itself; see daemon/loss_history.py for what follows.
DASHBOARD_SAMPLE_S = 2.0
# More points than a chart has pixels to tell apart; 200 KiB with all curves.
DASHBOARD_SAMPLES_MAX = 512
# More thin lines than these are a cloud.
DASHBOARD_CURVES_MAX = 24
DASHBOARD_EVENT_S = 1.0
# Tabs that are looked at, of one person: each costs a connection.
DASHBOARD_STREAMS_MAX = 8
# What a page waits before it connects again.
DASHBOARD_RETRY_S = 2
