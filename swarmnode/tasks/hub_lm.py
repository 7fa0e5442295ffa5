"""``hub-lm``: a causal language model of Hugging Face's hub, trained on; all of it, or adapters.

The model is a folder as the hub has it, which each node has a copy of: safetensors, config.json and
tokenizer.json. The manifest has a hash of each, and another folder is refused: the weights travel
with no swarm. With adapters (LoRA) they are frozen, and the swarm's parameters are the adapters
alone. Nothing of the folder is executed; a model that needs code of its own is refused.

Source of the adapters: E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
That members' factors are averaged, and not their products, is as in J. Zhang et al., "Towards
Building the Federated GPT: Federated Instruction Tuning", 2023.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import DataError, PositiveFloat, PositiveInt, Task, TaskConfig
from swarmnode.tasks.language import next_token_loss
from swarmnode.tasks.llama_lm import TokensTask
from swarmnode.tasks.tokens import TOKENIZER_FILE, FileTokenizer, Tokenizer

CONFIG_FILE = "config.json"
# What of a folder says how texts become tokens; transformers reads the last two.
_TOKENIZER_FILES = (TOKENIZER_FILE, "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FETCHED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt", "README.md")
_JSON_BYTES_MAX = 16 * 1024 * 1024  # an index names each tensor of a large mixture of experts
_NEEDS = "needs {} of the extra hub: pip install '.[hub]' in the clone of swarmnode"

Sha256 = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{64})?$")]
# A link comes from a stranger: what it says is a name, and never a path.
_RepoName = Annotated[str, Meta(pattern=r"^(?:\w[\w.-]{0,95}(?:/\w[\w.-]{0,95})?)?$")]
_Revision = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}$")]


class HubLM(TokensTask):
    """Next-token prediction by a model that transformers knows."""

    name = "hub-lm"
    version = 1

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Which model, what of it is trained, its batches, its learning rate, and its data.

        ``model``, ``revision``: on the hub, for people; empty: it is from elsewhere. The hashes are
        what counts, and `create --model` fills them in. ``lora_rank`` 0: all parameters are
        trained; ``lora_alpha`` 0: twice the rank; ``lora_targets``: names of linear layers with
        commas between, or all of them. ``bf16``: frozen weights are kept in bfloat16.
        ``checkpointing``: activations are computed twice rather than kept.
        """

        model: _RepoName = ""
        revision: _Revision = ""
        config_sha256: Sha256 = ""
        weights_sha256: Sha256 = ""
        tokenizer_sha256: Sha256 = ""
        lora_rank: Annotated[int, Meta(ge=0, le=4096)] = 0
        lora_alpha: Annotated[int, Meta(ge=0, le=65_536)] = 0
        lora_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
        lora_targets: Annotated[str, Meta(max_length=1024, pattern=r"^[\w.,-]+$")] = "all-linear"
        bf16: bool = False
        checkpointing: bool = False
        context: PositiveInt = 256
        batch: PositiveInt = 8
        lr: PositiveFloat = 5e-5
        weight_decay: Annotated[float, Meta(ge=0)] = 0.0
        dataset: str = ""
        subset: str = ""
        split: str = "train"
        text_field: str = "text"
        held_out: PositiveInt = 16
        probe_windows: PositiveInt = 32

    config: Config

    def __init__(self, config: dict[str, Any], *, data_dir: str = "") -> None:
        super().__init__(config, data_dir=data_dir)
        if self.config.bf16 and not self.config.lora_rank:
            raise ConfigError(
                "task hub-lm: bf16 is of frozen weights: expected lora_rank with it; what is"
                " trained stays float32, and is computed in bfloat16 where that is faster"
            )

    def build_model(self, seed: int) -> torch.nn.Module:
        config, base = self.config, self.base
        model: torch.nn.Module
        model = base.empty() if torch.get_default_device().type == "meta" else base.load()
        if config.checkpointing:
            _save_activations(model)
        frozen_dtype = torch.bfloat16 if config.bf16 else torch.float32
        for parameter in model.parameters():
            parameter.data = parameter.data.to(frozen_dtype)
        if not config.lora_rank:
            return model
        torch.manual_seed(seed)  # whatever loading took of it
        return self._with_adapters(model)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return next_token_loss(_Logits(model), batch)

    def generate(
        self, model: torch.nn.Module, prompt: str, n: int, *, temperature: float, seed: int
    ) -> str:
        return super().generate(_Logits(model), prompt, n, temperature=temperature, seed=seed)

    def render(self, messages: list[dict[str, str]]) -> str:
        template = self.base.chat_template
        return super().render(messages) if template is None else template(messages)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """That of the model."""
        return self.base.tokenizer()

    @cached_property
    def base(self) -> Base:
        """The model as it was before the swarm, proven to be the one that the swarm means."""
        config = self.config
        if not self.model_dir:
            which = f" {config.model}" if config.model else ""
            revision = f"@{config.revision}" if config.revision else ""
            where = f"--model {config.model}{revision}, or " if config.model else ""
            raise ConfigError(
                f"task hub-lm: this swarm goes on from the model{which}, whose weights are not"
                f" sent: name it with {where}--model FOLDER and a copy of it"
            )
        base = Base(Path(self.model_dir))
        for what, wanted in (
            ("config", config.config_sha256),
            ("tokenizer", config.tokenizer_sha256),
            ("weights", config.weights_sha256),
        ):
            found = base.sha256(what)
            if wanted != found:
                raise ConfigError(
                    f"--model: the {what} of {self.model_dir} have the SHA-256 {found[:16]}…, this"
                    f" swarm's have {wanted[:16] or 'none'}…: it is another model, or another"
                    f" revision of it{f' than {config.revision}' if config.revision else ''}"
                )
        return base

    def _with_adapters(self, model: torch.nn.Module) -> torch.nn.Module:
        try:
            import peft
        except ImportError as error:
            raise ConfigError(f"task hub-lm: LoRA {_NEEDS.format('the library peft')}") from error
        config = self.config
        targets = config.lora_targets
        settings = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha or 2 * config.lora_rank,
            lora_dropout=config.lora_dropout,
            target_modules=targets if targets == "all-linear" else targets.split(","),
            task_type="CAUSAL_LM",
            base_model_name_or_path=config.model or None,
            revision=config.revision or None,
        )
        try:
            adapted: torch.nn.Module = peft.get_peft_model(model, settings)
        except ValueError as error:  # it has no such layers
            why = " ".join(str(error).split())[:200]
            raise ConfigError(f"task hub-lm: lora_targets {targets}: {why}") from error
        return adapted


