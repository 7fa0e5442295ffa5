"""A folder with a model as the Hugging Face hub has it: read and proven, and nothing executed."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import DataError
from swarmnode.tasks.tokens import TOKENIZER_FILE, FileTokenizer, Tokenizer

CONFIG_FILE = "config.json"
# What of a folder says how texts become tokens; transformers reads the last two.
_TOKENIZER_FILES = (TOKENIZER_FILE, "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FETCHED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt", "README.md")
_FETCHED_DATA = ("*.txt", "*.jsonl", "*.parquet", "*.csv")
_JSON_BYTES_MAX = 16 * 1024 * 1024  # an index names each tensor of a large mixture of experts
_UNAUTHORIZED = 401
NEEDS = "needs {} of the extra hub: pip install '.[hub]' in the clone of swarmnode"


class Base:
    """The folder that training goes on from.

    Raises:
        ConfigError: it is none, or none that can be trained here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(f"task hub-lm {NEEDS.format('the library transformers')}") from error
        transformers.utils.logging.disable_progress_bar()
        self._transformers: Any = transformers
        self.facts = self._read_json(CONFIG_FILE)
        if (folder / "adapter_config.json").is_file():
            raise ConfigError(f"--model: {folder} is an adapter: name the model that it is for")
        if "quantization_config" in self.facts:
            raise ConfigError(f"--model: {folder} is quantized: name what it was made from")
        if not (folder / TOKENIZER_FILE).is_file():
            raise ConfigError(
                f"--model: {folder} has no {TOKENIZER_FILE}: save its fast tokenizer there, with"
                " save_pretrained of transformers"
            )

    def load(self) -> Any:
        """Return the model as a module. Raises ConfigError."""
        model, found = self._of_transformers(
            "from_pretrained", str(self.folder), use_safetensors=True, output_loading_info=True
        )
        missing = sorted(found["missing_keys"])
        if missing:
            raise ConfigError(
                f"--model: {self.folder} lacks {len(missing)} weights of a causal language model,"
                f" such as {missing[0]}"
            )
        return model

    def empty(self) -> Any:
        """Return the model with no values in it, to see how large it is."""
        return self._of_transformers("from_config", self._config)

    def sha256(self, what: str) -> str:
        """Return the hash of ``config``, ``tokenizer`` or ``weights``, in hex."""
        if what == "weights":
            return self._weights_sha256()
        names = (CONFIG_FILE,) if what == "config" else _TOKENIZER_FILES
        digest = hashlib.sha256()
        for name in names:
            if (self.folder / name).is_file():
                data = (self.folder / name).read_bytes()
                digest.update(f"{name}\0{len(data)}\0".encode() + data)
        return digest.hexdigest()

    def tokenizer(self) -> Tokenizer:
        """Return what makes tokens of texts, with the model's own end of a document."""
        text_config = self._config.get_text_config()
        tokenizer = FileTokenizer(self.folder / TOKENIZER_FILE, text_config.vocab_size)
        end = text_config.eos_token_id
        end = end[0] if isinstance(end, list) and end else end
        if isinstance(end, int) and 0 <= end < text_config.vocab_size:
            tokenizer.end = end
        return tokenizer

    def copy_tokenizer(self, folder: Path) -> None:
        """Write the files that are proven to ``folder``. Raises OSError."""
        for name in _TOKENIZER_FILES:
            if (self.folder / name).is_file():
                (folder / name).write_bytes((self.folder / name).read_bytes())

    @cached_property
    def chat_template(self) -> Any:
        """From messages to text as the model has learnt it; None: it says nothing of that."""
        import jinja2  # by which transformers renders, in a sandbox

        found = self._transformers.AutoTokenizer.from_pretrained(
            str(self.folder), local_files_only=True, trust_remote_code=False
        )
        if not found.chat_template:
            return None

        def render(messages: list[dict[str, str]]) -> str:
            try:
                return str(found.apply_chat_template(messages, tokenize=False))
            # A template refuses in its own words, such as two users in a row.
            except (jinja2.TemplateError, ValueError, TypeError) as error:
                why = " ".join(str(error).split())[:200]
                raise DataError(f"a conversation is none by the model's template: {why}") from error

        return render

    @cached_property
    def _config(self) -> Any:
        return self._transformers.AutoConfig.from_pretrained(
            str(self.folder), local_files_only=True, trust_remote_code=False
        )

    def _of_transformers(self, how: str, *given: Any, **named: Any) -> Any:
        if how == "from_pretrained":
            named |= {"local_files_only": True}
        make = getattr(self._transformers.AutoModelForCausalLM, how)
        try:
            return make(*given, trust_remote_code=False, **named)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            raise ConfigError(f"--model: {self.folder} is no causal model: {why}") from error

    def _weights_sha256(self) -> str:
        """Hash names, types, shapes and bytes, in the order of the names, in whatever files."""
        from safetensors import safe_open

        files: dict[str, Any] = {}
        for path in self._weight_files():
            opened: Any = safe_open(path, framework="pt")
            files |= dict.fromkeys(opened.keys(), opened)
        digest = hashlib.sha256()
        for name in sorted(files):
            tensor = files[name].get_tensor(name)
            digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def _weight_files(self) -> list[Path]:
        """Return the files that transformers reads."""
        if (self.folder / _WEIGHTS).is_file():
            return [self.folder / _WEIGHTS]
        if not (self.folder / _INDEX).is_file():
            raise ConfigError(
                f"--model: {self.folder} has no {_WEIGHTS}: other files of weights can hold code,"
                " and are not read; save it again with save_pretrained of transformers"
            )
        names = self._read_json(_INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(
            isinstance(name, str) and (self.folder / Path(name).name).is_file()
            for name in names.values()
        ):
            raise ConfigError(f"--model: {self.folder / _INDEX} names files that are not there")
        return sorted({self.folder / Path(name).name for name in names.values()})

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            if path.stat().st_size > _JSON_BYTES_MAX:
                raise ValueError("too large")
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model: {path} is no JSON that can be read: {error}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"--model: expected an object in {path}")
        return found


