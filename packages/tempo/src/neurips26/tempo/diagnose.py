"""Why following the critic helps under a shift, or why not.

Adaptation trusts the frozen critic three times: that it is right about the states the robot gets into, that the actor
has something left to gain from it there, and that a change of the actor which it values more also earns more. Each is
measured here, with the simulator's reward, which adaptation itself never sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from neurips26.shared import stats
from neurips26.shared.arrays import check_int

from . import gates, networks, shifts
from .adaptation import scope_mask
from .checkpoint import Checkpoint
from .distributions import reduced
from .evaluate import rollout

__all__ = ["changed_actors", "diagnose"]

GROUPS = 6  # of robots, the units of the rank correlation
SCALES = (0.0, 0.5, 0.8, 1.2)  # of the output layer: from standing still to larger movements
NOISES = (0.03, 0.1)  # random changes of every weight, relative to its layer's root mean square
CONTROLS = ("random as up 1e-4", "random as up 1e-3")
CLIMBS = {"up 1e-4": 1e-4, "up 1e-3": 1e-3, "down 1e-3": -1e-3}  # Adam's step size, 50 steps


def changed_actors(ckpt: Checkpoint, obs: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Actors around the frozen one, by name: scaled output, random changes of the weights (two draws a size), and the
    actor after 50 steps up or down the critic's value of normalised observations `obs` (m, d); last the controls, which
    go as far as the steps up in every weight, with random signs."""
    last = scope_mask(ckpt.actor, "last")
    actors: dict[str, Any] = {"frozen": ckpt.actor}
    for scale in SCALES:
        actors[f"output x {scale:g}"] = jax.tree.map(lambda x, c, s=scale: x * (s if c else 1.0), ckpt.actor, last)
    rng = np.random.default_rng([seed, 61])
    for size in NOISES:
        for draw in (1, 2):
            actors[f"noise {size:g} ({draw})"] = jax.tree.map(
                lambda x, s=size: x + s * np.sqrt(np.mean(np.square(x))) * rng.standard_normal(x.shape), ckpt.actor
            )
    for name, lr in CLIMBS.items():
        actors[name] = _climbed(ckpt, obs, lr, rng)
    for (
        name
    ) in CONTROLS:  # as far in every weight as the actor that climbed, in a direction that the critic did not choose
        actors[name] = jax.tree.map(
            lambda a, b: a + (np.asarray(b) - a) * rng.choice([-1.0, 1.0], np.shape(a)),
            ckpt.actor,
            actors[name.removeprefix("random as ")],
        )
    project = networks.get(ckpt.meta.arch).project
    return {k: project(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), v)) for k, v in actors.items()}


def _value(ckpt: Checkpoint) -> Any:
    """(theta, normalised observations) -> Qbar of what that actor would do there, as adaptation sees it."""
    policy, critic = ckpt.policy_apply(), ckpt.critic_apply()

    def value(theta: Any, o: jax.Array) -> jax.Array:
        return reduced(critic(o, policy(theta, o)))

    return value


def _climbed(ckpt: Checkpoint, obs: np.ndarray, lr: float, rng: np.random.Generator, steps: int = 50) -> Any:
    value, opt, sign = _value(ckpt), optax.adam(abs(lr)), np.sign(lr)
    theta = jax.tree.map(jnp.asarray, ckpt.actor)

    def step(carry: Any, o: jax.Array) -> Any:
        theta, state = carry
        move, state = opt.update(jax.grad(lambda p: -sign * value(p, o).mean())(theta), state)
        return (optax.apply_updates(theta, move), state), None

    batches = jnp.asarray(obs[rng.integers(0, len(obs), (steps, 256))])
    (theta, _), _ = jax.jit(lambda c, o: jax.lax.scan(step, c, o))((theta, opt.init(theta)), batches)
    return theta


