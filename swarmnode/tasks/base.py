"""The Task: everything that swarmnode must know about a model and its data.

A user's own task is a class of about thirty lines, installed as an entry point of the
group ``swarmnode.tasks``; nothing of it ever comes over the network::

    class Parabola(Task):
        name = "parabola"
        version = 1

        class Config(TaskConfig):
            width: PositiveInt = 4
            lr: PositiveFloat = 0.1

        config: Config
        tokens_per_batch = 1

        def build_model(self, seed):
            return torch.nn.Linear(self.config.width, 1)

        def build_optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=self.config.lr)

        def batches(self, seed):
            generator = torch.Generator().manual_seed(seed)
            while True:
                yield torch.randn(8, self.config.width, generator=generator)

        def loss(self, model, batch):
            return model(batch).square().mean()

        def evaluate(self, model):
            return float(self.loss(model, torch.eye(self.config.width)))

The module is free of torch, so that the daemon's side can name tasks without it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ipc.settings import PositiveFloat, PositiveInt, Settings, parse_settings
from swarmnode.wire.recipe import Recipe

if TYPE_CHECKING:
    import torch

__all__ = [
    "DataError",
    "PositiveFloat",
    "PositiveInt",
    "Recipe",
    "Task",
    "TaskConfig",
    "seed_of",
]


class DataError(ConfigError):
    """The data that a task needs is missing, too small or not what it should be."""


class TaskConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a task's settings; every field has a default, a type and a range."""


def seed_of(material: str) -> int:
    """Return a seed of 32 bits that follows from the text."""
    return int.from_bytes(hashlib.sha256(material.encode()).digest()[:4], "little")


