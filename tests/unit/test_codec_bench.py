"""The benchmark's result and table; how fast is not judged on a shared machine."""

from __future__ import annotations

import json

from swarmnode.cli.bench_codec import format_codec_bench, run_codec_bench
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


def test_every_codec_on_every_instruction_set_has_a_row() -> None:
    result = run_codec_bench(2 * MIB)
    assert result.keys() == {"memcpy_gbps", "codecs"}
    assert [(row["codec"], row["isa"]) for row in result["codecs"]] == [
        (name, isa) for name in CODEC_NAMES for isa in available_isas()
    ]
    for row in result["codecs"]:
        assert row.keys() == FIELDS
        assert min(row["encode_gbps"], row["decode_gbps"], row["merge_gbps"]) > 0
        assert row["nmse"] <= (4.0e-5 if row["codec"] == "Q8B64" else 1.25e-2)
    assert json.loads(json.dumps(result)) == result


def test_the_table_has_a_line_for_each_row() -> None:
    result = run_codec_bench(MIB, isas=["ref"])
    lines = format_codec_bench(result).splitlines()
    assert len(lines) == 3 + len(CODEC_NAMES)
    assert lines[1] == f"memcpy {result['memcpy_gbps']:.2f}"
    assert lines[-1].startswith("Q4B64  ref")
