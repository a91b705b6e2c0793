"""`tempo pretrain`: PPO, then the critic, then the gates, then the file; every stage resumes where it was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from . import critic, gates, networks, ppo, storage
from .checkpoint import SIZES, Checkpoint, load

__all__ = ["actor_of", "distil", "pretrain"]

DISTIL_ROUNDS = 8


def actor_of(run: str | Path) -> tuple[Any, np.ndarray, np.ndarray, dict[str, Any]]:
    """Actor, observation mean and standard deviation, and the card of a PPO run directory."""
    run = Path(run)
    text = (run / "config.json").read_text()
    cfg, changes = ppo.from_json(text), json.loads(text).get("changes", [])
    sizes = {"Go1": (48, 123, 12), "Go2": (48, 123, 12), "G1J": (103, 216, 29)}[cfg.env[:3]]
    state, extra = storage.load_tree(run / "checkpoint.npz", ppo.init_learner(cfg, *sizes))
    stats = jax.tree.map(np.asarray, state.obs_stats)
    last = (run / "metrics.jsonl").read_text().splitlines()[-1:]
    card = {
        "algorithm": f"PPO on {cfg.backend}",
        "steps": extra["steps"],
        "seed": cfg.seed,
        "config": asdict(cfg),
        "changes": changes,
        "last_metrics": json.loads(last[0]) if last else {},
    }
    return jax.tree.map(np.asarray, state.params["actor"]), stats["mean"], np.sqrt(stats["var"] + 1e-8), card


def pretrain(
    cfg: ppo.PPOConfig,
    critic_cfg: critic.CriticConfig,
    out: str | Path,
    name: str = "go1-joystick",
    arch: str = "mlp",
) -> Path:
    """Trains actor and critic in `out` and writes `out/<name>.safetensors` with its card; each stage goes on where it
    stopped.

    PPO runs one segment a process: envpool keeps the memory of simulators that were closed.
    """
    out = Path(out)
    first = out / "ppo"
    while _steps(first) < cfg.total_steps:
        code = "import sys; from neurips26.tempo import ppo; ppo.train(ppo.from_json(sys.argv[1]), sys.argv[2], max_segments=1)"
        subprocess.run([sys.executable, "-c", code, json.dumps(asdict(cfg)), str(first)], check=True)
    return finish(first, critic_cfg, out, name, arch=arch)


def _steps(run: Path) -> int:
    file = run / "checkpoint.npz"
    if not file.exists():
        return -1
    with np.load(file) as f:
        return int(json.loads(f["__extra__"].tobytes())["steps"])


def finish(
    run: str | Path,
    critic_cfg: critic.CriticConfig,
    out: str | Path,
    name: str,
    episodes: int = gates.EPISODES,
    arch: str = "mlp",
) -> Path:
    """Critic, gates and file for a PPO run that has ended (or was stopped)."""
    actor, mean, std, card = actor_of(run)
    folder = Path(out) / ("critic" if arch == "mlp" else f"critic-{arch}")
    if arch != "mlp":
        actor, error = distil(actor, mean, std, arch, critic_cfg.robot, critic_cfg.seed)
        card = card | {
            "distilled": {"from": "the mlp actor", "arch": arch, "rounds": DISTIL_ROUNDS, "action_rmse": error}
        }
        critic_cfg = replace(critic_cfg, arch=arch, width=64)
    ckpt = critic.refit(critic.fit(actor, arch, mean, std, critic_cfg, folder, card), seed=critic_cfg.seed)
    return seal(ckpt, Path(out) / f"{name}.safetensors", episodes)


def distil(
    actor: Any,
    mean: np.ndarray,
    std: np.ndarray,
    arch: str,
    robot: str,
    seed: int = 0,
    *,
    width: int = 64,
    rounds: int = DISTIL_ROUNDS,
    robots: int = 24,
    ticks: int = 400,
    updates: int = 3000,
    batch: int = 256,
) -> tuple[Any, float]:
    """An actor of another architecture that acts like the MLP `actor`, and its root-mean-square error in the action.

    Dataset aggregation (Ross et al. 2011): the student drives from the second round on, the teacher says what it would
    have done; pushes, random starts and action noise are part of the data.
    """
    teacher, body = networks.get("mlp").apply, networks.get(arch)
    d, nu, _ = SIZES[robot]
    student = body.init(jax.random.key(seed + 41), d, width, 2, nu, 0.1)
    rng = np.random.default_rng([seed, 43])
    act = {
        "teacher": jax.jit(lambda o: jnp.tanh(teacher(actor, o))),
        "student": jax.jit(lambda p, o: jnp.tanh(body.apply(p, o))),
    }
    steps = rounds * updates
    opt = optax.adam(optax.cosine_decay_schedule(2e-3, steps, 0.02))

    def loss(p: Any, o: jax.Array, a: jax.Array) -> jax.Array:
        return ((jnp.tanh(body.apply(p, o)) - a) ** 2).sum(-1).mean()

    def step(carry: tuple[Any, Any], index: jax.Array, o: jax.Array, a: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        p, state = carry
        value, grads = jax.value_and_grad(loss)(p, o[index], a[index])
        move, state = opt.update(grads, state)
        return (body.project(optax.apply_updates(p, move)), state), value

    many = jax.jit(lambda carry, index, o, a: jax.lax.scan(lambda c, i: step(c, i, o, a), carry, index))

    def normalise(o: np.ndarray) -> jax.Array:
        return jnp.asarray(critic.normalised(o, mean, std))

    carry, inputs, labels = (student, opt.init(student)), [], []
    losses = jnp.zeros(1)
    for r in range(rounds):
        current = carry[0]

        def drive(o: np.ndarray, r: int = r, current: Any = current) -> np.ndarray:
            return np.asarray(act["teacher"](normalise(o)) if r == 0 else act["student"](current, normalise(o)))

        noise = rng.uniform(0.0, 0.2, robots)
        seeds = [400_000 + 1000 * seed + 100 * r + i for i in range(robots)]
        rows = critic.collect(drive, robot, seeds, ticks, noise, np.full(robots, 0.5), seed + r)
        inputs.append(normalise(rows["obs"]))
        labels.append(act["teacher"](inputs[-1]))
        o, a = jnp.concatenate(inputs), jnp.concatenate(labels)
        index = jnp.asarray(rng.integers(0, len(o), (updates, batch)), jnp.int32)
        carry, losses = many(carry, index, o, a)
    return jax.tree.map(np.asarray, carry[0]), float(np.sqrt(losses[-200:].mean() / nu))


def seal(ckpt: Checkpoint, path: Path, episodes: int = gates.EPISODES) -> Path:
    """Runs the gates on the weights as they will be stored, and writes file and card."""
    ckpt.save(path)  # rounds the weights: what is checked is what is shipped
    ckpt = load(path)
    result = gates.check_gates(ckpt, episodes)
    meta = replace(
        ckpt.meta,
        q_scale=max(result["K2"]["q_std"], 1e-3),
        status=gates.status_of(result),
        card=ckpt.meta.card | {"gates": result},
    )
    sealed = replace(ckpt, meta=meta)
    sealed.save(path)
    storage.write_bytes(path.with_suffix(".json"), json.dumps(asdict(meta), indent=1).encode())
    return path