class Task(ABC):
    """One thing to train. Instances are cheap: data is read on first use.

    Class attributes:
        name, version: written into the swarm's manifest; a change of meaning is a new version.
        Config: the settings, a subclass of :class:`TaskConfig`.
        eval_every_steps: how often :meth:`evaluate` runs while training.
        exchange_every_steps: the default number of steps between exchanges with a peer.
        group_settings: the defaults of ``streaming`` in groups where they are not the strategy's.
            A plain mean is right for any model; what gains by more depends on how far its optimizer
            goes in a round, so a task says it where it was measured. The rule by which means are
            made (``merge``) is left out: whom members trust is their creator's business.
        gather_settings: likewise those of ``sparse``.
        batches_per_shard: how many batches one node trains between two agreements with the
            others on which node trains what; seconds of training, so that they agree in time.
        strong_convexity, smoothness: bounds mu and L on the curvature of every node's objective,
            for algorithms that are proven for convex ones; None where it is not known, as for every
            neural network.
        loss_is_mean: whether the loss of a batch is the mean over its examples of what each
            of them has alone. Where memory is short, a batch is then trained in parts, and the
            gradient is the same. False: it is not, as with contrastive losses or BatchNorm, or
            a mean over examples of different weight; batches stay whole.
        compiles: whether ``torch.compile`` can take the loss, for large models on a GPU: tensors in
            and out, the same operations for each batch.

    Attributes:
        model_dir: a folder of this node with the model that training goes on from, where a task
            has one; never part of the swarm.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    Config: ClassVar[type[TaskConfig]] = TaskConfig
    eval_every_steps: ClassVar[int] = 20
    exchange_every_steps: ClassVar[int] = 8
    group_settings: ClassVar[Mapping[str, Any]] = {}
    gather_settings: ClassVar[Mapping[str, Any]] = {}
    batches_per_shard: ClassVar[int] = 64
    strong_convexity: ClassVar[float | None] = None
    smoothness: ClassVar[float | None] = None
    loss_is_mean: ClassVar[bool] = True
    compiles: ClassVar[bool] = False

    config: Any  # narrowed to its own Config by each task
    model_dir: str = ""

    def __init__(self, config: dict[str, Any], *, data_dir: str = "") -> None:
        """Check ``config``; ``data_dir`` is a folder of this node, never part of the swarm.

        Raises:
            ConfigError: a setting is unknown or out of range.
        """
        self.config = parse_settings(config, self.Config, owner=f"task {self.name}")
        self.data_dir = data_dir

    @property
    @abstractmethod
    def tokens_per_batch(self) -> int:
        """What one batch counts for in the swarm's progress: tokens, or examples."""

    @abstractmethod
    def build_model(self, seed: int) -> torch.nn.Module:
        """Return the model on the CPU, in float32, bit-identical for the same ``seed``.

        All of it in float64 is for convex tasks that are to come to the optimum.

        Torch's own generator is seeded with ``seed`` before the call.
        """

    @abstractmethod
    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the local optimizer of ``model``."""

    @abstractmethod
    def batches(self, seed: int) -> Iterator[Any]:
        """Yield batches for ever, on the CPU; the same ``seed`` gives the same ones.

        A batch is a tensor, or a tuple or map of tensors. Raises DataError on the first one.
        """

    def recipe(self) -> Recipe:
        """Return how a swarm of this task learns if its creator says nothing else.

        It is relative to the optimizer: its learning rate is that of one node alone. By default
        nothing changes until there is a target, and then the learning rate decays towards it.
        """
        return Recipe()

    def suited(self, strategy: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return ``settings`` of a strategy, with what suits this task where they say nothing."""
        own: dict[str, Any] = {}
        if strategy == "pair-average":
            own = {"every": self.exchange_every_steps}
        elif strategy == "streaming" and settings.get("meet", "group") == "group":
            own = dict(self.group_settings)
        elif strategy == "sparse":
            own = dict(self.gather_settings)
        own.pop("merge", None)
        return own | settings

    def progressed(self, swarm_tokens: float, target_tokens: int) -> None:
        """Hear before a step how far the swarm is, as all its members do; see ``Recipe``.

        For what follows the training, such as a curriculum or dropout; ``target_tokens`` 0: it has
        no end. By default nothing does.
        """
        del swarm_tokens, target_tokens

    def placed(self, index: int, n_members: int) -> None:
        """Hear between two steps which of the members this node is, from 0, whenever that changes.

        For tasks that give each node a fixed part of the data, as theory has it; those say 0 for
        :attr:`shards_per_epoch`. By default nothing does.
        """
        del index, n_members

    @property
    def shards_per_epoch(self) -> int:
        """Into how many shards one pass over the data is cut, 1 to SHARDS_PER_EPOCH_MAX.

        0: none is dealt out, and each node trains what :meth:`batches` yields. It follows from
        settings and data alone, as all nodes must agree on it.
        """
        return limits.SHARDS_PER_EPOCH_MAX

    def shard_batches(self, epoch_seed: int, shard: int, n_shards: int) -> Iterator[Any]:
        """Yield the batches of part ``shard`` of ``n_shards`` of an epoch, and end.

        The same arguments give the same batches on every node. By default they are drawn
        from :meth:`batches`; a task with a fixed set of examples deals each of them out
        exactly once over all shards (:func:`swarmnode.tasks.deal.deal`).
        """
        del n_shards
        return islice(self.batches(seed_of(f"{epoch_seed}/{shard}")), self.batches_per_shard)

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Return the training loss of one batch, a scalar with gradients."""

    def split(self, batch: Any, examples_max: int) -> list[tuple[Any, int]]:
        """Return (part, how many examples it has) of a batch, each of at most ``examples_max``.

        The loss of the batch is the mean over the losses of its parts, weighted by examples.
        By default all tensors are cut along their first dimension; a task whose batches have
        another shape says here how.
        """
        return split_batch(batch, examples_max)

    @abstractmethod
    def evaluate(self, model: torch.nn.Module) -> float:
        """Return the loss on a fixed held-out probe, the same on every node.

        Called in evaluation mode and without gradients.
        """

    def public_probe(self) -> Any:
        """Return a batch, the same on every node, by which members weigh what others send.

        100 examples or more, drawn like what is trained, and not trained: a merge that makes
        its :meth:`loss` worse is refused. It is taken twice an exchange, so it is small; of
        text 256 predictions are enough. None, by default: there is no such thing.
        """
        return None

    def trivial_loss(self) -> float | None:
        """Return the loss on that batch of a model that has learnt nothing, such as ln C for C
        classes; None: it is not known."""
        return None

    def generate(
        self, model: torch.nn.Module, prompt: str, n: int, *, temperature: float, seed: int
    ) -> str:
        """Return ``n`` generated bytes or tokens as text, where the task can generate."""
        del model, prompt, n, temperature, seed
        raise ConfigError(f"task {self.name} cannot generate; bytes-lm can")

    def save_pretrained(self, model: torch.nn.Module, folder: str, *, adapter: bool) -> None:
        """Write ``model`` and its tokenizer to ``folder``, for ``from_pretrained`` of transformers.

        ``adapter``: what was trained alone, for peft, where that is an adapter. Raises ConfigError.
        """
        del model, folder, adapter
        raise ConfigError(f"task {self.name}: transformers has no model like its own")

    def data_hash(self) -> str:
        """Return the hex SHA-256 of the data (and held-out split) that this node trains on."""
        return hashlib.sha256(f"{self.name}/{self.version}".encode()).hexdigest()


def probe_hash(task: Task) -> str:
    """Return the hex SHA-256 of a task's public probe, "" if it has none."""
    batch = task.public_probe()
    if batch is None:
        return ""
    digest = hashlib.sha256()
    for tensor in _tensors(batch):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def split_batch(batch: Any, examples_max: int) -> list[tuple[Any, int]]:
    """Return (part, its examples) in order, each of at most ``examples_max`` examples.

    Raises:
        ValueError: its tensors do not agree on how many examples there are.
    """
    n_examples = count_examples(batch)
    cuts = [*range(0, n_examples, examples_max), n_examples]
    return [(_cut(batch, begin, end), end - begin) for begin, end in pairwise(cuts)]


def count_examples(batch: Any) -> int:
    """Return the length of the first dimension, which all tensors of a batch share.

    Raises:
        ValueError: they do not, or there is none.
    """
    lengths = {int(each.shape[0]) if each.ndim else 0 for each in _tensors(batch)}
    if len(lengths) != 1 or not min(lengths):
        raise ValueError(
            "expected tensors whose first dimension counts the examples of the batch, got lengths"
            f" {sorted(lengths)}: the task says in split() how its batches are cut"
        )
    return lengths.pop()


def _tensors(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list):
        for part in batch:
            yield from _tensors(part)
    else:
        yield batch


def _cut(batch: Any, begin: int, end: int) -> Any:
    if isinstance(batch, dict):
        return {name: _cut(part, begin, end) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_cut(part, begin, end) for part in batch)
    return batch[begin:end]
