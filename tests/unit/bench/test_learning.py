"""The figures of ``bench learning``, and how its jobs are shared out."""

import pytest

from swarmnode.bench.learning import outcome
from swarmnode.bench.learning.jobs import CONFIG, Evaluation, Job, Trained, parse_jobs
from swarmnode.bench.learning.run import BASELINE_LRS, TASK_LR, deal_jobs, swarm_lr
from swarmnode.cli.bench import _json_object, _seeds
from swarmnode.errors import ConfigError
from swarmnode.tasks.bytes_lm import BytesLM


def _job(nodes: int, steps: int = 10) -> Job:
    return Job(kind="data-parallel", nodes=nodes, steps=steps, lr=0.01, seed=1, model_seed=1)


def _result(seed: int, alone: float, data_parallel: float, own: float) -> outcome.SeedResult:
    swarm = Trained(
        mean_loss=own - 0.01,
        own_loss=own,
        numel=1000,
        exchange_bytes=5000.0,
        committed=12.0,
        aborted=1.0,
    )
    return outcome.SeedResult(
        seed=seed,
        alone=alone,
        alone_lr=0.006,
        data_parallel=data_parallel,
        data_parallel_lr=0.012,
        swarm=swarm,
        sent_bytes=20_000.0,
    )


def test_the_share_is_that_of_the_mean_losses() -> None:
    results = [_result(1, 2.4, 2.0, 2.1), _result(2, 2.6, 2.0, 2.1)]
    found = outcome.combine(results, nodes=4, steps=100, strategy="streaming", engine="lab")
    assert found.share_own == pytest.approx(0.8)
    assert found.share_mean == pytest.approx(0.82)
    assert found.exchange_bytes_ratio == pytest.approx(5000 / (4 * 1000 * 100))
    assert found.bytes_ratio == pytest.approx(20_000 / (4 * 1000 * 100))
    assert found.seeds == [1, 2]


def test_the_json_has_the_fields_that_scripts_read() -> None:
    found = outcome.combine(
        [_result(1, 2.4, 2.0, 2.1)], nodes=4, steps=100, strategy="streaming", engine="lab"
    )
    assert list(outcome.as_json(found)) == [
        *("nodes", "steps", "strategy", "engine", "alone", "data_parallel"),
        *("swarm_own", "swarm_mean", "share_own", "share_mean", "bytes_per_node"),
        *("bytes_ratio", "exchange_bytes_ratio", "committed", "aborted", "seeds"),
    ]
    assert "keeps 75% (own models)" in outcome.format_outcome(found)


def test_without_a_gain_there_is_no_share() -> None:
    assert outcome.share(2.0, 2.0, 2.0) is None
    found = outcome.combine(
        [_result(1, 2.0, 2.0, 2.1)], nodes=4, steps=100, strategy="streaming", engine="lab"
    )
    assert "unknown: nothing was gained" in outcome.format_outcome(found)


def test_the_longest_jobs_are_dealt_first() -> None:
    jobs = [_job(1), _job(4), _job(1), _job(4)]
    assert deal_jobs(jobs, 2) == [[1, 0], [3, 2]]
    assert deal_jobs(jobs[:1], 8) == [[0]]


def test_a_swarm_takes_larger_steps_up_to_a_bound() -> None:
    rates = [swarm_lr(n) for n in (1, 4, 8, 64)]
    assert rates[0] == TASK_LR < rates[1] < rates[2] == rates[3]
    assert len(BASELINE_LRS) == 3
    assert min(BASELINE_LRS) <= rates[1] <= rates[2] <= max(BASELINE_LRS)


def test_what_a_process_is_asked_is_checked() -> None:
    text = '[{"kind":"data-parallel","nodes":1,"steps":2,"lr":0.1,"seed":1,"model_seed":1}]'
    assert parse_jobs(text) == [
        Job(kind="data-parallel", nodes=1, steps=2, lr=0.1, seed=1, model_seed=1)
    ]
    assert parse_jobs('{"snapshots":["a"],"config":{}}') == Evaluation(snapshots=["a"], config={})
    with pytest.raises(ConfigError, match="expected jobs"):
        parse_jobs('[{"kind":"magic"}]')


@pytest.mark.parametrize("text", ["", "1,1", "a", "1,,2", "-1"])
def test_seeds_are_different_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        _seeds(text)


def test_settings_are_a_json_object() -> None:
    assert _json_object('{"every": 8}', "--settings") == {"every": 8}
    with pytest.raises(ConfigError, match="--settings: expected a JSON object"):
        _json_object("[1]", "--settings")


def test_what_is_trained_is_the_task_as_it_is_created() -> None:
    assert BytesLM.Config(**CONFIG) == BytesLM.Config()
