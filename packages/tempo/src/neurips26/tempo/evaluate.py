"""Frozen against adapted, paired by seed: the table that says whether to switch adaptation on.

N robots run in lockstep: one MuJoCo call a robot, and the adaptation in vmapped blocks. Robot i of every method sees
the same commands, the same noise and the same start. An episode ends with a fall; the ticks a robot did not survive
earn nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurips26.shared import stats
from neurips26.shared.arrays import check_int

from . import runtime, shifts
from .adaptation import METHODS, Strengths, TTAConfig, TTAState, fixed_settings, method_config
from .checkpoint import Checkpoint

__all__ = ["TABLE", "Rollout", "Table", "evaluate", "rollout"]

LANES = 16  # robots of one vmapped program
#: What stands in every table of returns: frozen, the naive update and TEMPO; then what TEMPO must be better than for its
#: parts to count: climbing the critic without learning, replay in no order and in the reverse order, standing still.
TABLE = ("none", "naive", "tempo", "q_greedy", "uniform", "easy-first", "zero")


@dataclass
class Rollout:
    """What n robots did over `episodes` x `ticks`.

    Attributes:
        reward: (episodes, ticks, n), 0 after a fall.
        tracking: (episodes, ticks, n), the linear velocity tracking term (of 1).
        angular: the same for the yaw rate, as weighted in the reward.
        alive: (episodes, ticks, n) bool, the ticks that were stepped.
        fallen: (episodes, n) bool.
        diverged: (episodes, n) bool, simulation blow-ups; never counted as falls.
        q: (episodes, ticks, n), the critic's value where the robot was, of the action taken (absent for "zero").
        drift: (n,) |theta - theta_0| at the end.
        rollbacks: (n,) how often the guard put parameters back.
        updates: (n,) gradient steps.
        scores: (n, M) values of the observations in the memory at the end, NaN where it is empty.
    """

    reward: np.ndarray
    tracking: np.ndarray
    angular: np.ndarray
    alive: np.ndarray
    fallen: np.ndarray
    diverged: np.ndarray
    q: np.ndarray
    drift: np.ndarray
    rollbacks: np.ndarray
    updates: np.ndarray
    scores: np.ndarray

    def returns(self) -> np.ndarray:
        """Mean episode return per 1000 ticks, shape (n,)."""
        return self.reward.sum(1).mean(0) * 1000 / self.reward.shape[1]

    def realised(self, discount: float = 0.97, horizon: int = 100) -> np.ndarray:
        """Discounted return over `horizon` ticks from every tick that has so many after it (or a fall within them)."""
        e, t, n = self.reward.shape
        out = np.zeros((e, max(t - horizon, 0), n))
        for k in range(horizon):
            out += discount**k * self.reward[:, k : k + out.shape[1]]
        return out


def _compiled(ckpt: Checkpoint, cfg: TTAConfig) -> Any:
    """The vmapped programs. Acting is the same for all methods but `q_greedy`; an update is shared by methods that differ
    in `Strengths` only, which are six of the eight."""
    ring = replace(cfg.memory, alpha=1.0, allow_easy_first=False)
    acts = TTAConfig(
        lr=0.0,
        entropy_coef=0.0,
        memory=ring,
        reduce=cfg.reduce,
        protocol=cfg.protocol,
        restore_on_fall=cfg.restore_on_fall,
        greedy_steps=cfg.greedy_steps,
        greedy_size=cfg.greedy_size,
    )
    if ("act", acts) not in ckpt._programs:
        tta = ckpt.tta(acts)
        init = jax.jit(jax.vmap(tta.init, in_axes=(None, 0, None)), static_argnums=2)
        programs = jax.jit(jax.vmap(tta.act), donate_argnums=0), jax.jit(jax.vmap(tta.reset)), init
        ckpt._programs["act", acts] = programs
    if cfg.lr == 0:
        return *ckpt._programs["act", acts], None
    # a critic without a distribution has no entropy term, and a single observation needs no other program than its own
    entropy = cfg.entropy_coef > 0 or (cfg.source != "latest" and ckpt.meta.critic_kind != "scalar")
    learns = replace(cfg, lr=1.0, entropy_coef=float(entropy), memory=ring)
    if ("learn", learns) not in ckpt._programs:
        learn = ckpt.tta(learns).learn

        def learned(state: TTAState, strengths: Strengths, alive: jax.Array) -> TTAState:
            """A robot that lies on the ground no longer learns."""
            new, _ = jax.vmap(learn, in_axes=(0, None))(state, strengths)
            return jax.tree.map(lambda a, b: jnp.where(alive.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, state)

        ckpt._programs["learn", learns] = jax.jit(learned, donate_argnums=0)
    return *ckpt._programs["act", acts], ckpt._programs["learn", learns]


class _Fleet:
    """The adaptation of n robots, run in blocks of at most `LANES` by one compiled program.

    Robots that have fallen leave the blocks once whole blocks can be saved: under a severe shift most of them lie on
    the ground for most of the episode.
    """

    def __init__(self, ckpt: Checkpoint, cfg: TTAConfig, seeds: Sequence[int], theta: Any = None):
        self._act, self._reset, init, self._learn = _compiled(ckpt, cfg)
        self.strengths, self.n = Strengths(*(jnp.asarray(x, jnp.float32) for x in cfg.strengths)), len(seeds)
        keys = jnp.stack([jax.random.key_data(jax.random.key(int(s))) for s in seeds])
        state = init(ckpt.actor if theta is None else theta, keys, ckpt.obs_size)
        self._rest = jax.tree.map(lambda x: np.array(x, copy=True), state)  # of all robots, running ones out of date
        # what acting neither reads nor writes is not handed over: that would cost more than the networks do
        moved_by_falls = () if cfg.restore_on_fall else ("m", "v", "moments", "snapshot", "rollbacks")
        self._idle = ("theta0", "key", "updates", *moved_by_falls)
        self._blocks: list[tuple[np.ndarray, TTAState]] = []
        self._deal(np.arange(self.n))

    def _deal(self, rows: np.ndarray) -> None:
        width = min(self.n, LANES)
        filled = np.concatenate([rows, np.full(-len(rows) % width, -1)])  # -1: a lane without a robot
        self._blocks = [
            (block, jax.tree.map(lambda x, b=block: jnp.asarray(x[b]), self._rest))
            for block in filled.reshape(-1, width)
        ]

    def state(self) -> TTAState:
        """Of all robots, on the host."""
        for rows, state in self._blocks:
            used = rows >= 0
            jax.tree.map(lambda all_, x, r=rows[used], u=used: all_.__setitem__(r, np.asarray(x)[u]), self._rest, state)
        return self._rest

    def act(self, obs: np.ndarray, alive: np.ndarray, action: np.ndarray, q: np.ndarray) -> None:
        """Writes the actions (n, nu) and the critic's values (n,) of this tick."""
        needed = -(-int(alive.sum()) // min(self.n, LANES))
        if needed <= 0.75 * len(self._blocks):
            self.state()
            self._deal(np.flatnonzero(alive))
        for k, (rows, state) in enumerate(self._blocks):
            state, device, metrics = self._acted(state, obs[rows], alive[rows] & (rows >= 0))
            self._blocks[k] = (rows, state)
            used = rows >= 0
            action[rows[used]], q[rows[used]] = np.asarray(device)[used], np.asarray(metrics["q"])[used]

    def _acted(self, state: TTAState, obs: np.ndarray, valid: np.ndarray) -> tuple[TTAState, jax.Array, dict[str, Any]]:
        kept = {name: getattr(state, name) for name in self._idle}
        part, action, metrics = self._act(state._replace(**dict.fromkeys(self._idle)), obs, valid)
        return part._replace(**kept), action, metrics

    def saw_fall(self, obs: np.ndarray, down: np.ndarray) -> None:
        """The last observation of robots that have just fallen, for the roll-back."""
        for k, (rows, state) in enumerate(self._blocks):
            on = down[rows] & (rows >= 0)
            if on.any():
                self._blocks[k] = (rows, self._acted(state, obs[rows], on)[0])

    def learn(self, alive: np.ndarray) -> None:
        """One update of every robot that is alive."""
        for k, (rows, state) in enumerate(self._blocks):
            on = alive[rows] & (rows >= 0)
            if on.any():
                self._blocks[k] = (rows, self._learn(state, self.strengths, jnp.asarray(on)))

    def reset(self) -> None:
        """A new episode of every robot."""
        self._rest = jax.tree.map(lambda x: np.array(x, copy=True), self._reset(self.state()))
        self._deal(np.arange(self.n))


def rollout(
    ckpt: Checkpoint,
    method: str | TTAConfig,
    shift: shifts.Shift,
    seeds: Sequence[int],
    *,
    ticks: int = 1000,
    episodes: int = 1,
    noise: float = 1.0,
    disturbance: runtime.Disturbance | None = None,
    on_tick: Any = None,
    theta: Any = None,
    **settings: Any,
) -> Rollout:
    """n = len(seeds) robots under `shift`, each with its own adaptation.

    Args:
        method: one of `METHODS`, "zero" (the zero action: standing) or a `TTAConfig`.
        on_tick: called with (episode, tick, runtime) after every tick, e.g. to take pictures.
        theta: actor parameters to start from instead of the checkpoint's.
        settings: overrides of the method's settings.
    """
    check_int(ticks, "ticks", minimum=1)
    check_int(episodes, "episodes", minimum=1)
    world = runtime.Runtime(
        ckpt.meta.robot, seeds, shift=shift, noise=noise, episode_length=ticks, disturbance=disturbance
    )
    n = world.n
    zero = method == "zero"
    cfg = method if isinstance(method, TTAConfig) else method_config("none" if zero else method, **settings)
    fleet = _Fleet(ckpt, cfg, seeds, theta)
    shape = (episodes, ticks, n)
    reward, tracking, angular, q = (np.zeros(shape, np.float32) for _ in range(4))
    alive, fallen, diverged = np.zeros(shape, bool), np.zeros((episodes, n), bool), np.zeros((episodes, n), bool)
    for e in range(episodes):
        obs = world.reset()
        if e:
            fleet.reset()
        for t in range(ticks):
            alive[e, t] = world.alive
            if not world.alive.any():
                break
            action = np.zeros((n, world.action_size), np.float32)
            if not zero:
                fleet.act(obs, world.alive, action, q[e, t])
                if cfg.lr > 0 and t % cfg.update_every == 0:
                    fleet.learn(world.alive)
            obs, reward[e, t], down, _, info = world.step(action)
            if cfg.restore_on_fall and down.any():
                fleet.saw_fall(obs, down)
            tracking[e, t] = info["terms"]["tracking_lin_vel"] * info["active"]
            angular[e, t] = info["terms"]["tracking_ang_vel"] * info["active"]
            fallen[e] |= down
            diverged[e] |= info["diverged"]
            if on_tick is not None:
                on_tick(e, t, world)
    state = fleet.state()
    moved = jax.tree.map(lambda a, b: ((a - b) ** 2).reshape(n, -1).sum(1), state.theta, state.theta0)
    drift = np.sqrt(sum(jax.tree.leaves(moved)))
    scores = np.where(state.memory.stamp >= 0, state.memory.score, np.nan)
    return Rollout(reward, tracking, angular, alive, fallen, diverged, q, drift, state.rollbacks, state.updates, scores)


@dataclass
class Table:
    """Rows of `evaluate`, one a (shift, method), with paired intervals against the frozen policy."""

    rows: list[dict[str, Any]]

    def frame(self) -> Any:
        """A pandas DataFrame (needs pandas)."""
        import pandas

        return pandas.DataFrame(self.rows)

    def __str__(self) -> str:
        return "\n".join([HEAD, "-" * len(HEAD), *map(line, self.rows)])

    def resolution(self) -> float:
        """Half the width of a typical interval, in %: gains below it cannot be told from chance with so many robots. NaN
        where no row of an adapting method has an interval."""
        widths = [(r["gain_high"] - r["gain_low"]) / 2 for r in self.rows if r["method"] not in ("none", "zero")]
        return float(np.median(widths)) if widths else float("nan")


HEAD = (
    f"{'shift':12s} {'method':12s} {'return':>8s} {'gain %':>8s} {'95 % interval':>18s}"
    f" {'falls':>6s} {'alive s':>7s} {'track':>6s} {'Q - real':>9s} {'drift':>7s}"
)


def line(r: dict[str, Any]) -> str:
    """A row of the table as text; "-" where the run cannot say: an interval of one robot, Q against too short a return."""
    interval = "-" if np.isnan(r["gain_low"]) else f"[{r['gain_low']:+.1f}, {r['gain_high']:+.1f}]"
    gain = "" if r["method"] == "none" else f"{r['gain']:+8.1f} {interval:>18s}"
    real = "-" if r["method"] == "zero" or np.isnan(r["gap"]) else f"{r['gap']:+9.3f}"
    left = f"{r['shift']:12s} {r['method']:12s} {r['return']:8.2f} {gain:27s}"
    return f"{left} {r['falls']:6.2f} {r['seconds']:7.1f} {r['tracking']:6.2f} {real:>9s} {r['drift']:7.3f}"


def summary(run: Rollout, discount: float) -> dict[str, float]:
    """Means over robots."""
    real = run.realised(discount)
    m = run.alive[:, : real.shape[1]]
    gap = float((run.q[:, : real.shape[1]] - real)[m].mean()) if m.any() else float("nan")  # too short an episode
    return {
        "return": float(run.returns().mean()),
        "falls": float(run.fallen.mean()),
        "diverged": float(run.diverged.mean()),
        "tracking": float(run.tracking[run.alive].mean()),
        "angular": float(run.angular[run.alive].mean()),
        "per_tick": float(1000 * run.reward[run.alive].mean()),
        "seconds": float(0.02 * run.alive.sum(1).mean()),
        "gap": gap,
        "drift": float(run.drift.mean()),
        "rollbacks": float(run.rollbacks.mean()),
        "updates": float(run.updates.mean()),
    }


def evaluate(
    ckpt: Checkpoint,
    names: Sequence[str] = ("nominal", *shifts.SHIFTS),
    methods: Sequence[str] = TABLE,
    seeds: Sequence[int] = range(16),
    severity: int = 3,
    *,
    ticks: int = 1000,
    episodes: int = 2,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    **settings: Any,
) -> Table:
    """The paired table: every method under every shift, gains relative to the frozen policy on the same seeds.

    All learning methods wait for the same 32 observations, so that they make equally many updates. `settings` reach the
    methods that do not fix them. `on_row` sees every row as soon as it is measured. One robot has a gain, but no interval.
    """
    strange = set(methods) - {*METHODS, "zero"}
    if strange:
        raise ValueError(f"methods: expected {', '.join((*METHODS, 'zero'))}, got {', '.join(sorted(strange))}")
    rows = []
    for name in names:
        shift = shifts.of_severity(ckpt.meta.robot, name, severity)
        frozen = None
        for method in ("none", *(m for m in methods if m != "none")):
            free = {
                k: v for k, v in settings.items() if k not in fixed_settings("none" if method == "zero" else method)
            }
            run = rollout(ckpt, method, shift, seeds, ticks=ticks, episodes=episodes, **({"warmup": 32} | free))
            values = run.returns()
            frozen = values if frozen is None else frozen
            base = abs(float(frozen.mean())) + 1e-9
            change, unknown = list(values - frozen), float("nan")
            gain, low, high = stats.mean_interval(change, 0.95) if len(change) > 1 else (change[0], unknown, unknown)
            row = {"shift": name, "method": method, **summary(run, ckpt.meta.discount)}
            row |= {"gain": 100 * gain / base, "gain_low": 100 * low / base, "gain_high": 100 * high / base}
            rows.append(row)
            on_row(row)
    return Table(rows)
