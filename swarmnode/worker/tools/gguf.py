"""From a folder as transformers has models to one file as llama.cpp reads it.

``python -m swarmnode.worker.tools.gguf FOLDER FILE``, with answers like those of
``worker/offline.py``. The names are those of the package ``gguf``; what else llama.cpp wants of an
architecture is written here, and one that is not here is refused: a file that loads and says
nonsense is worse than none. Everything stays float32; llama-quantize makes it smaller.

Source: ggml-org/llama.cpp, convert_hf_to_gguf.py, LlamaModel, Qwen2Model and GPT2Model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swarmnode.errors import ConfigError
from swarmnode.tasks.hub_files import NEEDS
from swarmnode.worker.failures import answer
from swarmnode.worker.runtime import end_with_parent

Array = np.ndarray[Any, np.dtype[Any]]
Change = Callable[[str, Array, Any], Array]

# Of llama.cpp, by the expression by which a byte-level tokenizer cuts texts into words.
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {_LLAMA_3: "llama-bpe", _LLAMA_3.replace("{1,3}", ""): "qwen2"}
# llama.cpp loads no such tokenizer without merges, and gguf writes no list that is empty. Both
# halves are of two characters: where nothing else is merged they never come up.
_NEVER_MERGED = "aa aa"


def turned(name: str, tensor: Array, config: Any) -> Array:
    """Reorder queries and keys: llama.cpp rotates neighbours, transformers halves of a head."""
    kinds = {"q_proj.": config.num_attention_heads, "k_proj.": config.num_key_value_heads}
    heads = next((n for kind, n in kinds.items() if kind in name), None)
    if heads is None:
        return tensor
    rows = tensor.shape[0]
    halves = tensor.reshape(heads, 2, rows // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def transposed(name: str, tensor: Array, config: Any) -> Array:
    """Turn the matrices that GPT-2 has as inputs by outputs."""
    del config
    return tensor.T if tensor.ndim == 2 and (".attn.c_" in name or ".mlp.c_" in name) else tensor


def as_it_is(name: str, tensor: Array, config: Any) -> Array:
    """Leave it."""
    del name, config
    return tensor


class Architecture(NamedTuple):
    """``name``: of gguf; ``has_rotary``: positions by rotation, and norms without a mean."""

    name: str
    change: Change
    has_rotary: bool = True


_ARCHITECTURES = {
    "llama": Architecture("LLAMA", turned),
    "mistral": Architecture("LLAMA", turned),
    "qwen2": Architecture("QWEN2", as_it_is),
    "qwen3": Architecture("QWEN3", as_it_is),
    "gpt2": Architecture("GPT2", transposed, has_rotary=False),
}


def convert(folder: Path, file: Path) -> Iterator[dict[str, Any]]:
    """Write the model in ``folder`` as ``file``. Raises ConfigError."""
    try:
        import gguf
        import transformers
    except ImportError as error:
        raise ConfigError(f"--format gguf {NEEDS.format('the package gguf')}") from error
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    found = _ARCHITECTURES.get(config.model_type)
    if found is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise ConfigError(
            f"--format gguf: expected a model of type {known}, got {config.model_type}: export it"
            " with --format transformers, and convert that with llama.cpp"
        )
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[found.name]])
    _write_sizes(writer, config, found)
    _write_tokenizer(gguf, writer, folder, config)
    _write_tensors(gguf, writer, folder, config, found)
    half_done = file.with_name(f"{file.name}.tmp")
    writer.write_header_to_file(half_done)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half_done.replace(file)
    yield {"path": str(file), "bytes": file.stat().st_size}


def _write_sizes(writer: Any, config: Any, found: Architecture) -> None:
    heads, dim = config.num_attention_heads, config.hidden_size
    writer.add_file_type(0)  # all of it float32
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(dim)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    if not found.has_rotary:
        writer.add_feed_forward_length(config.n_inner or 4 * dim)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head_dim = getattr(config, "head_dim", None) or dim // heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(_rope_base(config))


def _rope_base(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ConfigError(
            f"--format gguf: expected plain rotary positions, got {kind}: export it with --format"
            " transformers, and convert that with llama.cpp"
        )
    return float(rope.get("rope_theta") or config.rope_theta)


def _write_tensors(gguf: Any, writer: Any, folder: Path, config: Any, found: Architecture) -> None:
    from safetensors.numpy import load_file

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[found.name], config.num_hidden_layers)
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if theirs is None:
                raise ConfigError(f"--format gguf: llama.cpp has no tensor like {name}")
            changed = found.change(name, tensor, config).astype(np.float32)
            writer.add_tensor(theirs, np.ascontiguousarray(changed))


def _write_tokenizer(gguf: Any, writer: Any, folder: Path, config: Any) -> None:
    """Write a byte-level BPE; others need scores that tokenizer.json does not have."""
    from transformers import AutoTokenizer

    said = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = [" ".join(one) if isinstance(one, list) else one for one in said["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(said, has_merges=bool(merges)))
    kinds = gguf.TokenType
    tokens = [f"[PAD{n}]" for n in range(config.vocab_size)]  # as llama.cpp calls them
    types = [kinds.UNUSED] * config.vocab_size
    for token, number in said["model"]["vocab"].items():
        tokens[number], types[number] = token, kinds.NORMAL
    for one in said["added_tokens"]:
        tokens[one["id"]] = one["content"]
        types[one["id"]] = kinds.CONTROL if one["special"] else kinds.USER_DEFINED
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges or [_NEVER_MERGED])
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
        writer.add_add_bos_token(tokenizer.bos_token_id in tokenizer("a").input_ids)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _pre_tokenizer(said: dict[str, Any], *, has_merges: bool) -> str:
    """Return what llama.cpp calls this way to cut words. Raises ConfigError."""
    cutter = said.get("pre_tokenizer") or {}
    steps = cutter.get("pretokenizers", [cutter])
    if said["model"]["type"] == "BPE" and steps[-1].get("type") == "ByteLevel":
        if len(steps) == 1 and (steps[0].get("use_regex", True) or not has_merges):
            return "gpt-2"
        pattern = steps[0].get("pattern", {}).get("Regex")
        if len(steps) == 2 and pattern in WORDS:
            return WORDS[pattern]
    raise ConfigError(
        "--format gguf: expected a byte-level tokenizer that cuts words as GPT-2, Llama 3 or Qwen"
        " 2 does: export it with --format transformers, and convert that with llama.cpp"
    )


def main() -> int:
    """Convert one model; return the exit status."""
    parser = argparse.ArgumentParser(prog="swarmnode.worker.tools.gguf")
    parser.add_argument("folder")
    parser.add_argument("file")
    arguments = parser.parse_args()
    end_with_parent()
    return answer(convert(Path(arguments.folder), Path(arguments.file)))


if __name__ == "__main__":
    sys.exit(main())
