"""Records of how a swarm learns: the recipe in its manifest, and a later target.

A recipe is relative. The task says what the learning rate of one node is; the recipe says by which
factor all members multiply it, as a function of the *swarm's progress*: the tokens that all of them
have trained together. ``ipc/lr_schedule.py`` is that function.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmnode import limits
from swarmnode.wire.records import Count

Schedule = Literal["constant", "cosine", "wsd"]

Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Tokens = Annotated[int, Meta(ge=0, le=limits.TARGET_TOKENS_MAX)]
_NotNegative = Annotated[float, Meta(ge=0.0, le=1e6)]


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How all members train. Tokens are those of the whole swarm.

    Attributes:
        schedule: of the learning rate after the warm-up. ``constant``: none; ``cosine``: down to
            ``lr_final`` at the target; ``wsd`` (warm-up, stable, decay): constant, then linear
            down to ``lr_final`` over the last ``decay_share`` of the target.
        warmup_tokens: over which the learning rate rises, from nearly nothing.
        lr_final: the factor at the target.
        members_exponent, members_max: the learning rate grows with so many members, to this
            power; more of them than ``members_max`` let it grow no further.
        clip_norm: the largest norm of a step's gradient; 0: any.
        batches_per_step: whose gradients are accumulated for one step.
        weight_decay: of the optimizer; not set: as the task has it.
        ema_share: the exported model is a mean over about the last so much of the training, by
            the swarm's progress; 0: it is the model itself.
        target_tokens: at which training ends; 0: it is not said.
    """

    schedule: Schedule = "wsd"
    warmup_tokens: Tokens = 0
    decay_share: Fraction = 0.25
    lr_final: Fraction = 0.05
    members_exponent: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    members_max: Annotated[int, Meta(ge=1, le=4096)] = 1
    clip_norm: _NotNegative = 0.0
    batches_per_step: Annotated[int, Meta(ge=1, le=limits.BATCHES_PER_STEP_MAX)] = 1
    weight_decay: _NotNegative | UnsetType = UNSET
    ema_share: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.0
    target_tokens: Tokens = 0


class Extension(msgspec.Struct, frozen=True):
    """The swarm is to train up to another target; signed by the swarm's key.

    The target is its number, too: only one that lies further takes the place of another.
    ``resumed_tokens``: where the swarm was if its learning rate had decayed by then, so that it
    rises anew from there; 0: it had not.
    """

    target_tokens: Annotated[int, Meta(ge=1, le=limits.TARGET_TOKENS_MAX)]
    resumed_tokens: Count = 0
