"""From text to numbers: bytes, or the tokens of a ``tokenizer.json``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol

from swarmnode.tasks.base import DataError

TOKENIZER_FILE = "tokenizer.json"
BYTES = 256
_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "[SEP]", "<eos>")
_END_OF_BYTES = "<|endoftext|>"


class Tokenizer(Protocol):
    """Attributes: ``end``, the token after a document; ``fingerprint``, of all that matters."""

    end: int
    fingerprint: bytes

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""

    def save(self, folder: Path) -> None:
        """Write it as ``AutoTokenizer`` of transformers, which is there, reads it."""


class Bytes:
    """Each byte is a token, and a zero byte the end of a document."""

    end = 0
    fingerprint = b"bytes"

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """See ``Tokenizer``; a model of more tokens than bytes may say what is none."""
        return bytes(token for token in tokens if 0 < token < BYTES).decode(errors="replace")

    def save(self, folder: Path) -> None:
        """See ``Tokenizer``."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        signs = {_sign_of(byte): byte for byte in range(BYTES)}
        signs[_END_OF_BYTES] = signs.pop(_sign_of(self.end))
        tokenizer = Tokenizer(models.BPE(signs, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        _save(tokenizer, _END_OF_BYTES, folder)


class FileTokenizer:
    """A ``tokenizer.json``, read by the library ``tokenizers``. Raises DataError."""

    def __init__(self, path: Path, vocabulary: int) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise DataError(
                f"{path} needs the library tokenizers: pip install '.[data]' in the clone of"
                " swarmnode"
            ) from error
        text = path.read_text(encoding="utf-8")
        self._tokenizer = tokenizers.Tokenizer.from_str(text)
        size = self._tokenizer.get_vocab_size()
        if size > vocabulary:
            raise DataError(
                f"{path}: expected at most {vocabulary} tokens, as the swarm's model has,"
                f" got {size}"
            )
        known = (self._tokenizer.token_to_id(end) for end in _ENDS)
        self.end = next((token for token in known if token is not None), 0)
        self.fingerprint = hashlib.sha256(text.encode()).digest()

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer``."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """See ``Tokenizer``."""
        return str(self._tokenizer.decode(tokens))

    def save(self, folder: Path) -> None:
        """See ``Tokenizer``."""
        _save(self._tokenizer, self._tokenizer.id_to_token(self.end), folder)


def _sign_of(byte: int) -> str:
    """Return the letter that stands for a byte in byte-level vocabularies, since GPT-2.

    Source: openai/gpt-2, encoder.py: bytes that print stand for themselves, others come after.
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(BYTES) if other not in printed]
    return chr(byte if byte in printed else BYTES + others.index(byte))


def _save(tokenizer: Any, end: str, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end).save_pretrained(folder)


def find_tokenizer(data_dir: str, vocabulary: int) -> Tokenizer:
    """Return the tokenizer that lies in ``data_dir``, or bytes. Raises DataError."""
    path = Path(data_dir) / TOKENIZER_FILE
    if data_dir and path.is_file():
        return FileTokenizer(path, vocabulary)
    if vocabulary < BYTES:
        raise DataError(
            f"task llama-lm: bytes are 256 tokens, the swarm's model has {vocabulary}: put the"
            f" {TOKENIZER_FILE} that it was made with into the folder of --data"
        )
    return Bytes()
