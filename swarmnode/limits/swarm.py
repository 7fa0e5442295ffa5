"""A swarm: which peers a node knows and lets in, which have failed; what is kept and copied."""

from __future__ import annotations

from swarmnode.limits.units import KIB, MIB

# --- membership --------------------------------------------------------------------------
# A link must fit into a chat message or a QR code (version 40 holds 2,953 bytes).
LINK_CHARACTERS_MAX = 2048
BOOTSTRAP_HINTS_MAX = 8
ZONES_MAX = 2  # of a link: each is a question to DNS
# Of a package that has a task, as a manifest names it: longer than any on the public index.
PACKAGE_NAME_CHARACTERS_MAX = 128
PACKAGE_VERSION_CHARACTERS_MAX = 64
# What a manifest may ask to be installed: with names and hashes half of its 64 KiB. A package has a
# wheel for each kind of machine, of which ten or so are in use.
ENVIRONMENT_PACKAGES_MAX = 48
ENVIRONMENT_EXTRAS_MAX = 16
PACKAGE_HASHES_MAX = 16
PLACE_CHARACTERS_MAX = 1024  # an address of an index or of a file
# Volunteers' clocks are wrong by minutes; a day off is a broken clock.
MANIFEST_CLOCK_SKEW_S = 86_400
# What it says itself and what the link says.
CONTACT_ADDRESSES_MAX = 8
# Open sessions: every peer may be a partner, and a home router survives this many.
PEERS_CONNECTED_MAX = 64
# Of these, sessions over circuits of relays: as many as a volunteer's relay gives one peer. Those
# that the relays say are ours count where they are fewer.
RELAYED_SESSIONS_MAX = 16
# Members that were never met are dialled through relays while there are fewer such sessions than
# this: there may be a better way. Others only where an exchange seeks them,
RELAYED_MEETINGS_MAX = 4
# ... as the next two partners of a round, for as long as a round may wait,
SOUGHT_MAX = 2
SOUGHT_S = 60.0
# ... in place of the one held for longest, if that had its turn: some exchanges.
RELAYED_TURN_S = 60.0
# How soon it is seen that a session goes another way, or that its circuit is not used.
RELAYED_LOOK_S = 5.0
# Past these, a contact that was not asked lately makes room for peers that dial us.
SESSIONS_MAX = 128
# Sessions that one question of the DHT opened are closed when no caller asked another for so long.
SESSION_IDLE_S = 120.0
SESSION_SWEEP_S = 15.0
# Two processes show one key: the session of the first must answer within this to be alive.
KEY_CHECK_S = 2.0
# The last reasons why a peer could not be reached, for people who ask why.
DIAL_ERRORS_KEPT_MAX = 256
# Connections whose handshake is not over: 60 KiB each, and a real one takes three round trips.
# Of one /24 or /48 half: all nodes of a large LAN that start at once, or of a household many times.
STRANGERS_MAX = 128
STRANGERS_PER_BLOCK_MAX = 64
# ... and of which no byte has come: a descriptor each, of the 1,024 that a process usually may
# have. Honest ones speak at once.
SILENT_STRANGERS_MAX = 256
SILENT_STRANGERS_PER_BLOCK_MAX = 128
# Hosts that never asked for it are dialled less than once a second, whatever members say. The
# burst is a peer with a port for each of two listeners, dialled twice.
DIAL_HOST_INTERVAL_S = 1.25
DIAL_HOST_BURST = 4
# As many as there are contacts.
DIAL_HOSTS_MAX = 4096
# A dial that is not due within this is not made: its caller asks again.
DIAL_HOST_WAIT_S = 5.0
# A peer that says that it has moved is dialled at once, this often.
REDIAL_MOVED_S = 30.0
# Interfaces are looked at again so often, to see which private networks this machine is in.
OWN_NETWORKS_KEEP_S = 30.0
# Refused connections share one line of the log in this time: any machine can cause thousands.
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
# Of that, for the name of a host: one name server is asked for 5 s before the next (resolv.conf).
NAME_LOOKUP_S = 6.0
# A node that no peer has answered for so long is alone, and says so; DIAL_DEADLINE_S and some.
ALONE_ALARM_S = 15.0
# ... besides those for sessions that have lost their channel, which must not wait for strangers.
SEARCH_DIALS_CONCURRENT_MAX = 4
# ... and never in step with each other.
DIAL_JITTER_S = 0.1
# One address of a peer mostly answers before the next one is tried (RFC 8305).
DIAL_STAGGER_S = 0.25
# One that was connected first, and says nothing, keeps the others waiting no longer than this and
# is then dialled with small packets: two round trips over a satellite, and a busy machine.
# Less than HANDSHAKE_S: the other side would hang up first, and this one not know why.
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
SWARM_LOOKUP_S_MIN = 1.0
SWARM_LOOKUP_S_LONELY = 30.0
SWARM_LOOKUP_S = 600.0
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
REPORT_S_MIN = 3.0
REPORT_MEMBER_S = 0.25
# ... but for a change of state, which is looked for this often.
REPORT_LOOK_S = 0.5
# That time goes by is no news: a node without other news says it as often as it renews its lease.
REPORT_TIME_S = 100.0
# Certificates and records allow for a day; a node that is an hour off should know long before that.
CLOCK_ALARM_S = 3600.0
# A conflict of keys seen as soon as we hear others: we are the younger of the two nodes and stop.
# Later it was the other that began, unless peers that know both turn us away.
KEY_CONFLICT_NEW_S = 5.0
KEY_CONFLICT_YOUNG_S = 60.0
KEY_CONFLICT_WAIT_S = 3.0
# A newcomer gives up when no peer of its link gave the manifest within a minute.
MANIFEST_FETCH_DEADLINE_S = 60.0
MANIFEST_RETRY_S = 0.25
# Then peers that were found meanwhile are asked as well; slow dials go on.
MANIFEST_ROUND_S = 3.0
# A hello or a manifest is a few KiB: a peer that takes longer than this is dead or hostile.
PEER_REQUEST_DEADLINE_S = 10.0

