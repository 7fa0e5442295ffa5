"""Small models as the hub has them: a Llama and a GPT-2, made on the spot, with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 288
CONTEXT = 32
TEXT = "the cat and the dog and the tree and the end"


def make_tokenizer(
    folder: Path, template: str = "", *, words: str = "", text: str = TEXT, begins: bool = False
) -> None:
    """Save a byte-level tokenizer with a few merges, and an end of a text.

    ``words``: the expression that cuts texts into them, GPT-2's if there is none; ``begins``: a
    text begins with a token of its own.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if words:
        cut = pre_tokenizers.Split(Regex(words), "isolated")
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["</s>", *["<s>"] * begins],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    if begins:
        fast.bos_token = "<s>"
    if template:
        fast.chat_template = template
    fast.save_pretrained(folder)


def make_llama(folder: Path, *, seed: int = 1, template: str = "", **changes: Any) -> Path:
    """Save a Llama of some 60,000 parameters with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    LlamaForCausalLM(LlamaConfig(**(settings | changes))).save_pretrained(folder)
    make_tokenizer(folder, template)
    return folder


def make_gpt2(folder: Path, *, seed: int = 1) -> Path:
    """Save a GPT-2 of some 40,000 parameters, whose output shares its weight with the input."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    make_tokenizer(folder)
    return folder
