"""``swarmnode simulate --strategy``, from the command line to the figures."""

import json

import pytest

from swarmnode.cli.main import main
from swarmnode.errors import ConfigError
from swarmnode.testing.lab.runs import Run, build_arena, execute, parse_run


def simulate(capfd, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    out, err = capfd.readouterr()
    return ended.value.code, out, err


def test_dadao_solves_least_squares(capfd, tmp_path):
    picture = tmp_path / "run.png"
    arguments = ("--strategy=dadao", "--task=lsq", "--topology=complete", "--nodes=8", "--json")
    status, out, err = simulate(capfd, *arguments, f"--plot={picture}")
    assert (status, err) == (0, "")
    figures = json.loads(out)
    assert figures["strategy"] == "dadao"
    assert figures["error"] <= 1e-12
    assert figures["diverged"] is False
    assert figures["bytes"] == 2 * figures["exchanges"] * 5 * 8
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_dadao_is_not_for_digits(capfd):
    status, out, err = simulate(capfd, "--strategy=dadao", "--task=digits")
    assert (status, out) == (2, "")
    assert "strongly convex" in err


def test_figures_of_digits():
    run = Run(strategy="pair-average", settings={"every": 5}, task="digits", nodes=4, steps=100)
    figures = execute(run).figures
    assert figures["gradients"] == 400
    assert figures["exchanges"] == 2 * 20
    assert figures["bytes"] == 40 * 2 * 4 * 13130
    assert figures["accuracy"] > 0.85
    assert figures["loss"] < 0.5
    assert figures["consensus"] > 0
    assert execute(run).figures == figures


def test_faults_speeds_and_codecs_reach_the_arena():
    arena = build_arena(
        Run(strategy="pair-average", nodes=5, spread=8.0, crashes=2, partition=True, steps=100)
    )
    assert [node.speed for node in arena.nodes] == pytest.approx([8 ** (-i / 4) for i in range(5)])
    assert [(o.begin, o.end) for o in arena.faults.outages] == [(40, 70)] * 2
    assert (arena.faults.cut.begin, arena.faults.cut.end) == (50, 75)


def test_what_diverges_says_so():
    figures = execute(Run(strategy="pair-average", lr=3.0, nodes=4, steps=300)).figures
    assert figures["diverged"] is True
    assert "error" not in figures
    assert figures["gradients"] < 4 * 300


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ('{"strategy": "mean"}', "expected a strategy among"),
        ('{"strategy": "pair-average", "settings": {"evry": 1}}', "unknown setting 'evry'"),
        ('{"strategy": "pair-average", "topology": "line"}', "expected a topology"),
        ('{"strategy": "pair-average", "crashes": 16}', "expected fewer than 16 nodes"),
        ('{"strategy": "pair-average", "task": "mnist"}', "expected a run"),
    ],
)
def test_what_cannot_be_run_is_refused(run, message):
    with pytest.raises(ConfigError, match=message):
        build_arena(parse_run(run))
