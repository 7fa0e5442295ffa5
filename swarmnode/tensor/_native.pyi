from typing_extensions import Buffer

def isas() -> tuple[str, ...]: ...
def encode(
    isa: int,
    codec: int,
    n_kept: int,
    values: Buffer,
    payload: Buffer,
    reference: Buffer | None,
    /,
) -> int: ...
def validate(isa: int, codec: int, n_kept: int, payload: Buffer, n_elems: int, /) -> int: ...
def decode(
    isa: int,
    codec: int,
    n_kept: int,
    payload: Buffer,
    out: Buffer,
    reference: Buffer | None,
    /,
) -> int: ...
def decode_measured(
    isa: int,
    codec: int,
    n_kept: int,
    payload: Buffer,
    out: Buffer,
    reference: Buffer | None,
    /,
) -> tuple[int, float, float]: ...
def merge(
    isa: int,
    codec: int,
    n_kept: int,
    payload: Buffer,
    target: Buffer,
    reference: Buffer | None,
    own_weight: float,
    peer_weight: float,
    /,
) -> int: ...
def measure(isa: int, values: Buffer, /) -> tuple[float, float]: ...
def measure_payload(
    isa: int, codec: int, n_kept: int, payload: Buffer, n_elems: int, /
) -> tuple[int, float, float]: ...
def mean(
    isa: int,
    codec: int,
    n_kept: int,
    payloads: tuple[Buffer, ...],
    weights: tuple[float, ...],
    divisor: float,
    n_elems: int,
    out: Buffer,
    /,
) -> tuple[int, int]: ...
def products(
    isa: int,
    codec: int,
    n_kept: int,
    payloads: tuple[Buffer, ...],
    n_elems: int,
    gram: Buffer,
    /,
) -> int: ...
def sha256_two(first: int, message: Buffer, other: Buffer, /) -> tuple[bytes, bytes] | None: ...
