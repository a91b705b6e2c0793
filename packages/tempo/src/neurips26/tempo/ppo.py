"""PPO on envpool: the first stage of pretraining (Schulman et al. 2017), sized for one CPU core.

The recipe is the one MuJoCo Playground publishes for `Go1JoystickFlatTerrain` (discount 0.97, 20-24 step roll-outs,
asymmetric value function, observation normalisation), shrunk from 8192 to a few hundred environments with the adaptive
step size of RSL-RL.  The value function may look at the privileged observation: it is thrown away afterwards and never
shipped.

Exact resume.  envpool cannot save its simulator state, therefore training is cut into *segments*: every segment starts
from freshly reset environments whose seed is a function of (seed, segment), and a checkpoint is written at each
segment's end.  A killed run repeats only its unfinished segment, and gives the same bits as a run that was never
interrupted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from . import networks, practice, storage


@dataclass(frozen=True)
class PPOConfig:
    """Every choice of the PPO stage. Values without a source are ours, chosen for a single core."""

    env: str = "Go1JoystickFlatTerrain"
    seed: int = 0
    total_steps: int = 25_000_000
    num_envs: int = 96  # envpool needs 55 MB a simulator
    unroll: int = 64  # with num_envs: 6144 transitions an iteration
    segment: int = 50  # iterations between checkpoints, each on fresh environments
    discount: float = 0.97  # Playground
    gae_lambda: float = 0.95
    clip: float = 0.2
    epochs: int = 4  # Playground: num_updates_per_batch
    minibatches: int = 4
    lr: float = 1e-3
    lr_min: float = 2e-5
    lr_max: float = 2e-3
    desired_kl: float = 0.02  # RSL-RL has 0.01 for batches ten times as large
    entropy_coef: float = 1e-3
    value_coef: float = 1.0
    max_grad_norm: float = 1.0
    init_std: float = 0.6
    # exploration is capped: from, to (geometrically), at this fraction of training
    std_cap: tuple[float, float, float] = (0.6, 0.12, 0.9)
    actor_hidden: tuple[int, ...] = (128, 128)
    value_hidden: tuple[int, ...] = (128, 128)
    # factor on all penalties (they make standing the best policy that is easy to find), growing linearly to 1 between
    # these fractions of training
    penalty_start: float = 0.25
    penalty_ramp: tuple[float, float] = (0.5, 0.78)
    # weight of an additional, wider velocity kernel exp(-err^2 / 1.5) that standing does not saturate
    wide_tracking: float = 0.5
    wide_until: tuple[float, float] = (0.6, 0.85)  # full weight until the first fraction, zero from the second
    fall_cost: float = 2.0  # taken off at a fall: without it a wild gait that falls now and then is the best one
    # weight of the left-right symmetry loss |mu(o) - M mu(M o)|^2 / sigma^2 (Mittal et al. 2024)
    mirror_coef: float = 0.05
    backend: str = "envpool"  # or "mujoco": our simulators, for the last part of training
    command_seconds: float = 5.0  # mean time between commands ("mujoco" only; the task has 5 s)
    push_speed: float = 0.0  # m/s, pushes and bad starts ("mujoco" only)
    env_threads: int = 1
    overlap: bool = True  # collect the next batch while learning from the last one (policy one iteration old)


def from_json(text: str) -> PPOConfig:
    """The configuration written by `json.dumps(asdict(config))`, or the config.json of a run."""
    known = {k: v for k, v in json.loads(text).items() if k in PPOConfig.__dataclass_fields__}
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
    return PPOConfig(**settings)


class Learner(NamedTuple):
    """All that the learner changes; a pytree, hence one file on disk."""

    params: Any
    opt: Any
    lr: jax.Array
    obs_stats: Any
    priv_stats: Any
    key: jax.Array


def new_stats(n: int) -> dict[str, jax.Array]:
    """Running statistics of nothing."""
    return {"count": jnp.asarray(1e-4), "mean": jnp.zeros(n), "var": jnp.ones(n)}


def merge_stats(stats: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    """Parallel variance update (Chan et al.) of the running mean and variance with the rows of x."""
    n, mean, var = x.shape[0], x.mean(0), x.var(0)
    total = stats["count"] + n
    delta = mean - stats["mean"]
    m2 = stats["var"] * stats["count"] + var * n + delta**2 * stats["count"] * n / total
    return {"count": total, "mean": stats["mean"] + delta * n / total, "var": m2 / total}


def normalise(stats: dict[str, Any], x: Any) -> Any:
    """Standardised and clipped to +-10."""
    return ((x - stats["mean"]) / (stats["var"] + 1e-8) ** 0.5).clip(-10.0, 10.0)


def envpool_envs(name: str, num_envs: int, threads: int, seed: int, **options: Any) -> Any:
    """n environments of envpool."""
    try:
        import envpool
    except ImportError as error:
        raise ImportError("backend 'envpool' needs envpool: pip install 'neurips26-tempo[envpool]'") from error
    return envpool.make_gymnasium(f"{name}-v1", num_envs=num_envs, num_threads=threads, seed=seed, **options)


def make_envs(cfg: PPOConfig, num_envs: int, seed: int) -> tuple[Any, int]:
    """n environments, envpool's or ours with their own pace of commands and pushes, and their number of motors."""
    if cfg.backend == "mujoco":
        robot = cfg.env.partition("Joystick")[0].lower()
        envs = practice.PracticeEnvs(robot, num_envs, seed, cfg.command_seconds, cfg.push_speed)
        return envs, envs.world.action_size
    if cfg.env.startswith("Go2"):
        raise ValueError(f"backend: expected 'mujoco' for {cfg.env}, which envpool does not have, got {cfg.backend!r}")
    envs = envpool_envs(cfg.env, num_envs, cfg.env_threads, seed)
    return envs, envs.action_space.shape[-1]


