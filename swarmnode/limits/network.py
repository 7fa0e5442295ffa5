"""The network: messages and sessions, ways to a peer, finding each other."""

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
# The side that dialled tries first, and most often gets through; then the other one, with jitter.
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
# What IPv6 promises of every line (1280 bytes), less the headers and a tunnel's: where larger
# packets vanish and no router says so, these arrive.
TCP_SMALL_SEGMENT_BYTES = 1200
# To a host that nothing came from once; then larger ones are tried anew.
TCP_SMALL_SEGMENTS_S = 3600.0
TCP_SMALL_HOSTS_MAX = 256
# What is sent when a connection is closed is delivered by then, or never: three losses in a row.
TCP_CLOSING_S = 10.0
TCP_UNSENT_BYTES_MAX = 256 * KIB  # what a control frame can find queued before it
TCP_BACKLOG_MAX = 128

# --- through an HTTP proxy (net.proxy) ----------------------------------------------------
# What a direct connection has for itself: a SYN that got lost is sent again after 1 s.
PROXY_HEAD_START_S = 2.0
# ... where it was silent before, and the proxy led on.
PROXY_AGAIN_S = 0.3
PROXY_HOSTS_MAX = 256  # hosts of which that is remembered
PROXY_ANSWER_BYTES_MAX = 8 * KIB  # of the head of an answer; real ones take some hundred

# --- what comes from peers and files ------------------------------------------------------
# A step a millisecond for thirty years; names of snapshots have twelve digits for it.
TRAINED_STEPS_MAX = 10**12
# No member takes more of them, whatever it says: the smallest models of the examples take 500.
STEPS_PER_S_MAX = 1000
# A node that every partner has refused so often, and none has met, is alone in its swarm.
BASE_REFUSALS_ALARM = 5

# --- names and totals of nodes ------------------------------------------------------------
# Fits beside an id in a table; the shared state would hold 256.
NODE_NAME_CHARACTERS_MAX = 32
# How often it is looked what this node gave: seconds of training are counted in such parts.
TOTALS_LOOK_S = 5.0
# With the look before it a `kill -9` costs 30 s of the totals at most; a write is one small file.
TOTALS_SAVE_S = 25.0


# --- rtc (net.rtc), stun (net.stun) ----------------------------------------------------------
# Every host, its reflexive address, and some to spare: what a stranger's offer can make us send to.
RTC_CANDIDATES_MAX = 8
# ... and sources that checks with the right password came from: a NAT that changes ports adds some.
RTC_REMOTE_ADDRESSES_MAX = 2 * RTC_CANDIDATES_MAX
# Port numbers below are services of others: no NAT has a mapping there.
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
# Renewed at half of it, so that a relay forgets clients that are gone and none is busy renewing.
RELAY_RESERVATION_S = 3600.0
# ... and asked for again this often, as the answer tells how busy the relay is.
RELAY_LOOK_S = 60.0
# Each is a session that is kept open: half of all that a node has.
RELAY_RESERVATIONS_MAX = 64
# Of one address: an office, or the part of a carrier's NAT that has found the same relay. A machine
# that makes up keys has no more; of a relay that is full it has no more than others, as it loses
# them to addresses that have fewer.
RELAY_RESERVATIONS_PER_HOST_MAX = 64
# Each costs two sockets, and two buffers of RELAY_PIECE_BYTES once it is used.
RELAY_CIRCUITS_MAX = 64
# A node behind a symmetric NAT reaches every partner this way, over two or three relays.
RELAY_CIRCUITS_PER_PEER_MAX = 16
# A relay that is full gives so many to each peer that wants them before others have more than one
# above that: a partner to train with, and a way to the next.
RELAY_CIRCUITS_PER_PEER_MIN = 2
# Circuits under way in a relay that is full: which other gives way is settled when both legs are
# there, so that a question alone takes nothing from any peer.
RELAY_OVERBOOKED_MAX = 16
# So many peers behind one address share as they like; of more, each counts as so much more: keys
# cost nothing, and their circuits among themselves would fill a relay.
RELAY_HOUSEHOLD = 8
# A circuit is not taken for another peer before it was of use: setting up, and one exchange.
RELAY_HOLD_S = 10.0
# ... nor in the midst of an exchange, as long as there is another.
RELAY_QUIET_S = 2.0
# One on which nothing larger than a ping or a word about members went for so long gives way first.
RELAY_SPARE_S = 30.0
RELAY_WORD_BYTES_MAX = 1 * KIB
# From the question to the last byte of both sides' greeting; within DIAL_DEADLINE_S.
RELAY_SETUP_S = 8.0
# Sessions ping every PING_INTERVAL_S: a peer that is silent for four of these is gone.
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
# Of two relays the one is better that is less loaded by so many percent; and one that is loaded by
# half is a reason to look at others. All that look at once would only meet at the next.
RELAY_LOAD_STEP = 25
RELAY_LOAD_BUSY = 50
RELAY_LOOK_CHANCE = 0.25
# A second place is given back where so many percent are taken, and asked for again after this.
RELAY_LOAD_FULL = 95
RELAY_YIELD_S = 600.0
# A node that is there to relay gives a quarter of its memory to circuits and an eighth to places.
# Both buffers of a circuit, and two tasks, four sockets' worth of kernel memory beside them;
RELAY_CIRCUIT_BYTES = 2 * RELAY_PIECE_BYTES + 128 * KIB
# a session with its keys, streams and what waits in it.
RELAY_RESERVATION_BYTES = 256 * KIB
# ... of which descriptors are a part, asked of the system up to this: 16,384 circuits.
RELAY_FILES_MAX = 65_536
# Of a bandwidth that its owner has named, a circuit is worth having with so much.
RELAY_CIRCUIT_BYTES_PER_S = 16 * KIB
# ... and one peer has a session each with as many partners as a node has at all.
RELAY_ROLE_CIRCUITS_PER_PEER_MAX = 64
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
# A port below it, but these, belongs to a service of others.
DIALBACK_PORT_MIN = 1024
DIALBACK_PORTS_LOW = (80, 443)
# A dial-back is a connection to the caller; a node asks three peers now and then.
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

