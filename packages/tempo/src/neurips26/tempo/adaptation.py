"""Test-time adaptation as pure functions: the naive critic-driven update and TEMPO.

One control tick is `act` (forward pass, action, insertion into the memory) and, every `update_every` ticks, `learn`:

    L(theta) = - mean_i w_i [ Qbar(o_i, pi(o_i)) / s_Q + lambda_H H(o_i, pi(o_i)) / log N ]
               + lambda_A |theta - theta_0|^2 / P

with the critic and the normaliser frozen: gradients pass through the critic into the action and never reach its
parameters. The entropy is that of the critic's predicted return distribution, and it is *promoted*: the actor is drawn
away from actions for which the critic claims a sharply peaked return. Everything jits and vmaps over robots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

from . import memory as memories
from .choices import DEFAULTS
from .distributions import ValueDistribution, reduced
from .memory import Memory, ScoreMemory

__all__ = ["METHODS", "Strengths", "TTAConfig", "TTAState", "make_tta", "method_config"]

METHODS = ("none", "naive", "naive-fifo", "entropy", "uniform", "memory", "tempo", "easy-first", "q_greedy")
ADAM = (0.9, 0.999, 1e-8)


class Strengths(NamedTuple):
    """The numbers of a configuration that one compiled update can take as arguments: methods that differ in nothing else
    share the program."""

    lr: jax.Array | float
    entropy_coef: jax.Array | float
    alpha: jax.Array | float


@dataclass(frozen=True)
class TTAConfig:
    """Settings of the adaptation. What the paper leaves open has its default in `choices.Choices`.

    Attributes:
        lr: Adam's step size; 0 leaves the policy untouched, bit for bit.
        batch_size: B observations an update.
        update_every: control ticks between updates.
        updates_per_tick: gradient steps when an update is due.
        entropy_coef: lambda_H.
        anchor_coef: lambda_A, pull towards theta_0.
        source: where an update's observations come from: "latest" (B = 1), "recent" (the last B), "memory" (sampled).
        memory: settings of the memory.
        warmup: observations in the memory before the first update.
        scope: parameters that move: "all", "last" (output layer) or "norm" (scales and shifts of normalisation layers).
        reduce: twin critics by "min" or "mean".
        stochastic: differentiate a reparameterised sample instead of the mean action; for `make_tta` with `log_std`, which
            no checkpoint of the package carries.
        max_grad_norm: clip of the global gradient norm.
        max_drift: largest |theta - theta_0| / sqrt(P), by projection; None for no bound.
        restore_on_fall: go back to the last snapshot taken while upright when the robot falls.
        snapshot_every: updates between snapshots.
        protocol: "continual" (never reset) or "episodic" (theta_0 and an empty memory at every reset).
        greedy_steps, greedy_size: ascent steps on the action and their size, for `q_greedy`.
        refresh_all_every: updates between a rescoring of the whole memory; 0 = never.
    """

    lr: float = DEFAULTS.lr
    batch_size: int = DEFAULTS.batch_size
    update_every: int = DEFAULTS.update_every
    updates_per_tick: int = 1
    entropy_coef: float = DEFAULTS.entropy_coef
    anchor_coef: float = 0.0
    source: str = "memory"
    memory: ScoreMemory = field(default_factory=ScoreMemory)
    warmup: int = 32
    scope: str = "all"
    reduce: str = "min"
    stochastic: bool = False
    max_grad_norm: float = 1.0
    max_drift: float | None = None
    restore_on_fall: bool = False
    snapshot_every: int = 25
    protocol: str = DEFAULTS.protocol
    greedy_steps: int = 0
    greedy_size: float = 0.05
    refresh_all_every: int = 0

    def __post_init__(self) -> None:
        check_real(self.lr, "lr", minimum=0.0)
        check_int(self.batch_size, "batch_size", minimum=1)
        check_int(self.update_every, "update_every", minimum=1)
        check_int(self.updates_per_tick, "updates_per_tick", minimum=1)
        check_real(self.entropy_coef, "entropy_coef", minimum=0.0)
        check_real(self.anchor_coef, "anchor_coef", minimum=0.0)
        check_choice(self.source, "source", ("latest", "recent", "memory"))
        check_choice(self.scope, "scope", ("all", "last", "norm"))
        check_choice(self.reduce, "reduce", ("min", "mean"))
        check_choice(self.protocol, "protocol", ("continual", "episodic"))
        _check_memory(self.memory)
        if self.source != "memory" and self.memory.eviction != "fifo":
            raise ValueError(
                f"memory: expected eviction 'fifo' for source {self.source!r}, got {self.memory.eviction!r}"
            )
        check_int(self.warmup, "warmup", minimum=1)
        check_real(self.max_grad_norm, "max_grad_norm", minimum=0.0, inclusive=False)
        if self.max_drift is not None:
            check_real(self.max_drift, "max_drift", minimum=0.0, inclusive=False)
        check_int(self.greedy_steps, "greedy_steps", minimum=0)
        check_real(self.greedy_size, "greedy_size", minimum=0.0)
        check_flag(self.stochastic, "stochastic")
        check_flag(self.restore_on_fall, "restore_on_fall")
        check_int(self.snapshot_every, "snapshot_every", minimum=1)
        check_int(self.refresh_all_every, "refresh_all_every", minimum=0)

    @property
    def strengths(self) -> Strengths:
        """Step size, lambda_H and the memory's alpha."""
        return Strengths(self.lr, self.entropy_coef, self.memory.alpha)