TRACKING = ("tracking_lin_vel", "tracking_ang_vel")
BONUS = (*TRACKING, "pose", "feet_air_time")


def shaped_reward(info: dict[str, np.ndarray], privileged: np.ndarray, penalty: float, wide: float) -> np.ndarray:
    """Playground's reward before its clip at zero, times dt; penalties scaled by `penalty`, plus `wide` times a wide
    velocity kernel."""
    good = sum(info[f"reward_{k}"] for k in BONUS)
    bad = sum(v for k, v in info.items() if k.startswith("reward_") and k[7:] not in BONUS)
    linvel, command = privileged[:, 57:60], info["command"]
    error = ((command[:, :2] - linvel[:, :2]) ** 2).sum(1)
    return (0.02 * (good + penalty * bad + wide * np.exp(-error / 1.5))).astype(np.float32)


def symmetry(env: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Left-right reflection of Go1's or Go2's observation, privileged observation and action: (order, sign) such that y =
    x[order] * sign."""
    if not env.startswith(("Go1", "Go2")):
        raise ValueError(f"mirror: no reflection is written down for {env}; set mirror_coef=0")
    legs = practice.LEGS
    joints = legs, np.tile([-1.0, 1.0, 1.0], 4)
    vector, spin = (np.arange(3), np.array([1.0, -1.0, 1.0])), (np.arange(3), np.array([-1.0, 1.0, -1.0]))
    command = np.arange(3), np.array([1.0, -1.0, -1.0])
    feet = practice.FEET, np.ones(4)
    feet_velocity = legs, np.tile([1.0, -1.0, 1.0], 4)
    timer = np.arange(1), np.ones(1)
    state = [vector, spin, vector, joints, joints, joints, command]
    rest = [spin, vector, vector, vector, spin, joints, joints, joints, feet, feet_velocity, feet, vector, timer]

    def chain(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        orders, signs = zip(*parts, strict=True)
        starts = np.cumsum([0, *(len(o) for o in orders[:-1])])
        return np.concatenate([o + s for o, s in zip(orders, starts, strict=True)]), np.concatenate(signs)

    return {"obs": chain(state), "priv": chain(state + rest), "action": joints}


class Collector:
    """Steps the environments with a NumPy copy of the policy, so that collection and learning overlap without sharing
    a device queue."""

    def __init__(self, cfg: PPOConfig, segment: int):
        self.cfg = cfg
        self.rng = np.random.default_rng([cfg.seed, 11, segment])
        self.envs, _ = make_envs(cfg, cfg.num_envs, (cfg.seed * 100_003 + segment * 7919) % 2**30)
        self.obs, _ = self.envs.reset()
        self.alive = np.ones(cfg.num_envs, bool)  # False: this step only delivers the reset observation

    def collect(
        self, actor: Any, log_std: np.ndarray, stats: dict[str, np.ndarray], penalty: float, wide: float
    ) -> tuple[dict, dict]:
        """`unroll` ticks of all environments: arrays (t, n, ...) and a summary."""
        cfg, std = self.cfg, np.exp(log_std)
        rows: dict[str, list[np.ndarray]] = {
            k: [] for k in ("obs", "priv", "u", "logp", "reward", "term", "cut", "valid")
        }
        terms: dict[str, float] = {}
        count = 0
        for _ in range(cfg.unroll):
            obs = self.obs["state"].astype(np.float32)
            priv = self.obs["privileged_state"].astype(np.float32)
            mean = networks.mlp_numpy(actor, normalise(stats, obs))
            noise = self.rng.standard_normal(mean.shape, dtype=np.float32)
            u = mean + std * noise
            self.obs, reward, term, trunc, info = self.envs.step(np.tanh(u).astype(np.float64))
            valid = self.alive
            shaped = shaped_reward(info, self.obs["privileged_state"], penalty, wide) - cfg.fall_cost * term
            for k, v in (
                ("obs", obs),
                ("priv", priv),
                ("u", u),
                ("logp", (-0.5 * noise**2 - log_std).sum(1)),
                ("reward", np.where(valid, shaped, 0).astype(np.float32)),
                ("term", term.astype(np.float32)),
                ("cut", (term | trunc).astype(np.float32)),
                ("valid", valid.astype(np.float32)),
            ):
                rows[k].append(v)
            for k in (*TRACKING, "feet_clearance", "pose", "action_rate"):
                terms[k] = terms.get(k, 0.0) + float(info[f"reward_{k}"][valid].sum())
            terms["reward"] = terms.get("reward", 0.0) + float(reward[valid].sum())
            terms["falls"] = terms.get("falls", 0.0) + float(term[valid].sum())
            count += int(valid.sum())
            self.alive = ~(term | trunc)
        batch = {k: np.stack(v) for k, v in rows.items()}
        batch["last_priv"] = self.obs["privileged_state"].astype(np.float32)
        summary = {k: v / count for k, v in terms.items()}
        summary["return_per_1000"] = 1000 * summary.pop("reward")
        summary["falls_per_1000"] = 1000 * summary.pop("falls")
        return batch, summary


def init_learner(cfg: PPOConfig, obs_size: int, priv_size: int, action_size: int) -> Learner:
    """Fresh parameters, optimiser and statistics."""
    key = jax.random.key(cfg.seed)
    k1, k2, key = jax.random.split(key, 3)
    params = {
        "actor": networks.mlp_init(k1, (obs_size, *cfg.actor_hidden, action_size), last_scale=0.01),
        "value": networks.mlp_init(k2, (priv_size, *cfg.value_hidden, 1)),
        "log_std": jnp.full(action_size, np.log(cfg.init_std)),
    }
    return Learner(
        params,
        optax.scale_by_adam().init(params),
        jnp.asarray(cfg.lr),
        new_stats(obs_size),
        new_stats(priv_size),
        jax.random.key_data(key),
    )


def gae(
    reward: jax.Array, value: jax.Array, next_value: jax.Array, cut: jax.Array, discount: float, lam: float
) -> jax.Array:
    """Generalised advantage estimation over axis 0; `next_value` is already 0 after a fall and the terminal
    observation's value otherwise."""
    delta = reward + discount * next_value - value

    def backward(carry: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        d, c = x
        carry = d + discount * lam * (1 - c) * carry
        return carry, carry

    return jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, cut), reverse=True)[1]


