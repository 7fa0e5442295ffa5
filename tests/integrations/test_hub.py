"""Models of the hub: loaded from a folder, proven by hashes, trained whole or by adapters."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.config import Paths
from swarmnode.errors import ConfigError
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.store.training_data import load_training_data
from swarmnode.tasks.base import DataError
from swarmnode.tasks.hub_files import pinned
from swarmnode.tasks.hub_lm import HubLM
from swarmnode.worker.model.device import Device
from swarmnode.worker.model.state import TrainState, build_state
from swarmnode.worker.snapshots.atoms import weights
from tests.kits.hub_kit import CONTEXT, make_gpt2, make_llama

pytestmark = [
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("peft") is None,
        reason="needs transformers and peft",
    ),
    # Of peft: a name in transformers, and what it then sets right for GPT-2.
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

MAKERS = {"llama": make_llama, "gpt2": make_gpt2}
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}</s>{% endfor %}"


@pytest.fixture(scope="module", params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("hub") / request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("hub") / "llama", template=TEMPLATE)


def task_of(folder: Path, data: Path | str = "", **settings: Any) -> HubLM:
    config = pinned({"context": CONTEXT, "batch": 4} | settings, folder)
    return opened(config, folder, data)


def opened(config: dict[str, Any], folder: Path, data: Path | str = "") -> HubLM:
    task = HubLM(config, data_dir=str(data))
    task.model_dir = str(folder)
    return task


def state_of(folder: Path, **settings: Any) -> TrainState:
    return build_state(task_of(folder, **settings), swarm_seed=3, device="cpu")


def steps(state: TrainState, n: int = 3) -> list[float]:
    """Return the loss of one batch before each step on it."""
    batch = next(state.batches(1))
    return [state.take_step(batch) for _ in range(n)]


def test_all_of_it_is_trained_from_its_own_weights(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    state = state_of(folder, lr=1e-3)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    batch = next(state.batches(1))
    with torch.no_grad():
        expected = plain(input_ids=batch[:, :-1], labels=None).logits
        state.model.eval()
        assert torch.equal(state.model(input_ids=batch[:, :-1]).logits, expected)
        state.model.train()
    losses = steps(state)
    assert losses[-1] < losses[0]
    assert state.arena.numel == sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize("more", [{}, {"bf16": True, "checkpointing": True}])
def test_with_adapters_nothing_else_is_trained_or_kept(folder: Path, more: dict[str, Any]) -> None:
    state = state_of(folder, lora_rank=2, lr=1e-2, **more)
    frozen = {n: p.clone() for n, p in state.model.named_parameters() if not p.requires_grad}
    losses = steps(state)
    assert losses[-1] < losses[0]
    assert all("lora_" in name for name in state.arena.names)
    # What a snapshot has, and what a newcomer is sent.
    assert all("lora_" in name for name in weights(state.model))
    assert {p.dtype for p in frozen.values()} == {torch.bfloat16 if more else torch.float32}
    for name, parameter in state.model.named_parameters():
        assert parameter.requires_grad or torch.equal(parameter, frozen[name])


def test_checkpointing_changes_no_gradient(llama: Path) -> None:
    plain, saving = state_of(llama), state_of(llama, checkpointing=True)
    batch = next(plain.batches(1))
    for state in (plain, saving):
        state.backward(batch)
    assert torch.allclose(plain.arena.gradient(), saving.arena.gradient(), atol=1e-7)


def test_a_seed_gives_the_same_adapters_wherever_they_are_made(llama: Path) -> None:
    torch.manual_seed(9)
    first = state_of(llama, lora_rank=2).arena
    assert torch.equal(first.flat, state_of(llama, lora_rank=2).arena.flat)
    other = build_state(task_of(llama, lora_rank=2), swarm_seed=4, device="cpu").arena
    assert first.layout.layout_hash == other.layout.layout_hash
    assert not torch.equal(first.flat, other.flat)


def test_targets_are_what_gets_adapters(llama: Path) -> None:
    names = state_of(llama, lora_rank=2, lora_targets="q_proj,v_proj").arena.names
    assert len(names) == 8  # two layers, two projections, two factors
    with pytest.raises(ConfigError, match="lora_targets nothing: Target modules"):
        state_of(llama, lora_rank=2, lora_targets="nothing")


def test_another_model_is_refused_and_said_in_what(llama: Path, tmp_path: Path) -> None:
    config = pinned({}, llama)
    other = make_llama(tmp_path / "other", seed=2, template=TEMPLATE)
    with pytest.raises(ConfigError, match=r"the weights of .* it is another model"):
        opened(config, other).build_model(0)
    wide = make_llama(tmp_path / "wide", template=TEMPLATE, hidden_size=64)
    with pytest.raises(ConfigError, match=r"the config of .* it is another model"):
        opened(config, wide).build_model(0)
    (other / "chat_template.jinja").write_text("another")
    with pytest.raises(ConfigError, match=r"the tokenizer of .* it is another model"):
        opened(config, other).build_model(0)


def test_one_changed_byte_of_the_weights_is_refused(llama: Path, tmp_path: Path) -> None:
    copy = make_llama(tmp_path / "copy", template=TEMPLATE)
    config = pinned({}, llama)
    opened(config, copy).build_model(0)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match="the weights of"):
        opened(config, copy).build_model(0)


def test_weights_count_and_not_the_files_that_they_are_in(llama: Path, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(llama).save_pretrained(tmp_path, max_shard_size="50KB")
    for path in llama.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert pinned({}, tmp_path) == pinned({}, llama)


def without(folder: Path, name: str) -> None:
    (folder / name).unlink()


def with_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_pickle(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    without(folder, "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: without(f, "tokenizer.json"), "has no tokenizer.json"),
        (lambda f: without(f, "config.json"), "no JSON that can be read"),
        (with_pickle, "has no model.safetensors: other files of weights can hold code"),
        (lambda f: with_config(f, quantization_config={}), "is quantized"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "is an adapter"),
        (
            lambda f: with_config(f, model_type="own", auto_map={"AutoConfig": "code.Config"}),
            "is no causal model",
        ),
        (lambda f: with_config(f, num_hidden_layers=3), r"lacks 9 weights .* such as model\."),
    ],
)
def test_what_is_no_model_to_go_on_from_is_refused(tmp_path: Path, spoil: Any, words: str) -> None:
    make_llama(tmp_path)
    spoil(tmp_path)
    (tmp_path / "code.py").write_text("raise SystemExit('this must not run')")
    with pytest.raises(ConfigError, match=words):
        task_of(tmp_path).build_model(0)


def test_without_the_folder_it_says_what_is_needed() -> None:
    task = HubLM({"model": "org/name", "revision": "abc"})
    with pytest.raises(ConfigError, match=r"--model org/name@abc, or --model FOLDER"):
        task.build_model(0)
    with pytest.raises(ConfigError, match="setting model"):
        HubLM({"model": "../../etc"})


def test_conversations_are_rendered_as_the_model_has_learnt(llama: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "the end"}]
    lines = json.dumps({"messages": messages}) + "\n"
    (tmp_path / "chat.jsonl").write_text(40 * lines)
    task = task_of(llama, tmp_path, text_field="messages")
    batch = next(task.batches(1))
    text = task.tokenizer.decode(batch[0].tolist())
    assert "[user] the cat[assistant] the end" in text
    (tmp_path / "chat.jsonl").write_text(40 * lines.replace("content", "contents"))
    with pytest.raises(DataError, match="expected a text in the field 'messages'"):
        next(task_of(llama, tmp_path, text_field="messages").batches(1))


def test_a_model_without_a_template_gets_chatml(tmp_path: Path) -> None:
    task = task_of(make_llama(tmp_path))
    assert task.render([{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n"


def test_the_end_of_a_document_is_the_models_own(llama: Path, tmp_path: Path) -> None:
    assert task_of(llama).tokenizer.end == 0
    assert task_of(make_llama(tmp_path, eos_token_id=[7, 0])).tokenizer.end == 7


def created(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ("create", "mine", "--home", str(home), "--json", *options)
    return subprocess.run(
        worker_command("swarmnode", *command),
        env=worker_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_create_names_the_model_by_its_hashes_and_keeps_its_place(
    llama: Path, tmp_path: Path
) -> None:
    done = created(tmp_path, "--model", str(llama), "--lora", "r=2,targets=q_proj+v_proj")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["task"] == "hub-lm"
    config = facts["config"]
    assert (config["lora_rank"], config["lora_targets"]) == (2, "q_proj,v_proj")
    assert config["lr"] == 10 * HubLM.Config().lr  # adapters want more
    assert pinned({}, llama).items() <= config.items()
    assert str(llama) not in json.dumps(config)  # a path is this node's own business
    remembered = load_training_data("mine", Paths(tmp_path))
    assert remembered.model == str(llama)
    # In two layers factors of rank 2: from 32 to 32 for queries, from 32 to 16 for values.
    assert facts["numel"] == 2 * (2 * 32 + 2 * 32 + 2 * 32 + 2 * 16)


def test_create_takes_all_of_a_model_and_texts(llama: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for n in range(100):
        (texts / f"{n}.txt").write_text(
            f"the cat and the dog and the tree and the number {n}\n" * 20
        )
    done = created(tmp_path / "home", "--model", str(llama), "--data", str(texts))
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    whole = sum(p.numel() for p in task_of(llama).build_model(0).parameters())
    assert facts["numel"] == whole
    assert facts["config"]["lr"] == HubLM.Config().lr
    remembered = load_training_data("mine", Paths(tmp_path / "home"))
    assert (remembered.model, remembered.folder) == (str(llama), str(texts))


def test_create_by_the_preset_for_chats_trains_on_conversations(
    llama: Path, tmp_path: Path
) -> None:
    conversations = tmp_path / "conversations"
    conversations.mkdir()
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "the end"}]
    (conversations / "chat.jsonl").write_text(400 * (json.dumps({"messages": messages}) + "\n"))
    places = ("--model", str(llama), "--data", str(conversations))
    sizes = ("--set", f"context={CONTEXT}", "--set", "batch=4")
    done = created(tmp_path / "home", "--task", "lora-chat", *places, *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["task"] == "hub-lm"
    config = facts["config"]
    assert config["text_field"] == "messages"
    assert config["bf16"]
    assert config["checkpointing"]
    # What a member makes of this manifest: adapters of that rank, and batches of the conversations.
    task = opened(config, llama, conversations)
    state = build_state(task, swarm_seed=3, device="cpu")
    assert state.arena.numel == facts["numel"]
    shapes = {n: p.shape for n, p in state.model.named_parameters() if p.requires_grad}
    assert {shape[0] for name, shape in shapes.items() if "lora_A" in name} == {16}
    text = task.tokenizer.decode(next(task.batches(1))[0].tolist())
    assert "[user] the cat[assistant] the end" in text
    losses = steps(state)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--task", "bytes-lm", "--model", "{llama}"), "expected the task hub-lm, got bytes-lm"),
        (("--model", "nowhere"), "--model: expected a folder with a model, or its NAME"),
        (("--task", "lora-chat"), "task hub-lm: this swarm goes on from the model"),
        ((), "expected a task to train, --task NAME, or a --model to go on from"),
    ],
)
def test_create_refuses_what_is_no_model_to_go_on_from(
    llama: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done = created(tmp_path, *(option.format(llama=llama) for option in options))
    assert done.returncode == 2
    assert words in done.stdout + done.stderr


def test_bf16_is_of_frozen_weights_only() -> None:
    with pytest.raises(ConfigError, match="bf16 is of frozen weights"):
        HubLM({"bf16": True})


def test_it_is_computed_in_bfloat16_where_the_device_does(llama: Path) -> None:
    state = state_of(llama)
    state.device = Device(torch.device("cpu"), torch.bfloat16)
    losses = steps(state)
    assert losses[-1] < losses[0]