def check_flag(value: Any, name: str) -> bool:
    """`value` as a bool; text such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _check_memory(memory: Any) -> None:
    if not isinstance(memory, ScoreMemory):
        raise TypeError(f"memory: expected a ScoreMemory, got {memory!r}")


def fixed_settings(method: str) -> dict[str, Any]:
    """What a method's name says; everything else is free."""
    fixed: dict[str, Any] = {
        "source": {"naive": "latest", "naive-fifo": "recent", "entropy": "recent"}.get(method, "memory")
    }
    if method in ("none", "q_greedy", "naive", "naive-fifo", "uniform", "memory"):
        fixed["entropy_coef"] = 0.0
    if method in ("none", "q_greedy"):
        fixed["lr"] = 0.0
    return fixed


def method_config(method: str, **settings: Any) -> TTAConfig:
    """The configuration of a named method; `settings` override shared ones (lr, entropy_coef, memory, ...).

    none: frozen. naive: latest observation. naive-fifo: last B observations. entropy: naive-fifo with the entropy
    term. uniform: memory sampled uniformly. memory: prioritised memory without entropy. tempo: both. easy-first: TEMPO
    with reversed priorities. q_greedy: no learning, the action climbs the critic at every tick.

    Raises:
        ValueError: a setting that does not exist, or that the method's name fixes at another value.
    """
    check_choice(method, "method", METHODS)
    for name in settings:
        check_choice(name, "settings", TTAConfig.__dataclass_fields__)
    memory = settings.pop("memory", ScoreMemory())
    _check_memory(memory)
    alpha = memory.alpha
    easy = method == "easy-first"
    if method == "uniform":
        alpha = 0.0
    elif easy:
        alpha = -abs(alpha)
    ring = {k: getattr(memory, k) for k in memory.__dataclass_fields__} | {"alpha": alpha, "allow_easy_first": easy}
    fixed = fixed_settings(method)
    for name, value in fixed.items():
        if name in settings and settings[name] != value:
            raise ValueError(f"{name}: expected {value!r}, which the method {method!r} fixes, got {settings[name]!r}")
    defaults = {"naive": {"warmup": 1}, "q_greedy": {"greedy_steps": 3}}.get(method, {})
    return TTAConfig(**(defaults | settings | fixed | {"memory": ScoreMemory(**ring)}))


class TTAState(NamedTuple):
    """All that changes while a robot runs; a pytree of arrays."""

    theta: Any
    theta0: Any
    m: Any
    v: Any
    snapshot: Any
    memory: Memory
    key: jax.Array
    step: jax.Array  # control ticks
    updates: jax.Array
    moments: jax.Array  # updates that m and v have seen, which a roll-back starts anew
    rollbacks: jax.Array
    was_fallen: jax.Array


PolicyApply = Callable[[Any, jax.Array], jax.Array]
CriticApply = Callable[[jax.Array, jax.Array], list[ValueDistribution] | ValueDistribution]