def advantages(cfg: PPOConfig, value: Any, priv_stats: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Advantages, standardised over the ticks that count, and targets of the value function, both (t, n)."""
    valid = batch["valid"]
    priv = normalise(priv_stats, jnp.concatenate([batch["priv"], batch["last_priv"][None]]))
    values = networks.mlp_apply(value, priv)[..., 0]
    next_value = values[1:] * (1 - batch["term"])
    cut = jnp.maximum(batch["cut"], 1 - valid)
    adv = gae(batch["reward"], values[:-1], next_value, cut, cfg.discount, cfg.gae_lambda) * valid
    mean = (adv * valid).sum() / valid.sum()
    std = jnp.sqrt((valid * (adv - mean) ** 2).sum() / valid.sum()) + 1e-8
    return (adv - mean) / std, adv + values[:-1]


def make_loss(cfg: PPOConfig, reflect: dict[str, Any] | None) -> Any:
    """(parameters, normalised minibatch) -> PPO's loss and what is logged of it; `reflect` as `symmetry` gives it."""

    def loss_fn(params: Any, mb: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        log_std = params["log_std"]
        mean = networks.mlp_apply(params["actor"], mb["obs"])
        z = (mb["u"] - mean) * jnp.exp(-log_std)
        logp = (-0.5 * z**2 - log_std).sum(-1)
        ratio = jnp.exp(jnp.clip(logp - mb["logp"], -10, 10))
        adv, weight = mb["adv"], mb["valid"]
        norm = weight.sum() + 1e-6
        policy = -(weight * jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - cfg.clip, 1 + cfg.clip) * adv)).sum() / norm
        value = networks.mlp_apply(params["value"], mb["priv"])[..., 0]
        value_loss = (weight * (value - mb["target"]) ** 2).sum() / norm
        kl = (weight * ((ratio - 1) - jnp.log(ratio))).sum() / norm
        loss = policy + cfg.value_coef * value_loss - cfg.entropy_coef * log_std.sum()
        aux = {"kl": kl, "value_loss": value_loss}
        if reflect is not None:
            order, sign = reflect["action"]
            twin = networks.mlp_apply(params["actor"], mb["obs_mirrored"])[:, order] * sign
            aux["asymmetry"] = (weight * ((mean - twin) ** 2 * jnp.exp(-2 * log_std)).sum(-1)).sum() / norm
            loss += cfg.mirror_coef * aux["asymmetry"]
        return loss, aux

    return loss_fn


