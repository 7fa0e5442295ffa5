"""From the swarm's progress to the learning rate, and to the weight of the newest step in the mean.

Progress is the number of tokens that all members have trained together. Nothing here asks for a
member's own steps, so that members agree: a member that came late, has started again or is slow has
the learning rate of all others.

Sources: cosine decay, I. Loshchilov and F. Hutter, "SGDR", 2017; warm-up, stable, decay, S. Hu et
al., "MiniCPM", 2024 (linear here, as its last phase is in A. Hägele et al., "Scaling laws and
compute-optimal training beyond fixed training durations", 2024, where it is within noise of the
best); the mean over a share of the training, T. Karras et al., "Analyzing and improving the
training dynamics of diffusion models", 2024, section 3.1, in its exponential form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from swarmnode.wire.recipe import Recipe

# Of one member's. Four nodes in a loop without the rest of a node, bytes-lm with a cosine of 1,200
# steps, one seed, where one node alone has .02 under Muon: rounds of 20 steps without momentum
# come to 1.635 at .012, 1.623 at .02, 1.621 at .03 (with short convolutions in the model), rounds
# of 10 with momentum to 1.638 at .02, 1.628 at .03. Under AdamW, one node alone at .006, rounds of
# 20: 2.029 at .007, 2.047 at .012, 2.142 at .02. Runs that differ in nothing that should matter
# differ by .01 to .03. So a little more than one node's: 4 ** .25 = 1.4. With rounds of 11,
# momentum and the task's own size .02 and .028 differ by no more than that: Perl's modules 1.863
# and 1.872, with another seed 1.887 and 1.886, Python's 1.448 and 1.451, Vim's help 1.513 and
# 1.495; .014 and .04 come to 1.884 and 1.896 where the first was 1.863.
MEMBERS_EXPONENT = 0.25
MEMBERS_MAX = 8

# Of a short training, so much at most is warm-up.
_WARMUP_SHARE_MAX = 0.05
# A training that goes on after its end warms up over this share of what is new, if that is less
# than the warm-up of its beginning.
_REWARM_SHARE = 0.05


@dataclass(frozen=True)
class Horizon:
    """Where training ends: the recipe's target, or that of the newest extension.

    Attributes:
        target_tokens: 0: it is not said.
        resumed_tokens: the decayed learning rate rises anew from there; 0: it had not decayed.
    """

    target_tokens: int = 0
    resumed_tokens: int = 0

    def is_reached(self, progress_tokens: float) -> bool:
        """Whether there is an end, and the swarm is there."""
        return 0 < self.target_tokens <= progress_tokens


def lr_factor(
    recipe: Recipe, progress_tokens: float, horizon: Horizon, members: float = 1.0
) -> float:
    """Return by how much the task's learning rate is multiplied, 0 < factor.

    Args:
        members: how many train now; between two whole numbers while one comes or goes.
    """
    scheduled = _schedule(recipe, progress_tokens, horizon.target_tokens)
    warm = _warmth(recipe, progress_tokens, horizon)
    # The noise of a larger learning rate is gone only once that has decayed: without an end,
    # what is right for one node stays right.
    many = members_factor(recipe, members) if horizon.target_tokens else 1.0
    return scheduled * warm * many


def shorten_warmup(recipe: Recipe) -> Recipe:
    """Return ``recipe`` with a warm-up of a twentieth of its target at most, if it has one."""
    if not recipe.target_tokens:
        return recipe
    most = round(_WARMUP_SHARE_MAX * recipe.target_tokens)
    return msgspec.structs.replace(recipe, warmup_tokens=min(recipe.warmup_tokens, most))


def members_factor(recipe: Recipe, members: float) -> float:
    """Return how much more than one node alone so many members together may take in a step."""
    counted = min(max(1.0, members), float(recipe.members_max))
    return float(counted**recipe.members_exponent)


def ema_weight(recipe: Recipe, before_tokens: float, now_tokens: float) -> float:
    """Return the weight, 0 to 1, of the newest parameters in the mean over the last steps.

    ``before_tokens``: where the swarm was at the update before; the window is ``ema_share`` of
    the progress, and grows with it.
    """
    window = recipe.ema_share * now_tokens
    gone = max(0.0, now_tokens - before_tokens)
    return 1.0 - math.exp(-gone / window) if window > 0 else 1.0


def is_decayed(recipe: Recipe, progress_tokens: float, horizon: Horizon) -> bool:
    """Whether the schedule has lowered the learning rate already, warm-up aside."""
    return _schedule(recipe, progress_tokens, horizon.target_tokens) < 1.0


def _schedule(recipe: Recipe, progress: float, target: int) -> float:
    if recipe.schedule == "constant" or target == 0:
        return 1.0
    # Warm-up is no part of the cosine: it begins where the learning rate is highest.
    begin = (
        recipe.warmup_tokens if recipe.schedule == "cosine" else target * (1 - recipe.decay_share)
    )
    gone = 1.0 if begin >= target else (progress - begin) / (target - begin)
    gone = min(1.0, max(0.0, gone))
    left = 0.5 * (1 + math.cos(math.pi * gone)) if recipe.schedule == "cosine" else 1 - gone
    return recipe.lr_final + (1 - recipe.lr_final) * left


def _warmth(recipe: Recipe, progress: float, horizon: Horizon) -> float:
    begin, length = 0, recipe.warmup_tokens
    if 0 < horizon.resumed_tokens <= progress:
        begin = horizon.resumed_tokens
        length = min(length, round(_REWARM_SHARE * (horizon.target_tokens - begin)))
    # Never nothing: a step without any effect is none.
    return min(1.0, (progress - begin + 1) / length) if length > 0 else 1.0
