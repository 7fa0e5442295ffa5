"""Error feedback: what a payload could not say is added to what is encoded next.

The residual e of a sender starts at zero. For every vector v that is due:

    p = v + e,   the payload is C(p),   e = p - decoded C(p)

so that what was sent and the residual always sum up to what was given, up to
rounding (Seide et al., "1-Bit Stochastic Gradient Descent", 2014). With a
biased codec such as TK4, TK2 or SIGN64 nothing is lost, only late. That holds only
where every consumer sees every message: towards random partners the residual
raises the disagreement instead of lowering it.

The residual belongs to one sender, one codec and one vector; a snapshot saves
it, and a node that has none starts at zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmnode.errors import MalformedMessage, WorkerError
from swarmnode.tensor.codec import Codec, get_codec

if TYPE_CHECKING:
    from typing_extensions import Buffer


def encode_with_feedback(codec: Codec, values: Buffer, residual: Buffer, payload: Buffer) -> None:
    """Encode ``values`` plus ``residual``, and leave in the residual what the payload lacks.

    Works in place and without temporary arrays; long vectors are best cut into chunks that stay
    in the cache, each with its piece of the residual, at multiples of ``codec.block_elems``.

    Args:
        codec: any; those with ``needs_error_feedback`` make no sense without this.
        values: float32 [n_elems].
        residual: float32 [n_elems], writable; zeros at first.
        payload: writable, exactly ``codec.payload_bytes(n_elems)`` bytes.

    Raises:
        WorkerError: a value is NaN or infinite: the residual is as it was. Or the sum with the
            residual is: the residual is zero then, as nothing finite could be made of it.
        LocalProtocolError: a buffer has the wrong size, type or layout.
    """
    raw = get_codec("RAW32", codec.isa)
    try:
        raw.merge(memoryview(values).cast("B"), residual, 1.0, 1.0)
    except MalformedMessage:
        raise WorkerError(
            f"{codec.name}: expected finite values, got NaN or infinity; nothing is sent: "
            "lower the learning rate or resume from a snapshot"
        ) from None
    try:
        codec.encode(residual, payload)
    except WorkerError:
        _clear(residual)
        raise
    codec.merge(payload, residual, 1.0, -1.0)


def _clear(residual: Buffer) -> None:
    view = memoryview(residual).cast("B")
    view[:] = bytes(len(view))