def adapted_lr(cfg: PPOConfig, lr: jax.Array, kl: jax.Array) -> jax.Array:
    """RSL-RL's adaptive step size: smaller where the policy moved too far, larger where it hardly moved."""
    slower = jnp.where(kl < 0.5 * cfg.desired_kl, lr * 1.2, lr)
    return jnp.clip(jnp.where(kl > 2 * cfg.desired_kl, lr / 1.2, slower), cfg.lr_min, cfg.lr_max)


def make_update(cfg: PPOConfig) -> Any:
    """The jitted update of one iteration."""
    adam = optax.scale_by_adam()
    reflect = symmetry(cfg.env) if cfg.mirror_coef > 0 else None
    gradient = jax.grad(make_loss(cfg, reflect), has_aux=True)

    def update(state: Learner, batch: dict[str, jax.Array], top: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
        obs_stats, priv_stats = (
            merge_stats(getattr(state, f"{k}_stats"), batch[k].reshape(-1, batch[k].shape[-1])) for k in ("obs", "priv")
        )
        adv, target = advantages(cfg, state.params["value"], priv_stats, batch)
        # The behaviour policy saw the observation under the statistics of its own iteration; those move little after
        # the first few.
        kept = {k: batch[k] for k in ("obs", "priv", "u", "logp", "valid")}
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), kept | {"adv": adv, "target": target})

        def minibatch(index: jax.Array) -> dict[str, jax.Array]:
            mb = jax.tree.map(lambda x: x[index], flat)
            if reflect is not None:
                order, sign = reflect["obs"]
                mb["obs_mirrored"] = normalise(obs_stats, mb["obs"][:, order] * sign)
            return mb | {"obs": normalise(obs_stats, mb["obs"]), "priv": normalise(priv_stats, mb["priv"])}

        def step(carry: tuple[Any, Any, jax.Array], index: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
            params, opt, lr = carry
            grads, aux = gradient(params, minibatch(index))
            norm = optax.global_norm(grads)
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, cfg.max_grad_norm / (norm + 1e-8)), grads)
            move, opt = adam.update(grads, opt)
            params = jax.tree.map(lambda p, g: p - lr * g, params, move)
            params["log_std"] = jnp.clip(params["log_std"], -3.0, top)
            return (params, opt, adapted_lr(cfg, lr, aux["kl"])), aux

        n = flat["adv"].shape[0]
        size = n // cfg.minibatches
        key, *keys = jax.random.split(jax.random.wrap_key_data(state.key), cfg.epochs + 1)
        order = jnp.concatenate(
            [jax.random.permutation(k, n)[: size * cfg.minibatches].reshape(cfg.minibatches, size) for k in keys]
        )
        (params, opt, lr), aux = jax.lax.scan(step, (state.params, state.opt, state.lr), order)
        metrics = {**jax.tree.map(jnp.mean, aux), "lr": lr, "std": jnp.exp(params["log_std"]).mean()}
        return Learner(params, opt, lr, obs_stats, priv_stats, jax.random.key_data(key)), metrics

    return jax.jit(update, donate_argnums=0)


