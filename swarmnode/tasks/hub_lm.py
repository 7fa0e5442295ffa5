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

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import PositiveFloat, PositiveInt
from swarmnode.tasks.hub_files import NEEDS, Base, save_model
from swarmnode.tasks.language import next_token_loss
from swarmnode.tasks.token_lm import DocumentsConfig, TokensTask
from swarmnode.tasks.tokens import Tokenizer

Sha256 = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{64})?$")]
# A link comes from a stranger: what it says is a name, and never a path.
_RepoName = Annotated[str, Meta(pattern=r"^(?:\w[\w.-]{0,95}(?:/\w[\w.-]{0,95})?)?$")]
_Revision = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}$")]


class HubLM(TokensTask):
    """Next-token prediction by a model that transformers knows."""

    name = "hub-lm"
    version = 1

    class Config(DocumentsConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        return next_token_loss(Logits(model), batch)

    def generate(
        self, model: torch.nn.Module, prompt: str, n: int, *, temperature: float, seed: int
    ) -> str:
        return super().generate(Logits(model), prompt, n, temperature=temperature, seed=seed)

    def save_pretrained(self, model: torch.nn.Module, folder: str, *, adapter: bool) -> None:
        has_adapters = bool(self.config.lora_rank)
        if adapter and not has_adapters:
            raise ConfigError("task hub-lm: all of the model was trained: there is no adapter")
        whole: Any = model.float()  # as it was computed with: frozen weights may be in bfloat16
        if adapter:
            (settings,) = whole.peft_config.values()
            # Without a name peft takes the folder of the base, which is this machine's business.
            settings.base_model_name_or_path = self.config.model
            whole.save_pretrained(folder, save_embedding_layers=False)
            (Path(folder) / "README.md").unlink()  # a form to fill in, with that folder in it
        else:
            if has_adapters:
                _untie(whole.get_base_model())
                whole = whole.merge_and_unload()
            save_model(whole, folder)
        self.base.copy_tokenizer(Path(folder))

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
            raise ConfigError(f"task hub-lm: LoRA {NEEDS.format('the library peft')}") from error
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


def _untie(model: Any) -> None:
    """Give an output layer that has an adapter a weight of its own.

    Merged into one that it shares with the input, the adapter would change what tokens are, too.
    """
    adapted = getattr(model.get_output_embeddings(), "base_layer", None)
    if adapted is not None and adapted.weight is model.get_input_embeddings().weight:
        adapted.weight = torch.nn.Parameter(adapted.weight.detach().clone())
        model.config.get_text_config().tie_word_embeddings = False
        model.config.tie_word_embeddings = False


class Logits(torch.nn.Module):
    """A model of transformers as the rest of us has them: from tokens to logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens: int64 [batch, time] to logits: float32 [batch, time, vocabulary]."""
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits.float()
