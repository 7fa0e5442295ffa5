"""Ways to a peer: WebRTC, STUN, relays, signals, mapped ports, hole punches."""

from __future__ import annotations

from swarmnode.limits.units import KIB, MIB

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
