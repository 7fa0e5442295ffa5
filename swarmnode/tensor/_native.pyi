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
