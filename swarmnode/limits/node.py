"""What a node does: exchanges of every kind, its worker, its owner's rules, HTTP, metrics."""

from __future__ import annotations

from swarmnode.limits.units import KIB, MIB

# --- ipc, worker -------------------------------------------------------------------------
# Text that a task reads into memory at once; more is a job for a streaming task.
CORPUS_BYTES_MAX = 1024 * MIB
# One header page names at most this many slots. Four are used: a pair and a group at a time, and
# two that wait for their step; memory that was never touched costs nothing.
SLOTS_PER_WORKER = 4
# Figures of a strategy in a heartbeat; each is a series in the metrics.
STRATEGY_FIGURES_MAX = 32
# A record of the log: one byte where it is a slope, at most a hash and a signature.
LOG_RECORD_BYTES_MAX = 64
# Intents of a strategy that wait for a partner, over tags and fragments: 64 fragments are the most.
INTENTS_MAX = 128
# Importing torch, reading data and building a model from a slow disk.
WORKER_START_S = 300.0
# Processes of one worker: more GPUs than one machine has.
RANKS_MAX = 64
# A training worker reports every second; one that is silent this long is stuck in a driver.
WORKER_SILENCE_S = 60.0
# ... except that its steps may be slow: so many times the reported time of a step.
WORKER_SILENCE_STEPS = 10.0
WORKER_PROGRESS_S = 1.0
# One that is silent this long, or for so many steps, does not count as training until it speaks: a
# core that others want, too, or a slow disk holds up reports for a few seconds.
WORKER_QUIET_S = 8.0
WORKER_QUIET_STEPS = 3.0
# Views and merges of a large model are in pieces of about a millisecond: so long may they hold up
# one step, and the rest waits for the next. Pauses of the last so many steps are looked back at.
STEP_PAUSE_S = 0.008
STEP_PAUSES_KEPT = 1024
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
# of a codec, TK4 and TK2. Of the others 320, those of T3B320, do not divide it: its chunks end in a
# block of 64, which costs a byte in two thousand.
CODEC_CHUNK_ELEMS = 507_904

# --- daemon, trainer, http ---------------------------------------------------------------
# Views that the worker is asked for and has not given: one a step for each pair and group that
# runs, and for those that were given up while its step took long.
TICKETS_MAX = 16
# To one worker at most: a message per slot, ticket and intent, and as many requests of a few
# people.
TRAINER_OUTBOX_MAX = 512
# Between two messages about which members train: in a large swarm one always comes or goes.
MEMBERS_TOLD_S = 1.0
# Often enough to see that it goes on, rare enough for a log that is kept for months.
PROGRESS_LINE_S = 30.0
# Leaving: an exchange that is almost through may end, so that it counts on both sides.
LEAVE_DRAIN_S = 0.3
# ... and one that waits for the partner's decision gets a few round trips more: a peer that
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
# Callers that ask at the same time cost a peer one question; one that asks every two seconds, as
# fast as a scrape comes, is to get new readings, so that the dead are down at the second look.
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
# As often as a node says something new of itself; see daemon/status/dashboard.py for what follows.
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
# Addresses of a machine, or of its networks, at which it may be shared.
DASHBOARD_SHARES_MAX = 8
# What a rate of tokens and the end of the training are guessed from, if there is so much.
DASHBOARD_OUTLOOK_S = 86_400.0


