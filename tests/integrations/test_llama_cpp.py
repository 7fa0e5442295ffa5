"""llama.cpp itself reads what is exported for it, and says what transformers says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.worker.tools.gguf import WORDS
from tests.integrations.kit import converted, exported, small_llama
from tests.kits.hub_kit import VOCABULARY, make_tokenizer

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("transformers", "gguf", "xllamacpp")),
    reason="needs transformers, gguf and xllamacpp, which is llama.cpp, compiled",
)

# What one way to cut words cuts otherwise than another: numbers, apostrophes, spaces, alphabets.
TEXT = "The cat's 12345 trees,  the CAFÉ'S\n\n  end: 日本語 and 987654 dogs\t!\r\n the end"
SAID, ASCII = 6, 70  # tokens, and one that is a whole character
NEAR = 1e-5  # logarithms of probabilities: sums are in another order there
NEAR_OF_GELU = 5e-3  # which llama.cpp looks up in a table of half floats
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY + 3,  # as many models have more than their tokenizer
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}


def made(folder: Path, kind: str, words: str, **changes: Any) -> Path:
    """Save a model whose every parameter tells, biases and norms too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    patterns = {name: pattern for pattern, name in WORDS.items()}
    make_tokenizer(folder, words=patterns.get(words, ""), text=TEXT, begins=words == "llama-bpe")
    return folder


@pytest.mark.parametrize(
    ("kind", "words", "changes"),
    [
        ("llama", "gpt-2", {}),
        ("llama", "llama-bpe", {"rope_theta": 500_000.0, "rms_norm_eps": 1e-5}),
        ("llama", "gpt-2", {"tie_word_embeddings": True, "head_dim": 16}),
        ("mistral", "gpt-2", {"sliding_window": None}),
        ("qwen2", "qwen2", {}),
        ("qwen3", "qwen2", {"head_dim": 16}),
        ("gpt2", "gpt-2", {"tie_word_embeddings": True}),
    ],
)
def test_llama_cpp_says_what_transformers_says(
    kind: str, words: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    near = NEAR_OF_GELU if kind == "gpt2" else NEAR
    assert_says_the_same(made(tmp_path / "model", kind, words, **changes), near)


def test_llama_cpp_reads_our_own_llama(tmp_path: Path) -> None:
    assert_says_the_same(exported(small_llama(context=128), tmp_path, "transformers"), NEAR)


def assert_says_the_same(folder: Path, near: float) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert converted(folder) == 0
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    # It cuts the text itself: other tokens than these would come to other probabilities.
    answered = said_by_llama_cpp(folder / "model.gguf", TEXT, model.config.vocab_size)
    assert answered["usage"]["prompt_tokens"] == len(tokens)
    (choice,) = answered["choices"]
    assert len(choice["logprobs"]["content"]) == SAID
    for step in choice["logprobs"]["content"]:
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        found = torch.empty_like(expected)
        for each in step["top_logprobs"]:
            found[each["id"]] = each["logprob"]
        assert len(step["top_logprobs"]) == len(expected)
        assert (found - expected).abs().max() <= near
        tokens.append(step["id"])
    assert expected.max() - expected.min() > 1.0


def said_by_llama_cpp(file: Path, text: str, vocabulary: int) -> Any:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(file)
    settings.n_parallel = 1
    settings.cpuparams.n_threads = 1
    settings.warmup = False
    # Half floats, its default for what it has seen, would hide a small mistake.
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(settings).handle_completions(
        {
            "prompt": text,
            "max_tokens": SAID,
            "temperature": 0.0,
            "logprobs": vocabulary,
            # A token that is half of a character it would say without how likely it was. This is
            # what is added to what it then chooses by; what it tells is before that.
            "logit_bias": [[ASCII, 1000.0]],
        }
    )
