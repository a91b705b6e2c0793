"""What a critic predicts: a distribution over returns, of which TEMPO needs the mean and the entropy.

Any object with `mean()` and `entropy()`, both differentiable and of the batch's shape, is a `ValueDistribution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

__all__ = ["Categorical", "Gaussian", "Scalar", "ValueDistribution", "project", "reduced", "support"]


@runtime_checkable
class ValueDistribution(Protocol):
    """A predicted return distribution Z(o, a)."""

    def mean(self) -> jax.Array:
        """Expected return, shape (...)."""
        ...

    def entropy(self) -> jax.Array:
        """Entropy in nats, shape (...)."""
        ...


class Categorical(NamedTuple):
    """C51 (Bellemare et al. 2017): probabilities softmax(logits) on fixed atoms; entropy between 0 and log N."""

    logits: Float[Array, "... n"]
    atoms: Float[Array, " n"]

    def mean(self) -> Float[Array, "..."]:
        """Expected return."""
        return (jax.nn.softmax(self.logits) * self.atoms).sum(-1)

    def entropy(self) -> Float[Array, "..."]:
        """Entropy in nats."""
        logp = jax.nn.log_softmax(self.logits)  # finite even where p underflows, hence p log p and its gradient are too
        return -(jnp.exp(logp) * logp).sum(-1)

    @property
    def max_entropy(self) -> float:
        """What `entropy` is divided by in the objective."""
        return float(np.log(self.atoms.shape[-1]))


class Gaussian(NamedTuple):
    """A Gaussian head: H = log sigma + log(2 pi e) / 2."""

    mu: Float[Array, "..."]
    log_std: Float[Array, "..."]

    def mean(self) -> Float[Array, "..."]:
        """Expected return."""
        return self.mu

    def entropy(self) -> Float[Array, "..."]:
        """Entropy in nats."""
        return self.log_std + 0.5 * np.log(2 * np.pi * np.e)

    @property
    def max_entropy(self) -> float:
        """What `entropy` is divided by in the objective."""
        return 1.0  # unbounded: lambda_H is then a weight per nat


class Scalar(NamedTuple):
    """A plain Q value. It has no entropy: asking for one is an error."""

    q: Float[Array, "..."]

    def mean(self) -> Float[Array, "..."]:
        """Expected return."""
        return self.q

    def entropy(self) -> Float[Array, "..."]:
        """Entropy in nats."""
        raise ValueError(
            "entropy_coef: expected 0 for a scalar critic, which predicts no distribution; use a categorical or Gaussian one"
        )

    @property
    def max_entropy(self) -> float:
        """What `entropy` is divided by in the objective."""
        return 1.0


def reduced(twins: Sequence[ValueDistribution], how: str = "min") -> jax.Array:
    """Qbar of several critics: the smallest ("min") or the average ("mean") of their means."""
    values = jnp.stack([z.mean() for z in twins])
    return values.min(0) if how == "min" else values.mean(0)


def support(v_min: float, v_max: float, atoms: int) -> np.ndarray:
    """Uniform atoms z_1..z_N on [v_min, v_max]."""
    if not (np.isfinite([v_min, v_max]).all() and v_min < v_max) or atoms < 2:
        raise ValueError(f"v_min: expected v_min < v_max and at least 2 atoms, got [{v_min}, {v_max}] with {atoms}")
    return np.linspace(v_min, v_max, atoms, dtype=np.float32)


def project(
    probabilities: Float[Array, "b n"],
    reward: Float[Array, " b"],
    discount: Float[Array, " b"],
    atoms: Float[Array, " n"],
) -> Float[Array, "b n"]:
    """The C51 projection: the distribution of reward + discount * Z, put back on the atoms.

    `discount` is 0 where the episode ended in a fall. Every shifted atom shares its mass between its two neighbours in
    proportion to closeness; written as a triangular kernel, so that a target exactly on an atom keeps its whole mass
    there.
    """
    spacing = atoms[1] - atoms[0]
    target = jnp.clip(reward[:, None] + discount[:, None] * atoms, atoms[0], atoms[-1])
    share = jnp.clip(1.0 - jnp.abs(target[:, :, None] - atoms) / spacing, 0.0, 1.0)
    return jnp.einsum("bi,bij->bj", probabilities, share)