def diagnose(
    ckpt: Checkpoint,
    name: str,
    seeds: Sequence[int],
    severity: int = 3,
    *,
    ticks: int = 500,
    control: Checkpoint | None = None,
) -> dict[str, Any]:
    """One condition ("nominal" or a shift's name), measured with robots of `seeds` in `GROUPS` groups.

    Returns:
        pearson, bias: of the critic against the realised discounted return where the frozen robot goes, with the
        command regressed out (gate K2); rise: what climbing the critic's action gradient adds to its value there (K3);
        actors: names; value, returns: (groups, actors) means of the critic's value of what each actor would do in the
        frozen robot's states, and of its return per 1000 ticks; rank: Spearman's correlation of the two over the actors
        without the controls, one a group;
        climb: gain in % of the actor that the critic values most; best: gain in % of the actor that earned most on
        half of the groups, measured on the other half; with `control` (the same policy with other critics, such as
        `critic.refit` under the shift) also control_pearson, control_bias and control_rank of its critics, for the same
        states and actors.
    """
    if check_int(len(seeds), "seeds", minimum=GROUPS) % GROUPS:
        raise ValueError(f"seeds: expected a multiple of {GROUPS} robots, got {len(seeds)}")
    check_int(ticks, "ticks", minimum=102)  # 100 of them are the horizon of the realised return
    shift = shifts.of_severity(ckpt.meta.robot, name, severity)
    seen = gates.visits(ckpt, seeds, ticks, shift=shift)
    rng = np.random.default_rng([int(seeds[0]), 67])
    normal = np.clip((seen["obs"] - ckpt.mean) / ckpt.std, -10, 10).astype(np.float32)
    blocks = np.split(np.arange(len(seeds)), GROUPS)
    states = []
    for block in blocks:
        visited = normal[:, block][seen["active"][:, block]]
        states.append(visited[rng.integers(0, len(visited), 500)])
    actors = changed_actors(ckpt, np.concatenate(states), int(seeds[0]))
    values = _values(ckpt, actors, states)
    earned = [rollout(ckpt, "none", shift, seeds, ticks=ticks, theta=theta).returns() for theta in actors.values()]
    returns = np.array([[r[block].mean() for r in earned] for block in blocks])
    sample = seen["obs"][seen["active"]]
    k2 = gates.calibration(ckpt, seen)
    more = {}
    if control is not None:
        informed, ranked = gates.calibration(control, seen), _values(control, actors, states)
        more = {f"control_{k}": informed[k] for k in ("pearson", "bias")}
        more["control_rank"] = _ranks(ranked, returns)
    judged = len(actors) - len(CONTROLS)
    return more | {
        "pearson": k2["pearson"],
        "bias": k2["bias"],
        "rise": gates.greedy_gain(ckpt, sample[:: max(1, len(sample) // 2000)]),
        "actors": list(actors),
        "value": values,
        "returns": returns,
        "rank": _ranks(values, returns),
        "climb": _gain(returns.mean(0), int(values.mean(0)[:judged].argmax())),
        "best": float(
            np.mean([_gain(returns[1 - h :: 2].mean(0), int(returns[h::2].mean(0)[:judged].argmax())) for h in (0, 1)])
        ),
    }


def _values(ckpt: Checkpoint, actors: dict[str, Any], states: list[np.ndarray]) -> np.ndarray:
    """(groups, actors) means of Qbar over the states."""
    value = jax.jit(_value(ckpt))
    return np.array([[float(value(theta, jnp.asarray(o)).mean()) for theta in actors.values()] for o in states])


def _ranks(values: np.ndarray, returns: np.ndarray) -> list[float]:
    n = values.shape[1] - len(CONTROLS)
    return [stats.spearman(v[:n], r[:n])[0] for v, r in zip(values, returns, strict=True)]


def _gain(returns: np.ndarray, actor: int) -> float:
    """Of one actor over the frozen one, which comes first, in %."""
    return float(100 * (returns[actor] / returns[0] - 1))