# --- gossip ------------------------------------------------------------------------------
# A partner answers an offer from memory: one round trip, and a slow relay takes a second or two.
EXCHANGE_OFFER_S = 5.0
# ... which is the upper bound of EXCHANGE_PATIENCE times what answers usually take. The lower one:
# a busy machine's pause. A peer that is later is asked again at once, and given twice the time.
EXCHANGE_ANSWER_S_MIN = 0.5
# Of a node that has heard no answer yet: a round trip over a slow relay.
EXCHANGE_ANSWER_S_FIRST = 1.0
# At once, each with another peer and of another tag and fragment. More would hold more slots of the
# worker than the memory that a volunteer is told of (`daemon/volunteer/machine.py`).
EXCHANGE_FLIGHTS_MAX = 2
# So many times what is usual here a partner may take, before others come first. Twice would end
# one honest exchange in ten where steps differ by a few times.
EXCHANGE_PATIENCE = 5.0
# ... and at least this: what a sleeper may cost the others, and more than a busy machine's pause.
EXCHANGE_PATIENCE_S_MIN = 1.0
EXCHANGE_FIRST_S = 2.0  # before any transfer was measured, beside steps and the line
# What is usual is the median of the last ones: peers that drag, a third of them, move it little.
EXCHANGE_USUAL_MAX = 31
# What a peer may hold of slots, in seconds, without a commit: three stalls of the least patience,
# each twice as long as the one before, so that a slow volunteer is given the time that it needs.
EXCHANGE_BUDGET_S = 4.0
# ... and how much of it comes back in a second: one peer has at most a twentieth of a node's time.
# At a sixtieth, a volunteer with steps of 10 s among some of 0.1 s met each once in 4 minutes.
EXCHANGE_BUDGET_REFILL = 1 / 20
# No peer pays for longer than 7 minutes: an honest one that stood still may have been ill.
EXCHANGE_DEBT_S_MAX = 20.0
# As many peers as a swarm may have members here, 64 bytes each.
EXCHANGE_CONDUCT_MAX = 4096
# The upper bound of the adaptive limit: 60 MB at a home router's 1 Mbit/s upstream.
EXCHANGE_TRANSFER_S_MAX = 600.0
# For both workers to give what they send, each at its next step boundary: a slow volunteer's step.
EXCHANGE_VIEW_S = 60.0
# The lower bound of the adaptive limit: a partner whose cores are all busy for seconds.
EXCHANGE_TRANSFER_S_MIN = 10.0
# Before anything was measured: 1 Mbit/s, a home router's upstream.
EXCHANGE_RATE_BYTES_PER_S_MIN = 125_000
# A transfer that goes on does not give way: 250 kbit/s, what an owner allows, or what another
# exchange and a snapshot leave of a home router's upstream.
EXCHANGE_SLOW_BYTES_PER_S = 31_250
# The largest message is a chunk of plain float32, just under 2 MiB, and its header.
EXCHANGE_MESSAGE_BYTES_MAX = 2 * MIB
# More attempts than this and the snapshot is out of date before any member takes it.
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
# What a responder that is ready may ask of its initiator: the last chunks of a home router.
EXCHANGE_DECISION_S_MAX = 60.0
# When an exchange is over, its last words travel behind one chunk at most: at a home router's
# upstream 2.5 s. A partner that has not ended the stream by then has stopped reading it.
EXCHANGE_LINGER_S = 10.0
# Outcomes are kept thirty times longer than any peer asks for them.
EXCHANGE_OUTCOME_KEEP_S = 600.0

