"""The benchmark's result and table; how fast is not judged on a shared machine."""

from __future__ import annotations

import json

from swarmnode.bench.codec import format_codec_bench, run_codec_bench
from swarmnode.limits import MIB
from swarmnode.tensor.codec import CODEC_NAMES, available_isas

FIELDS = {
    "codec",
    "isa",
    "encode_gbps",
    "decode_gbps",
    "merge_gbps",
    "nmse",
    "bits_per_element",
}
NMSE_MAX = {
    "RAW32": 0.0,
    "BF16": 2.9e-6,
    "Q8B64": 4.0e-5,
    "Q4B64": 1.25e-2,
    "E3M0": 4.3e-2,
    "Q2B64": 0.118,
    "T3B320": 0.192,
    "SIGN64": 0.38,
    "TK4": 0.89,
    "TK2": 0.89,
    "Q8B64-ref": 4.0e-7,
}


def test_every_codec_on_every_instruction_set_has_a_row() -> None:
    assert NMSE_MAX.keys() >= set(CODEC_NAMES)
    result = run_codec_bench(2 * MIB)
    assert result.keys() == {"memcpy_gbps", "codecs"}
    assert [(row["codec"], row["isa"]) for row in result["codecs"]] == [
        (name, isa) for name in NMSE_MAX for isa in available_isas()
    ]
    for row in result["codecs"]:
        assert row.keys() == FIELDS
        assert min(row["encode_gbps"], row["decode_gbps"], row["merge_gbps"]) > 0
        assert row["nmse"] <= NMSE_MAX[row["codec"]]
    assert json.loads(json.dumps(result)) == result


def test_the_table_has_a_line_for_each_row() -> None:
    result = run_codec_bench(MIB, isas=["ref"])
    lines = format_codec_bench(result).splitlines()
    assert len(lines) == 3 + len(NMSE_MAX)
    assert lines[1] == f"memcpy {result['memcpy_gbps']:.2f}"
    assert lines[-1].startswith("Q8B64-ref ref")
