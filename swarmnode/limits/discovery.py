"""Finding each other: the DHT, lookups by name, the local network."""

from __future__ import annotations

from swarmnode.limits.units import KIB

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
# All who may have the manifest are asked at once: a dial and an answer through a slow relay.
LOOKUP_MANIFEST_S = 8.0

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