# --- group means, pacing ------------------------------------------------------------------
# Of one group: as many as a node keeps sessions with, for each speaks with all others. What a
# member sends grows with the words only: a change of the view is 2 kB to each of 63.
GROUP_MEMBERS_MAX = 64
# From so many members on a rule leaves out an outsized share. Of three or fewer none is told from
# the others, and most of them may be outsized: there each member refuses it by its own scale.
GROUP_TELLS_FROM = 4
# What a member's word about its own weight in a mean is worth, in medians of its group's. None
# gains by claiming more than the others: a lie is worth no more than in a mean without weights.
GROUP_WEIGHT_MEDIANS_MAX = 1.0
# ... and a member that has just come, or has just been in a mean, is not nothing: as few steps as a
# pacer ever asks for, PACING_FEWEST_SHARE.
GROUP_WEIGHT_MEDIANS_MIN = 1 / 8
# A run came to nothing as a member had said that others are gone, or could have by what it said: it
# pays so much of its budget, and what it says of others is doubted for half a minute, so that few
# attempts in a row end so. It is left out itself if it does so again meanwhile.
GROUP_CUT_S = 2.0
# Of a member that was wrong about others being gone. A liar needs one that believes it for each
# mean that it keeps a member out of: it has each of them once in so many. To an honest one it means
# little.
GROUP_MISTAKEN_RUNS = 1024
# ... and of two of which one was so often said to be gone by the other, which may have waited for
# what it alone lacked: by a line that failed, or as one of them means it. Which, none can tell.
GROUP_APART_MIN = 3
# From the first look for the others to the roll being closed without the members that are missing.
GROUP_ENLIST_S_MAX = 120.0
# A change of the view is one small message each way; a member silent that long is gone.
GROUP_FLUSH_S = 5.0
# A stage of a round before any was measured, beside steps and the line: the first loads much code.
ROUND_FIRST_S = 3.0
# Rounds that wait for members on thin lines take so much of the time at the most: the others make
# seven of eight means that they would make without, and one more lost to jitter is still four of
# five. A thin member of four million parameters at 1 Mbit/s has its turn each seven minutes.
ROUND_THIN_SHARE = 1 / 8
# Where members differ in whether that turn has come, they all try in each round of a number that
# is a multiple of this: what a try in vain costs is paid for by then.
ROUND_THIN_EVERY = 8
# ... and each stage no longer than this: a byte for each of seven million parameters at 1 Mbit/s.
# Three stages are what one that lies about its line can hold at once.
ROUND_THIN_STAGE_S_MAX = 90.0
# So many times what a line was measured to need: others in the house use it too.
ROUND_THIN_SLACK = 1.5
# One for which a round waited in vain is not waited for again before: a laptop's pause is over.
ROUND_THIN_AGAIN_S = 600.0
# A roll is held for a member that fetches the slow weights which the others stand behind, so long
# at the most: those of four million parameters, 32 MB, at 1 Mbit/s with ROUND_THIN_SLACK. A member
# that lies about being behind holds one such roll, or several that last as long together. The next
# comes after seven times as long (ROUND_THIN_SHARE), and for the same member after a part of
# ROUND_THIN_AGAIN_S, and all of it in the end.
ROUND_BEHIND_S_MAX = 400.0
# How much longer than the first ones rounds grow that grow (docs/strategies.md, ``lengthen``).
# Four real nodes, 4,800 steps, docstrings, where one alone comes to 1.491 and data parallelism to
# 1.425: so 1.438 and 1.441 at 1/176 and 1/187 of its bytes; 9, 10 and 16 times as long 1.449, 1.446
# and 1.446, at 1/210 to 1/225.
ROUND_LONGER_MAX = 6
# From the opening of that roll to the member's coming, in longest steps: the giver copies at the
# end of one, the member makes room at the end of one, takes over at the next, and comes with one.
ROUND_BEHIND_STEPS = 5
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
# The roll stays open for this share of the time between two rounds: nothing waits meanwhile but
# the intent. On a machine with eight processes a core members come up to half a round apart.
GROUP_ENLIST_SHARE = 0.75
# ... and not shorter than a few round trips and the resending of what was lost.
GROUP_ENLIST_S_MIN = 2.0
# Pulls that are answered at once, each with a payload in memory while it is sent.
PULL_ANSWERS_MAX = 2
# How long a member that asks for slow weights is let wait for the mean that is being made: what
# stands before it is behind when it arrives. Half of what the asker waits for.
PULL_SETTLED_S = 30.0
# A round of the log is one message with a record of each; larger swarms do not agree on it in time.
LOG_MEMBERS_MAX = 16
# A round of the log: 16 members, each with a record of 64 bytes, take 2.6 kB.
LOG_ROUND_BYTES_MAX = 4 * KIB
# Rounds kept for members that lag: an hour of nine a second. Of four members one takes 400 bytes.
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
# ... which one that is silent may cost them once in four minutes: so long it is left out then.
LOG_DEBT_S_MAX = 10.0
# A share and a round are a few kB: a slow relay takes a second.
LOG_TRANSFER_S = 5.0
# A member answers from memory where it is in the log.
LOG_ASK_S = 5.0
# Between two attempts at a round that came to nothing, with jitter, and between two looks while
# there is no majority.
LOG_RETRY_S = 0.25
LOG_WAIT_S = 2.0
# Without a majority for so long, in looks one soon after the other, a member holds the others for
# gone, and goes on with those that are there: a network is together again before. Alone it waits
# for about as long as rounds are kept, as it is more likely that its own line is what is broken.
LOG_GONE_S = 600.0
LOG_GONE_ALONE_S = 3600.0
# ... and a member that another one calls to that waits no longer than this: the other may lie, and
# most that lose a majority for a moment have lost their line.
LOG_GONE_CALLED_S = 60.0
# A node that has just started looks so long for a member that has the log, and begins one then.
LOG_FOUND_S = 5.0
# Local steps of a round at the least, as a share of what the settings say: peers with up to eight
# times the speed do not wait.
PACING_FEWEST_SHARE = 1 / 8
# Between two looks at the speed of the others, and by how much the steps of a round then have to
# differ: measures vary by a few percent, and a round lasts longer.
PACING_TOLD_S = 5.0
PACING_CHANGE_SHARE = 0.1
# A member that can take so many of a full round's steps takes all: of equal machines that do other
# things beside, the fastest one of the moment always seems faster, and rounds that all the others
# shorten cost bytes. No member waits for what is left unequal.
PACING_EQUAL_SHARE = 0.6

