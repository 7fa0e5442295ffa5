"""``swarmnode bench state``: a newcomer that learns all, in a fraction of the bytes."""

from __future__ import annotations

from click.testing import CliRunner

from swarmnode.cli.bench import bench


def test_a_newcomer_learns_all_in_less_than_half_of_the_bytes() -> None:
    from swarmnode.bench.state import format_state_bench, run_state_bench

    result = run_state_bench(12)
    assert result["members"] == 12, "the newcomer knows all of them now"
    assert result["times_smaller"] > 2
    assert result["sent_bytes"] * result["times_smaller"] == result["plain_bytes"]
    assert result["records"] > 12
    assert "times_smaller" in format_state_bench(result)


def test_it_prints_json() -> None:
    run = CliRunner().invoke(bench, ["state", "--members", "1", "--json"])
    assert '"members": 1,' in run.output