class TTA(NamedTuple):
    """The functions of `make_tta`. `update(state, obs) -> (state, action, metrics)` is one whole tick."""

    init: Callable[..., TTAState]
    update: Callable[[TTAState, jax.Array], tuple[TTAState, jax.Array, dict[str, jax.Array]]]
    act: Callable[..., tuple[TTAState, jax.Array, dict[str, jax.Array]]]
    learn: Callable[..., tuple[TTAState, dict[str, jax.Array]]]
    reset: Callable[[TTAState], TTAState]


def scope_mask(params: Any, scope: str) -> Any:
    """1 where a parameter may move."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    if scope == "all":
        chosen = [True] * len(paths)
    elif scope == "norm":
        chosen = [any(word in p for word in ("scale", "shift", "norm")) for p in paths]
    elif isinstance(params, list):
        chosen = [p.startswith(f"[{len(params) - 1}]") for p in paths]
    else:
        chosen = [any(word in p for word in ("'out", "'bias'")) for p in paths]
    if not any(chosen):
        raise ValueError(f"scope: expected parameters of kind {scope!r} in this actor, found none")
    return jax.tree.unflatten(jax.tree.structure(params), [float(c) for c in chosen])


def make_tta(
    policy_apply: PolicyApply,
    critic_apply: CriticApply,
    cfg: TTAConfig,
    *,
    q_scale: float = 1.0,
    normalizer: tuple[np.ndarray, np.ndarray] | None = None,
    fallen_index: int | None = None,
    project: Callable[[Any], Any] = lambda p: p,
    log_std: np.ndarray | None = None,
) -> TTA:
    """The adaptation of one robot as pure functions.

    Args:
        policy_apply: (theta, normalised observation (..., d)) -> action in [-1, 1], the mean action.
        critic_apply: (normalised observation, action) -> a list of value distributions, one a twin (or the only one as it
            is); its parameters are closed over and frozen.
        cfg: settings.
        q_scale: s_Q, the standard deviation of Qbar on the training distribution.
        normalizer: frozen mean and standard deviation of raw observations; observations are clipped to +-10 afterwards.
        fallen_index: entry of the raw observation that is positive when the robot lies on its back (the body's
            gravity z).
        project: re-imposes the actor's invariants after each update.
        log_std: of the pre-tanh action, for `stochastic`.

    Observations must be finite: `TestTimeAdapter` sees to that on a robot.
    """
    for name, value in (("policy_apply", policy_apply), ("critic_apply", critic_apply)):
        if not callable(value):
            raise TypeError(f"{name}: expected a function, got {value!r}")
    if not isinstance(cfg, TTAConfig):
        raise TypeError(f"cfg: expected a TTAConfig, got {cfg!r}")
    check_real(q_scale, "q_scale", minimum=0.0, inclusive=False)
    if normalizer is not None:
        mean, std = (check_array(x, "normalizer", shape=("d",)) for x in normalizer)
        if mean.shape != std.shape or not (std > 0).all():
            raise ValueError("normalizer: expected a mean and as many positive standard deviations")
    if fallen_index is not None:
        check_int(fallen_index, "fallen_index", minimum=0)
    if cfg.stochastic and log_std is None:
        raise ValueError("stochastic: expected an actor with log_std, got a deterministic one")
    batch = 1 if cfg.source == "latest" else cfg.batch_size
    if cfg.source == "recent" and cfg.memory.capacity < batch:
        raise ValueError(
            f"memory: expected a capacity of at least batch_size = {batch} for source 'recent', got {cfg.memory.capacity}"
        )
    a = _Adaptation(policy_apply, critic_apply, cfg, batch, q_scale, normalizer, fallen_index, project, log_std)
    return TTA(a.init, a.update, a.act, a.learn, a.reset)


@dataclass(frozen=True, eq=False)
class _Adaptation:
    """What `make_tta` was given, and the pure functions over it."""

    policy_apply: PolicyApply
    critic_apply: CriticApply
    cfg: TTAConfig
    batch: int
    q_scale: float
    normalizer: tuple[np.ndarray, np.ndarray] | None
    fallen_index: int | None
    project: Callable[[Any], Any]
    log_std: np.ndarray | None

    # -- an episode ----------------------------------------------------------------------------------------------------
    def init(self, theta: Any, key: jax.Array, obs_size: int) -> TTAState:
        """State at theta_0 = theta with an empty memory."""
        self._check_start(theta, key, obs_size)
        theta = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), theta)
        zeros, zero = jax.tree.map(jnp.zeros_like, theta), jnp.zeros((), jnp.int32)
        if self.cfg.scope != "all":
            scope_mask(theta, self.cfg.scope)
        raw = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        empty = self.cfg.memory.empty(obs_size)
        return TTAState(theta, theta, zeros, zeros, theta, empty, raw, zero, zero, zero, zero, jnp.zeros((), bool))

    def _check_start(self, theta: Any, key: Any, obs_size: int) -> None:
        """Raises TypeError or ValueError where a state cannot begin with these."""
        if not hasattr(key, "dtype"):
            raise TypeError(f"key: expected a key of jax.random, got {key!r}")
        check_int(obs_size, "obs_size", minimum=1)
        if self.normalizer is not None and len(self.normalizer[0]) != obs_size:
            raise ValueError(f"obs_size: expected the normalizer's {len(self.normalizer[0])}, got {obs_size}")
        if self.fallen_index is not None and self.fallen_index >= obs_size:
            raise ValueError(f"fallen_index: expected less than the {obs_size} observations, got {self.fallen_index}")
        for leaf in jax.tree.leaves(theta):
            if not isinstance(leaf, jax.core.Tracer) and not np.isfinite(np.asarray(leaf)).all():
                raise ValueError("theta: expected finite parameters, got NaN or infinity")

    def reset(self, state: TTAState) -> TTAState:
        """A new episode: forgets everything under the episodic protocol, nothing under the continual one."""
        if self.cfg.protocol == "continual":
            return state._replace(was_fallen=jnp.zeros((), bool))
        fresh = self.init(state.theta0, state.key, state.memory.obs.shape[1])
        return fresh._replace(rollbacks=state.rollbacks)

    def update(self, state: TTAState, obs: jax.Array) -> tuple[TTAState, jax.Array, dict[str, jax.Array]]:
        """One whole control tick: `act`, then `learn` when an update is due."""
        due = state.step % self.cfg.update_every == 0
        state, action, metrics = self.act(state, obs)
        state, more = jax.lax.cond(due, self.learn, lambda s: (s, {"grad_norm": jnp.zeros(())}), state)
        return state, action, metrics | more

    # -- acting --------------------------------------------------------------------------------------------------------
    def act(
        self, state: TTAState, obs: jax.Array, valid: jax.Array | bool = True
    ) -> tuple[TTAState, jax.Array, dict[str, jax.Array]]:
        """The action for a raw observation, and the observation's entry in the memory unless `valid` is False or the
        robot lies fallen."""
        obs = jnp.asarray(obs)
        if obs.shape != state.memory.obs.shape[1:]:
            raise ValueError(f"obs: expected shape {state.memory.obs.shape[1:]}, got {obs.shape}")
        o = self._normalise(obs)
        fallen = jnp.zeros((), bool) if self.fallen_index is None else obs[self.fallen_index] > 0
        action = self.policy_apply(state.theta, o)
        if self.cfg.greedy_steps:
            action = self._climb(o, action)
        q, h = self._evaluate(o, action, self.cfg.entropy_coef > 0)
        valid = jnp.asarray(valid)
        keep = valid & ~fallen & jnp.isfinite(q)
        ring = memories.add(self.cfg.memory, state.memory, o, q, keep)
        state = state._replace(memory=ring, step=state.step + valid)
        if self.cfg.restore_on_fall:
            state = _restored(state, valid & fallen & ~state.was_fallen)
        state = state._replace(was_fallen=jnp.where(valid, fallen, state.was_fallen))
        return state, jnp.clip(action, -1, 1), {"q": q, "entropy": h, "fallen": fallen}

    def _normalise(self, obs: jax.Array) -> jax.Array:
        if self.normalizer is None:
            return obs
        return jnp.clip((obs - self.normalizer[0]) / self.normalizer[1], -10.0, 10.0)

    def _climb(self, o: jax.Array, start: jax.Array) -> jax.Array:
        """The action after `greedy_steps` up the critic, or `start` where they did not raise it."""
        action = start
        for _ in range(self.cfg.greedy_steps):
            slope = jax.grad(lambda a: self._evaluate(o, a, False)[0])(action)
            action = jnp.clip(action + self.cfg.greedy_size * slope / (jnp.linalg.norm(slope) + 1e-8), -1, 1)
        better = self._evaluate(o, action, False)[0] > self._evaluate(o, start, False)[0]
        return jnp.where(better, action, start)

    def _evaluate(self, obs: jax.Array, action: jax.Array, with_entropy: bool) -> tuple[jax.Array, jax.Array]:
        """Qbar, and the entropy of the predicted return in parts of its maximum (0 unless asked for)."""
        twins = _twins(self.critic_apply(obs, action))
        q = reduced(twins, self.cfg.reduce)
        if not with_entropy:
            return q, jnp.zeros_like(q)
        top = getattr(twins[0], "max_entropy", 1.0)
        return q, sum(t.entropy() for t in twins) / (len(twins) * top)

    # -- learning ------------------------------------------------------------------------------------------------------
    def learn(self, state: TTAState, strengths: Strengths | None = None) -> tuple[TTAState, dict[str, jax.Array]]:
        """The gradient steps of one update (none before `warmup` observations, none at lr = 0).

        `strengths` replace the configured ones, so that one compiled program serves several methods and a whole grid of
        step sizes. An entropy term or a step size that the configuration has at 0 is not in the program at all.
        """
        norm, strengths = jnp.zeros(()), self.cfg.strengths if strengths is None else strengths
        if self.cfg.lr > 0:
            for _ in range(self.cfg.updates_per_tick):
                state, norm = self._one_step(state, strengths)
        return state, {"grad_norm": norm}

    def _one_step(self, state: TTAState, strengths: Strengths) -> tuple[TTAState, jax.Array]:
        cfg = self.cfg
        key, draw, sample = jax.random.split(jax.random.wrap_key_data(state.key), 3)
        index, w = self._draw(state, draw, strengths.alpha)
        obs = state.memory.obs[index]
        grads = jax.grad(self._loss)(state.theta, state.theta0, obs, w, sample, strengths.entropy_coef)
        if cfg.scope != "all":
            grads = jax.tree.map(lambda g, c: g * c, grads, scope_mask(state.theta, cfg.scope))
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, cfg.max_grad_norm / (norm + 1e-12)), grads)
        theta, m, v = _adam(state, grads, strengths.lr)
        theta = self.project(theta)
        if cfg.max_drift is not None:
            theta = _within(theta, state.theta0, cfg.max_drift)
        # guard: nothing that is not finite may enter the state; theta stays at its last good value
        sizes = [norm, *(jnp.abs(x).max() for tree in (theta, m, v) for x in jax.tree.leaves(tree))]
        fine = jnp.isfinite(jnp.stack(sizes)).all()
        theta, m, v = (_where(fine, new, old) for new, old in ((theta, state.theta), (m, state.m), (v, state.v)))
        ready = state.memory.inserted >= min(cfg.warmup, cfg.memory.capacity)
        done = ready & fine
        updates = state.updates + done
        take = done & (updates % cfg.snapshot_every == 0) & ~state.was_fallen
        new = state._replace(
            theta=_where(ready, theta, state.theta),
            m=_where(ready, m, state.m),
            v=_where(ready, v, state.v),
            snapshot=_where(take, theta, state.snapshot) if cfg.restore_on_fall else state.snapshot,
            key=jax.random.key_data(key),
            updates=updates,
            moments=state.moments + done,
            rollbacks=state.rollbacks + (ready & ~fine),
        )
        return (self._rescored(new, obs, index, ready) if cfg.source == "memory" else new), norm

    def _draw(self, state: TTAState, key: jax.Array, alpha: jax.Array | float) -> tuple[jax.Array, jax.Array]:
        """Indices into the memory and weights of one batch."""
        ring = self.cfg.memory
        if self.cfg.source == "memory":
            share = jnp.clip(state.step / ring.beta_steps, 0.0, 1.0)
            beta = ring.beta + (1 - ring.beta) * share
            return memories.sample(ring, state.memory, key, self.batch, beta, alpha)
        newest = state.memory.inserted - 1 - jnp.arange(self.batch)
        return newest % ring.capacity, (newest >= 0).astype(jnp.float32)

    def _loss(
        self,
        theta: Any,
        theta0: Any,
        obs: jax.Array,
        w: jax.Array,
        key: jax.Array,
        entropy_coef: jax.Array | float,
    ) -> jax.Array:
        cfg, action = self.cfg, self.policy_apply(theta, obs)
        if cfg.stochastic:
            noise = jnp.exp(self.log_std) * jax.random.normal(key, action.shape)
            action = jnp.tanh(jnp.arctanh(jnp.clip(action, -1 + 1e-6, 1 - 1e-6)) + noise)
        q, h = self._evaluate(obs, action, cfg.entropy_coef > 0)
        gain = q / self.q_scale
        if cfg.entropy_coef > 0:
            gain = gain + entropy_coef * h
        value = -(w * gain).mean()
        if cfg.anchor_coef > 0:
            pairs = zip(jax.tree.leaves(theta), jax.tree.leaves(theta0), strict=True)
            squares = sum(((a - b) ** 2).sum() for a, b in pairs)
            value = value + cfg.anchor_coef * squares / sum(x.size for x in jax.tree.leaves(theta))
        return value

    def _rescored(self, state: TTAState, obs: jax.Array, index: jax.Array, ready: jax.Array) -> TTAState:
        """The sampled entries (and the whole memory, when that is due) scored with the new theta."""

        def value(o: jax.Array) -> jax.Array:
            return self._evaluate(o, self.policy_apply(state.theta, o), False)[0]

        memory, scores = state.memory, value(obs)
        kept = jnp.where(ready & jnp.isfinite(scores), scores, memory.score[index])
        memory = memories.set_scores(memory, index, kept)
        if self.cfg.refresh_all_every:
            due = (state.updates % self.cfg.refresh_all_every == 0) & ready
            memory = memory._replace(score=jnp.where(due, value(memory.obs), memory.score))
        return state._replace(memory=memory)


def _twins(said: Any) -> list[ValueDistribution]:
    """What a critic gave as a list: a lone distribution is a tuple of arrays, which must not pass for several."""
    twins = [said] if isinstance(said, ValueDistribution) else said
    if not isinstance(twins, list | tuple) or not twins or not all(isinstance(z, ValueDistribution) for z in twins):
        raise TypeError(
            "critic_apply: expected a list of value distributions, objects with mean() and entropy(), got "
            + type(said).__name__
        )
    return list(twins)


def _where(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _adam(state: TTAState, grads: Any, lr: jax.Array | float) -> tuple[Any, Any, Any]:
    """theta and the two moments after one step of Adam (Kingma and Ba 2015)."""
    b1, b2, eps = ADAM
    t = (state.moments + 1).astype(jnp.float32)
    m = jax.tree.map(lambda a, g: b1 * a + (1 - b1) * g, state.m, grads)
    v = jax.tree.map(lambda a, g: b2 * a + (1 - b2) * g * g, state.v, grads)

    def moved(p: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
        return p - lr * (a / (1 - b1**t)) / (jnp.sqrt(c / (1 - b2**t)) + eps)

    return jax.tree.map(moved, state.theta, m, v), m, v


def _restored(state: TTAState, fell: jax.Array) -> TTAState:
    """Back at the last snapshot with fresh moments, where the robot has just fallen."""
    zeros = jax.tree.map(jnp.zeros_like, state.theta)
    return state._replace(
        theta=_where(fell, state.snapshot, state.theta),
        m=_where(fell, zeros, state.m),
        v=_where(fell, zeros, state.v),
        moments=jnp.where(fell, 0, state.moments),
        rollbacks=state.rollbacks + fell,
    )


def _within(theta: Any, theta0: Any, radius: float) -> Any:
    """theta projected onto the ball |theta - theta_0| <= radius * sqrt(P)."""
    moved = jax.tree.map(lambda a, b: a - b, theta, theta0)
    leaves = jax.tree.leaves(moved)
    rms = jnp.sqrt(sum((x**2).sum() for x in leaves) / sum(x.size for x in leaves))
    return jax.tree.map(lambda d, b: b + d * jnp.minimum(1.0, radius / (rms + 1e-12)), moved, theta0)
