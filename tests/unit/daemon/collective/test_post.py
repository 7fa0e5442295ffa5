"""How a payload leaves: in pieces of an eighth of a second of the line, as it was measured."""

import pytest

from swarmnode import limits
from swarmnode.daemon.collective.post import SendRate

_PAYLOAD_BYTES = 13_000_000


def measured(bytes_per_s: float) -> SendRate:
    """Return the rate after one payload at such a speed."""
    rate = SendRate()
    rate.begin(0.0)
    rate.sent(_PAYLOAD_BYTES)
    rate.end(_PAYLOAD_BYTES / bytes_per_s, is_whole=True)
    assert rate.bytes_per_s == pytest.approx(bytes_per_s)
    return rate


@pytest.mark.parametrize(
    ("bytes_per_s", "piece_bytes"),
    [
        (1_000, 16 * limits.KIB),  # a thin line: what is out is known to the piece
        (125_000, 16 * limits.KIB),  # 1 Mbit/s
        (1_000_000, 125_000),
        (1_000_000_000, limits.MIB),  # a LAN: a dozen for the whole payload, not a thousand
    ],
)
def test_a_piece_is_an_eighth_of_a_second_within_bounds(bytes_per_s, piece_bytes) -> None:
    assert measured(bytes_per_s).piece_bytes == piece_bytes


def test_the_first_payload_goes_as_on_a_thin_line() -> None:
    assert SendRate().piece_bytes == 16 * limits.KIB
