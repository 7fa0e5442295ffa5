"""One node: its worker, its owner's rules, HTTP, metrics, dashboard."""

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
# of a codec, TK4 and TK2 (the others have 1, 64 and 256).
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
