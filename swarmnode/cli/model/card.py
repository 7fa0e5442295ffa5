"""The page of an exported model: who trained it, how, and how its loss fell."""

from __future__ import annotations

import json
import re
from typing import Any

LOSS_PICTURE = "loss.svg"
LIBRARIES = {"transformers": "transformers", "adapter": "peft"}

_ROWS_MAX = 12  # of the table of losses; the picture has all
_WIDTH, _HEIGHT, _LEFT, _EDGE = 640, 320, 64, 32
_USE = {
    "swarmnode": """`swarmnode generate DIRECTORY --prompt "The "` writes text where the task can.
The weights are plain safetensors; `config.json` has the settings to build the model with.""",
    "transformers": """    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("DIRECTORY")
    tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")""",
    "gguf": "`llama-cli -m DIRECTORY/model.gguf` of llama.cpp writes text; it is all in float32.",
    "adapter": """    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained("BASE")  # whose hashes are below
    model = PeftModel.from_pretrained(base, "DIRECTORY")""",
}


def model_card(facts: dict[str, Any], place: str) -> str:
    """Return README.md, of what ``export_model`` found; ``place``: where the model will be."""
    rows = "\n".join(
        f"| {_escaped(one['name'])} | `{one['peer']}` | {one['steps']:,} | {one['tokens']:,} |"
        for one in facts["contributors"]
    )
    settings = "\n".join(f"- {key}: {value}" for key, value in facts["task_config"].items())
    loss = facts["loss_held_out"]
    return f"""{_front_matter(facts)}# {facts["swarm"]}

A model of the task `{facts["task"]}` (version {facts["task_version"]}), trained by
{_peers(len(facts["contributors"]))} of the swarm `{facts["swarm"]}` with swarmnode
{facts["swarmnode_version"]}. Exported {facts["exported_at"]} from the node named first below.

- parameters: {facts["parameters"]:,}
- step of the exporting node: {facts["step"]:,}
- tokens, all peers together: {facts["tokens_total"]:,}
- loss on held-out data: {"not measured" if loss is None else f"{loss:.4f}"}
- model: {_origin(facts["merge"])}
- strategy: {facts["strategy"]} {json.dumps(facts["strategy_settings"])}, codec {facts["codec"]}
- recipe: {facts["recipe"]}
- SHA-256 of the training data: `{facts["data_hash"]}`

{_curve(facts["losses"])}## Settings

{settings}

## Who trained it

Names and numbers of other peers are what they said of themselves.

| name | peer | steps | tokens |
|---|---|---|---|
{rows}

## Use

{_use(facts, place)}
"""


def _use(facts: dict[str, Any], place: str) -> str:
    return _USE[facts["format"]].replace("DIRECTORY", place).replace("BASE", _base(facts) or "BASE")


def loss_picture(losses: list[list[float]]) -> str:
    """Return an SVG of held-out losses, [step, loss] each, two or more."""
    steps, values = [step for step, _ in losses], [loss for _, loss in losses]
    low, high = min(values), max(values)
    points = " ".join(
        f"{_place(step, steps[0], steps[-1], _LEFT, _WIDTH - _EDGE):.1f},"
        f"{_place(loss, high, low, _EDGE, _HEIGHT - _EDGE):.1f}"
        for step, loss in losses
    )
    foot = _HEIGHT - _EDGE
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">
<title>Loss on held-out data: {values[0]:.4f} after {steps[0]:,} steps, {values[-1]:.4f} after \
{steps[-1]:,}</title>
<rect width="100%" height="100%" fill="#fff"/>
<path d="M{_LEFT} {_EDGE}V{foot}H{_WIDTH - _EDGE}" fill="none" stroke="#777"/>
<polyline points="{points}" fill="none" stroke="#06c" stroke-width="2"/>
<g font-family="sans-serif" font-size="12" fill="#333">
<text x="{_LEFT - 6}" y="{_EDGE + 4}" text-anchor="end">{high:.4g}</text>
<text x="{_LEFT - 6}" y="{foot}" text-anchor="end">{low:.4g}</text>
<text x="{_LEFT}" y="{foot + 18}">{steps[0]:,}</text>
<text x="{_WIDTH - _EDGE}" y="{foot + 18}" text-anchor="end">{steps[-1]:,} steps</text>
</g>
</svg>
"""


def _place(value: float, begin: float, end: float, near: float, far: float) -> float:
    share = (value - begin) / (end - begin) if begin != end else 0.5
    return near + share * (far - near)


def _curve(losses: list[list[float]]) -> str:
    if len(losses) < 2:
        return ""
    every = -(-len(losses) // _ROWS_MAX)
    shown = [*losses[:-1:every], losses[-1]]
    rows = "\n".join(f"| {step:,} | {loss:.4f} |" for step, loss in shown)
    return f"""## Loss

On held-out data, at the exporting node.

![How the loss fell]({LOSS_PICTURE})

| step | loss |
|---|---|
{rows}

"""


def _front_matter(facts: dict[str, Any]) -> str:
    """Return what the hub reads of a card; nothing for an export that it does not know."""
    library = LIBRARIES.get(facts["format"])
    if library is None:
        return ""
    base = _base(facts)
    lines = [f"library_name: {library}", "pipeline_tag: text-generation", "tags: [swarmnode]"]
    lines += [f"base_model: {base}"] if base else []
    return "\n".join(("---", *lines, "---", "", ""))


def _base(facts: dict[str, Any]) -> str:
    """Return the model of the hub that training went on from, a name that the task has checked."""
    return str(facts["task_config"].get("model", "")) if facts["task"] == "hub-lm" else ""


def _escaped(name: str) -> str:
    """Return a name that a stranger chose so that Markdown and HTML see text in it."""
    return re.sub(r"[^\w .+-]", lambda found: f"&#{ord(found[0])};", name)


def _origin(merge: dict[str, Any] | None) -> str:
    if merge is None:
        return "that of the exporting node"
    return (
        f"of {merge['contributors']} nodes, merged by {merge['rule']}; {merge['agreed']} of them"
        f" came to the parameters with the SHA-256 `{merge['digest']}`"
    )


def _peers(count: int) -> str:
    return "one peer" if count == 1 else f"{count} peers"
