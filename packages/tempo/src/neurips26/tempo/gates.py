"""What a checkpoint must pass before any adaptation figure of it means something.

K1 it walks, measured against standing still on the same seeds. K2 its critic is calibrated, with the command regressed
out. K3 its actor is (nearly) greedy on its critic, else extra gradient steps improve it everywhere and have nothing to
do with a shift. K4 the shifts hurt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurips26.shared import stats

from . import runtime, shifts
from .checkpoint import Checkpoint
from .distributions import reduced
from .evaluate import Rollout, rollout

__all__ = ["calibration", "check_gates", "greedy_gain", "status_of"]

TRACKING, MARGIN, FALLS = 0.6, 5.0, 0.02
EPISODES = 800  # of K1: a return differs by 5 from one command sequence to another, and its margin must be known to 0.4
PEARSON, BIAS, END_MASS, GREEDY, COST = 0.6, 0.2, 0.01, 0.03, 0.25


def visits(
    ckpt: Checkpoint, seeds: Sequence[int], ticks: int, noise: float = 1.0, shift: shifts.Shift | None = None
) -> dict[str, np.ndarray]:
    """Raw observations (t, n, d), actions, rewards (t, n), falls and survivors of the frozen policy."""
    world = runtime.Runtime(ckpt.meta.robot, seeds, noise=noise, episode_length=ticks, shift=shift)
    act = jax.jit(lambda o: ckpt.policy_apply()(ckpt.actor, o))
    obs, rows = world.reset(), []
    for _ in range(ticks):
        o = np.clip((obs - ckpt.mean) / ckpt.std, -10, 10)
        action = np.asarray(act(jnp.asarray(o)))
        after, reward, fallen, _, info = world.step(action)
        rows.append((obs, action, reward, fallen, info["active"]))
        obs = after
    return {
        k: np.stack(v)
        for k, v in zip(("obs", "action", "reward", "fallen", "active"), zip(*rows, strict=True), strict=True)
    }


def calibration(ckpt: Checkpoint, seen: dict[str, np.ndarray], horizon: int = 100) -> dict[str, float]:
    """K2: correlation of Qbar with the discounted return of the next `horizon` ticks after both lost their dependence on
    the command; bias against that return, and against the whole one, which is `1 / (1 - gamma^horizon)` times as much
    where the robot goes on; mass on the end atoms."""
    t, n = seen["reward"].shape
    usable, gamma = t - horizon, ckpt.meta.discount
    real = np.sum([gamma**k * seen["reward"][k : k + usable] for k in range(horizon)], 0)
    keep = seen["active"][:usable].ravel()
    flat = lambda x: x[:usable].reshape(usable * n, -1)[keep]  # noqa: E731
    obs, action, real = flat(seen["obs"]), flat(seen["action"]), real.ravel()[keep]
    # what the critic estimates has no end: after `horizon` ticks a robot that stands goes on as it did
    goes_on = flat(seen["active"][horizon:].astype(float))[:, 0]
    whole = float((real * (1 + goes_on * gamma**horizon / (1 - gamma**horizon))).mean())
    o = jnp.asarray(np.clip((obs - ckpt.mean) / ckpt.std, -10, 10))
    critic, atoms = ckpt.critic_apply(), ckpt.meta.critic_kind == "categorical"  # another head has no end atoms

    @jax.jit
    def judged(o: jax.Array, a: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        twins = critic(o, a)
        return reduced(twins), [jax.nn.softmax(z.logits)[:, jnp.array([0, -1])].sum(1).mean() for z in twins if atoms]

    value, ends = judged(o, jnp.asarray(action))
    q = np.asarray(value)
    c = obs[:, -3:] if ckpt.meta.robot != "g1" else obs[:, 9:12]
    features = np.concatenate(
        [np.ones((len(c), 1)), c, np.abs(c), c**2, c[:, [0]] * c[:, [1]], np.abs(c[:, [0]] * c[:, [2]])], axis=1
    )

    def rest(y: np.ndarray) -> np.ndarray:
        return y - features @ np.linalg.lstsq(features, y, rcond=None)[0]

    return {
        "pearson_raw": float(np.corrcoef(q, real)[0, 1]),
        "pearson": float(np.corrcoef(rest(q), rest(real))[0, 1]),
        "bias": float((q.mean() - real.mean()) / max(abs(real.mean()), 1e-9)),
        "bias_whole": float((q.mean() - whole) / max(abs(whole), 1e-9)),
        "end_mass": float(np.mean(ends)) if atoms else 0.0,
        "q_std": float(q.std()),
        "q_mean": float(q.mean()),
    }


def greedy_gain(ckpt: Checkpoint, obs: np.ndarray, steps: int = 10, size: float = 0.05) -> float:
    """K3: relative rise of Qbar when the action climbs the critic, on raw observations (n, d)."""
    o = jnp.asarray(np.clip((obs - ckpt.mean) / ckpt.std, -10, 10))
    critic = ckpt.critic_apply()

    value = jax.jit(lambda a: reduced(critic(o, a)))
    gradient = jax.jit(jax.grad(lambda a: value(a).sum()))
    a = ckpt.policy_apply()(ckpt.actor, o)
    start = best = value(a)
    for _ in range(steps):
        slope = gradient(a)
        a = jnp.clip(a + size * slope / (jnp.linalg.norm(slope, axis=-1, keepdims=True) + 1e-8), -1, 1)
        best = jnp.maximum(best, value(a))
    return float((best.mean() - start.mean()) / jnp.abs(start.mean()))


def first_robot(ckpt: Checkpoint) -> int:
    """The first of the robots that judge a checkpoint; no stage of training and no choice has seen them.

    How long to distil was decided after a look at 240 of those that judge trained actors: distilled ones meet others.
    """
    return 800_000 if "distilled" in ckpt.meta.card else 700_000


def walking(ckpt: Checkpoint, seeds: Sequence[int], ticks: int) -> dict[str, float]:
    """K1: the frozen policy beside standing still, robot by robot."""
    walk: Rollout = rollout(ckpt, "none", shifts.Nominal(), seeds, ticks=ticks)
    still: Rollout = rollout(ckpt, "zero", shifts.Nominal(), seeds, ticks=ticks)
    margin, low, _ = stats.mean_interval(list(walk.returns() - still.returns()), 0.95)
    return {
        "return": float(walk.returns().mean()),
        "standing": float(still.returns().mean()),
        "margin": margin,
        "margin_low": low,
        "tracking": float(walk.tracking[walk.alive].mean()),
        "angular": float(walk.angular[walk.alive].mean()),
        "falls": float(walk.fallen.mean()),
        "episodes": len(seeds),
        "first_robot": seeds[0],
    }


def shift_costs(ckpt: Checkpoint, seeds: Sequence[int], ticks: int) -> dict[str, float]:
    """K4: the share of the nominal return that each shift of severity 3 takes from the frozen policy."""

    def earned(shift: shifts.Shift) -> float:
        return float(rollout(ckpt, "none", shift, seeds, ticks=ticks).returns().mean())

    nominal = earned(shifts.Nominal())
    return {name: 1 - earned(shifts.of_severity(ckpt.meta.robot, name, 3)) / nominal for name in shifts.SHIFTS}


def check_gates(ckpt: Checkpoint, episodes: int = EPISODES, ticks: int = 1000, cost_robots: int = 16) -> dict[str, Any]:
    """All four gates with their figures; `passed` maps K1..K4 to a truth value."""
    first = first_robot(ckpt)
    seeds = range(first, first + episodes)
    k1 = walking(ckpt, seeds, ticks)
    seen = visits(ckpt, range(first + 10_000, first + 10_032), min(ticks, 600))
    k2 = calibration(ckpt, seen)
    sample = seen["obs"][seen["active"]][:: max(1, int(seen["active"].sum()) // 2000)]
    k3 = {"rise": greedy_gain(ckpt, sample)}
    k4 = shift_costs(ckpt, seeds[:cost_robots], ticks)
    passed = {
        "K1": k1["tracking"] >= TRACKING and k1["margin_low"] >= MARGIN and k1["falls"] <= FALLS,
        "K2": k2["pearson"] >= PEARSON and abs(k2["bias"]) <= BIAS and k2["end_mass"] < END_MASS,
        "K3": k3["rise"] < GREEDY,
        "K4": all(v >= COST for v in k4.values()),
    }
    return {"K1": k1, "K2": k2, "K3": k3, "K4": k4, "passed": {k: bool(v) for k, v in passed.items()}}


def status_of(gates: dict[str, Any]) -> str:
    """What the checkpoint may be called."""
    k1 = gates["K1"]
    if all(gates["passed"].values()):
        return "walks; gates passed"
    if gates["passed"]["K1"]:
        return "walks; " + ", ".join(k for k, ok in gates["passed"].items() if not ok) + " failed"
    if k1["tracking"] >= 0.4 and k1["margin_low"] > 0:
        return "walks in part; K1 failed"
    if k1["angular"] >= 0.4 and k1["margin"] > 0:
        return "stands and turns; K1 failed"
    return "does not walk yet; K1 failed"