# --- gatherings: all members see every message of a round -------------------------------------
# Messages of one round: each is fetched by all others and held in memory until the round is over.
GATHER_MEMBERS_MAX = 32
# One message: a quarter of a bit for each of two billion parameters, and no overflow.
GATHER_MESSAGE_BYTES_MAX = 64 * MIB
# All messages of a round together, in the memory of a daemon: a sixth of a small server's.
GATHER_ROUND_BYTES_MAX = 512 * MIB
# A message that is fetched again from another holder: its first one is slow, or silent.
GATHER_HEDGE_S = 3.0
# Messages that are being fetched at once: enough to fill a line while one holder is slow.
GATHER_FETCHES_MAX = 4
# Uploads at once: each has its share of the line, and a peer that is refused asks elsewhere.
GATHER_UPLOADS_MAX = 8
# How often one member is given the same message: once, and once more where a stream broke.
GATHER_GIVEN_MAX = 2
# A holder that was busy, or whose stream broke, is asked again after so long.
GATHER_RETRY_S = 0.5
# A round waits for the messages of stragglers as long again as most took, and so long at the least:
# an author that serves none costs the others no more.
GATHER_GRACE_S = 2.0
# What has come since is told to the others so often, so that they may fetch it here; and only of
# messages that take a home uplink longer than a second, as smaller ones come from their authors.
GATHER_TELL_S = 0.5
GATHER_SPREAD_BYTES_MIN = 128 * KIB

# --- how the swarm mixes ------------------------------------------------------------------
# Exchanges of this time say which peers a node meets now: dozens, at one every few seconds.
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
# Up to so many are one group, whose members must all stay to the end.
FINALIZE_GROUP_MEMBERS_MAX = 16
# Members of one group of a larger merge; a line of a grid may be one longer.
FINALIZE_GROUP_SIZE = 8
# A model counts by its tokens up to so many times the median. That is once, for a copy, and nodes
# differ by how long they were there; a liar cannot replace the mean by its own model.
FINALIZE_WEIGHT_MEDIANS_MAX = 8.0
# A member that dies between two rounds of a grid spoils it: again, with those that are left.
FINALIZE_ATTEMPTS_MAX = 3
# Where so many of all members say that they are in another merge there is one, which is not to be
# halved; fewer of them may be liars, who could forbid every merge.
FINALIZE_BUSY_SHARE_MIN = 1 / 3
# A slow step, and a model copied to disk; evaluating it afterwards takes as long again.
FINALIZE_WORKER_S = 120.0
# Members that have taken their model wait so long for what is to be done with it.
FINALIZE_WAIT_S = 180.0
# All have said that they take part: one that does not come within this has died meanwhile.
FINALIZE_ENLIST_S = 20.0
# The whole of one attempt, as its caller waits: three rounds of slow uplinks.
FINALIZE_MERGE_S = 3600.0
# Of a model's loss: noise, where all models are about the same; more is a barrier between them.
MERGE_BARRIER_SHARE_MAX = 0.05
# A person waits no longer, whatever is still under way.
FINALIZE_DEADLINE_S = 2 * FINALIZE_MERGE_S
# A merge costs each member a model up and down: no member takes part in the next one before.
FINALIZE_PAUSE_S = 20.0
# Of one asker: it makes every member build its share, some vectors of the model's size. The first
# may be tried again at once, for another merge can be under way.
FINALIZE_ASKER_S = 600.0
FINALIZE_ASKERS_MAX = 256
# A member that asks has been here for half as long as this node, but so long is enough.
STANDING_S = 600.0

# --- the training recipe ------------------------------------------------------------------
# Of a whole swarm: a thousand times what the largest models of today are trained on.
TARGET_TOKENS_MAX = 10**17
# Batches whose gradients one step accumulates: more are seldom of use to a volunteer's machine.
BATCHES_PER_STEP_MAX = 4096
# A signature and two numbers as text, in a register of the shared state.
EXTENSION_CHARACTERS_MAX = 256
# How far the others are is said to the worker this often; between, it counts on at their pace.
SWARM_PROGRESS_TOLD_S = 0.2
# A member silent for so long is not counted on any further: a few reports of a large swarm.
SWARM_PROGRESS_AHEAD_S = 20.0
# At the target a merge waits so long for members that take their last steps, or do not answer.
COMPLETION_WAIT_S = 30.0
# A member that comes or goes changes the learning rate over so long, and not before all that are
# here have heard of it: a report or two.
MEMBERS_RAMP_DELAY_S = 4.0
MEMBERS_RAMP_S = 16.0