def schedule(cfg: PPOConfig, fraction: float) -> tuple[float, float]:
    """Penalty factor and weight of the wide kernel at this fraction of training."""
    low, high = cfg.penalty_ramp
    penalty = cfg.penalty_start + (1 - cfg.penalty_start) * float(
        np.clip((fraction - low) / max(high - low, 1e-9), 0.0, 1.0)
    )
    full, zero = cfg.wide_until
    wide = cfg.wide_tracking * float(np.clip((zero - fraction) / max(zero - full, 1e-9), 0.0, 1.0))
    return penalty, wide


def std_limit(cfg: PPOConfig, fraction: float) -> float:
    """Logarithm of the largest exploration noise at this fraction of training."""
    start, end, until = cfg.std_cap
    return float(np.log(start) + (np.log(end) - np.log(start)) * min(1.0, fraction / until))


def start_from(run: str | Path, cfg: PPOConfig, out: str | Path) -> Path:
    """Begins the run `cfg` in `out` with what was learned in the directory `run`, by Go1 for Go2 or the other way."""
    out = Path(out)
    if (out / "checkpoint.npz").exists():
        raise ValueError(f"out: expected a directory without a run, got {out}")
    old = from_json((Path(run) / "config.json").read_text())
    robots = {c.env.partition("Joystick")[0] for c in (old, cfg)}
    if not robots <= {"Go1", "Go2"}:
        raise ValueError(f"start: expected runs of Go1 and Go2, got {' and '.join(sorted(robots))}")
    state, _ = storage.load_tree(Path(run) / "checkpoint.npz", init_learner(old, 48, 123, 12))
    if len(robots) == 2:
        state = practice.renamed(state)
        wider = jnp.full_like(state.params["log_std"], np.log(cfg.init_std))  # another body wants exploring again
        state = state._replace(params=state.params | {"log_std": wider})
    out.mkdir(parents=True, exist_ok=True)
    storage.claim_config(out / "config.json", json.loads(json.dumps(asdict(cfg))))
    storage.save_tree(out / "checkpoint.npz", state, {"iteration": 0, "steps": 0})
    return out


class Position(NamedTuple):
    """Where a run stands."""

    state: Learner
    iteration: int
    reached: float  # fraction of training that the schedules have come to; a run with more steps does not go back


