"""Models as transformers and peft read them: the same logits, and nothing of this machine."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.tasks.hub_files import pinned
from swarmnode.tasks.hub_lm import HubLM
from swarmnode.worker.model.state import TrainState, build_state
from tests.integrations.kit import after_steps, converted, exported, small_llama
from tests.kits.hub_kit import CONTEXT, VOCABULARY, make_gpt2, make_llama, make_tokenizer

pytestmark = [
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("transformers", "peft", "gguf")),
        reason="needs transformers, peft and gguf",
    ),
    # Of peft: it sets right what GPT-2 has the other way round, and asks by a former name.
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    # Of what we see to ourselves.
    pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True. and:UserWarning"),
]

MAKERS = {"llama": make_llama, "gpt2": make_gpt2}
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}</s>{% endfor %}"
TEXT = "the cat and the café\n"
LOGITS = 1e-5


@pytest.fixture(scope="module", params=MAKERS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("hub") / "secret-place")


def trained(base: Path, **settings: Any) -> TrainState:
    task = HubLM(pinned({"context": CONTEXT, "batch": 4, "lr": 1e-2} | settings, base))
    task.model_dir = str(base)
    return after_steps(build_state(task, swarm_seed=3, device="cpu"))


def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found = model.eval()(tokens)
    return getattr(found, "logits", found)


def assert_same_logits(state: TrainState, read: Any) -> None:
    tokens = next(state.batches(2))[:, :-1]
    expected = logits_of(state.model.float(), tokens)
    found = logits_of(read, tokens)
    assert expected.abs().max() > 0.1
    assert (found - expected).abs().max() <= LOGITS


def assert_tells_nothing_of_this_machine(out: Path, base: Path) -> None:
    for path in out.iterdir():
        assert str(base).encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"checkpointing": True},
        {"lora_rank": 2, "bf16": True},
        {"lora_rank": 2, "lora_targets": "lm_head"},  # GPT-2's is the input's weight, too
    ],
)
def test_transformers_reads_what_was_trained(
    base: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    state = trained(base, **settings)
    out = exported(state, tmp_path, "transformers", f"--model-dir={base}")
    read = AutoModelForCausalLM.from_pretrained(out)
    assert_same_logits(state, read)
    assert read.config.model_type == json.loads((base / "config.json").read_text())["model_type"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer(TEXT).input_ids == AutoTokenizer.from_pretrained(base)(TEXT).input_ids
    assert GenerationConfig.from_pretrained(out).eos_token_id == 0
    assert not read.is_activation_checkpointing
    assert_tells_nothing_of_this_machine(out, base)


def test_peft_reads_the_adapters_alone(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    state = trained(base, lora_rank=2)
    out = exported(state, tmp_path, "adapter", f"--model-dir={base}")
    plain = AutoModelForCausalLM.from_pretrained(base)
    read = PeftModel.from_pretrained(plain, out)
    assert_same_logits(state, read)
    (weights_file,) = out.glob("*.safetensors")
    assert weights_file.stat().st_size < (base / "model.safetensors").stat().st_size / 2
    assert_tells_nothing_of_this_machine(out, base)


def test_a_model_that_was_trained_whole_has_no_adapter(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = trained(base)
    with pytest.raises(AssertionError):
        exported(state, tmp_path, "adapter", f"--model-dir={base}")
    assert "there is no adapter" in capsys.readouterr().out


def test_the_chat_template_is_carried_along(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    base = make_llama(tmp_path / "base", template=TEMPLATE)
    out = exported(trained(base), tmp_path, "transformers", f"--model-dir={base}")
    messages = [{"role": "user", "content": "hi"}]
    chat = AutoTokenizer.from_pretrained(out).apply_chat_template(messages, tokenize=False)
    assert chat == "[user] hi</s>"


def test_our_own_llama_is_one_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    state = small_llama()
    out = exported(state, tmp_path, "transformers")
    read = AutoModelForCausalLM.from_pretrained(out)
    assert isinstance(read, LlamaForCausalLM)
    assert_same_logits(state, read)
    tokenizer = AutoTokenizer.from_pretrained(out)
    everything = "".join(map(chr, range(1, 0x180))) + TEXT
    assert tokenizer(everything).input_ids == list(everything.encode())
    assert tokenizer.decode(list(TEXT.encode())) == TEXT
    assert tokenizer.eos_token_id == read.config.eos_token_id == 0


def test_our_own_llama_carries_the_tokenizer_of_its_data_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    data = tmp_path / "data"
    make_tokenizer(data)
    (data / "text.txt").write_text(TEXT * 400)
    (data / "more.txt").write_text(TEXT * 400)
    state = small_llama(data, vocabulary=VOCABULARY, held_out=1)
    out = exported(state, tmp_path, "transformers", f"--data-dir={data}")
    assert AutoTokenizer.from_pretrained(out)(TEXT).input_ids == state.task.tokenizer.encode(TEXT)
    with pytest.raises(AssertionError):
        exported(state, tmp_path / "else", "transformers")
    assert "which has their tokenizer.json, is not known here" in capsys.readouterr().out


def test_a_model_that_transformers_has_not_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from swarmnode.tasks.synthetic import Synthetic

    state = build_state(Synthetic({}), swarm_seed=0, device="cpu")
    with pytest.raises(AssertionError):
        exported(state, tmp_path, "transformers")
    assert "task synthetic: transformers has no model like its own" in capsys.readouterr().out


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}])
def test_a_file_for_llama_cpp_has_the_same_weights(
    base: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    state = trained(base, **settings)
    out = exported(state, tmp_path, "transformers", f"--model-dir={base}")
    assert converted(out) == 0
    # A reader of its own, which turns back what llama.cpp wants turned. It takes GPT-2's numbers of
    # tokens and positions for those of OpenAI's, whatever the file says: they come from the config.
    config = AutoConfig.from_pretrained(out)
    read = AutoModelForCausalLM.from_pretrained(out, gguf_file="model.gguf", config=config)
    assert_same_logits(state, read)


def test_the_file_for_llama_cpp_has_the_tokenizer_and_the_template(tmp_path: Path) -> None:
    import gguf

    base = make_llama(tmp_path / "base", template=TEMPLATE)
    assert converted(base) == 0
    fields = gguf.GGUFReader(base / "model.gguf").fields
    words = json.loads((base / "tokenizer.json").read_text())["model"]
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert [tokens[number] for number in words["vocab"].values()] == list(words["vocab"])
    assert fields["tokenizer.ggml.merges"].contents() == [" ".join(one) for one in words["merges"]]
    assert fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 0
    assert fields["tokenizer.chat_template"].contents() == TEMPLATE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bloom"}, "expected a model of type gpt2, llama"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "expected plain rotary positions, got linear",
        ),
    ],
)
def test_what_llama_cpp_would_misread_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    assert converted(tmp_path) != 0
    assert words in capsys.readouterr().out
    assert not (tmp_path / "model.gguf").exists()
