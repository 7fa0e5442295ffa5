"""DADAO: decoupled accelerated optimization on a graph; exact, for strongly convex objectives.

Source: A. Nabli and E. Oyallon, "DADAO: Decoupled Accelerated Decentralized Asynchronous
Optimization", ICML 2023 (extended: JMLR 26, 2025), and the authors' code. It minimises Σ f_i(x),
each f_i mu-strongly convex and L-smooth, and comes within 1e-12 of the optimum in float64. Each
node keeps x and x̃ (primal), y and ỹ (its share of the dual of the gradients), z and z̃ (the dual
of consensus; both sum to zero over all nodes). With nu = mu/2 and q = √(nu/L), between events::

    x' = η (x̃ − x)        y' = α (ỹ − y)                  z' = α (z̃ − z)
    x̃' = η̃ (x − x̃)        ỹ' = −θ (y + z + nu x̃)          z̃' = α̃ (z − z̃)

    gradient   g = ∇f_i(x) − nu x − ỹ      x −= γ g,  x̃ −= γ̃ g,  ỹ += (δ + δ̃) g
    exchange   m = (y + z)_i − (y + z)_j    z −= β m,  z̃ −= β̃ m

    α = q/4   α̃ = η = η̃ = q/8   θ = 1/(2q)   δ = q/4   δ̃ = 1
    γ = 1/(4L)   γ̃ = 1/(4√(L nu))   β = 1/2   β̃ = f · 2 chi1 / q

The flow is linear with the same 6x6 matrix for every coordinate, and is applied lazily by its
exponential. That is computed anew each time: the matrix has the eigenvalue 0 twice, and a cached
eigendecomposition is garbage for some condition numbers. One vector, y + z, is all that is sent;
no gradient and no x ever leaves the node.

Time: one unit is the mean time between two gradients of a node. The graph's edges share one rate,
so that over all of them √(2 chi1 chi2) exchanges complete per unit (chi of the Laplacian divided by
the number of edges), which is the least that the proof allows: 2 chi1* chi2* = 1 with real rates.

Deviations. The paper lets clocks keep their promise; real exchanges fail. **The guard** is ours:
each node measures how many of its exchanges complete, and below ``guard`` of the promised rate it
takes its gradients more slowly, so that per gradient there are enough of them again. Where a step
is much quicker than an exchange, as on real nodes, that alone keeps the two in step. The
``safety`` factor f makes β̃ smaller than the proof allows. f = 1 is the paper and diverges where
half of the exchanges fail; f = 0.5 stands three quarters of them failing, and costs 6 % more
gradients where none does (tests/algorithms/test_dadao.py). **Churn**: a node that goes takes its z
with it, and the point that the others converge to would move. So duals belong to an *epoch*, which
a node enters with all of them at zero and never enters twice; then they sum to zero over those that
are in it. A new one begins whenever a node sees its members change, or starts. Nodes exchange
within one epoch only; one that meets a later epoch goes over to it, so that the latest spreads to
all. A node that has just started cannot know whether it was there in an earlier life, and answers
the first that it meets with one that is later still. Epochs are counted round a circle, where later
is what is less than half of it ahead: there is no last one, at which a member that names any number
could leave others for good.

float64 and convex tasks only: float32 stops at a squared error of about 1e-10, and for a neural
network mu does not exist. Use a2cid2 there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta as Range

from swarmnode.errors import ConfigError
from swarmnode.ipc.settings import Settings
from swarmnode.strategies.base import (
    Context,
    Exchange,
    Intent,
    Kind,
    Meeting,
    Needs,
    Offer,
    Sent,
    Strategy,
    TaskFacts,
)
from swarmnode.strategies.kinds import RandomPairs
from swarmnode.strategies.topology import Graph, Matrix, build_graph, exponential

_NAMES = ("x", "x_tilde", "y", "y_tilde", "z", "z_tilde")
_X, _XT, _Y, _YT, _Z, _ZT = range(6)
# Of a clock that rings at random, so many rings tell its rate within a seventh.
_MEASURED_RINGS = 50
# A step of a small convex task takes 0.3 ms, an exchange on a busy machine 100 ms and more.
_PACE_MIN = 1e-4
# So many epochs there are, round a circle: far more than milliseconds, by which a life begins.
_EPOCHS = 2**53


@dataclass(frozen=True)
class Constants:
    """The paper's constants for mu, L and the real-rate chi1*."""

    nu: float
    alpha: float
    alpha_t: float
    eta: float
    eta_t: float
    theta: float
    delta: float
    delta_t: float
    gamma: float
    gamma_t: float
    beta: float
    beta_t: float

    @classmethod
    def of(cls, mu: float, smoothness: float, chi1: float, safety: float = 1.0) -> Constants:
        """Return them; ``chi1`` is that of the Laplacian with rates per unit of time."""
        nu = mu / 2
        q = math.sqrt(nu / smoothness)
        return cls(
            nu=nu,
            alpha=q / 4,
            alpha_t=q / 8,
            eta=q / 8,
            eta_t=q / 8,
            theta=1 / (2 * q),
            delta=q / 4,
            delta_t=1.0,
            gamma=1 / (4 * smoothness),
            gamma_t=1 / (4 * math.sqrt(smoothness * nu)),
            beta=0.5,
            beta_t=safety * 2 * chi1 / q,
        )

    def flow_matrix(self) -> Matrix:
        """Return M of S' = M S: [6, 6], rows as in the state."""
        m = np.zeros((6, 6))
        m[_X, _XT], m[_X, _X] = self.eta, -self.eta
        m[_XT, _X], m[_XT, _XT] = self.eta_t, -self.eta_t
        m[_Y, _YT], m[_Y, _Y] = self.alpha, -self.alpha
        m[_YT, _Y], m[_YT, _Z], m[_YT, _XT] = -self.theta, -self.theta, -self.theta * self.nu
        m[_Z, _ZT], m[_Z, _Z] = self.alpha, -self.alpha
        m[_ZT, _Z], m[_ZT, _ZT] = self.alpha_t, -self.alpha_t
        return m