def resume(cfg: PPOConfig, out: Path, allow_changes: bool) -> Position:
    """The state that the run directory holds, or a fresh one; claims the directory for `cfg`."""
    probe, actions = make_envs(cfg, 1, 0)
    obs, _ = probe.reset()
    state = init_learner(cfg, obs["state"].shape[1], obs["privileged_state"].shape[1], actions)
    iteration, reached = 0, 0.0
    if (out / "checkpoint.npz").exists():
        state, extra = storage.load_tree(out / "checkpoint.npz", state)
        iteration = int(extra["iteration"])
        file = out / "config.json"
        planned = from_json(file.read_text()).total_steps if file.exists() else 0
        reached = float(extra.get("fraction", iteration * cfg.num_envs * cfg.unroll / max(planned, 1)))
        storage.truncate_jsonl(out / "metrics.jsonl", "iteration", iteration)
    storage.claim_config(
        out / "config.json",
        json.loads(json.dumps(asdict(cfg))),
        free=("total_steps", "env_threads"),
        changed_at=iteration if allow_changes else None,
    )
    return Position(state, iteration, reached)


def train(
    cfg: PPOConfig, out: str | Path, max_segments: int | None = None, verbose: bool = True, allow_changes: bool = False
) -> Path:
    """Trains, or goes on training, in the directory `out` (checkpoint.npz, config.json, metrics.jsonl); returns the
    checkpoint's path.

    A directory that holds a run with another configuration is refused, except that `total_steps` may differ; with
    `allow_changes` the run goes on under the new settings, and config.json keeps a list of what changed at which
    iteration.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    state, iteration, reached = resume(cfg, out, allow_changes)
    update = make_update(cfg)
    per_iteration = cfg.num_envs * cfg.unroll
    total = -(-cfg.total_steps // per_iteration)

    def fraction(at: int) -> float:
        return max(min(reached, 1.0), at / total)

    segments = 0
    with ThreadPoolExecutor(1) as pool:
        while iteration < total and (max_segments is None or segments < max_segments):
            end = min(total, iteration + cfg.segment)
            state = run_segment(cfg, out / "metrics.jsonl", update, state, (iteration, end), fraction, pool, verbose)
            iteration, segments = end, segments + 1
            where = {"iteration": iteration, "steps": iteration * per_iteration, "fraction": fraction(iteration)}
            storage.save_tree(out / "checkpoint.npz", state, where)
    return out / "checkpoint.npz"


def run_segment(
    cfg: PPOConfig,
    log: Path,
    update: Any,
    state: Learner,
    span: tuple[int, int],
    fraction: Callable[[int], float],
    pool: ThreadPoolExecutor,
    verbose: bool,
) -> Learner:
    """The iterations `span` (first, end) on fresh environments; the next batch is collected while this one is learned."""
    first, end = span
    collector, start, rows = Collector(cfg, first // cfg.segment), time.monotonic(), []

    def collect(at: int, state: Learner) -> Any:
        parts = state.params["actor"], state.params["log_std"], state.obs_stats
        # copies: the learner's buffers are donated while the collector still reads
        actor, log_std, stats = jax.tree.map(lambda x: np.array(x, np.float32), parts)
        return pool.submit(collector.collect, actor, log_std, stats, *schedule(cfg, fraction(at)))

    future = collect(first, state)
    for iteration in range(first, end):
        batch, summary = future.result()
        more = iteration + 1 < end
        if cfg.overlap and more:
            future = collect(iteration + 1, state)
        state, metrics = update(state, batch, std_limit(cfg, fraction(iteration)))
        if not cfg.overlap and more:
            future = collect(iteration + 1, state)
        rows.append({**summary, **{k: float(v) for k, v in metrics.items()}})
        done = iteration + 1
        if done % 20 == 0 or done == end:
            steps = cfg.num_envs * cfg.unroll
            rate = round((done - first) * steps / (time.monotonic() - start))
            mean = {k: round(float(np.mean([r[k] for r in rows])), 5) for k in rows[0]}
            line = {"iteration": done, "steps": done * steps, "steps_per_second": rate, **mean}
            storage.append_jsonl(log, line)
            if verbose:
                print(json.dumps(line), flush=True)
            rows = []
    return state
