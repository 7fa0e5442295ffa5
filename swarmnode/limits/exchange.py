"""Exchanges: pairs, groups, pulls, the log, the end of a run, and how well the swarm mixes."""

from __future__ import annotations

from swarmnode.limits.units import KIB, MIB

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
# When an exchange is over, its last words travel behind one chunk at most: at a home router's
# upstream 2.5 s. A partner that has not ended the stream by then has stopped reading it.
EXCHANGE_LINGER_S = 10.0
# Outcomes are kept thirty times longer than any peer asks for them.
EXCHANGE_OUTCOME_KEEP_S = 600.0

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
# but the intent, which the next round's replaces, so half leaves time for the mean itself.
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
# A node that has just started looks so long for a member that has the log, and begins one then.
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
# cost bytes. No member waits for what is left unequal.
PACING_EQUAL_SHARE = 0.6

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
# The whole of one attempt, as its caller waits: three rounds of slow uplinks.
FINALIZE_MERGE_S = 3600.0
# Of a model's loss: noise, where all models are about the same; more is a barrier between them.
MERGE_BARRIER_SHARE_MAX = 0.05
# A person waits no longer, whatever is still under way.
FINALIZE_DEADLINE_S = 2 * FINALIZE_MERGE_S
# A merge costs each member a model up and down: no member takes part in the next one before.
FINALIZE_PAUSE_S = 20.0

# --- the training recipe ------------------------------------------------------------------
# Of a whole swarm: a thousand times what the largest models of today are trained on.
TARGET_TOKENS_MAX = 10**17
# Batches whose gradients one step accumulates: more are seldom of use to a volunteer's machine.
BATCHES_PER_STEP_MAX = 4096
# A signature and two numbers as text, in a register of the shared state.
EXTENSION_CHARACTERS_MAX = 256
# How far the others are is said to the worker this often; between, it counts on at their pace.
SWARM_PROGRESS_TOLD_S = 0.2
# Who has said nothing for so long is not counted on any further: a few reports of a large swarm.
SWARM_PROGRESS_AHEAD_S = 20.0
# At the target a merge waits so long for members that take their last steps, or do not answer.
COMPLETION_WAIT_S = 30.0
# A member that comes or goes changes the learning rate over so long, and not before all that are
# here have heard of it: a report or two.
MEMBERS_RAMP_DELAY_S = 4.0
MEMBERS_RAMP_S = 16.0