# Hashed and written at a time: large enough for the disk, small enough for the cache.
SNAPSHOT_PIECE_BYTES = 1 * MIB
# Parameters, their mean, two moments of the optimizer, and the swarm's strategy may keep two more.
SNAPSHOT_BYTES_PER_PARAMETER_MAX = 28
SNAPSHOT_EXTRA_BYTES_MAX = 16 * MIB
# The first word of a neighbour about the state comes within a round trip of the session; a dial
# through the DHT takes a few more.
NEWCOMER_WAIT_S = 5.0
# A swarm that trains writes its first snapshot within SNAPSHOT_PERIOD_S_MIN.
SNAPSHOT_WAIT_S = 20.0
# Holders that died, a snapshot that is none: then training begins from the swarm's seed.
SNAPSHOT_TRIES_MAX = 5
# One that two networks hold is as good as one that is a tenth of all steps further: copying takes
# a minute or two, and holders keep the last few.
SNAPSHOT_NEW_SHARE = 0.9
# Roots of snapshots that the worker could not begin with: a swarm has a handful at a time.
SNAPSHOTS_BAD_MAX = 64
# A holder that only the shared state knows of may be gone for minutes; a dial takes 10 s.
SNAPSHOT_ABANDONED_S = 12.0
SNAPSHOT_LOOK_S = 0.25
# A member that comes back after a longer absence begins with the swarm's model, not with its own.
SNAPSHOT_STALE_S = 600.0
# Progress of a fetch is said in tenths, if it takes more than a moment.
SNAPSHOT_SAY_BYTES = 32 * MIB
# Newcomers want a recent model; hashing one of some GB takes seconds of a core.
SNAPSHOT_OFFER_S = 30.0
# So many members hold the newest snapshot, so that it outlives its writer.
SNAPSHOT_REPLICAS = 3
SNAPSHOT_REPLICATE_LOOK_S = 5.0
# Where that many hold one that is nearly as far (SNAPSHOT_NEW_SHARE), a trainer copies only this
# often: what is trained in that time is lost at worst, if all go at once and never come back.
SNAPSHOT_REPLICATE_SAFE_S = 600.0
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
# Requests of others that are under way; a helper that has more of them says nack at once.
SWIM_RELAYS_MAX = 64
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
# What arrived while we slept is read before any peer is judged.
SWIM_STALL_GRACE_S = 1.0
# Each piece of news is sent this many times log2(members) by each member that has it; what that
# misses, comparing digests finds.
SWIM_RETRANSMIT = 2
# A claim is about 180 bytes: 6 KiB, a fraction of a second on any link, and only while there is
# news. After a partition every member is news at once.
SWIM_NEWS_MAX = 32
# Views are compared with one random member, so that news that got lost is found again. While
# there is more news than pings carry, in every period.
SWIM_SYNC_S = 10.0
# Likewise for this long after a member came back from the dead: a node that heals a partition of a
# thousand has the last claims after twenty seconds, and one that returned costs fifteen digests.
SWIM_MENDING_S = 30.0
# 512 claims of at most 450 bytes fit into MESSAGE_BYTES_MAX; larger swarms send pages in turn.
SWIM_SYNC_CLAIMS_MAX = 512
# So often a node may call a dead member, with the share of the dead as probability: two halves of
# a swarm find each other after a partition, and one dead address gets one call a second from all.
SWIM_RECALL_S = 1.0
# Dead and left ones are remembered for a lunch break with the lid closed.
SWIM_GONE_KEEP_S = 3600.0
# About 1 KiB each; beyond, gone and never answering members make room, then no new one gets in.
SWIM_MEMBERS_MAX = 4096
# Members that others tell of wait for a place: two pages of a large swarm, and one that was left
# out is told of again. A liar's are all asked within a quarter of an hour.
SWIM_HEARSAY_MAX = 1024
# So many of them are asked in a period whether they are there: one that comes back to a swarm of a
# hundred knows it within twenty seconds, and a liar with thousands causes three lookups a second.
SWIM_HEARSAY_AT_ONCE = 6
SWIM_HEARSAY_PINGS = 2
# A member that leaves tells this many: they spread it, and the leaver may be gone within 0.2 s.
SWIM_FAREWELLS = 8