def save_model(model: Any, folder: str) -> None:
    """Write a model of transformers, its config and how it generates to ``folder``."""
    model.config.name_or_path = ""  # where it was read, on this machine
    model.save_pretrained(folder)


def pinned(config: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the settings of a new swarm, at whose data and model nothing changes any more.

    Args:
        folder: with the model that it goes on from, if it does.

    Raises:
        ConfigError: they cannot be read, or the hub has none of that name.
    """
    if folder:
        base = Base(folder)
        hashes = {what: base.sha256(what) for what in ("config", "tokenizer", "weights")}
        config = config | {f"{what}_sha256": value for what, value in hashes.items()}
    match config.get("dataset"):
        case str(name) if name and not re.search("@[0-9a-f]{40}$", name):
            return config | {"dataset": _at_commit(name)}
    return config


def _at_commit(data_set: str) -> str:
    """Return NAME@COMMIT for NAME[@REVISION]: its newest, unless a revision is named."""
    name, _, revision = data_set.partition("@")
    said = f"data set {name}"
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ConfigError(
            f"{said} needs the library huggingface_hub: pip install '.[data]' in the clone of"
            " swarmnode"
        ) from error
    try:
        found = huggingface_hub.HfApi().dataset_info(name, revision=revision or None).sha
    except (OSError, ValueError, RuntimeError, *errors.HfHubHTTPError.__bases__) as error:
        why = _why_not(constants.ENDPOINT, errors, revision, error)
        raise ConfigError(f"{said}: its commit cannot be asked for: {why}") from error
    return f"{name}@{found}"


def fetch(name: str, revision: str, *, is_data: bool = False) -> dict[str, Any]:
    """Have a model of the hub in its cache on this machine; return where, and its revision.

    ``is_data``: a data set, whose files are text, lines of JSON or parquet; then ``sha256`` and
    ``size_bytes`` of them all are in the answer, too.

    Raises:
        ConfigError: it cannot be had.
    """
    said = f"data set {name}" if is_data else f"--model {name}"
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ConfigError(f"{said} {NEEDS.format('huggingface_hub')}") from error
    cache = Path(constants.HF_HUB_CACHE)
    # The library's errors are those of the one that it speaks HTTP with, which changes.
    of_http = errors.HfHubHTTPError.__bases__
    try:
        folder = huggingface_hub.snapshot_download(
            name,
            repo_type="dataset" if is_data else None,
            revision=revision or None,
            allow_patterns=list(_FETCHED_DATA if is_data else _FETCHED),
            # All that is in the folder is trained on: none of it may be what another program
            # fetched from the same repository, such as its README.
            cache_dir=cache / "swarmnode" if is_data else cache,
        )
    # Whatever the hub or the network is like, it is one line for the caller.
    except (OSError, ValueError, RuntimeError, *of_http) as error:
        why = _why_not(constants.ENDPOINT, errors, revision, error)
        raise ConfigError(f"{said}: it cannot be fetched: {why}") from error
    found = {"folder": folder, "revision": Path(folder).name}
    return found | _proof(said, Path(folder)) if is_data else found


def _why_not(where: str, known: Any, revision: str, error: Exception) -> str:
    """Say why the hub gave nothing, for people; ``known``: the errors of the library."""
    line = " ".join(str(error).split())[:200] or type(error).__name__
    # The library knows a repository that is not there by the address of the hub, not of a mirror.
    status = getattr(getattr(error, "response", None), "status_code", None)
    match error:
        case known.GatedRepoError():
            return f"{where} gives it to those alone who have asked there, and show it by HF_TOKEN"
        case known.RevisionNotFoundError():
            return f"{where} has it, but no revision {revision}: name a branch, a tag or a commit"
        case known.LocalEntryNotFoundError():
            return f"{where} cannot be reached, and it is not whole in the cache here: {line}"
    if isinstance(error, known.RepositoryNotFoundError) or status == _UNAUTHORIZED:
        return (
            f"{where} has none of that name, or it is private: check the name, or put a token that"
            " may read it into HF_TOKEN"
        )
    return line


def _proof(said: str, folder: Path) -> dict[str, Any]:
    """Return the hash of all files of a data set, by their names, and their size."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise ConfigError(
            f"{said}: expected files of it that are {', '.join(_FETCHED_DATA)}, it has none"
        )
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            of_file = hashlib.file_digest(file, "sha256").digest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + of_file)
    size_bytes = sum(path.stat().st_size for path in paths)
    return {"sha256": digest.hexdigest(), "size_bytes": size_bytes}
