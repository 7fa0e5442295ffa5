"""Mutants of ``tests/mutants/sampled.py`` that change nothing that counts, each with its reason."""

from __future__ import annotations

_EITHER = "of two that are equal either is as good"
EQUIVALENT: dict[str, str] = {
    "protocol/admission.py UseLedger.claim constant: 0": (
        "of a date in the first second of 1970, before any invite"
    ),
    "protocol/blobs/fetch.py FetchCore._count constant: 8": (
        "bits beyond the end of a bitmap are not set"
    ),
    "protocol/blobs/merkle.py leaf_hashes constant: 2": "the same hashes, one at a time",
    "protocol/crdt/cells.py Cells.forget call: self._with_removed.discard(actor)": (
        "it says where tombstones may be: one too many costs a look"
    ),
    "protocol/crdt/clock.py HybridClock.wall_ms constant: 0": "only clocks before 1970 notice",
    "protocol/crdt/ledger.py Ledger._drop result: return frozenset()": (
        "of an author that was not held nothing is gone, and nothing is told of None either"
    ),
    "protocol/dht/core.py DhtCore._start operator: self._last_operation += 1": (
        "numbers of operations need only differ from each other"
    ),
    "protocol/dht/upkeep.py Upkeep._queue_stale_buckets"
    " compare: now - bucket.refreshed_at > limits.DHT_REFRESH_S": (
        "of a bucket that is that old to the last bit"
    ),
    "protocol/dht/upkeep.py Upkeep.next_deadline compare: self._rechecks[0][0] < soonest": _EITHER,
    "protocol/gossip/exchange.py ExchangeCore._consider compare: peer < self._self_id": (
        "a node offers nothing to itself, so no offer of its own crosses one"
    ),
    "protocol/gossip/flight.py Flight constant: 0.0": (
        "of when its initiator was heard, which is set before it is looked at"
    ),
    "protocol/gossip/flight.py Flight.note_pending constant: 0 #2": (
        "before the first question none has said that it is undecided, so it is not late"
    ),
    "protocol/gossip/gather.py GatherCore._fetch constant: 0 #2": (
        "each that was asked counts one more, and one that was not still none: the same order"
    ),
    "protocol/gossip/gather.py GatherCore._fetch constant: 1": (
        "counts that all grow by two have the same order"
    ),
    "protocol/gossip/log_book.py LogBook.is_alike compare: next_number >= self.next": (
        "at the same round both ways compare the digests of the one before"
    ),
    "protocol/gossip/round_patience.py RoundPatience.note_silent"
    " compare: waited_s > _OWN_PAUSE * self.answer_s(peer)": "at that wait to the last bit",
    "protocol/invites.py Invite constant: False": "an identity shows no secret when it is printed",
    "protocol/meeting.py hints_in constant: True": (
        "of another length is no item that was taken in or made"
    ),
    "protocol/membership/contacts.py ContactBook._dial_ended constant: 16": (
        "after so many failures REDIAL_BACKOFF_S_MAX is the limit"
    ),
    "protocol/membership/swim.py SwimCore._next_due compare: table.next_suspicion_end < due": (
        _EITHER
    ),
    "protocol/nat/http_answer.py AnswerReader._read_chunks"
    " compare: len(self._rest) < self._wanted": (
        "after each chunk comes the head of another one, if only of the last"
    ),
    "protocol/nat/tree.py parse_xml constant: True": (
        "text comes in more pieces, and is put together all the same"
    ),
    "protocol/relay/accounts.py Flow constant: False": (
        "whether it has its turn is set when its first piece begins to wait"
    ),
    "protocol/session/outgoing.py Outgoing._take_control"
    " compare: len(head) - used >= 3 * _CONTROL_FRAME_BYTES_MAX": (
        "with room for just that much the next record begins one stream earlier"
    ),
    "protocol/swarm_progress.py SwarmProgressCore.note"
    " compare: now - known.lost_at > limits.MEMBERS_RAMP_S": (
        "at that moment it counts for nothing whether it is kept or not"
    ),
    "protocol/trust.py _parse compare: good + bad > _EVIDENCE_MAX * 1.001": (
        "of a file in which a sum is that to the last bit, which no node writes"
    ),
    "protocol/uplink.py Line._note_waiting compare: self._waits_until[purpose] < now": (
        "of a wait that ended just now, to the last bit"
    ),
    "protocol/uplink.py Line.note compare: seen.least_s < _YIELD_WAY_S_MIN": (
        "of a way that takes that to the last bit"
    ),
    "protocol/uplink.py Yielding._next_rate compare: queue_s < target_s / 2": (
        "of a queue that is that to the last bit"
    ),
    "store/blobs.py Blob.close compare: fd >= 0": (
        "descriptor 0 is what the process reads, never a blob"
    ),
    "store/blobs.py Blob.close constant: 0": "descriptor 0 is what the process reads, never a blob",
    "store/blobs.py Blob.close constant: 1": "no number below 0 is a descriptor",
    "store/files.py HistoryFile._open constant: 1": "behind the last byte there is none to read",
    "store/keys.py skip_boot_epochs constant: 1": "one number more is skipped, as a start does",
    "strategies/dadao.py Dadao.flow compare: elapsed <= 0": (
        "in no time nothing flows: the exponential of nothing is the identity to the bit"
    ),
    "strategies/fit.py _is_coarse constant: 0": "no format has a single level",
    "strategies/merging/mixing.py Round.nearest"
    " operator: squares - 2 * self.gram[number] + squares[number]": (
        "what is the same for all changes no order"
    ),
    "strategies/merging/mixing.py _blocks constant: 1": (
        "for payloads of no values, which are one empty block either way"
    ),
    "strategies/merging/pieces.py InPieces.apply constant: 0": "one None is kept for a moment",
    "strategies/merging/safe_merge.py SafeMerge._accept"
    " compare: distance >= max(near, _NEAR_MOVED * topic.moved)": (
        "at that distance to the last bit"
    ),
    "strategies/merging/safe_merge.py SafeMerge._by_distance compare: distance <= bound": (
        "at that distance to the last bit"
    ),
    "strategies/merging/slot.py is_mild"
    " compare: after <= _MILD_RATIO * before + _MILD_SLACK": "at that loss to the last bit",
    "strategies/parts.py ClockPart.on_clock result: return ()": (
        "of a strategy without a rate, whose clock never rings"
    ),
    "strategies/topology.py _exponential operator: i + hop": "an edge has no direction",
}