# --- identities (open swarms) ----------------------------------------------------------------
# Members of one /24 or /48 that are let in as they are: a household, a small office, eight behind
# one router.
IDENTITIES_FREE_MAX = 16
# ... and with a proof of work for each: a university, a carrier's NAT.
IDENTITIES_MAX = 64
# A key that has gone keeps its place for so long.
IDENTITY_KEEP_S = 3600.0
# As many as there are members.
IDENTITIES_KEPT_MAX = 4096
# 65,536 hashes, less than a tenth of a second of Python; one in ten thousand keys takes a second.
WORK_BITS = 16

# --- admission ---------------------------------------------------------------------------
# A link that leaks is of use to no thief for longer than this after its invite has ended.
MEMBER_CERTIFICATE_DAYS_MAX = 30
# One class of students; every member remembers each of them.
INVITE_USES_MAX = 1000
# Of the body of an invite or a certificate: about 165 bytes, and room for fields to come.
CERTIFICATE_BYTES_MAX = 512
# Twelve bytes each in a list that all members pass on; dead invites leave it.
REVOCATIONS_MAX = 256
REVOCATIONS_BYTES_MAX = 4 * KIB
# Chains of other members in one message: at 1.3 KiB each at most, a third of MESSAGE_BYTES_MAX.
CREDENTIALS_HEARD_MAX = 64
# Members, and uses of invites, that a node remembers: as many as authors of the shared state.
ADMISSION_MEMBERS_MAX = 4096
# Volunteers' clocks are wrong by minutes; a day off is a broken clock.
ADMISSION_CLOCK_SKEW_S = 86_400
# News of a new member reaches all that are online sooner than this; one that claims to have
# joined longer ago than that, and was not heard of, is not believed.
ADMISSION_BACKDATE_S = 86_400


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
# Verdicts on other members that one author keeps up: 16 of 48 bytes are a tenth of a record.
STATE_VERDICTS_PER_AUTHOR_MAX = 16
# ... as many new ones may take the place of as many old ones at once.
STATE_VERDICTS_PER_RECORD_MAX = 2 * STATE_VERDICTS_PER_AUTHOR_MAX
STATE_VERDICT_NEUTRAL = 5  # in tenths
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
# Rumours told to six reach 99.7 % of a swarm (1 - e^-6); the digests find the rest. Told to four,
# one of eighty misses one, and a partition that has healed agrees a minute later.
STATE_PUSH_FANOUT = 6
# Fresh records of this time travel together.
STATE_PUSH_DELAY_S = 0.05
# Of so many neighbours at most an author tells all but one itself, and the first that passes it on
# tells the rest. Who hears of a record waits up to so long, and passes on what not so many
# neighbours have told it by then.
STATE_FEW_NEIGHBOURS = STATE_PUSH_FANOUT + 1
STATE_PASS_ON_S = 0.3
STATE_TOLD_ENOUGH = 2
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
# The holders of a blob are looked up this often: they come and go.
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
# Peers that are sent chunks at once, as with BitTorrent: to have some finish early, which then hold
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
