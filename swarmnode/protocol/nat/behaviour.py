"""What a NAT does, as a survey of it says (``survey``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarmnode.protocol.nat.stun import Endpoint


class Dependence(StrEnum):
    """What a mapping or a filter depends on; names as in RFC 4787."""

    NONE = "endpoint-independent"
    ADDRESS = "address-dependent"
    PORT = "address-and-port-dependent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NatBehaviour:
    """The result. Without any answer, UDP is blocked or every server is down."""

    answers: int  # servers that answered
    is_translated: bool | None  # None: no answer
    mapping: Dependence
    filtering: Dependence
    hairpins: bool | None  # None: not tried, as without a NAT
    public: Endpoint | None  # of the first socket, as most servers saw it