def _save_activations(model: Any) -> None:
    """Have each layer computed again in the backward pass; transformers 5 has another name."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


class _Logits(torch.nn.Module):
    """A model of transformers as the rest of us has them: from tokens to logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens: int64 [batch, time] to logits: float32 [batch, time, vocabulary]."""
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits.float()


class Base:
    """A folder with a model as the hub has it. Nothing of it is executed.

    Raises:
        ConfigError: it is none, or none that can be trained here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(f"task hub-lm {_NEEDS.format('the library transformers')}") from error
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


def pinned(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings of a new swarm that goes on from the model in ``folder``."""
    base = Base(folder)
    hashes = {f"{what}_sha256": base.sha256(what) for what in ("config", "tokenizer", "weights")}
    return config | hashes


def fetch(name: str, revision: str) -> dict[str, str]:
    """Have a model of the hub in its cache on this machine; return where, and its revision.

    Raises:
        ConfigError: it cannot be had.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(f"--model {name} {_NEEDS.format('huggingface_hub')}") from error
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision or None, allow_patterns=list(_FETCHED)
        )
    # Whatever the hub or the network is like, it is one line for the caller.
    except (OSError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"--model {name}: it cannot be fetched: {why}") from error
    return {"folder": folder, "revision": Path(folder).name}


def base_of(task: Task) -> Base | None:
    """Return what a task goes on from, if it is of this kind."""
    return task.base if isinstance(task, HubLM) else None
