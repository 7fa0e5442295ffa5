"""Two real nodes tune adapters for a model of the hub, and plain libraries read what comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.kit import committed_on_both
from tests.kits.daemon_kit import Daemon, free_port, swarmnode
from tests.kits.hub_kit import CONTEXT, make_llama

pytestmark = [
    pytest.mark.slow,  # transformers in six processes
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("peft") is None,
        reason="needs transformers and peft",
    ),
    # Of peft: a former name in transformers.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

LINE = "the cat and the dog and the tree and the end\n"
EXCHANGES = 3
STEPS = 200  # of each: after 100 the loss was a tenth lower, give or take a hundredth
TRAINED_S = 360.0  # alone it takes 25: beside the laboratory the imports of a worker took 96


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two nodes that train adapters, begun with a folder of the model and one of text each."""
    base, data = make_llama(tmp_path / "base"), tmp_path / "data"
    data.mkdir()
    (data / "text.jsonl").write_text(400 * (json.dumps({"text": 8 * LINE}) + "\n"))
    ports = [free_port(), free_port()]
    places = ("--model", str(base), "--data", str(data))
    sizes = (f"context={CONTEXT}", "batch=4", "lr=0.01", "strategy.every=8", "strategy.fragments=1")
    settings = [part for size in sizes for part in ("--set", size)]
    where = ("--listen", f"127.0.0.1:{ports[0]}")
    homes = [tmp_path / "a", tmp_path / "b"]
    create = ("create", "mine", *places, "--lora", "r=2", *settings, *where, "--json")
    created = swarmnode(homes[0], *create)
    assert created.code == 0, created.err + created.out
    links = ["mine", created.json["link"]]
    with ExitStack() as stack:
        nodes = []
        for home, link, port in zip(homes, links, ports, strict=True):
            nodes.append(Daemon(home, link, *places, port=port))
            stack.callback(nodes[-1].kill)
        yield nodes


def held_out_loss(model: Any, base: Path) -> float:
    """Return what a plain model of transformers makes of the text."""
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(base)(4 * LINE, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(model.eval()(input_ids=tokens, labels=tokens).loss)


def test_two_nodes_tune_adapters_that_peft_and_transformers_read(
    running: list[Daemon], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    statuses = [
        node.wait(
            lambda s: (
                s["exchanges_committed"] >= EXCHANGES
                and s["step"] >= STEPS
                and s["eval_loss"] is not None
            ),
            "exchanges, steps, and a loss on held-out text",
            TRAINED_S,
        )
        for node in running
    ]
    outs = [tmp_path / "adapter", tmp_path / "whole"]
    for out, how in zip(outs, (("--adapter",), ("--format", "transformers")), strict=True):
        answer = swarmnode(running[0].home, "export", str(out), *how, "--json")
        assert answer.code == 0, answer.err + answer.out
        assert len(answer.json["contributors"]) == 2
        assert all(one["tokens"] for one in answer.json["contributors"])
    homes = {status["peer"]: node.home for status, node in zip(statuses, running, strict=True)}
    for node in running:
        node.ask("/leave")
        assert node.process is not None
        node.process.wait(60)
    assert committed_on_both(homes) >= EXCHANGES

    before = held_out_loss(AutoModelForCausalLM.from_pretrained(base), base)
    plain = AutoModelForCausalLM.from_pretrained(base)
    tuned = held_out_loss(PeftModel.from_pretrained(plain, outs[0]), base)
    whole = held_out_loss(AutoModelForCausalLM.from_pretrained(outs[1]), base)
    assert tuned < 0.9 * before
    assert whole < 0.9 * before
