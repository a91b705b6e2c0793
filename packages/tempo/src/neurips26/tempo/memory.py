"""Score-based memory: a ring of observations, replayed hard ones first (Schaul et al. 2016 in its proportional form).

The score of an observation is the critic's value of what the actor would do there. Priorities are its distance from
the easiest entry, p_i = (v_max - v_i) + eps with eps = 0.02 (v_max - v_min); P(i) ~ p_i^alpha; importance weights
w_i = (n P(i))^-beta / max_j w_j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neurips26.shared.arrays import check_choice, check_int, check_real

from .choices import DEFAULTS

__all__ = ["Memory", "ScoreMemory", "add", "probabilities", "sample", "set_scores", "weights"]


class Memory(NamedTuple):
    """Contents: M x (d + 3) numbers."""

    obs: Float[Array, "m d"]
    score: Float[Array, " m"]
    stamp: Int[Array, " m"]  # insertion number, -1 where empty
    inserted: Int[Array, ""]


@dataclass(frozen=True)
class ScoreMemory:
    """Settings of the memory.

    Attributes:
        capacity: M entries.
        alpha: 0 = uniform; larger = hard observations first; negative = easy first (a control, needs
            `allow_easy_first`).
        beta: importance correction at the start, growing to 1 over `beta_steps` control steps.
        beta_steps: an episode of 1000 ticks by default.
        eviction: "fifo", or "easiest", which drops the highest score except among the `recent_min` newest.
        recent_min: newest entries that "easiest" never drops, so that the memory does not fossilise on a fall.
        allow_easy_first: permit a negative alpha.
    """

    capacity: int = DEFAULTS.capacity
    alpha: float = DEFAULTS.alpha
    beta: float = 0.4
    beta_steps: int = 1000
    eviction: str = DEFAULTS.eviction
    recent_min: int = 64
    allow_easy_first: bool = False

    def __post_init__(self) -> None:
        check_int(self.capacity, "capacity", minimum=1)
        check_real(self.alpha, "alpha", minimum=None if self.allow_easy_first else 0.0)
        check_real(self.beta, "beta", minimum=0.0, maximum=1.0)
        check_int(self.beta_steps, "beta_steps", minimum=1)
        check_choice(self.eviction, "eviction", ("fifo", "easiest"))
        check_int(self.recent_min, "recent_min", minimum=0)
        if self.eviction == "easiest" and self.recent_min >= self.capacity:
            raise ValueError(
                f"recent_min: expected less than the capacity {self.capacity}, got {self.recent_min}: nothing else is left"
            )

    def empty(self, obs_size: int) -> Memory:
        """Empty."""
        m = self.capacity
        return Memory(jnp.zeros((m, obs_size)), jnp.zeros(m), jnp.full(m, -1, jnp.int32), jnp.zeros((), jnp.int32))


def add(
    cfg: ScoreMemory, memory: Memory, obs: Float[Array, " d"], score: Float[Array, ""], keep: Bool[Array, ""]
) -> Memory:
    """Inserts one observation unless `keep` is False (a fall, or a broken reading)."""
    if cfg.eviction == "fifo":
        slot = memory.inserted % cfg.capacity
    else:
        empty = memory.stamp < 0
        recent = memory.stamp >= memory.inserted - cfg.recent_min
        easy = jnp.where(jnp.isnan(memory.score), jnp.inf, memory.score)
        candidate = jnp.where(recent, -jnp.inf, easy)
        oldest = jnp.argmin(jnp.where(empty, jnp.iinfo(jnp.int32).max, memory.stamp))
        slot = jnp.where(empty.any(), jnp.argmax(empty), jnp.where(recent.all(), oldest, jnp.argmax(candidate)))
    # the row is rewritten with itself where nothing is kept: one scatter, no copy of the ring
    row, value = jnp.where(keep, obs, memory.obs[slot]), jnp.where(keep, score, memory.score[slot])
    stamp = jnp.where(keep, memory.inserted, memory.stamp[slot])
    return Memory(
        memory.obs.at[slot].set(row),
        memory.score.at[slot].set(value),
        memory.stamp.at[slot].set(stamp),
        memory.inserted + keep.astype(jnp.int32),
    )


def probabilities(
    score: Float[Array, " m"], filled: Bool[Array, " m"], alpha: Float[Array, ""] | float
) -> Float[Array, " m"]:
    """P(i). Empty entries and entries whose score is NaN get 0; equal scores give a uniform distribution."""
    usable = filled & ~jnp.isnan(score)
    score = jnp.clip(jnp.nan_to_num(score), -1e30, 1e30)
    high = jnp.where(usable, score, -jnp.inf).max()
    low = jnp.where(usable, score, jnp.inf).min()
    spread = jnp.where(usable.any(), high - low, 0.0)
    scaled = jnp.where(spread > 0, (high - score) / jnp.where(spread > 0, spread, 1.0), 0.0) + DEFAULTS.priority_floor
    p = jnp.where(usable, jnp.exp(alpha * jnp.log(scaled)), 0.0)  # half the time of a power
    return p / jnp.maximum(p.sum(), 1e-30)


def weights(p: Float[Array, " b"], n: Int[Array, ""] | int, beta: Float[Array, ""] | float) -> Float[Array, " b"]:
    """Importance weights of sampled entries with probabilities `p` out of n, the largest scaled to 1."""
    logw = -beta * jnp.log(jnp.maximum(n * p, 1e-30))
    return jnp.exp(logw - logw.max())


def _last_positive(x: Float[Array, "... n"]) -> Int[Array, "..."]:
    return jnp.max(jnp.where(x > 0, jnp.arange(x.shape[-1]), 0), -1)


def sample(
    cfg: ScoreMemory,
    memory: Memory,
    key: jax.Array,
    batch: int,
    beta: Float[Array, ""] | float,
    alpha: Float[Array, ""] | float | None = None,
) -> tuple[Int[Array, " b"], Float[Array, " b"]]:
    """`batch` indices drawn with replacement from the filled part, and their importance weights (0 when the memory is
    empty). `alpha` replaces the configured one; at 0 every weight is exactly 1."""
    filled = memory.stamp >= 0
    p = probabilities(memory.score, filled, cfg.alpha if alpha is None else alpha)
    # inverse transform in two levels, blocks of about sqrt(M) and the entries of the drawn blocks: a prefix sum over
    # all M entries would cost more than everything else here when M is large
    side = math.isqrt(cfg.capacity - 1) + 1
    blocks = jnp.pad(p, (0, side * side - cfg.capacity)).reshape(side, side)
    mass = blocks.sum(1)
    total = jnp.cumsum(mass)
    draw = jax.random.uniform(key, (batch,)) * total[-1]
    block = jnp.minimum(jnp.searchsorted(total, draw, side="right"), _last_positive(mass))
    rows = blocks[block]
    rest = draw - (total[block] - mass[block])
    entry = (jnp.cumsum(rows, 1) <= rest[:, None]).sum(1)
    # rounding can carry a draw past the last entry of its block that has any mass, or before the first
    entry = jnp.clip(entry, jnp.argmax(rows > 0, 1), _last_positive(rows))
    index = jnp.where(total[-1] > 0, block * side + entry, 0)
    n = (p > 0).sum()
    return index, weights(p[index], n, beta) * (n > 0)


def set_scores(memory: Memory, index: Int[Array, " b"], score: Float[Array, " b"]) -> Memory:
    """New scores for sampled entries only."""
    return memory._replace(score=memory.score.at[index].set(score))
