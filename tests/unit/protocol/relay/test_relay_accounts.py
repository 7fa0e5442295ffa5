"""What a relay's peers may use, and the turns of what waits for its bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.relay.accounts import (
    RELAY_ACCOUNTS_MAX,
    RELAY_BURST_S,
    RELAY_CONNECTS_BURST,
    RELAY_CONNECTS_PER_S,
    Account,
    Accounts,
    Allowance,
    End,
    Flow,
    Quota,
    Shaper,
    Worths,
    rate_bucket,
)
from swarmnode.protocol.uplink import Delays, Line, Purpose, Yielding, on_the_wire

UNLIMITED = Quota(
    bytes_per_s=None, peer_bytes_per_s=None, bytes_per_day=None, peer_bytes_per_day=None
)
PIECE = limits.RELAY_PIECE_BYTES
DAY_S, HOUR_S = 86_400, 3600
# Wakes come a little after the moment, never just before it.
SOON = 1e-5


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def end(number: int, host: str = "") -> End:
    """Return an end at a host of its own, or at this one."""
    return End(peer(number), host or f"192.0.2.{number}")


# --- what circuits are worth ----------------------------------------------------------------------


def test_the_nth_circuit_of_a_peer_is_worth_the_inverse_square_of_n_to_it() -> None:
    a, b, c, d = (end(number) for number in range(4))
    worths = Worths([(a, b), (a, c)])
    assert worths.of_new((a, d), instead_of=(b, c)) == pytest.approx(1 / 9 + 1)
    assert worths.of_new((b, d), instead_of=(a, c)) == pytest.approx(1 / 4 + 1)
    assert worths.of_old((a, b), given_for=(c, d)) == pytest.approx(1 / 4 + 1)


def test_a_peer_of_both_circuits_neither_wins_nor_loses() -> None:
    a, b, c, _ = (end(number) for number in range(4))
    worths = Worths([(a, b)])
    assert worths.of_new((a, c), instead_of=(a, b)) == pytest.approx(1)
    assert worths.of_old((a, b), given_for=(a, c)) == pytest.approx(1)
    assert worths.of_old((a, b), given_for=(b, a)) == 0


def test_of_a_household_each_has_its_own_circuits_and_of_more_peers_they_count_as_more() -> None:
    home = "198.51.100.7"
    stranger = end(200)
    few = [(end(n, home), stranger) for n in range(limits.RELAY_HOUSEHOLD)]
    assert Worths(few).of_new((end(0, home), end(201)), (stranger, stranger)) == 1 / 4 + 1
    many = [(end(n, home), stranger) for n in range(2 * limits.RELAY_HOUSEHOLD)]
    assert Worths(many).of_new((end(0, home), end(201)), (stranger, stranger)) == 1 / 16 + 1
    newcomer = (end(99, home), end(201))
    assert Worths(many[:-1]).of_new(newcomer, (stranger, stranger)) == 1 / 4 + 1


# --- volumes --------------------------------------------------------------------------------------


def test_a_volume_is_spent_when_more_than_all_of_it_was_taken() -> None:
    volume = Allowance(DAY_S)
    assert volume.is_full(0.0)
    volume.spend(DAY_S, 0.0)
    assert not volume.is_spent(0.0)
    volume.spend(1, 0.0)
    assert volume.is_spent(0.0)
    assert volume.is_spent(0.5)
    assert not volume.is_spent(1.0), "a byte a second comes back"
    assert not volume.is_full(DAY_S)
    assert volume.is_full(DAY_S + 1.0)


def test_a_circuit_is_worth_beginning_when_an_hours_part_of_the_day_is_there() -> None:
    volume = Allowance(DAY_S)
    volume.spend(DAY_S - HOUR_S, 50.0)
    assert volume.worthwhile_in_s(50.0) == 0.0
    volume.spend(10, 50.0)
    assert volume.worthwhile_in_s(50.0) == pytest.approx(10, abs=SOON)
    assert volume.worthwhile_in_s(54.0) == pytest.approx(6, abs=SOON)
    assert volume.worthwhile_in_s(60.0) == 0.0


def test_without_a_bound_a_volume_is_never_spent() -> None:
    volume = Allowance(None)
    volume.spend(10**18, 0.0)
    assert not volume.is_spent(0.0)
    assert volume.is_full(0.0)
    assert volume.worthwhile_in_s(0.0) == 0.0


# --- accounts -------------------------------------------------------------------------------------


def test_what_was_saved_while_no_peer_asked_is_a_few_seconds_of_the_bandwidth() -> None:
    assert rate_bucket(None) is None
    bucket = rate_bucket(1000.0)
    assert bucket is not None
    assert bucket.has(1000 * RELAY_BURST_S, 0.0)
    assert not bucket.has(1000 * RELAY_BURST_S + 1, 100.0)


@pytest.mark.parametrize("owes", ["bandwidth", "volume", "questions"])
def test_an_account_is_settled_when_all_that_it_has_used_has_come_back(owes: str) -> None:
    account = Account(Quota(peer_bytes_per_s=1.0, peer_bytes_per_day=DAY_S))
    assert account.is_settled(0.0)
    assert account.rate is not None
    if owes == "bandwidth":
        account.rate.spend(2, 0.0)
    elif owes == "volume":
        account.volume.spend(2, 0.0)
    else:
        account.asks.spend(2, 0.0)
    assert not account.is_settled(1.0)
    assert account.is_settled(2.0)


def test_a_peer_asks_at_once_after_a_restart_and_then_now_and_then() -> None:
    asks = Account(UNLIMITED).asks
    taken = 0
    while asks.try_take(1, 0.0):
        taken += 1
    assert taken == RELAY_CONNECTS_BURST + 1, "the last one is paid for later"
    assert asks.free_at() == pytest.approx(1 / RELAY_CONNECTS_PER_S, abs=SOON)
    assert Account(UNLIMITED).is_settled(0.0), "without bounds nothing is owed"


def test_a_peer_keeps_its_account_and_only_the_settled_make_room() -> None:
    accounts = Accounts(Quota())
    for number in range(RELAY_ACCOUNTS_MAX):
        account = accounts.of(peer(number), 0.0)
        assert account is not None
        assert account is accounts.of(peer(number), 0.0)
        account.asks.spend(1 + number % 2, 0.0)
    newcomer = peer(RELAY_ACCOUNTS_MAX)
    assert accounts.of(newcomer, 0.5) is None
    assert len(accounts) == RELAY_ACCOUNTS_MAX
    assert accounts.of(peer(0), 1.0) is not None
    assert len(accounts) == RELAY_ACCOUNTS_MAX, "one that is known takes no room"
    assert accounts.of(newcomer, 1.0) is not None
    assert len(accounts) == RELAY_ACCOUNTS_MAX // 2 + 1


# --- turns ----------------------------------------------------------------------------------------


class Bench:
    """Circuits that wait for the bandwidth of a relay, each of a peer of its own."""

    def __init__(
        self,
        n_flows: int,
        *,
        bytes_per_s: float | None = PIECE,
        line: Line | None = None,
        peer_bytes_per_s: float | None = None,
    ) -> None:
        total = None if bytes_per_s is None else TokenBucket(bytes_per_s, 0.0)
        self.line = line or Line()
        self.shaper = Shaper(total, self.line)
        quota = Quota(peer_bytes_per_s=peer_bytes_per_s, peer_bytes_per_day=None)
        self.flows = [Flow(number, Account(quota)) for number in range(n_flows)]
        self.now = 0.0

    def next_passed(self) -> list[tuple[int, int]]:
        """Go on to the next deadline; return (circuit, side) of what passes."""
        deadline = self.shaper.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        return [(flow.circuit, side) for flow, side in self.shaper.release(self.now)]

    def order(self, sizes: Sequence[int], n_pieces: int) -> list[int]:
        """Let each circuit always have a piece of its size in line; return whose pass."""
        for flow, n_bytes in zip(self.flows, sizes, strict=True):
            self.shaper.wait(flow, 0, n_bytes)
        passed: list[int] = []
        while len(passed) < n_pieces:
            for circuit, side in self.next_passed():
                passed.append(circuit)
                self.shaper.wait(self.flows[circuit], side, sizes[circuit])
        return passed


def overdrawn(n_flows: int) -> Bench:
    """Circuits of a relay of a piece a second that has just sent one more than it had."""
    bench = Bench(n_flows)
    assert bench.shaper.try_pass(bench.flows[0], PIECE, 0.0)
    return bench


def test_a_piece_passes_at_once_while_there_is_bandwidth_and_the_line_is_told() -> None:
    bench = Bench(1, bytes_per_s=None)
    assert bench.shaper.try_pass(bench.flows[0], PIECE, 0.0)
    assert bench.line.for_purpose[Purpose.RELAYING] == on_the_wire(PIECE)
    assert bench.line.total_bytes == on_the_wire(PIECE)
    assert bench.shaper.next_deadline() is None


def test_a_piece_waits_until_the_relay_has_paid_for_the_last_one() -> None:
    bench = overdrawn(2)
    assert not bench.shaper.try_pass(bench.flows[1], 1, 0.5)
    bench.shaper.wait(bench.flows[1], 1, 1)
    assert bench.shaper.release(0.5) == []
    assert bench.next_passed() == [(1, 1)]
    assert bench.now == pytest.approx(1.0, abs=SOON)
    assert bench.shaper.next_deadline() is None


def test_a_piece_waits_until_the_owners_line_has_paid_for_the_last_one() -> None:
    line = Line()
    line.limit(1e6)
    bench = Bench(1, bytes_per_s=None, line=line)
    flow = bench.flows[0]
    while bench.shaper.try_pass(flow, 50_000, 0.0):
        pass
    bench.shaper.wait(flow, 0, 50_000)
    assert bench.shaper.release(0.0) == []
    assert bench.shaper.next_deadline() == line.free_at(0.0, Purpose.RELAYING)
    assert bench.next_passed() == [(0, 0)]


def test_of_the_relays_bandwidth_and_the_owners_line_the_later_one_counts() -> None:
    line = Line()
    line.limit(1e6)
    bench = Bench(1, bytes_per_s=1000.0, line=line)
    assert bench.shaper.try_pass(bench.flows[0], 1000, 0.0)
    bench.shaper.wait(bench.flows[0], 0, 1000)
    line.spend(2_000_000, 0.0)
    assert bench.shaper.next_deadline() == pytest.approx(1.0, abs=SOON), "so far as is known"
    assert bench.next_passed() == []
    assert bench.shaper.next_deadline() == pytest.approx(1.75, abs=0.01)
    assert bench.next_passed() == [(0, 0)]


def uplink() -> Line:
    """Return a line whose ways lead over an uplink that was just measured."""
    line = Line()
    line.yielding = Yielding()
    assert line.note(1, Delays(rtt_s=0.05, least_s=0.05, arrived_bytes=0), 0.0)
    return line


def test_what_is_relayed_keeps_to_the_rate_that_others_on_the_uplink_do_not_notice() -> None:
    line = uplink()
    bench = Bench(1, bytes_per_s=None, line=line)
    assert line.yielding is not None
    assert bench.shaper.try_pass(bench.flows[0], 70_000, 0.0)
    assert not bench.shaper.try_pass(bench.flows[0], 1, 0.0)
    bench.shaper.wait(bench.flows[0], 0, 1)
    assert bench.shaper.release(0.0) == []
    assert bench.shaper.next_deadline() == line.yielding.free_at(0.0)
    assert 0.9 < line.yielding.free_at(0.0) < 1.2


def test_on_a_thin_uplink_a_turn_is_as_short_as_others_need_it() -> None:
    line = uplink()
    turn = line.turn_bytes_max(is_far=True)
    assert turn < line.turn_bytes_max(is_far=False)
    line.spend(70_000, 0.0, is_far=True)
    bench = Bench(2, bytes_per_s=None, line=line)
    assert bench.order((turn // 4, turn), 10) == [0, 0, 0, 0, 1] * 2


def test_no_piece_overtakes_one_that_waits() -> None:
    bench = overdrawn(2)
    bench.shaper.wait(bench.flows[0], 0, 1)
    assert not bench.shaper.try_pass(bench.flows[1], 1, 100.0)
    assert bench.next_passed() == [(0, 0)]
    assert bench.shaper.try_pass(bench.flows[1], 1, 100.0)


def test_of_one_circuit_both_directions_pass_in_the_order_in_which_they_came() -> None:
    bench = overdrawn(1)
    for side in (1, 0):
        bench.shaper.wait(bench.flows[0], side, PIECE)
    assert bench.next_passed() == [(0, 1)]
    assert bench.next_passed() == [(0, 0)]
    assert bench.shaper.next_deadline() is None


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((PIECE, PIECE), [0, 1, 0, 1]),
        ((PIECE // 2, PIECE), [0, 0, 1] * 2),
        ((PIECE // 4, PIECE // 2, PIECE), [0, 0, 0, 0, 1, 1, 2] * 2),
        ((PIECE // 2 + 1, PIECE), [0, 1, 0, 0, 1, 0, 0, 1]),  # what was left counts next time
    ],
)
def test_each_circuit_has_as_many_bytes_a_turn(sizes: Sequence[int], wanted: list[int]) -> None:
    assert overdrawn(len(sizes)).order(sizes, len(wanted)) == wanted


def test_on_a_thin_line_a_turn_is_short() -> None:
    line = Line()
    line.limit(10_000.0)
    line.spend(100_000, 0.0)
    turn = line.turn_bytes_max(is_far=True)
    assert turn < PIECE
    bench = Bench(2, bytes_per_s=None, line=line)
    assert bench.order((turn // 4, turn), 10) == [0, 0, 0, 0, 1] * 2
    large = Bench(2, bytes_per_s=None, line=line)
    large.now = 1000.0
    assert large.order((2 * turn, PIECE), 4) == [0, 1, 0, 1], "any piece passes in one turn"


def test_a_circuit_at_its_peers_limit_stands_aside_until_that_is_free() -> None:
    bench = Bench(2, bytes_per_s=None, peer_bytes_per_s=1000.0)
    slow, quick = bench.flows
    assert slow.account.rate is not None
    slow.account.rate.spend(6000, 0.0)  # two seconds more than it has saved
    assert not bench.shaper.try_pass(slow, 1, 0.0)
    bench.shaper.wait(slow, 0, 500)
    assert bench.shaper.release(0.0) == []
    assert bench.shaper.try_pass(quick, 500, 0.0), "none waits behind it"
    assert bench.shaper.next_deadline() == pytest.approx(2.0, abs=SOON)
    assert bench.shaper.release(1.9) == []
    assert bench.next_passed() == [(0, 0)]
    assert bench.shaper.next_deadline() is None


def test_who_stood_aside_saves_up_no_turn() -> None:
    bench = Bench(2, bytes_per_s=PIECE, peer_bytes_per_s=1e9)
    first, other = bench.flows
    assert first.account.rate is not None
    bench.shaper.try_pass(other, PIECE, 0.0)
    bench.shaper.wait(first, 0, PIECE // 4)
    bench.shaper.wait(other, 0, PIECE)
    assert bench.next_passed() == [(0, 0)]
    first.account.rate.spend(int(1e9 * (RELAY_BURST_S + 10)), bench.now)
    bench.shaper.wait(first, 0, PIECE // 2)
    assert bench.next_passed() == [(1, 0)]
    assert first.deficit_bytes == 0
    bench.shaper.wait(other, 0, PIECE)
    assert bench.next_passed() == [(1, 0)]


def test_nothing_of_a_circuit_that_is_over_waits_or_passes() -> None:
    bench = Bench(3, bytes_per_s=PIECE, peer_bytes_per_s=1000.0)
    aside, waiting, last = bench.flows
    assert aside.account.rate is not None
    bench.shaper.try_pass(last, 10, 0.0)
    aside.account.rate.spend(8000, 0.0)
    for flow in bench.flows:
        bench.shaper.wait(flow, 0, 10)
    bench.shaper.drop(waiting)
    assert bench.next_passed() == [(2, 0)]
    assert bench.shaper.next_deadline() == pytest.approx(4.0, abs=SOON)
    bench.shaper.drop(aside)
    assert bench.shaper.next_deadline() is None
    assert bench.shaper.release(100.0) == []