# --- port mapping (protocol.nat, net.gateway) ----------------------------------------------------
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
# Ports below belong to services of others: no NAT gives them out.
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

# --- from a relay to a better way (daemon.transport.upgrade, net.where) --------------------------
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


# --- dht ---------------------------------------------------------------------------------
# k of the Kademlia paper: twenty peers chosen at random do not all leave within an hour.
DHT_BUCKET_CONTACTS = 20
# α of the paper: more in flight finds hardly sooner what fewer find.
DHT_LOOKUP_PARALLEL = 3
# An attacker who owns one path must own two more before it can hide a record.
DHT_LOOKUP_PATHS = 3
# A lookup among a million nodes asks about 40; this many means that a node invents peers.
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
# Of them blobs: more than twice SNAPSHOT_BLOBS_MAX. In a small swarm each node holds the records
# of all, and those of snapshots that were given up for two hours: hundreds.
DHT_BLOBS_PER_AUTHOR_MAX = 16
# Of one swarm under its name: others of that name must be seen as well.
DHT_RECORDS_PER_SUBJECT_MAX = 4
DHT_PUBLICATIONS_MAX = 256
# A record is stored once the closest peers on each path have answered: two, as one may lie.
DHT_NEAR_ANSWERS = 2
# So many holders are enough to go on while the rest of k get it: more than twice the quorum.
DHT_PUT_REPLICAS = 8
# Peers that must give a record of one author before it is taken for the newest.
DHT_QUORUM = 3
# A lookup that waits for slow peers to the last; the caller gets an error then.
DHT_COMMAND_S = 60.0
# Between two writings of the good peers to disk: what a crash forgets is a few minutes of news.
DHT_REMEMBER_S = 300.0

# --- lookup: swarms by name, for people -----------------------------------------------------------
# A list on a screen, largest first; more than that is a node that floods a name.
SWARMS_LISTED_MAX = 64
# Names of one question: those of a home and a few more; so many operations run at once.
LOOKUP_NAMES_MAX = 16
# A visitor hears of its LAN after LAN_ANSWER_DELAY_S and LAN_ANSWER_GAP_S, and what dialling takes.
LOOKUP_LAN_S = 1.0
# ... and a node of the DHT has answered by then: three slow peers one after the other.
LOOKUP_BOOTSTRAP_S = 5.0
# A lookup in the DHT: a few rounds, most of them with peers that have to be dialled.
LOOKUP_DHT_S = 8.0
# All peers that may have the manifest are asked at once: a dial and an answer through a slow relay.
LOOKUP_MANIFEST_S = 8.0
# Until DNS and a list of entry nodes have said whom to ask, and until the mainline DHT has.
LOOKUP_ENTRIES_S = 3.0
LOOKUP_STRANGERS_S = 12.0
# After the first answer, for other swarms of that name.
LOOKUP_OTHERS_S = 2.0
# Of one zone, or one list: some people's nodes. Each costs a dial.
TXT_RECORDS_MAX = 32
ENTRY_NODES_MAX = 16
ENTRIES_BYTES_MAX = 16 * KIB
# An id and the longest name of a host.
HINT_CHARACTERS_MAX = 320

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
