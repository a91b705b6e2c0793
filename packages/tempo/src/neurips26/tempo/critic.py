"""The distributional critic of a finished actor: C51 policy evaluation on its own noisy roll-outs, bad states included.

PPO leaves a good actor and no action-value. The critic is learned afterwards, off-policy: robots act with the actor
plus exploration noise, are pushed and start in random poses; Z(o, a) regresses on r + gamma Z(o', pi(o')) with clipped
double Q (the twin with the smaller mean is the target). Optionally the actor then takes delayed TD3 steps on the
critic, so that it ends up (nearly) greedy. Both see the onboard observation only.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from neurips26.shared.arrays import check_choice

from . import networks, runtime, storage
from .checkpoint import SIZES, Checkpoint, Meta
from .distributions import project, support
from .shifts import Shift, describe

__all__ = ["CriticConfig", "collect", "fit", "refit"]


@dataclass(frozen=True)
class CriticConfig:
    """Settings of the critic stage; v_min and v_max fit rewards of at most 0.04 a tick at discount 0.97 (Q <= 1.33)."""

    robot: str = "go1"
    seed: int = 0
    robots: int = 24
    ticks: int = 400
    rounds: int = 8  # collections of robots x ticks transitions
    disturbed_every: int = 4  # pushes and random starts in every fourth round: bad states, but not as the rule
    noise: tuple[float, float] = (0.02, 0.15)  # standard deviation of the action noise, one value a robot
    correlation: float = 0.8  # of the noise in time, for half of the robots
    updates: int = 2500  # per round
    batch: int = 256
    lr: float = 5e-4
    actor_lr: float = 0.0  # > 0: delayed TD3 steps on the actor in the last rounds
    actor_from: int = 8
    actor_every: int = 2
    discount: float = 0.97
    target_rate: float = 0.01
    target_noise: float = 0.03  # smoothing of the target action, clipped at twice this
    target: str = "min"  # of the twins: the one with the smaller mean; "mean": their mixture, which is less pessimistic
    arch: str = "mlp_ln"
    width: int = 128
    depth: int = 2
    atoms: int = 101
    v_min: float = -0.1
    v_max: float = 1.7
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        check_choice(self.target, "target", ("min", "mean"))


def collect(
    policy: Any,
    robot: str,
    seeds: list[int],
    ticks: int,
    noise: np.ndarray,
    correlation: np.ndarray,
    seed: int,
    disturb: bool = True,
    shift: Shift | None = None,
) -> dict[str, np.ndarray]:
    """Transitions (o, a, r, o', fallen) of robots acting with `policy` (raw observations -> actions) plus noise.

    The successor of a fall or of a truncation is the terminal observation itself; only falls stop the bootstrap.
    """
    pushes = runtime.Disturbance() if disturb else None
    world = runtime.Runtime(robot, seeds, shift=shift, disturbance=pushes, episode_length=10**6)
    rng = np.random.default_rng([seed, 5])
    rows: dict[str, list[np.ndarray]] = {k: [] for k in ("obs", "action", "reward", "next", "fallen", "keep")}
    obs, drift = world.reset(), np.zeros((world.n, world.action_size))
    for _ in range(ticks):
        drift = correlation[:, None] * drift + np.sqrt(1 - correlation[:, None] ** 2) * rng.standard_normal(drift.shape)
        action = np.clip(policy(obs) + noise[:, None] * drift, -1, 1).astype(np.float32)
        after, reward, fallen, truncated, info = world.step(action)
        values = (obs, action, reward.astype(np.float32), after, fallen, info["active"] & ~info["diverged"])
        for k, v in zip(rows, values, strict=True):
            rows[k].append(np.array(v))
        over = fallen | truncated
        obs = world.reset(over) if over.any() else after
    flat = {k: np.concatenate(v) for k, v in rows.items()}
    keep = flat.pop("keep")
    return {k: v[keep] for k, v in flat.items()}


def exploration(cfg: CriticConfig, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviation of every robot's action noise, and its correlation in time (none for every other robot)."""
    return rng.uniform(*cfg.noise, cfg.robots), np.where(np.arange(cfg.robots) % 2 == 0, cfg.correlation, 0.0)


def normalised(obs: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """What the networks see of raw observations."""
    return np.clip((obs - mean) / std, -10, 10).astype(np.float32)


def joined(parts: list[dict[str, np.ndarray]], mean: np.ndarray, std: np.ndarray) -> dict[str, jax.Array]:
    """All transitions as the learner takes them: float32, observations normalised."""
    data = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    return {
        k: jnp.asarray(normalised(v, mean, std) if k in ("obs", "next") else v.astype(np.float32))
        for k, v in data.items()
    }


def read_round(cfg: CriticConfig, out: Path, r: int, act: Any) -> dict[str, np.ndarray]:
    """The transitions of round r from `out`; they are collected with `act` first where the file is not there yet."""
    path = out / f"round{r:03d}.npz"
    if not path.exists():
        noise, correlation = exploration(cfg, np.random.default_rng([cfg.seed, 31, r]))
        first = 200_000 + 1000 * cfg.seed + 100 * r
        seeds, disturb = list(range(first, first + cfg.robots)), r % cfg.disturbed_every == 0
        rows = collect(act, cfg.robot, seeds, cfg.ticks, noise, correlation, cfg.seed * 1000 + r, disturb)
        storage.save_tree(path, rows)
    with np.load(path) as file:
        return {name: file[f"leaf['{name}']"] for name in ("obs", "action", "reward", "next", "fallen")}


def begin(cfg: CriticConfig, policy: networks.Architecture, actor: Any, critics: Any) -> tuple[Any, dict[str, Any]]:
    """The compiled updates and the state that they start from; the state owns copies, since updates donate it."""
    opt, actor_opt, many = make_update(cfg, policy.apply, policy.project)
    actor, critics, slow = (jax.tree.map(lambda x: jnp.array(x, copy=True), x) for x in (actor, critics, critics))
    start = {"actor": actor, "actor_opt": actor_opt.init(actor), "critics": critics, "target": slow}
    return many, start | {"opt": opt.init(critics), "count": jnp.zeros((), jnp.int32)}


def learn(
    cfg: CriticConfig,
    many: Any,
    state: dict[str, Any],
    data: dict[str, jax.Array],
    rng: np.random.Generator,
    seed: int,
    train_actor: bool = False,
) -> tuple[dict[str, Any], jax.Array]:
    """`cfg.updates` updates on batches drawn by `rng`, and their losses; `seed` is that of the smoothing noise."""
    index = jnp.asarray(rng.integers(0, len(data["reward"]), (cfg.updates, cfg.batch)), jnp.int32)
    keys = jax.random.key_data(jax.random.split(jax.random.key(seed), cfg.updates))
    return many(state, index, keys, data, train_actor)


def make_update(cfg: CriticConfig, actor_apply: Any, actor_project: Any) -> Any:
    """Both optimisers, and the jitted function that makes one update a row of its indices."""
    arch = networks.get(cfg.arch)
    atoms = jnp.asarray(support(cfg.v_min, cfg.v_max, cfg.atoms))
    opt = optax.adamw(cfg.lr, weight_decay=cfg.weight_decay)
    actor_opt = optax.adam(cfg.actor_lr or 1.0)

    def logits(critic: Any, o: jax.Array, a: jax.Array) -> jax.Array:
        return arch.apply(critic, jnp.concatenate([o, a], -1))

    def critic_loss(critics: Any, o: jax.Array, a: jax.Array, target: jax.Array) -> jax.Array:
        return sum(-(target * jax.nn.log_softmax(logits(c, o, a))).sum(-1).mean() for c in critics)

    def step(
        state: dict[str, Any], draw: tuple[jax.Array, jax.Array], data: dict[str, jax.Array], train_actor: bool
    ) -> Any:
        index, key = draw
        o, a, r, o2, fallen = (data[k][index] for k in ("obs", "action", "reward", "next", "fallen"))
        noise = jnp.clip(
            cfg.target_noise * jax.random.normal(jax.random.wrap_key_data(key), a.shape),
            -2 * cfg.target_noise,
            2 * cfg.target_noise,
        )
        a2 = jnp.clip(jnp.tanh(actor_apply(state["actor"], o2)) + noise, -1, 1)
        both = jnp.stack([jax.nn.softmax(logits(c, o2, a2)) for c in state["target"]])
        if cfg.target == "mean":
            p = both.mean(0)
        else:
            lower = jnp.argmin((both * atoms).sum(-1), axis=0)
            p = jnp.take_along_axis(both, lower[None, :, None], axis=0)[0]
        target = project(p, r, cfg.discount * (1 - fallen), atoms)
        loss, grads = jax.value_and_grad(critic_loss)(state["critics"], o, a, jax.lax.stop_gradient(target))
        updates, opt_state = opt.update(grads, state["opt"], state["critics"])
        critics = [arch.project(c) for c in optax.apply_updates(state["critics"], updates)]
        slow = jax.tree.map(lambda t, c: t + cfg.target_rate * (c - t), state["target"], critics)
        state = state | {"critics": critics, "target": slow, "opt": opt_state}
        if train_actor:

            def actor_loss(actor: Any) -> jax.Array:
                action = jnp.tanh(actor_apply(actor, o))
                q = [(jax.nn.softmax(logits(c, o, action)) * atoms).sum(-1) for c in critics]
                return -jnp.minimum(*q).mean()

            move, actor_state = actor_opt.update(jax.grad(actor_loss)(state["actor"]), state["actor_opt"])
            due = state["count"] % cfg.actor_every == 0
            moved = actor_project(optax.apply_updates(state["actor"], move))
            state["actor"] = jax.tree.map(lambda n, old: jnp.where(due, n, old), moved, state["actor"])
            state["actor_opt"] = jax.tree.map(lambda n, old: jnp.where(due, n, old), actor_state, state["actor_opt"])
        state["count"] = state["count"] + 1
        return state, loss

    def many(
        state: dict[str, Any], index: jax.Array, keys: jax.Array, data: dict[str, jax.Array], train_actor: bool
    ) -> Any:
        return jax.lax.scan(lambda s, d: step(s, d, data, train_actor), state, (index, keys))

    return opt, actor_opt, jax.jit(many, static_argnums=4, donate_argnums=0)


def refit(
    ckpt: Checkpoint,
    shift: Shift | None = None,
    seed: int = 0,
    *,
    rounds: int = 3,
    robots: int = 24,
    ticks: int = 250,
    updates: int = 1200,
    target: str = "mean",
) -> Checkpoint:
    """The checkpoint with its critics fitted further to what its frozen actor earns under `shift`.

    That takes the shift's simulator and its rewards: under a shift it is an oracle, which says what adaptation could do
    if the critic knew the conditions; no robot has it. Without a shift it is the last stage of training: `fit`'s target,
    the lower twin, leaves the critic too low, and the mixture of the twins brings it back.
    """
    meta = ckpt.meta
    cfg = CriticConfig(robot=meta.robot, arch=meta.critic_arch, atoms=meta.atoms, v_min=meta.v_min, v_max=meta.v_max,
                       discount=meta.discount, target=target, robots=robots, updates=updates)  # fmt: skip
    many, state = begin(cfg, networks.get(meta.arch), ckpt.actor, ckpt.critics)
    rng, parts = np.random.default_rng([seed, 71]), []
    for r in range(rounds):
        noise, correlation = exploration(cfg, rng)
        first = 500_000 + 1000 * seed + 100 * r
        pushed = shift is None and r == 0  # bad states stay in the data, but are not the rule
        seeds = list(range(first, first + robots))
        parts.append(collect(ckpt.act, meta.robot, seeds, ticks, noise, correlation, seed + r, pushed, shift))
        data = joined(parts, ckpt.mean, ckpt.std)
        state, _ = learn(cfg, many, state, data, rng, seed * 1000 + r)
    how = {"target": target, "rounds": rounds, "robots": robots, "ticks": ticks, "updates": updates, "seed": seed}
    if shift is not None:
        how["shift"] = describe(shift)
    known = replace(meta, card=meta.card | {"refitted": how})
    return replace(ckpt, meta=known, critics=jax.tree.map(np.asarray, state["critics"]))


def fit(
    actor: Any,
    actor_arch: str,
    mean: np.ndarray,
    std: np.ndarray,
    cfg: CriticConfig,
    out: str | Path,
    card: dict[str, Any],
) -> Checkpoint:
    """Fits the twin critic to `actor`, round by round; resumes in the directory `out` after its last finished round.

    Returns the checkpoint (status "unchecked": the gates decide what it may be called).
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    storage.claim_config(out / "config.json", json.loads(json.dumps(asdict(cfg))), free=("rounds",))
    arch, policy = networks.get(cfg.arch), networks.get(actor_arch)
    d, nu, _ = SIZES[cfg.robot]
    keys = jax.random.split(jax.random.key(cfg.seed + 17))
    critics = [arch.init(k, d + nu, cfg.width, cfg.depth, cfg.atoms, 0.1) for k in keys]
    many, state = begin(cfg, policy, actor, critics)
    first, files = 0, out / "checkpoint.npz"
    if files.exists():
        state, extra = storage.load_tree(files, state)
        first = int(extra["round"])
        storage.truncate_jsonl(out / "metrics.jsonl", "round", first)
    body = jax.jit(lambda p, o: jnp.tanh(policy.apply(p, o)))

    for r in range(first, cfg.rounds):
        theta = state["actor"]

        def act(obs: np.ndarray, theta: Any = theta) -> np.ndarray:
            return np.asarray(body(theta, jnp.asarray(normalised(obs, mean, std))))

        parts = [read_round(cfg, out, k, act) for k in range(r + 1)]  # of which the last one may have to be collected
        start, train_actor = time.process_time(), cfg.actor_lr > 0 and r >= cfg.actor_from
        rng = np.random.default_rng([cfg.seed, 37, r])
        state, losses = learn(cfg, many, state, joined(parts, mean, std), rng, cfg.seed * 1000 + r, train_actor)
        line = {
            "round": r + 1,
            "transitions": sum(len(p["reward"]) for p in parts),
            "falls": float(parts[-1]["fallen"].mean()),
            "loss": float(losses[-200:].mean()),
            "cpu_seconds": round(time.process_time() - start),
        }
        storage.append_jsonl(out / "metrics.jsonl", line)
        print(json.dumps(line), flush=True)
        storage.save_tree(files, state, {"round": r + 1})
    meta = Meta(
        robot=cfg.robot,
        arch=actor_arch,
        critic_arch=cfg.arch,
        v_min=cfg.v_min,
        v_max=cfg.v_max,
        atoms=cfg.atoms,
        discount=cfg.discount,
        status="unchecked",
        card=card | {"critic": asdict(cfg)},
    )
    nets = jax.tree.map(np.asarray, (state["actor"], state["critics"]))
    return Checkpoint(meta, *nets, np.asarray(mean, np.float32), np.asarray(std, np.float32))