def exchange_rates(graph: Graph) -> Graph:
    """Return ``graph`` with the least uniform rates that DADAO may have: 2 chi1 chi2 = 1."""
    uniform = Graph(graph.n, dict.fromkeys(graph.edges, 1 / len(graph.edges)))
    mixing = uniform.mixing()
    return uniform.scaled(math.sqrt(2) * mixing.acceleration)


class Dadao(RandomPairs, Strategy):
    """Six vectors a node; gradients and exchanges each at their own random times."""

    name = "dadao"
    needs = Needs.GRADIENT
    dtype = torch.float64
    sends = "y+z"
    codec = "RAW64"
    is_scaled = False  # duals of gradients

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``safety``: f above. ``guard``: gradients are taken more slowly while fewer than this

        share of the promised exchanges complete; 0: never, which diverges where many fail.
        """

        safety: Annotated[float, Range(gt=0.0, le=1.0)] = 0.5
        guard: Annotated[float, Range(ge=0.0, le=1.0)] = 0.5

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self._s = torch.zeros(6, x.numel(), dtype=torch.float64, device=x.device)
        self._s[_X] = x
        self._t = 0.0
        self._rate = 0.0  # exchanges per unit that this node takes part in, as promised
        self._measured = 1.0  # completed as a share of that, at full speed
        self._pace = 1.0
        self._members: tuple[bytes, ...] = ()
        self.base_version = b""  # of the duals: which members they are shared with
        self._has_met = False  # another epoch, in this life

    @classmethod
    def check(cls, config: Any, facts: TaskFacts) -> None:
        del config
        if facts.strong_convexity is None or facts.smoothness is None:
            raise ConfigError(
                f"strategy dadao: expected a strongly convex task whose mu and L are known, task "
                f"{facts.name} has none: its proof and its constants hold for nothing else; "
                "use a2cid2, or pair-average"
            )

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        del config
        return Meeting(Kind.PAIR, 0.0, (Sent(cls.codec),))

    def buffers(self) -> Mapping[str, torch.Tensor]:
        return {name: self._s[row] for row, name in enumerate(_NAMES) if row != _X}

    def shipped(self) -> Collection[str]:
        return ()  # the duals of a peer are about that peer's objective

    def join(self, received: Mapping[str, torch.Tensor]) -> None:
        del received
        self._s[_X] = self._s[_XT] = self.x

    def start(self, ctx: Context) -> None:
        super().start(ctx)
        self.check(self.config, ctx.facts)
        self._s[_X] = self.x
        if not self._members:  # the first time
            self._begin_epoch(ctx.life)
        self._take_members(ctx.members)

    def on_membership(self, members: tuple[bytes, ...]) -> None:
        self._take_members(members)

    def _take_members(self, members: tuple[bytes, ...]) -> None:
        """Tune to the graph, and begin with the duals anew unless the members are the same."""
        assert self.ctx.facts.strong_convexity is not None
        assert self.ctx.facts.smoothness is not None
        rates = self._rates(members)
        place = self.ctx.index if self.ctx.topology else members.index(self.ctx.self_id)
        self._rate = sum(rates.neighbours(place).values()) if rates else 0.0
        self.constants = Constants.of(
            self.ctx.facts.strong_convexity,
            self.ctx.facts.smoothness,
            rates.mixing().chi1 if rates else 0.0,
            self.config.safety,
        )
        self._m = self.constants.flow_matrix()
        if self._members != members:
            self._begin_epoch(self.epoch + 1 if self._members else self.epoch)
        self._members = members
        self.base_version = hashlib.sha256(b"".join(members)).digest()

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch % _EPOCHS
        self._s[_Y:] = 0

    def _rates(self, members: tuple[bytes, ...]) -> Graph | None:
        """Return the rates of exchanges; None while there is no peer to converge with."""
        graph = self.ctx.topology
        if graph is None and len(members) > 1:
            graph = build_graph("complete", len(members))
        if graph is None or not graph.mixing().lambda2:
            return None
        return exchange_rates(graph)

    # --- the local process ---------------------------------------------------------------

    def flow(self, t: float) -> None:
        elapsed, self._t = t - self._t, t
        if elapsed <= 0:
            return
        self._s = torch.from_numpy(exponential(self._m, elapsed)).to(self.x.device) @ self._s
        self.x.copy_(self._s[_X])
        at_full_speed = elapsed / self.pace()
        self._measured *= math.exp(-at_full_speed * self._rate / _MEASURED_RINGS)

    def local_update(self, v: torch.Tensor) -> None:
        s, c = self._s, self.constants
        g = v - c.nu * s[_X] - s[_YT]
        s[_X].sub_(g, alpha=c.gamma)
        s[_XT].sub_(g, alpha=c.gamma_t)
        s[_YT].add_(g, alpha=c.delta + c.delta_t)
        self.x.copy_(s[_X])
        if self.config.guard and self._rate:
            self._pace = min(1.0, max(_PACE_MIN, self._measured / self.config.guard))

    def pace(self) -> float:
        return self._pace if self._rate else 1.0  # alone there is nothing to wait for

    # --- exchanges -----------------------------------------------------------------------

    def node_rate(self) -> float:
        return self._rate

    def accept(self, offer: Offer) -> str | None:
        if offer.intent.base_version != self.base_version:
            return "base: it knows of other members"
        theirs = offer.intent.round
        ahead = (theirs - self.epoch) % _EPOCHS
        if theirs >= _EPOCHS or ahead > _EPOCHS // 2:
            return f"round: expected epoch {self.epoch}, got {theirs}"
        if ahead:
            is_first, self._has_met = not self._has_met, True
            self._begin_epoch(theirs + 1 if is_first else theirs)
            if is_first:
                return f"round: it was not there, so that epoch {self.epoch} begins"
        return None

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        del intent, name  # there is only y + z to send
        out.copy_(self._s[_Y] + self._s[_Z])

    def apply(self, exchange: Exchange) -> None:
        intent = exchange.intent
        if (intent.base_version, intent.round) != (self.base_version, self.epoch):
            return
        minus_m = exchange.difference("y+z").to(self.x.device)
        self._s[_Z].add_(minus_m, alpha=self.constants.beta)
        self._s[_ZT].add_(minus_m, alpha=self.constants.beta_t)
        self._measured += 1 / _MEASURED_RINGS

    def metrics(self) -> dict[str, float]:
        return {"exchange_rate_ratio": self._measured, "pace": self._pace}
